#!/usr/bin/env python3
"""What dropping near duplicates and repeated lines is worth: small BERTs, trained equally long on a
text as it is and with planted copies, each with and without both flags.

    python benchmarks/copies.py --text=corpus.txt --minutes=5 --seeds=3
        [--folder=WORK --json=copies.json]
    python benchmarks/copies.py --table --json=copies.json

A tenth of the documents is held out before anything is planted, and all are evaluated on it, with
equal masks. Planted: half of the other documents stay; a tenth of these stands ten times more, each
time with one word of 150 replaced, and every document gets the same notice with a number in it.
One vocabulary, of the text as it is. Prints the mean over the seeds, the lowest and the highest
value. Each run has one core, and its minutes count the work that it does there. A row in the JSON
file is not measured again.
"""

import pathlib
import random
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
from helpers.report import digest, opened_rows, print_table, spread

DROPPED = dict(near_duplicates=0.8, drop_repeated_lines=10)
CASES = {  # {case: (name of the text, flags of its data job)}
    "text": ("text", {}),
    "text without copies": ("text", DROPPED),
    "half": ("half", {}),
    "half and planted copies": ("planted", {}),
    "half and planted copies dropped": ("planted", DROPPED),
}
HELD_OUT, COPIED, TIMES, REPLACED = 10, 10, 10, 150
NOTICE = "This page has been viewed {} times since it was moved to our new site."
SIZES = ("minutes", "steps", "batch_size", "layers", "hidden_size", "max_seq_length", "vocab_size")
COLUMNS = {"documents": "{:,.0f}", "steps": "{:,.0f}", "epochs": "{:.2f}"}
COLUMNS |= {"MLM loss": "{:.3f}", "MLM accuracy": "{:.3f}"}


def copy_of(document, words, draw):
    """Return the lines of a document with about one word of REPLACED replaced by another."""
    return [
        " ".join(draw.choice(words) if draw.randrange(REPLACED) == 0 else word for word in line)
        for line in map(str.split, document)
    ]


def write_texts(options, scratch):
    """Write held_out.txt, text.txt, half.txt and planted.txt."""
    draw = random.Random(1)
    parts = pathlib.Path(options.text).read_text().strip().split("\n\n")
    documents = [part.splitlines() for part in parts]
    rest = [part for index, part in enumerate(documents) if index % HELD_OUT]
    half = draw.sample(rest, len(rest) // 2)
    words = [word for document in half[:1000] for line in document for word in line.split()]
    planted = half + [copy_of(part, words, draw) for part in half[::COPIED] for _ in range(TIMES)]
    draw.shuffle(planted)
    planted = [[*part, NOTICE.format(draw.randrange(10**6))] for part in planted]
    texts = dict(held_out=documents[::HELD_OUT], text=rest, half=half, planted=planted)
    for name, own in texts.items():
        (scratch / f"{name}.txt").write_text("\n\n".join(map("\n".join, own)) + "\n")


def folder_of(scratch, case):
    """Return the folder of a case's records."""
    return scratch / f"data {case}".replace(" ", "-")


def make_data(options, scratch):
    """Make the records of each case and those that all are evaluated on, once."""
    vocab_file = scratch / "vocab.txt"
    if not vocab_file.exists():
        write_texts(options, scratch)
        learn_vocabulary(scratch / "text.txt", vocab_file, options.vocab_size)
    for name, (text, flags) in dict(held_out=("held_out", {}), **CASES).items():
        folder = folder_of(scratch, name)
        if name in ("held_out", *options.only) and not (folder / "dataset.json").exists():
            common = dict(objective="full_sentences", masking="dynamic", vocab_file=vocab_file)
            sizes = dict(max_seq_length=options.max_seq_length, num_shards=1)
            files = dict(input_file=scratch / f"{text}.txt", output_dir=folder)
            files |= dict(validation_share=0)
            run_script("create_pretraining_data.py", **common, **sizes, **files, **flags)


def measure(options, scratch, case, seed, core):
    """Return {column: value} of one case and seed, measured on a core."""
    data = folder_of(scratch, case)
    run = scratch / f"run-{data.name}-{seed}"
    common = dict(num_gpus=0, core=core, output_dir=run, max_seq_length=options.max_seq_length)
    common |= dict(
        num_hidden_layers=options.layers,
        hidden_size=options.hidden_size,
        num_attention_heads=options.hidden_size // 32,
        intermediate_size=4 * options.hidden_size,
        norm_first=True,
        position_embedding_type="rotary",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    budget = dict(
        lr_schedule="time",
        total_training_time=options.minutes / 60,
        num_train_steps=options.steps,
        train_batch_size=options.batch_size,
        learning_rate=1e-3,
        lr_scaling="none",
        save_checkpoints_steps=10**9,
    )
    files = dict(input_file=data)
    run_script(PRETRAIN_BY_WORK, **files, **common, **budget, seed=seed)
    steps, _ = read_metrics(run)
    files |= dict(eval_input_file=f"{folder_of(scratch, 'held_out')}/*.tfrecord")
    run_script("run_pretraining_gpu.py", **files, **common, do_eval=True)
    held_out = load_json(run / "eval_results.json")
    documents = load_json(data / "dataset.json")["num_documents"]
    values = [documents, steps[-1]["step"], steps[-1]["epoch"]]
    values += [held_out["mlm_loss"], held_out["mlm_accuracy"]]
    return dict(zip(COLUMNS, values, strict=True))


def make_parser():
    parser = benchmark_parser(__doc__, "text", "json", "folder", "cores", "table")
    parser.add_argument("--only", type=names_among(CASES), default=list(CASES))
    parser.add_argument("--minutes", type=float, default=5.0, help="of a core's work, for each")
    parser.add_argument("--steps", type=int, default=10**9, help="limit on the steps of a training")
    sizes = dict(batch_size=64, seeds=3, layers=2, hidden_size=128, max_seq_length=64)
    for name, value in dict(sizes, vocab_size=8192).items():
        parser.add_argument(f"--{name}", type=at_least_one, default=value)
    return parser


def settings_of(options):
    """Return what the rows of a JSON file have in common."""
    return {name: getattr(options, name) for name in SIZES} | dict(text=digest(options.text))


def run_all(options, rows):
    """Measure the rows that are missing."""
    with work_folder(options.folder) as scratch:
        make_data(options, scratch)

        def row(item, core):
            case, seed = item
            rows.row("runs", f"{case}, seed {seed}", lambda: measure(options, scratch, *item, core))

        items = [(case, seed) for seed in range(1, options.seeds + 1) for case in options.only]
        run_on_cores(row, items, options.cores)


def main():
    options = make_parser().parse_args()
    try:
        rows = opened_rows(options, settings_of, ("runs",))
        if not options.table:
            run_all(options, rows)
    except Failed as failed:
        sys.exit(f"error: {failed}")
    table = []
    for case in options.only:
        if runs := rows.of("runs", case):
            cells = [spread([run[name] for run in runs], form) for name, form in COLUMNS.items()]
            table.append([case, *cells])
    print(f"\nMLM loss on held-out text after {rows.values['settings']['minutes']:g} minutes\n")
    print_table(["trained on", *COLUMNS], table)


if __name__ == "__main__":
    main()
