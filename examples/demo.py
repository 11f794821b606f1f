#!/usr/bin/env python3
"""The whole path on the bundled sample, in a few minutes: text -> vocabulary -> TFRecords -> BERT
-> classifier -> a filled-in [MASK].

Runs the three scripts as a user would, prints each command, and ends with a table. Everything is
written to demo/.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = pathlib.Path("demo")
STEPS = 1000
MEASURES = {
    "mlm_loss": "masked words: loss",
    "mlm_accuracy": "masked words: accuracy",
    "nsp_accuracy": "next sentence: accuracy",
}
SENTENCE = "The old man went down to the [MASK] and looked at the boats."


def run(*command):
    """Runs one of the scripts, or a command of the package; returns what it printed to stdout."""
    shown = " ".join(f"'{part}'" if " " in part or "*" in part else part for part in command)
    print(f"\n$ python {shown}", flush=True)
    arguments = [str(ROOT / command[0]), *command[1:]] if command[0].endswith(".py") else command
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait():
        sys.exit(process.returncode)
    return "".join(lines)


def main():
    started = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    run(
        "create_pretraining_data.py",
        f"--output_file={FOLDER}/data/sample.tfrecord",
        "--validation_share=0.1",
    )
    run(
        "run_pretraining_gpu.py",
        f"--input_file={FOLDER}/data/*.tfrecord",
        f"--output_dir={FOLDER}/pretrain",
        "--model=tiny",
        f"--num_train_steps={STEPS}",
        "--learning_rate=1e-3",
    )
    classify = (
        "run_classifier.py",
        "--task_name=pairs",
        "--num_train_epochs=10",
        "--learning_rate=2e-4",
    )
    run(*classify, f"--init_checkpoint={FOLDER}/pretrain/model", f"--output_dir={FOLDER}/classify")
    untrained = ("--init_checkpoint=none", "--model=tiny", f"--vocab_file={FOLDER}/data/vocab.txt")
    run(*classify, *untrained, f"--output_dir={FOLDER}/classify_untrained")
    guesses = run("-m", "bert_gpu", "fill-mask", f"--model={FOLDER}/pretrain/model", SENTENCE)

    evaluations = [
        json.loads(line) for line in (FOLDER / "pretrain/metrics.jsonl").read_text().splitlines()
    ]
    evaluations = [line for line in evaluations if "eval_loss" in line]
    pairs = {
        name: json.loads((FOLDER / name / "eval_results.json").read_text())
        for name in ("classify", "classify_untrained")
    }
    print(
        f"\nIn {time.monotonic() - started:.0f} seconds, from "
        f"{ROOT.name}/sample_text.txt (BERT itself read 150,000 times as much):\n"
    )
    print(f"  {'on text held out':<34}{'before':>10}{'after':>10}")
    for name, label in (
        ("mlm_loss", "masked words: loss"),
        ("mlm_accuracy", "masked words: accuracy"),
        ("nsp_accuracy", "next sentence: accuracy"),
    ):
        print(
            f"  {label:<34}{evaluations[0]['eval_' + name]:>10.3f}"
            f"{evaluations[-1]['eval_' + name]:>10.3f}"
        )
    print(f"\n  {'on pairs held out':<34}{'untrained':>10}{'pretrained':>11}")
    for name in ("accuracy", "auc"):
        print(
            f"  {'pairs: ' + name:<34}{pairs['classify_untrained'][name]:>10.3f}"
            f"{pairs['classify'][name]:>11.3f}"
        )
    print(f"\n  {SENTENCE}")
    for line in guesses.splitlines()[-5:]:
        print(f"    {line.strip()}")


if __name__ == "__main__":
    main()
