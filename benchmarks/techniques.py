#!/usr/bin/env python3
"""What the known ways to train when memory is short cost and change: seconds of a step, memory of
the process, real tokens a second, and the loss after the same steps.

    python benchmarks/techniques.py --text=corpus.txt [--model=mini] [--steps=300] [--seeds=2]
        [--folder=WORK --json=docs/data/techniques.json]

Each row is a training on the CPU from the same weights on the same rows. Accumulation, recompute,
bfloat16 and the 8-bit optimizer should end at the loss of the first row, but for noise, which the
seeds of the first row show; frozen weights should not. Tokenizers have a table of their own:
`python benchmarks/data.py`. Seconds are the median of the log lines, the lowest of the seeds; rows
of a seed run one after another, and the machine should do nothing else. Finished rows are in the
JSON file and are not run again.
"""

import statistics
import sys

from helpers import measure
from helpers.command import (
    Failed,
    benchmark_parser,
    names_among,
    read_metrics,
    run_script,
    script_command,
    work_folder,
)
from helpers.report import origin, print_origin, print_table
from helpers.rows import Rows, digest
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


def train(options, folder, name, seed):
    """One row: {"seconds" of a step, "peak_bytes", "tokens_per_second", "loss"}."""
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
        found = measure.run(script_command("run_pretraining_gpu.py", **(flags | settings)))
    except RuntimeError as error:
        raise Failed(str(error)[-300:]) from None
    lines, validations = read_metrics(output)
    timed = [line for line in lines if line["steps_per_second"]]
    return dict(
        seconds=1 / statistics.median(line["steps_per_second"] for line in timed),
        tokens_per_second=statistics.median(line["tokens_per_second"] for line in timed),
        peak_bytes=found.peak_bytes,
        loss=validations[-1]["eval_loss"],
    )


def print_rows(options, rows):
    table = []
    for name in options.only:
        found = [rows.values["runs"][f"{name}, seed {seed}"] for seed in options.seed_numbers]
        first = [
            rows.values["runs"][f"{options.only[0]}, seed {seed}"] for seed in options.seed_numbers
        ]
        seconds, least = (min(row["seconds"] for row in each) for each in (found, first))
        changes = [row["loss"] - other["loss"] for row, other in zip(found, first, strict=True)]
        table.append(
            [
                name,
                f"{seconds:.3f}",
                f"{seconds / least:.2f}",
                f"{max(row['tokens_per_second'] for row in found):,.0f}",
                f"{min(row['peak_bytes'] for row in found) / 2**20:,.0f}",
                f"{statistics.mean(row['loss'] for row in found):.4f}",
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
    losses = [
        rows.values["runs"][f"{options.only[0]}, seed {seed}"]["loss"]
        for seed in options.seed_numbers
    ]
    if len(losses) > 1:
        print(f"\nNoise: the first row's losses differ by {max(losses) - min(losses):.4f}.")


def make_parser():
    parser = benchmark_parser(__doc__, "text", "json")
    parser.add_argument("--folder", help="keeps records and runs here")
    parser.add_argument("--model", default="mini", choices=sorted(SHAPES), help="shape")
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--batch", type=int, default=32, help="rows of a step")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", type=names_among(TECHNIQUES), default=list(TECHNIQUES))
    return parser


def main():
    options = make_parser().parse_args()
    options.seed_numbers = range(1, options.seeds + 1)
    print_origin(origin())
    names = ("model", "length", "batch", "steps")
    settings = {name: getattr(options, name) for name in names} | dict(text=digest(options.text))
    try:
        rows = Rows(options.json, settings, ("runs",))
        with work_folder(options.folder) as folder:
            make_data(options, folder)
            for seed in options.seed_numbers:
                for name in options.only:
                    rows.row(
                        "runs",
                        f"{name}, seed {seed}",
                        lambda name=name, seed=seed: train(options, folder, name, seed),
                    )
    except Failed as failed:
        sys.exit(f"error: {failed}")
    print(f"\n{options.model}, {options.batch} rows of {options.length}, {options.steps} steps\n")
    print_rows(options, rows)


if __name__ == "__main__":
    main()
