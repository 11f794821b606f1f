#!/usr/bin/env python3
"""What the known ways to train when memory is short cost and change: seconds of a step, memory of
the process, real tokens a second, and the loss after the same steps.

    python benchmarks/techniques.py --text=corpus.txt [--model=mini] [--steps=300] [--seeds=2]
        [--folder=WORK --json=docs/data/techniques.json]
    python benchmarks/techniques.py --table --json=docs/data/techniques.json

Each row is a training on the CPU from the same weights on the same rows. Accumulation, recompute,
bfloat16 and the 8-bit optimizer should end at the loss of the first row, but for noise, which the
seeds of the first row show; frozen weights should not. Tokenizers have a table of their own:
`python benchmarks/data.py`. The last row is the model that none has trained. Runs have a core each,
as many at a time as there are cores, and seconds are those of a core's work, not the time that
passes: the median of the log lines, the lowest of the seeds. Finished rows are in the JSON file and
are not run again.
"""

import functools
import statistics
import sys

from helpers import measure
from helpers.command import (
    PRETRAIN_BY_WORK,
    Failed,
    at_least_one,
    benchmark_parser,
    names_among,
    on_core,
    read_metrics,
    run_script,
    script_command,
    work_folder,
)
from helpers.cores import Cores
from helpers.report import print_table
from helpers.rows import digest, opened_rows
from helpers.shapes import SHAPES

TECHNIQUES = {  # {name: {flag: value}}; HALF: of the layers, QUARTER: of the batch
    "nothing": {},
    "accumulation 4": dict(train_batch_size="QUARTER"),
    "embeddings frozen": dict(freeze="embeddings"),
    "embeddings and half of the layers frozen": dict(freeze="embeddings,layers:HALF"),
    "bfloat16": dict(precision="bfloat16"),
    "8-bit AdamW": dict(optimizer="adamw8bit"),
    "recompute": dict(recompute=True),
    "dynamic padding": dict(padding="dynamic"),
    "uniform padding": dict(padding="uniform"),
    "untrained": dict(learning_rate=1e-30, num_train_steps=1),  # a step that changes no weight
}


def make_data(options, folder):
    if not (folder / "data" / "dataset.json").exists():
        run_script(
            "create_pretraining_data.py",
            input_file=options.text,
            output_dir=folder / "data",
            max_seq_length=options.length,
            vocab_size=8192,
            masking="dynamic",
            dupe_factor=1,
        )


def train(options, folder, name, seed, core):
    """One row: {"seconds" of a step, "peak_bytes", "tokens_per_second", "loss"}; the first and the
    third are None of a run without a log line that is timed.
    """
    output = folder / f"{name.replace(' ', '-')}-{seed}"
    words = dict(
        HALF=str(SHAPES[options.model]["num_hidden_layers"] // 2), QUARTER=str(options.batch // 4)
    )
    settings = {
        flag: words.get(value, str(value).replace("HALF", words["HALF"]))
        for flag, value in TECHNIQUES[name].items()
    }
    flags = dict(
        input_file=f"{folder}/data/*.tfrecord",
        output_dir=output,
        model=options.model,
        num_gpus=0,
        global_batch_size=options.batch,
        train_batch_size=options.batch,
        learning_rate=1e-3,
        lr_scaling="none",
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
        num_train_steps=options.steps,
        log_steps=max(1, options.steps // 10),
        save_checkpoints_steps=10**6,
        seed=seed,
    )
    try:
        command = script_command(PRETRAIN_BY_WORK, **(flags | settings))
        found = measure.run(on_core(core, command))
    except RuntimeError as error:
        raise Failed(str(error)[-300:]) from None
    lines, validations = read_metrics(output)
    timed = [line for line in lines if line["steps_per_second"]]
    steps, tokens = (
        statistics.median(line[name] for line in timed) if timed else None
        for name in ("steps_per_second", "tokens_per_second")
    )
    return dict(
        seconds=1 / steps if timed else None,
        tokens_per_second=tokens,
        peak_bytes=found.peak_bytes,
        loss=validations[-1]["eval_loss"],
    )


def run_all(options, rows):
    """Measures what is not in the rows yet."""
    with work_folder(options.folder) as folder:
        make_data(options, folder)
        cases = [(name, seed) for seed in range(1, options.seeds + 1) for name in options.only]
        one = functools.partial(train, options, folder)
        Cores(options.cores).fill(rows, "runs", cases, one)


def print_rows(names, rows):
    size, table = rows.values["settings"], []
    print(f"\n{size['model']}, {size['batch']} rows of {size['length']}, {size['steps']} steps\n")
    first = rows.of("runs", names[0])
    least = min(row["seconds"] for row in first.values())
    for name in names:
        found = rows.of("runs", name)
        if not found:
            continue
        speeds = ["-"] * 3
        if all(row["seconds"] for row in found.values()):
            seconds = min(row["seconds"] for row in found.values())
            tokens = max(row["tokens_per_second"] for row in found.values())
            speeds = [f"{seconds:.3f}", f"{seconds / least:.2f}", f"{tokens:,.0f}"]
        changes = [row["loss"] - first[seed]["loss"] for seed, row in found.items()]
        table.append(
            [
                name,
                *speeds,
                f"{min(row['peak_bytes'] for row in found.values()) / 2**20:,.0f}",
                f"{statistics.mean(row['loss'] for row in found.values()):.4f}",
                " ".join(f"{change:+.4f}" for change in changes),
            ]
        )
    print_table(
        [
            *("technique", "seconds a step", "share", "real tokens/s", "memory, MB", "loss"),
            "loss - first row's, by seed",
        ],
        table,
    )
    losses = [row["loss"] for row in first.values()]
    if len(losses) > 1:
        print(f"\nNoise: the first row's losses differ by {max(losses) - min(losses):.4f}.")


def make_parser():
    parser = benchmark_parser(__doc__, "text", "json", "folder", "cores", "table")
    parser.add_argument("--model", default="mini", choices=sorted(SHAPES), help="shape")
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--batch", type=int, default=32, help="rows of a step")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=at_least_one, default=2)
    parser.add_argument("--only", type=names_among(TECHNIQUES), default=list(TECHNIQUES))
    return parser


def settings_of(options):
    """What the rows of a JSON file have in common."""
    names = ("model", "length", "batch", "steps")
    return {name: getattr(options, name) for name in names} | dict(text=digest(options.text))


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
