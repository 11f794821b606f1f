"""What the tests of pretraining share: a call of the command, in this process or in one that can be
killed, and what it left behind.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np
from safetensors.numpy import load_file

from bert_gpu.__main__ import main as command
from bert_gpu.runs.folder import RunFolder

ROOT = pathlib.Path(__file__).parent.parent.parent
SMALL = [
    "--model=tiny",
    "--num_hidden_layers=1",
    "--hidden_size=16",
    "--intermediate_size=32",
    "--train_batch_size=8",
    "--learning_rate=1e-3",
]
HANG_SECONDS = 600  # after which what is waited for does not come any more
# ends and starts of the names of what differs from run to run
TIMES, SHARES = ("_per_second", "seconds", "input_wait"), "time_"


def pretrain(data, output, *flags, steps=12):
    fixed = [
        f"--input_file={data}/*.tfrecord",
        f"--output_dir={output}",
        f"--num_train_steps={steps}",
        "--log_steps=1",
        "--quiet",
    ]
    return command(["bert-gpu", "pretrain", *fixed, *SMALL, *flags])


def copy_as_of(run, copy, step):
    """Copies a run as it was at one of its checkpoints."""
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "model")
    for later in RunFolder(str(run)).steps():
        if later > step:
            shutil.rmtree(copy / "checkpoints" / f"step-{later:08d}")


def weights(output):
    return load_file(output / "model" / "model.safetensors")


def lines(output):
    text = (output / "metrics.jsonl").read_text()
    return [
        {
            name: value
            for name, value in json.loads(line).items()
            if not name.endswith(TIMES) and not name.startswith(SHARES)
        }
        for line in text.splitlines()
    ]


def same(first, second):
    return (
        all(np.array_equal(first[name], second[name]) for name in first)
        and first.keys() == second.keys()
    )


HELD = """
import os, sys, bert_gpu.__main__
from bert_gpu.cli import flags, pretrain
from bert_gpu.train.step import TrainStep
call = TrainStep.__call__

def held(self, batches, learning_rates, step, *rest):
    if step == int(sys.argv[1]):
        os.read(0, 1)  # waits until it is killed, or the test has gone
    return call(self, batches, learning_rates, step, *rest)

TrainStep.__call__ = held
sys.exit(flags.exit_code(pretrain.main, ["pretrain", *sys.argv[2:]]))
"""


def start_and_hold(data, output, *flags, before_step, steps=12):
    """The process of a pretraining that waits before a step (its number from 0) and, until it is
    killed, comes no further.
    """
    fixed = [
        f"--input_file={data}/*.tfrecord",
        f"--output_dir={output}",
        f"--num_train_steps={steps}",
        "--log_steps=1",
    ]
    return subprocess.Popen(
        [sys.executable, "-c", HELD, str(before_step), *fixed, *SMALL, *flags],
        env=dict(os.environ, CUDA_VISIBLE_DEVICES="-1"),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )


def wait_until(process, has_happened):
    """Returns when `has_happened()`; fails when the process ends before, or hangs."""
    end = time.monotonic() + HANG_SECONDS
    while not has_happened():
        assert process.poll() is None, f"the process has ended with {process.returncode}"
        assert time.monotonic() < end, f"nothing has happened for {HANG_SECONDS} seconds"
        time.sleep(0.02)
