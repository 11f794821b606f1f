"""A worker of test_several_workers.py: the pretraining command, in which one worker meets with a
fault.

argv[1] is JSON: {"worker": its index, "step": before which it happens, "signal": that the worker
sends itself, None = from then on the disk is full, "mark": a file that shows that it has happened,
which it does once}.
"""

import errno
import json
import os
import pathlib
import sys

import bert_gpu.__main__  # noqa: F401, as a command: it prepares the process
from bert_gpu.cli import flags, pretrain
from bert_gpu.runs import folder
from bert_gpu.train.step import TrainStep

fault = json.loads(sys.argv[1])
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
call = TrainStep.__call__


def full(values, path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def faulty(self, batches, learning_rates, step, *rest):
    mark = pathlib.Path(fault["mark"])
    if index == fault["worker"] and step == fault["step"] and not mark.exists():
        mark.touch()
        if fault["signal"] is None:
            folder.save_file = full
        else:
            os.kill(os.getpid(), fault["signal"])
    return call(self, batches, learning_rates, step, *rest)


TrainStep.__call__ = faulty
sys.exit(flags.exit_code(pretrain.main, ["pretrain", *sys.argv[2:]]))
