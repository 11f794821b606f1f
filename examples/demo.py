#!/usr/bin/env python3
"""The whole path on the bundled text, in a few minutes, and what it is good for: text ->
vocabulary -> TFRecords -> BERT -> a classifier, beside one that was not pretrained.

Runs the three scripts without flags (on GPUs with --recipe=quick), as a user would, in a new folder
(demo/ unless another is named), and ends with a table, filled-in masks, a picture of the losses
and the seconds of each part.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import bert_gpu
from bert_gpu.devices.nvml import count_gpus

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEASURES = {
    "mlm_loss": "masked words: loss",
    "mlm_accuracy": "masked words: right",
    "nsp_accuracy": "next sentence: right",
}
MASKED = (
    "Captain Ahab looked for the white [MASK].",
    "The DELETE statement removes rows from a [MASK].",
    "The main exports are oil and natural [MASK].",
)
UNTRAINED = (
    "--recipe=quick",
    "--init_checkpoint=none",
    "--bert_config_file=runs/pretrain/model/config.json",
    "--vocab_file=data/vocab.txt",
    "--output_dir=runs/classify_untrained",
)


class Demo:
    """Runs the scripts in a folder. seconds: {part: how long it took}."""

    def __init__(self, folder):
        self.folder, self.seconds = folder, {}

    def run(self, part, script, *given):
        print(f"\n$ python {script} {' '.join(given)}".rstrip(), flush=True)
        started = time.monotonic()
        call = [sys.executable, str(ROOT / script), *given]
        code = subprocess.run(call, cwd=self.folder).returncode
        if code:
            sys.exit(code)
        self.seconds[part] = time.monotonic() - started

    def metrics(self):
        """The lines of the pretraining's metrics.jsonl."""
        text = (self.folder / "runs/pretrain/metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def results(self, name):
        return json.loads((self.folder / "runs" / name / "eval_results.json").read_text())


def table(demo):
    evaluations = [line for line in demo.metrics() if "eval_loss" in line]
    first, last = evaluations[0], evaluations[-1]
    untrained, pretrained = demo.results("classify_untrained"), demo.results("classify")
    rows = [
        (f"{label}, on held-out text", first[f"eval_{name}"], last[f"eval_{name}"])
        for name, label in MEASURES.items()
    ]
    rows += [
        (label, untrained[name], pretrained[name])
        for name, label in (
            ("accuracy", "pairs, same document or not: right"),
            ("auc", "pairs: ROC-AUC"),
        )
    ]
    lines = [f"  {'':<46}{'untrained':>10}{'pretrained':>12}"]
    return lines + [f"  {name:<46}{before:>10.3f}{after:>12.3f}" for name, before, after in rows]


def masks(demo):
    """The five words that the model takes for likeliest, for each of MASKED."""
    lines, model = [], demo.folder / "runs/pretrain/model"
    for text, (words,) in zip(MASKED, bert_gpu.fill_mask(MASKED, model=model), strict=True):
        guesses = ", ".join(f"{word} {probability:.2f}" for probability, word in words)
        lines += [f"  {text}", f"      {guesses}"]
    return lines


def picture(demo, path):
    """Draws the losses of the pretraining by its steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = demo.metrics()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for axes, name, title in ((left, "mlm", "masked words"), (right, "nsp", "next sentence")):
        for key, label in ((name, "training"), (f"eval_{name}_loss", "held-out text")):
            points = [(line["step"], line[key]) for line in lines if key in line]
            axes.plot(*zip(*points, strict=True), label=label)
        axes.set(title=f"loss: {title}", xlabel="step")
        axes.legend()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="demo", help="where all goes (demo)")
    parser.add_argument("--seed", type=int, help="of the weights, the order of the data and so on")
    options = parser.parse_args()
    bert_gpu.prepare()
    folder, seed = pathlib.Path(options.folder), options.seed
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    demo = Demo(folder)
    # without a GPU and without settings it is what the scripts take
    recipe = ("--recipe=quick",) if seed is not None or count_gpus() else ()
    seeded = () if seed is None else (f"--seed={seed}",)
    demo.run("data", "create_pretraining_data.py", *recipe)
    demo.run("pretraining", "run_pretraining_gpu.py", *recipe, *seeded)
    demo.run("fine-tuning", "run_classifier.py", *recipe, *seeded)
    demo.run("the same, untrained", "run_classifier.py", *UNTRAINED, *seeded)
    picture(demo, folder / "losses.png")
    parts = ", ".join(f"{part} {seconds:.0f}" for part, seconds in demo.seconds.items())
    text = os.path.relpath(ROOT / "sample_text.txt")
    print(f"\nFrom {text}, 5 MB (BERT itself read 4,000 times as much), in seconds: {parts}\n")
    print("\n".join(table(demo)))
    print()
    print("\n".join(masks(demo)))
    print(f"\n  the losses: {folder / 'losses.png'}; all of it: {folder}/\n")
    print("  Your own text: python create_pretraining_data.py --input_file=mytext.txt")
    print(
        "  Longer and better: python run_pretraining_gpu.py --recipe=quick --num_train_steps=10000"
    )


if __name__ == "__main__":
    main()
