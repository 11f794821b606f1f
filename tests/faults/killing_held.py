"""Runs one of the project's scripts, for killing.py. While it writes its first
checkpoint it prints a line, and waits there until it reads one or its input ends.

    python -m tests.faults.killing_held SCRIPT FLAGS
"""

import runpy
import sys

from bert_gpu.runs import folder

save_file = folder.save_file


def held(tensors, path):
    folder.save_file = save_file
    save_file(tensors, path)
    print("writing", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    folder.save_file = held
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
