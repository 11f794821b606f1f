"""Building blocks of the benchmarks: flags and scripts (command.py), tables and results
(report.py), processes that each hold one variant of training (process.py starts them, serve.py runs
in them), and parts of one benchmark, named after it (ahead_*, data_*, gpu_*).

Importing this package puts its checkout before an installed bert_gpu, so that a table measures the
revision that it names. It also sets the environment as the scripts do, before TensorFlow is
imported, in this process and in those that it starts.
"""

import importlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

if sys.path[0] != str(ROOT):
    sys.path.insert(0, str(ROOT))
importlib.import_module("bert_gpu.base.environment").prepare()
