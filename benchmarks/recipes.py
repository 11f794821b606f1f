"""Compares recipes, and recipes with one thing changed, at one small size and one budget of time,
on the same text, machine and seeds.

    python benchmarks/recipes.py --text=corpus.txt --pairs=PAIRS_FOLDER --minutes=5 --seeds=3
        [--folder=WORK --json=docs/data/recipes.json] [--only=bert,crammed]
    python benchmarks/recipes.py --table --json=docs/data/recipes.json

The same flags shrink all (shape, batch), and all follow the clock, so that each learning rate
reaches 0 when the time is up; all else is as in the recipes, but that no document is dropped: the
limit on tokens per character is made for a vocabulary of 32,768. All are evaluated on the same
rows, with equal masks, in a form that few were trained on: whole sentences, 15 % masked, from
held-out documents. All are fine-tuned on the pairs alike. Prints one table: the mean over the
seeds, the lowest and the highest value. Each finished run is written to the JSON file, and what is
there is not run again.

Each run has one core, and its budget of minutes counts the work it does there, not the time that
passes: what else the machine does changes no result. As many run at a time as there are cores.
"""

import functools
import pathlib
import statistics
import sys

from helpers.command import (
    PRETRAIN_BY_WORK,
    Failed,
    at_least_one,
    benchmark_parser,
    load_json,
    names_among,
    read_metrics,
    run_script,
    work_folder,
)
from helpers.cores import Cores
from helpers.models import learn_vocabulary
from helpers.report import print_table, spread
from helpers.rows import digest, opened_rows

