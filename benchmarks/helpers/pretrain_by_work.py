#!/usr/bin/env python3
"""Runs run_pretraining_gpu.py with a clock that counts the work of its process, seconds of all its
threads on a core, instead of the time that passes: other work on the machine changes no budget. The
last line printed is the number of seconds of the whole process.
"""

import functools
import pathlib
import sys
import time


def main():
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])  # this checkout's bert_gpu
    from bert_gpu import __main__
    from bert_gpu.pretrain import run

    run.pretrain = functools.partial(run.pretrain, clock=time.process_time)
    code = __main__.main(["bert-gpu", "pretrain", *sys.argv[1:]])
    print(time.process_time())
    return code


if __name__ == "__main__":
    sys.exit(main())
