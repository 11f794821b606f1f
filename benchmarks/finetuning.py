#!/usr/bin/env python3
"""Compares fine-tuning on pairs with Hugging Face's Trainer on PyTorch, in one run on the CPU: real
tokens a second of training and of prediction, with each way to pad; and what frozen layers save.

    BERT_GPU_ORACLE_PYTHON=PYTHON python benchmarks/finetuning.py --pairs=PAIRS
        [--model=6x384] [--precision=float32,bfloat16] [--json=docs/data/finetuning.json]
    python benchmarks/finetuning.py --part=freezing --pairs=PAIRS --init_checkpoint=MODEL

`padding`: the same random weights, batch, dropout, clipping and AdamW; every variant has its own
process, and they take turns. The first half of each training, in which programs are traced and
compiled, is not counted. Values are medians of the turns. The probabilities that the start model
predicts are compared with ours at the first padding. `freezing`: a pretrained model is fine-tuned
with parts of it frozen: seconds of a step, peak memory of the process, accuracy. PYTHON is an
environment with torch, transformers and accelerate.
"""

import argparse
import statistics
import sys

import numpy as np
from helpers import measure
from helpers.command import (
    Failed,
    add_python,
    at_least_one,
    benchmark_parser,
    load_json,
    names_among,
    read_metrics,
    script_command,
    work_folder,
)
from helpers.models import make_model
from helpers.process import Race
from helpers.report import origin, print_origin, print_table, read_results, spread, write_results
from helpers.shapes import SHAPES

PARTS = ("padding", "freezing")
PRECISIONS = ("float32", "bfloat16")
PADDINGS = ("fixed", "dynamic", "uniform")
TARGETS = dict(float32=1.25, bfloat16=1.5)  # our best tokens/s divided by their best
PHASES = dict(train="training", predict="prediction")
FROZEN = {  # {name: --freeze}
    "nothing": "",
    "embeddings": "embeddings",
    "embeddings and half of the layers": "embeddings,layers:HALF",
    "all but the pooler and the classifier": "embeddings,layers:ALL",
}


def variants(paddings):
    """Return {name: (system, settings)}."""
    entries = {f"ours, {name}": ("finetuning_ours", dict(padding=name)) for name in paddings}
    for name in paddings:
        entries[f"Trainer, {name}"] = ("finetuning_hugging_face", dict(padding=name))
    if "fixed" in paddings:
        settings = dict(padding="fixed", compiled=True)
        entries["Trainer, fixed, compiled"] = ("finetuning_hugging_face", settings)
    return entries


def compare(options, folder, precision):
    """Return {variant: {"train", "predict": tokens/s of each turn, "loss", "difference": of
    probabilities} or {"error"}}.
    """

    def turn(name, peer, result):
        output = None if result["predict"] else str(folder / f"{name}.npy")
        training = peer.ask("train", patience=3600, num_steps=options.steps)
        prediction = peer.ask("predict", patience=3600, output=output)
        result["train"].append(training["tokens_per_second"])
        result["predict"].append(prediction["tokens_per_second"])
        result["loss"] = training["loss"]
        print(f"  {precision}, {name}: {result}", file=sys.stderr, flush=True)

    common = dict(model=str(folder / "model"), pairs=options.pairs, batch=options.batch)
    common |= dict(precision=precision)
    with Race(options.oracle_python) as race:
        for name, (system, settings) in variants(options.paddings).items():
            race.start(name, system, common | settings, lambda peer: dict(train=[], predict=[]))
        for _ in range(options.turns):
            race.turn(turn)
        ours = np.load(folder / f"ours, {options.paddings[0]}.npy")
        for name in race.peers:
            difference = np.abs(np.load(folder / f"{name}.npy") - ours).max()
            race.results[name]["difference"] = float(difference)
    return race.results


def best_of(results, system, phase):
    """Return (median tokens/s, name) of a system's fastest variant; None when none was measured."""
    speeds = [
        (statistics.median(result[phase]), name)
        for name, result in results.items()
        if name.startswith(system) and "error" not in result
    ]
    return max(speeds, default=None)


def print_comparison(precision, results):
    rows = []
    for name, result in results.items():
        if "error" in result:
            rows.append([name, "", "", "", result["error"]])
            continue
        speeds = [f"{statistics.median(result[phase]):,.0f}" for phase in PHASES]
        rows.append([name, *speeds, f"{result['loss']:.3f}", f"{result['difference']:.0e}"])
    print(f"\n{precision}: real tokens a second\n")
    print_table(("variant", *PHASES.values(), "loss", "largest difference"), rows)
    print()
    for phase, label in PHASES.items():
        ours, theirs = (best_of(results, system, phase) for system in ("ours", "Trainer"))
        if ours is None or theirs is None:
            print(f"{label}: no comparison")
            continue
        times, goal = ours[0] / theirs[0], TARGETS[precision]
        print(
            f"{label}: {ours[1]} is {times:.2f} x {theirs[1]}, each its best "
            f"(goal {goal}: {'reached' if times >= goal else 'missed'})"
        )


