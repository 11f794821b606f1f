"""Compares recipes, and recipes with one thing changed, at one small size and one budget of time,
on the same text, machine and seeds; and one replica with four, for as many steps.

    python benchmarks/recipes.py --text=corpus.txt --pairs=PAIRS_FOLDER --minutes=5 --seeds=3
        [--folder=WORK --json=docs/data/recipes.json] [--only=bert,crammed]
    python benchmarks/recipes.py --table --json=docs/data/recipes.json

The same flags shrink all (shape, batch), and all follow the clock, so that each learning rate
reaches 0 when the time is up; everything else is as in the recipes, but that no document is
dropped: the limit on tokens per character is made for a vocabulary of 32,768. The rows of replicas
are BERT-GPU's claim in small: bert for 500 steps with one virtual replica of 16 rows and with four,
and three ways to scale the learning rate. All are evaluated on the same rows, with equal masks, in
a form that few were trained on: whole sentences, 15 % masked, from held-out documents. All are
fine-tuned on the pairs alike. Prints one table: the mean over the seeds, the lowest and the highest
value. Each finished run is written to the JSON file, and a row in the file is not measured again.

Each run has one core, and its budget of minutes counts the work it does there, not the time that
passes: other work on the machine changes no result. As many run at a time as there are cores.
"""

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
    run_on_cores,
    run_script,
    work_folder,
)
from helpers.models import learn_vocabulary
from helpers.report import digest, opened_rows, pairs_digest, print_table, spread

# The recipes' batches (256 and up to 8,192 rows) and learning rates are for base and days of GPUs.
# These values are for minutes of a CPU, so that all make hundreds of updates.
MASKED = {  # share of a row's tokens
    "bert": 20 / 128,
    "roberta": 77 / 512,
    "crammed": 32 / 128,
    "modern": 39 / 128,
    "budget24h": 20 / 128,
}
BERT = dict(global_batch_size=32, learning_rate=5e-4)
CRAMMED = dict(global_batch_size=128, learning_rate=1e-3)
MUON = dict(optimizer="muon", learning_rate=1e-2)
SMALL, LARGE = (
    dict(num_hidden_layers=layers, hidden_size=width, num_attention_heads=width // 32)
    | dict(intermediate_size=4 * width)
    for layers, width in ((2, 128), (6, 256))
)
UNTRAINED = dict(learning_rate=1e-30, num_train_steps=1)  # a step that changes no weight
BY_STEPS = dict(lr_schedule="step", total_training_time=1000, num_train_steps=500)
REPLICA = BY_STEPS | dict(train_batch_size=16, learning_rate=5e-4)
REPLICAS = REPLICA | dict(virtual_replicas=4)
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
    "one replica": ("bert", REPLICA | dict(lr_scaling="none")),
    "four replicas": ("bert", REPLICAS | dict(lr_scaling="none")),
    "four replicas with sqrt": ("bert", REPLICAS | dict(lr_scaling="sqrt")),
    "four replicas with linear": ("bert", REPLICAS | dict(lr_scaling="linear")),
}
NOTHING_DROPPED = 2.0  # tokens per character: a token has a character at least
SIZES = ("minutes", "steps", "batch_size", "layers", "hidden_size", "max_seq_length", "vocab_size")
COLUMNS = {  # {name: form}
    "steps": "{:,.0f}",
    "epochs": "{:.3f}",
    "tokens/s": "{:,.0f}",
    **dict.fromkeys(("MLM loss", "MLM accuracy", "pairs accuracy", "pairs AUC"), "{:.3f}"),
}


