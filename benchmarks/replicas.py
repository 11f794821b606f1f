#!/usr/bin/env python3
"""Tests BERT-GPU's claim at a small size: the same number of steps with one replica and with four
(four times the batch), and how to scale the learning rate.

    python benchmarks/replicas.py --text=corpus.txt --pairs=PAIRS_FOLDER --steps=500 --seeds=3
        [--folder=WORK --json=docs/data/replicas.json]
    python benchmarks/replicas.py --table --json=docs/data/replicas.json

Builds data from the text, pretrains a small BERT with 1 virtual replica, then with --replicas at
each of --lr_scaling, fine-tunes each on the pairs, and prints one table: validation loss and
accuracy of pretraining; accuracy, F1 and AUC of the pairs; the mean over the seeds, the lowest and
the highest value. The first row is the same model without pretraining. BERT-GPU reports 1 GPU x 100
and 4 GPUs x 100 rows at one learning rate within 0.1 % of each other.

Each finished run is written to the JSON file, and what is there is not run again. Runs have a core
each, as many at a time as there are cores.
"""

import functools
import pathlib
import sys

from helpers.command import (
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
from helpers.report import print_table, spread
from helpers.rows import digest, opened_rows

PRETRAINING = ("eval_loss", "eval_mlm_accuracy", "eval_nsp_accuracy")
PAIRS = ("accuracy", "f1", "auc")
SCALINGS = ("none", "sqrt", "linear")
UNTRAINED = "untrained"


def measure(scratch, arguments, case, core):
    """{column: value} of one case, (replicas, scaling, seed), on a core. Of an untrained model the
    pretraining columns are missing; its shape is that of the first case's model.
    """
    num_replicas, scaling, seed = case
    folder = scratch / f"{num_replicas}-{scaling}-{seed}"
    tuned = scratch / f"pairs-{folder.name}"
    if num_replicas == UNTRAINED:
        model = scratch / f"1-none-{seed}" / "model"
        start = dict(
            init_checkpoint="none",
            bert_config_file=model / "config.json",
            vocab_file=model / "vocab.txt",
        )
        return fine_tune(tuned, arguments, seed, core, **start)
    run_script(
        "run_pretraining_gpu.py",
        num_gpus=0,
        core=core,
        seed=seed,
        input_file=f"{scratch}/data/*.tfrecord",
        output_dir=folder,
        model=arguments.model,
        train_batch_size=arguments.batch_size,
        virtual_replicas=num_replicas,
        lr_scaling=scaling,
        learning_rate=arguments.learning_rate,
        num_train_steps=arguments.steps,
        save_checkpoints_steps=arguments.steps,
        log_steps=50,
    )
    values = read_metrics(folder)[1][-1]
    return (
        dict(learning_rate=load_json(folder / "run.json")["learning_rate"])
        | {name: values[name] for name in PRETRAINING}
        | fine_tune(tuned, arguments, seed, core, init_checkpoint=folder / "model")
    )


def fine_tune(folder, arguments, seed, core, **start):
    """Fine-tunes on the pairs and returns the metrics of the dev file."""
    run_script(
        "run_classifier.py",
        "--do_train",
        "--do_eval",
        num_gpus=0,
        core=core,
        seed=seed,
        data_dir=arguments.pairs,
        output_dir=folder,
        max_seq_length=arguments.max_seq_length,
        num_train_epochs=arguments.pair_epochs,
        learning_rate=1e-4,
        **start,
    )
    found = load_json(folder / "eval_results.json")
    return {name: found[name] for name in PAIRS}


def make_parser():
    parser = benchmark_parser(__doc__, "text", "pairs", "json", "folder", "cores", "table")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=at_least_one, default=3)
    parser.add_argument("--replicas", type=int, default=4, help="compared with one replica")
    parser.add_argument("--lr_scaling", type=names_among(SCALINGS), default=list(SCALINGS))
    parser.add_argument("--batch_size", type=int, default=16, help="rows of one replica")
    parser.add_argument("--max_seq_length", type=int, default=64)
    parser.add_argument(
        "--learning_rate", type=float, default=5e-4, help="learning rate for one replica's batch"
    )
    parser.add_argument("--pair_epochs", type=float, default=1.0)
    return parser


def settings_of(arguments):
    """What the rows of a JSON file have in common."""
    names = ("model", "steps", "batch_size", "max_seq_length", "learning_rate", "pair_epochs")
    files = sorted(pathlib.Path(arguments.pairs).glob("*.tsv"))
    return {name: getattr(arguments, name) for name in names} | dict(
        text=digest(arguments.text), pairs=digest(*files)
    )


def name_of(num_replicas, scaling):
    return f"{num_replicas} {scaling}".strip()


def run_all(arguments, runs, rows):
    """Measures what is not in the rows yet; the untrained model last, because it has the shape of a
    trained one.
    """
    cores, seeds = Cores(arguments.cores), range(1, arguments.seeds + 1)
    with work_folder(arguments.folder) as scratch:
        if not (scratch / "data" / "dataset.json").exists():
            run_script(
                "create_pretraining_data.py",
                input_file=arguments.text,
                output_file=f"{scratch}/data/text.tfrecord",
                max_seq_length=arguments.max_seq_length,
                max_predictions_per_seq=10,
                vocab_size=8192,
                dupe_factor=1,
            )

        def row(case, core):
            *run, seed = case
            make = functools.partial(measure, scratch, arguments, case, core)
            rows.row("runs", f"{name_of(*run)}, seed {seed}", make)

        untrained, *trained = runs
        cores.each(row, [(*run, seed) for seed in seeds for run in trained])
        cores.each(row, [(*untrained, seed) for seed in seeds])


def print_rows(runs, rows):
    size, table = rows.values["settings"], []
    print(
        f"\n{size['model']}, S {size['max_seq_length']}, {size['steps']} steps, "
        f"{size['batch_size']} rows a replica\n"
    )
    for num_replicas, scaling in runs:
        found = list(rows.of("runs", name_of(num_replicas, scaling)).values())
        if not found:
            continue
        what = [num_replicas, "-", "-", "-"]
        if num_replicas != UNTRAINED:
            rate = found[0]["learning_rate"]
            what[1:] = num_replicas * size["batch_size"], scaling, f"{rate:.1e}"
        columns = [
            spread([row[name] for row in found if name in row], "{:.4f}")
            for name in (*PRETRAINING, *PAIRS)
        ]
        table.append([*what, len(found), *columns])
    header = ["replicas", "batch", "lr_scaling", "learning rate", "seeds"]
    header += ["eval loss", "MLM accuracy", "NSP accuracy", *(f"pairs {name}" for name in PAIRS)]
    print_table(header, table)


def main():
    arguments = make_parser().parse_args()
    runs = [(UNTRAINED, ""), (1, "none")]
    runs += [(arguments.replicas, name) for name in arguments.lr_scaling]
    try:
        rows = opened_rows(arguments, settings_of, ("runs",))
        if not arguments.table:
            run_all(arguments, runs, rows)
    except Failed as failed:
        sys.exit(f"error: {failed}")
    print_rows(runs, rows)


if __name__ == "__main__":
    main()
