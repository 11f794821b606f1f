#!/usr/bin/env python3
"""What the recipe quick is chosen by: shapes, rates and lengths beside each other, each trained for
the same time on the clock, then fine-tuned on the bundled pairs with several seeds.

    python benchmarks/quick.py --json=quick.json [--minutes=4] [--seeds=3] [--only=quick,mini]

Each row is written to the JSON file when it is done, and what is there is not measured again. The
first row of the table is the recipe itself; the last columns are the accuracy of the model on the
pairs, and of the same model untrained. Rows that change the fine-tuning alone share a pretraining.
"""

import statistics
import sys

from helpers.command import (
    benchmark_parser,
    load_json,
    names_among,
    read_metrics,
    run_script,
    work_folder,
)
from helpers.report import origin, print_origin, print_table, read_results, write_results

POST_LN = dict(norm_first=False, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
ABSOLUTE, ADAMW = dict(position_embedding_type="absolute"), dict(optimizer="adamw")
# --model drops what the recipe says of the model
MINI = dict(
    model="mini",
    norm_first=True,
    position_embedding_type="rotary",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def batch(size):
    """No more rows are gathered for an update."""
    return dict(train_batch_size=size, global_batch_size=size)


# {name: ({flag of the data: value}, {flag of the pretraining: value}[, {flag of the fine-tuning:
# value}])}, beside --recipe=quick
VARIANTS = {
    "quick": ({}, {}),
    "absolute positions": ({}, ABSOLUTE),
    "absolute positions at 5e-3": ({}, ABSOLUTE | dict(learning_rate=5e-3)),
    "rate 2e-3": ({}, dict(learning_rate=2e-3)),
    "rate 5e-3": ({}, dict(learning_rate=5e-3)),
    "rate 2e-2": ({}, dict(learning_rate=2e-2)),
    "AdamW 2e-3": ({}, ADAMW | dict(learning_rate=2e-3)),
    "AdamW 1e-4 (BERT's own)": ({}, ADAMW | POST_LN | ABSOLUTE | dict(learning_rate=1e-4)),
    "post-LN and dropout": ({}, POST_LN),
    "mini": ({}, MINI),
    "mini and batch 32": ({}, MINI | batch(32)),
    "mini at 5e-3": ({}, MINI | dict(learning_rate=5e-3)),
    "mini in bfloat16": ({}, MINI | dict(precision="bfloat16")),
    "4 layers": ({}, dict(num_hidden_layers=4)),
    "4 layers of 192": (
        {},
        dict(num_hidden_layers=4, hidden_size=192, num_attention_heads=3, intermediate_size=768),
    ),
    "1 layer": ({}, dict(num_hidden_layers=1)),
    "256 wide": ({}, dict(hidden_size=256, num_attention_heads=4, intermediate_size=1024)),
    "64 wide": ({}, dict(hidden_size=64, intermediate_size=256)),
    "batch 16": ({}, batch(16)),
    "batch 32": ({}, batch(32)),
    "batch 128": ({}, batch(128)),
    "length 32": (
        dict(max_seq_length=32, max_predictions_per_seq=5),
        dict(max_seq_length=32, max_predictions_per_seq=5, **batch(128)),
    ),
    "length 32 and batch 32": (
        dict(max_seq_length=32, max_predictions_per_seq=5),
        dict(max_seq_length=32, max_predictions_per_seq=5, **batch(32)),
    ),
    "length 128": (
        dict(max_seq_length=128, max_predictions_per_seq=20),
        dict(max_seq_length=128, max_predictions_per_seq=20, **batch(32)),
    ),
    "2048 pieces": (dict(vocab_size=2048), {}),
    "4096 pieces": (dict(vocab_size=4096), {}),
    "16384 pieces": (dict(vocab_size=16384), {}),
    "25 % masked": (
        dict(masked_lm_prob=0.25, max_predictions_per_seq=16),
        dict(max_predictions_per_seq=16),
    ),
    "dupe_factor 1": (dict(dupe_factor=1), {}),
    "fine-tuning 5e-5": ({}, {}, dict(learning_rate=5e-5)),
    "fine-tuning 1e-4": ({}, {}, dict(learning_rate=1e-4)),
    "fine-tuning 5e-4": ({}, {}, dict(learning_rate=5e-4)),
    "fine-tuning of 3 epochs": ({}, {}, dict(num_train_epochs=3)),
    "fine-tuning of 10 epochs": ({}, {}, dict(num_train_epochs=10)),
}
COLUMNS = ("steps", "MLM loss", "MLM right", "NSP right", "pairs", "untrained")


def name_of(settings):
    """The name of the folder of what is made with {flag: value}."""
    return "-".join(f"{flag}-{value}" for flag, value in settings.items()) or "quick"


def make_data(settings, arguments, scratch):
    """The folder of the data of a variant; made once for equal settings."""
    folder = scratch / "data" / name_of(settings)
    run_script(
        "create_pretraining_data.py",
        recipe="quick",
        input_file=arguments.text,
        output_dir=folder,
        **settings,
    )
    return folder


def pretrain(data, settings, arguments, scratch):
    """The folder of the run of a variant; trained once for equal settings."""
    run = scratch / "runs" / data.name / name_of(settings)
    if (run / "model").exists():
        return run
    length = dict(num_train_steps=arguments.steps) if arguments.steps else {}
    run_script(
        "run_pretraining_gpu.py",
        recipe="quick",
        input_file=f"{data}/*.tfrecord",
        output_dir=run,
        num_gpus=0,
        total_training_time=f"{arguments.minutes}m",
        lr_schedule="time",
        **dict(num_train_steps=10**6) | length,
        **settings,
    )
    return run


def accuracy(settings, seed, arguments, scratch):
    """On the dev pairs. settings: {flag: value} of the fine-tuning and of the model that it starts
    from.
    """
    output = scratch / "pairs" / f"{seed}"
    run_script(
        "run_classifier.py",
        "--overwrite",
        recipe="quick",
        data_dir=arguments.pairs,
        output_dir=output,
        do_train=True,
        do_eval=True,
        seed=seed,
        num_gpus=0,
        **settings,
    )
    return load_json(output / "eval_results.json")["accuracy"]


def measure(name, arguments, scratch):
    """{column: value} of a variant; those of the pairs are lists, a value for each seed."""
    data_settings, settings, tuning = (*VARIANTS[name], {})[:3]
    data = make_data(data_settings, arguments, scratch)
    run = pretrain(data, settings, arguments, scratch)
    steps, evaluations = read_metrics(run)
    last = evaluations[-1]
    model = f"{run}/model"
    shape = dict(
        init_checkpoint="none",
        bert_config_file=f"{model}/config.json",
        vocab_file=f"{data}/vocab.txt",
    )
    starts = {"pairs": dict(init_checkpoint=model), "untrained": shape}
    return {
        "steps": steps[-1]["step"],
        "MLM loss": last["eval_mlm_loss"],
        "MLM right": last["eval_mlm_accuracy"],
        "NSP right": last["eval_nsp_accuracy"],
    } | {
        column: [
            accuracy(tuning | start, seed, arguments, scratch)
            for seed in range(1, arguments.seeds + 1)
        ]
        for column, start in starts.items()
    }


def shown(value):
    if isinstance(value, list):
        if not value:
            return "-"
        return f"{statistics.mean(value):.3f} ({min(value):.3f}-{max(value):.3f})"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def make_parser():
    parser = benchmark_parser(__doc__, "text", "pairs", "json")
    parser.add_argument("--minutes", type=float, default=4.0, help="time of each training (4)")
    parser.add_argument("--steps", type=int, help="end each training after so many steps")
    parser.add_argument("--seeds", type=int, default=3, help="of the fine-tunings (3); 0: none")
    parser.add_argument("--only", type=names_among(VARIANTS), help="these variants alone")
    return parser


def main():
    arguments = make_parser().parse_args()
    done = read_results(arguments.json)
    print_origin(origin())
    names = [name for name in VARIANTS if arguments.only is None or name in arguments.only]
    with work_folder() as scratch:
        for name in names:
            if name not in done:
                done[name] = measure(name, arguments, scratch)
                print(name, done[name], file=sys.stderr, flush=True)
                write_results(arguments.json, done)
    rows = [[name, *(shown(done[name][column]) for column in COLUMNS)] for name in names]
    print_table(["variant", *COLUMNS], rows)


if __name__ == "__main__":
    main()
