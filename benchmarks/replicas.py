"""Tests BERT-GPU's claim at a small size: the same number of steps with one replica and with four
(four times the batch), and how to scale the learning rate.

    python benchmarks/replicas.py --text=corpus.txt --pairs=PAIRS_FOLDER --steps=2000

Builds data from the text, pretrains a small BERT with 1 virtual replica, then with --replicas at
each of --lr_scaling, fine-tunes each on the pairs, and prints one table: validation
loss and accuracy of pretraining; accuracy, F1 and AUC of the pairs. BERT-GPU reports 1 GPU x 100
and 4 GPUs x 100 rows at one learning rate within 0.1 % of each other.
"""

import time

from helpers.command import (
    benchmark_parser,
    load_json,
    names_among,
    read_metrics,
    run_script,
    work_folder,
)
from helpers.report import origin, print_origin, print_table

PAIRS = ("accuracy", "f1", "auc")
SCALINGS = ("none", "sqrt", "linear")


def pretrain(folder, data, arguments, num_replicas, scaling):
    """Trains and returns the values of the last validation."""
    run_script(
        "run_pretraining_gpu.py",
        "--num_gpus=0",
        f"--input_file={data}/*.tfrecord",
        f"--output_dir={folder}",
        f"--model={arguments.model}",
        f"--train_batch_size={arguments.batch_size}",
        f"--virtual_replicas={num_replicas}",
        f"--lr_scaling={scaling}",
        f"--learning_rate={arguments.learning_rate}",
        f"--num_train_steps={arguments.steps}",
        f"--save_checkpoints_steps={arguments.steps}",
        "--log_steps=50",
    )
    return read_metrics(folder)[1][-1]


def fine_tune(folder, model, arguments):
    """Fine-tunes on the pairs and returns the metrics of the dev file."""
    run_script(
        "run_classifier.py",
        "--num_gpus=0",
        f"--init_checkpoint={model}",
        f"--data_dir={arguments.pairs}",
        f"--output_dir={folder}",
        f"--max_seq_length={arguments.max_seq_length}",
        "--num_train_epochs=1",
        "--learning_rate=1e-4",
        "--do_train",
        "--do_eval",
    )
    return load_json(folder / "eval_results.json")


def make_parser():
    parser = benchmark_parser(__doc__, "text", "pairs")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--replicas", type=int, default=4, help="compared with one replica")
    parser.add_argument("--lr_scaling", type=names_among(SCALINGS), default=list(SCALINGS))
    parser.add_argument("--batch_size", type=int, default=16, help="rows of one replica")
    parser.add_argument("--max_seq_length", type=int, default=64)
    parser.add_argument(
        "--learning_rate", type=float, default=5e-4, help="learning rate for one replica's batch"
    )
    return parser


def main():
    arguments = make_parser().parse_args()
    print_origin(origin())
    with work_folder() as scratch:
        data = scratch / "data"
        run_script(
            "create_pretraining_data.py",
            f"--input_file={arguments.text}",
            f"--output_file={data}/text.tfrecord",
            f"--max_seq_length={arguments.max_seq_length}",
            "--max_predictions_per_seq=10",
            "--vocab_size=8192",
            "--dupe_factor=1",
        )
        print(
            f"{arguments.model}, S {arguments.max_seq_length}, "
            f"{arguments.steps} steps, {arguments.batch_size} rows a replica"
        )
        rows = []
        runs = [(1, "none"), *((arguments.replicas, name) for name in arguments.lr_scaling)]
        for num_replicas, scaling in runs:
            folder, started = scratch / f"{num_replicas}-{scaling}", time.monotonic()
            values = pretrain(folder, data, arguments, num_replicas, scaling)
            minutes = (time.monotonic() - started) / 60
            learning_rate = load_json(folder / "run.json")["learning_rate"]
            pairs = fine_tune(
                scratch / f"pairs-{num_replicas}-{scaling}", folder / "model", arguments
            )
            measured = [
                values["eval_loss"],
                values["eval_mlm_accuracy"],
                values["eval_nsp_accuracy"],
                *(pairs[name] for name in PAIRS),
            ]
            cells = [
                num_replicas,
                num_replicas * arguments.batch_size,
                scaling,
                f"{learning_rate:.1e}",
                *(f"{x:.4f}" for x in measured),
            ]
            rows.append([*cells, f"{minutes:.1f}"])
            print("  ".join(map(str, rows[-1])), flush=True)
        header = [
            "replicas",
            "batch",
            "lr_scaling",
            "learning rate",
            "eval loss",
            "MLM accuracy",
            "NSP accuracy",
        ]
        print_table([*header, *(f"pairs {name}" for name in PAIRS), "minutes"], rows)


if __name__ == "__main__":
    main()
