"""What the tests of pretraining share: a call of the command, and what it left behind."""

import json
import pathlib

import numpy as np
from safetensors.numpy import load_file

from bert_gpu.__main__ import main as command

ROOT = pathlib.Path(__file__).parent.parent.parent
SMALL = [
    "--model=tiny",
    "--hidden_size=16",
    "--intermediate_size=32",
    "--train_batch_size=8",
    "--learning_rate=1e-3",
]
# ends of the names of what differs from run to run
TIMES = ("_per_second", "seconds", "input_wait")


def pretrain(data, output, *flags, steps=12):
    fixed = [
        f"--input_file={data}/*.tfrecord",
        f"--output_dir={output}",
        f"--num_train_steps={steps}",
        "--log_steps=1",
        "--quiet",
    ]
    return command(["bert-gpu", "pretrain", *fixed, *SMALL, *flags])


def weights(output):
    return load_file(output / "model" / "model.safetensors")


def lines(output):
    text = (output / "metrics.jsonl").read_text()
    return [
        {k: v for k, v in json.loads(line).items() if not k.endswith(TIMES)}
        for line in text.splitlines()
    ]


def same(first, second):
    return (
        all(np.array_equal(first[name], second[name]) for name in first)
        and first.keys() == second.keys()
    )