def freeze(options, folder, name, seed):
    """Fine-tune once, parts frozen. Returns {"seconds": of a step, "peak_bytes", "accuracy"}."""
    layers = load_json(f"{options.init_checkpoint}/config.json")["num_hidden_layers"]
    parts = FROZEN[name].replace("HALF", str(layers // 2)).replace("ALL", str(layers))
    output = folder / f"{name}-{seed}"
    command = script_command(
        "run_classifier.py",
        data_dir=options.pairs,
        output_dir=output,
        init_checkpoint=options.init_checkpoint,
        do_train=True,
        do_eval=True,
        num_gpus=0,
        seed=seed,
        train_batch_size=options.batch,
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        **(dict(freeze=parts) if parts else {}),
    )
    try:
        run = measure.run(command)
    except RuntimeError as error:
        raise Failed(str(error)[-300:]) from None
    lines, _ = read_metrics(output)
    speeds = [line["steps_per_second"] for line in lines if line["steps_per_second"]]
    if not speeds:
        raise Failed("too few steps to time: more --epochs, or a smaller --batch")
    accuracy = load_json(output / "eval_results.json")["accuracy"]
    seconds = 1 / statistics.median(speeds)
    return dict(seconds=seconds, peak_bytes=run.peak_bytes, accuracy=accuracy)


def print_freezing(results):
    """Print the table of {name: list of results of `freeze`}."""
    table, first = [], None
    for name, rows in results.items():
        seconds, peak = (
            statistics.median(row[field] for row in rows) for field in ("seconds", "peak_bytes")
        )
        first = first or seconds
        cells = [f"{seconds:.3f}", f"{seconds / first:.2f}", f"{peak / 2**20:,.0f}"]
        table.append([name, *cells, spread([row["accuracy"] for row in rows])])
    print_table(("frozen", "seconds a step", "share", "peak memory, MB", "accuracy"), table)


def even(text):
    """Read a positive even number, for argparse."""
    value = int(text)
    if value < 2 or value % 2:
        raise argparse.ArgumentTypeError(f"{text}: must be an even number from 2 on")
    return value


def make_parser():
    parser = benchmark_parser(__doc__, "text", "pairs", "json")
    parser.add_argument("--part", type=names_among(PARTS), default=["padding"])
    parser.add_argument("--model", default="6x384", choices=sorted(SHAPES), help="shape")
    parser.add_argument("--precision", type=names_among(PRECISIONS), default=["float32"])
    parser.add_argument("--paddings", type=names_among(PADDINGS), default=list(PADDINGS))
    parser.add_argument("--batch", type=int, default=32, help="pairs")
    parser.add_argument("--steps", type=even, default=40, help="of a turn's training; even")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--init_checkpoint", help="of `freezing`: a pretrained model")
    parser.add_argument("--frozen", type=names_among(FROZEN), default=list(FROZEN))
    parser.add_argument("--seeds", type=at_least_one, default=3, help="of `freezing`")
    parser.add_argument("--epochs", type=float, default=3.0, help="of `freezing`")
    parser.add_argument("--learning_rate", type=float, default=5e-5, help="of `freezing`")
    add_python(parser, "--oracle_python", "torch, transformers and accelerate")
    return parser


def main():
    parser = make_parser()
    options = parser.parse_args()
    if "freezing" in options.part and not options.init_checkpoint:
        parser.error("--part=freezing: needs a pretrained model, --init_checkpoint")
    source, stored = origin(), read_results(options.json)
    print_origin(source)

    def store(key, results):
        stored[key] = source | dict(results=results)
        write_results(options.json, stored)

    try:
        with work_folder() as folder:
            if "padding" in options.part:
                make_model(folder, options.text, options.model, classifies=True)
                print(f"{options.model}, {options.batch} pairs a step, at most 128 tokens each")
                for precision in options.precision:
                    results = compare(options, folder, precision)
                    print_comparison(precision, results)
                    store(f"padding, {options.model}, {precision}", results)
            if "freezing" in options.part:
                results = {
                    name: [freeze(options, folder, name, seed) for seed in range(options.seeds)]
                    for name in options.frozen
                }
                print_freezing(results)
                store("freezing", results)
    except Failed as failed:
        sys.exit(f"error: {failed}")


if __name__ == "__main__":
    main()