def measure(scratch, options, name, seed, core):
    """Return {column: value} of one variant and seed, measured on a core."""
    recipe, settings = VARIANTS[name]
    shape = dict(
        num_hidden_layers=options.layers,
        hidden_size=options.hidden_size,
        num_attention_heads=options.hidden_size // 32,
        intermediate_size=4 * options.hidden_size,
    ) | {field: settings[field] for field in SMALL if field in settings}
    common = dict(num_gpus=0, core=core, precision=options.precision)
    common |= dict(max_seq_length=options.max_seq_length)
    run = scratch / f"{name}-{seed}".replace(" ", "-")
    budget = dict(
        train_batch_size=options.batch_size,
        lr_schedule="time",
        total_training_time=options.minutes / 60,
        num_train_steps=options.steps,
        save_checkpoints_steps=10**6,
        early_stop_time=10**6,
        validation_marks="",  # of days: in minutes, validation would take most of the time
    )
    settings = budget | settings | shape
    settings["num_train_steps"] = min(options.steps, settings["num_train_steps"])
    run_script(
        PRETRAIN_BY_WORK,
        recipe=recipe,
        input_file=f"{scratch}/data/{recipe}/*.tfrecord",
        output_dir=run,
        seed=seed,
        max_predictions_per_seq=predictions(recipe, options.max_seq_length),
        **common,
        **settings,
    )
    steps, _ = read_metrics(run)
    speeds = [line["tokens_per_second"] for line in steps if line["tokens_per_second"]]
    switches = {field: settings[field] for field in ("norm_first",) if field in settings}
    run_script(
        "run_pretraining_gpu.py",
        recipe=recipe,
        input_file=f"{scratch}/common/*.tfrecord",
        output_dir=run,
        do_eval=True,
        max_predictions_per_seq=predictions("bert", options.max_seq_length),
        **common,
        **shape,
        **switches,
    )
    held_out = load_json(run / "eval_results.json")
    tuned = pathlib.Path(f"{run}-pairs")
    run_script(
        "run_classifier.py",
        init_checkpoint=run / "model",
        data_dir=options.pairs,
        output_dir=tuned,
        seed=seed,
        num_train_epochs=3,
        learning_rate=2e-4,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        do_train=True,
        do_eval=True,
        **common,
    )
    pairs = load_json(tuned / "eval_results.json")
    values = [steps[-1]["step"], steps[-1]["epoch"], statistics.median(speeds) if speeds else None]
    values += [held_out["mlm_loss"], held_out["mlm_accuracy"], pairs["accuracy"], pairs["auc"]]
    return dict(zip(COLUMNS, values, strict=True))


def predictions(recipe, length):
    """Return the number of masked tokens of a row, by the recipe's share."""
    return round(MASKED[recipe] * length)


def make_data(options, scratch):
    """Make the records of each recipe and those that all are evaluated on, with one vocabulary,
    once.
    """
    vocab_file = scratch / "vocab.txt"
    if not vocab_file.exists():
        learn_vocabulary(options.text, vocab_file, options.vocab_size)

    def make(recipe, folder, **settings):
        if not (folder / "dataset.json").exists():
            run_script(
                "create_pretraining_data.py",
                recipe=recipe,
                input_file=options.text,
                output_file=f"{folder}/text.tfrecord",
                vocab_file=vocab_file,
                do_lower_case=True,
                max_seq_length=options.max_seq_length,
                max_predictions_per_seq=predictions(recipe, options.max_seq_length),
                num_shards=1,
                **settings,
            )

    for recipe in dict.fromkeys(VARIANTS[name][0] for name in options.only):
        limit = dict(max_tokens_per_character=NOTHING_DROPPED) if recipe == "crammed" else {}
        make(recipe, scratch / "data" / recipe, **limit)
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
    parser.add_argument("--steps", type=int, default=10**9, help="limit on the steps of a training")
    parser.add_argument("--batch_size", type=int, default=32, help="rows of a micro-batch")
    parser.add_argument("--seeds", type=at_least_one, default=3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden_size", type=int, default=128)
    parser.add_argument("--max_seq_length", type=int, default=64)
    parser.add_argument("--vocab_size", type=int, default=8192)
    return parser


def settings_of(options):
    """Return what the rows of a JSON file have in common."""
    sizes = {name: getattr(options, name) for name in (*SIZES, "precision")}
    return sizes | dict(text=digest(options.text), pairs=pairs_digest(options.pairs))


def run_all(options, rows):
    """Measure the rows that are missing."""
    with work_folder(options.folder) as scratch:
        make_data(options, scratch)

        def row(case, core):
            name, seed = case
            make = lambda: measure(scratch, options, name, seed, core)  # noqa: E731
            rows.row("runs", f"{name}, seed {seed}", make)

        seeds = range(1, options.seeds + 1)
        cases = [(name, seed) for seed in seeds for name in options.only]
        run_on_cores(row, cases, options.cores)


def print_rows(names, rows):
    size = rows.values["settings"]
    print(
        f"\n{size['layers']} layers x {size['hidden_size']}, S {size['max_seq_length']}, "
        f"{size['minutes']:g} minutes of a core's work each\n"
    )
    table = []
    for name in names:
        runs = rows.of("runs", name)
        cells = [
            spread([row[column] for row in runs if row[column] is not None], form)
            for column, form in COLUMNS.items()
        ]
        table += [[name, len(runs), *cells]] if runs else []
    print_table(["recipe", "seeds", *COLUMNS], table)


def main():
    options = make_parser().parse_args()
    try:
        rows = opened_rows(options, settings_of, ("runs",))
        if not options.table:
            run_all(options, rows)
    except Failed as failed:
        sys.exit(f"error: {failed}")
    print_rows(options.only, rows)


if __name__ == "__main__":
    main()