# The recipes' batches (256 and up to 8,192 rows) and learning rates are for base and days of GPUs.
# These values are for minutes of a CPU, so that all make hundreds of updates.
MASKED = {  # share of a row's tokens
    "bert": 20 / 128,
    "roberta": 77 / 512,
    "crammed": 32 / 128,
    "modern": 39 / 128,
    "budget24h": 20 / 128,
}
BERT, CRAMMED = (
    dict(global_batch_size=32, learning_rate=5e-4),
    dict(global_batch_size=128, learning_rate=1e-3),
)
MUON = dict(optimizer="muon", learning_rate=1e-2)
SMALL, LARGE = (
    dict(num_hidden_layers=layers, hidden_size=width, num_attention_heads=width // 32)
    | dict(intermediate_size=4 * width)
    for layers, width in ((2, 128), (6, 256))
)
UNTRAINED = dict(learning_rate=1e-30, num_train_steps=1)  # a step that changes no weight
VARIANTS = {  # {name: (recipe, {flag of the pretraining: value})}
    "untrained bert": ("bert", BERT | UNTRAINED),
    "untrained crammed": ("crammed", CRAMMED | UNTRAINED),
    "bert": ("bert", BERT),
    "bert Muon": ("bert", BERT | MUON),
    "roberta": ("roberta", CRAMMED),
    "roberta Muon": ("roberta", CRAMMED | MUON),
    "crammed": ("crammed", CRAMMED),
    "crammed Muon": ("crammed", CRAMMED | MUON),
    "modern AdamW": ("modern", CRAMMED | dict(optimizer="adamw")),
    "modern Muon": ("modern", CRAMMED | MUON),
    "modern Muon 0.2": ("modern", CRAMMED | MUON | dict(muon_lr_ratio=0.2)),
    "crammed without its batch ramp": ("crammed", CRAMMED | dict(batch_ramp_proportion=0)),
    "crammed without its triangle": ("crammed", CRAMMED | dict(curve="linear")),
    "crammed without its pre-LN": ("crammed", CRAMMED | dict(norm_first=False)),
    "24-hour BERT small": ("budget24h", CRAMMED | SMALL),
    "24-hour BERT large": ("budget24h", CRAMMED | LARGE),
}
NOTHING_DROPPED = 2.0  # tokens per character: a token has a character at least
COLUMNS = {  # {name: form}
    "steps": "{:,.0f}",
    "epochs": "{:.3f}",
    "tokens/s": "{:,.0f}",
    **dict.fromkeys(("MLM loss", "MLM accuracy", "pairs accuracy", "pairs AUC"), "{:.3f}"),
}


def measure(scratch, arguments, name, seed, core):
    """{column: value} of one variant and seed, measured on a core."""
    recipe, settings = VARIANTS[name]
    shape = dict(
        num_hidden_layers=arguments.layers,
        hidden_size=arguments.hidden_size,
        num_attention_heads=arguments.hidden_size // 32,
        intermediate_size=4 * arguments.hidden_size,
    ) | {field: settings[field] for field in SMALL if field in settings}
    length = dict(max_seq_length=arguments.max_seq_length)
    run = scratch / f"{name}-{seed}".replace(" ", "-")
    run_script(
        PRETRAIN_BY_WORK,
        recipe=recipe,
        input_file=f"{data_folder(recipe, scratch)}/*.tfrecord",
        output_dir=run,
        num_gpus=0,
        core=core,
        seed=seed,
        precision=arguments.precision,
        train_batch_size=arguments.batch_size,
        lr_schedule="time",
        total_training_time=arguments.minutes / 60,
        save_checkpoints_steps=10**6,
        early_stop_time=10**6,
        validation_marks="",  # of days: in minutes, validation would take most of the time
        max_predictions_per_seq=predictions(recipe, arguments.max_seq_length),
        **length,
        **(dict(num_train_steps=arguments.steps) | settings | shape),
    )
    steps, _ = read_metrics(run)
    speeds = [line["tokens_per_second"] for line in steps if line["tokens_per_second"]]
    switches = {field: settings[field] for field in ("norm_first",) if field in settings}
    run_script(
        "run_pretraining_gpu.py",
        recipe=recipe,
        input_file=f"{scratch}/common/*.tfrecord",
        output_dir=run,
        num_gpus=0,
        core=core,
        precision=arguments.precision,
        do_eval=True,
        max_predictions_per_seq=predictions("bert", arguments.max_seq_length),
        **length,
        **(shape | switches),
    )
    common = load_json(run / "eval_results.json")
    tuned = pathlib.Path(f"{run}-pairs")
    run_script(
        "run_classifier.py",
        init_checkpoint=run / "model",
        data_dir=arguments.pairs,
        output_dir=tuned,
        num_gpus=0,
        core=core,
        seed=seed,
        precision=arguments.precision,
        max_seq_length=arguments.max_seq_length,
        num_train_epochs=3,
        learning_rate=2e-4,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        do_train=True,
        do_eval=True,
    )
    pairs = load_json(tuned / "eval_results.json")
    return dict(
        zip(
            COLUMNS,
            (
                *(steps[-1]["step"], steps[-1]["epoch"]),
                statistics.median(speeds) if speeds else None,
                *(common["mlm_loss"], common["mlm_accuracy"]),
                *(pairs["accuracy"], pairs["auc"]),
            ),
            strict=True,
        )
    )


def predictions(recipe, length):
    """Masked tokens of a row, by the recipe's share."""
    return round(MASKED[recipe] * length)


def data_folder(recipe, scratch):
    return scratch / "data" / recipe


def make_data(arguments, scratch):
    """The records of each recipe and those that all are evaluated on, with one vocabulary; made
    once.
    """
    wanted = list(dict.fromkeys(VARIANTS[name][0] for name in arguments.only))
    common = dict(input_file=arguments.text, max_seq_length=arguments.max_seq_length, num_shards=1)
    vocab_file = scratch / "vocab.txt"

    def make(recipe, folder, **settings):
        if (folder / "dataset.json").exists():
            return
        run_script(
            "create_pretraining_data.py",
            recipe=recipe,
            output_file=f"{folder}/text.tfrecord",
            vocab_file=vocab_file,
            do_lower_case=True,
            max_predictions_per_seq=predictions(recipe, arguments.max_seq_length),
            **common,
            **settings,
        )

    if not vocab_file.exists():
        learn_vocabulary(arguments.text, vocab_file, arguments.vocab_size)
    for recipe in wanted:
        dropped = dict(max_tokens_per_character=NOTHING_DROPPED) if recipe == "crammed" else {}
        make(recipe, data_folder(recipe, scratch), **dropped)
    held_out = dict(objective="full_sentences", masking="static", dupe_factor=1)
    make("bert", scratch / "common", **held_out)


def make_parser():
    parser = benchmark_parser(__doc__, "text", "pairs", "json", "folder", "cores", "table")
    names = ", ".join(VARIANTS)
    parser.add_argument(
        "--only", type=names_among(VARIANTS), default=list(VARIANTS), help=f"some of {names}"
    )
    parser.add_argument("--precision", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--minutes", type=float, default=5.0, help="of a core's work, for each")
    parser.add_argument(
        "--steps", type=int, default=10**9, help="end each training after so many steps"
    )
    parser.add_argument("--batch_size", type=int, default=32, help="rows of a micro-batch")
    parser.add_argument("--seeds", type=at_least_one, default=3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden_size", type=int, default=128)
    parser.add_argument("--max_seq_length", type=int, default=64)
    parser.add_argument("--vocab_size", type=int, default=8192)
    return parser


def settings_of(arguments):
    """What the rows of a JSON file have in common."""
    names = ("minutes", "steps", "batch_size", "layers", "hidden_size", "max_seq_length")
    files = sorted(pathlib.Path(arguments.pairs).glob("*.tsv"))
    return {name: getattr(arguments, name) for name in (*names, "vocab_size", "precision")} | dict(
        text=digest(arguments.text), pairs=digest(*files)
    )


def run_all(arguments, rows):
    """Measures what is not in the rows yet."""
    with work_folder(arguments.folder) as scratch:
        make_data(arguments, scratch)
        seeds = range(1, arguments.seeds + 1)
        cases = [(name, seed) for seed in seeds for name in arguments.only]
        one = functools.partial(measure, scratch, arguments)
        Cores(arguments.cores).fill(rows, "runs", cases, one)


def print_rows(names, rows):
    size = rows.values["settings"]
    print(
        f"\n{size['layers']} layers x {size['hidden_size']}, S {size['max_seq_length']}, "
        f"{size['minutes']:g} minutes of a core's work each\n"
    )
    table = []
    for name in names:
        found = rows.of("runs", name).values()
        cells = [
            spread([row[column] for row in found if row[column] is not None], form)
            for column, form in COLUMNS.items()
        ]
        table += [[name, len(found), *cells]] if found else []
    print_table(["recipe", "seeds", *COLUMNS], table)


def main():
    arguments = make_parser().parse_args()
    try:
        rows = opened_rows(arguments, settings_of, ("runs",))
        if not arguments.table:
            run_all(arguments, rows)
    except Failed as failed:
        sys.exit(f"error: {failed}")
    print_rows(arguments.only, rows)


if __name__ == "__main__":
    main()
