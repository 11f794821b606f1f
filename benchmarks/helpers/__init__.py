"""What the benchmarks are made of: flags and scripts (command.py), tables and results (report.py),
processes that hold one variant of training each (process.py starts them, serve.py is their side),
and parts of one benchmark, named after it (ahead_*, data_*, gpu_*).

Importing this package puts the checkout that it lies in before an installed bert_gpu, so that a
table measures the revision that it names. It also imports bert_gpu, which decides the environment
before TensorFlow is imported: here, and in what is started from here.
"""

import importlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

if sys.path[0] != str(ROOT):
    sys.path.insert(0, str(ROOT))
importlib.import_module("bert_gpu")
