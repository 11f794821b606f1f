#!/usr/bin/env python3
"""What the checksum of a checkpoint costs: seconds to save and to restore one, with and without.

    python benchmarks/checkpoints.py [--model=small] [--repeats=7]

The checkpoint holds what AdamW has: weights and two moments, random numbers. Saving includes the
flush to the disk. The rows with and without take turns; medians.
"""

import statistics
import time
from unittest import mock

import numpy as np
from helpers.command import benchmark_parser, work_folder
from helpers.report import origin, print_origin, print_table

from bert_gpu.base import tensor_files
from bert_gpu.model import heads
from bert_gpu.model.config import PRESETS, preset
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.progress import Progress


def make_values(model):
    """{name: array} of a checkpoint of a model with AdamW's state."""
    random = np.random.default_rng(1)
    shapes = {
        name: spec.shape
        for name, spec in heads.pretraining_weights(BertEncoder(preset(model))).items()
    }
    return {
        f"{part}/{name}": random.standard_normal(shape, np.float32)
        for part in ("weights", "slots/m", "slots/v")
        for name, shape in shapes.items()
    }


def seconds_of(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def measure(folder, values, step):
    """(seconds to save, seconds to restore)."""
    saved = seconds_of(lambda: folder.save(Progress(step=step), values, keep=1))
    return saved, seconds_of(lambda: folder.restore(step))


def make_parser():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", choices=PRESETS, default="small")
    parser.add_argument("--repeats", type=int, default=7)
    return parser


def main():
    options = make_parser().parse_args()
    print_origin(origin())
    values = make_values(options.model)
    size = sum(array.nbytes for array in values.values())
    found = {"with a checksum": [], "without": []}
    with work_folder() as work:
        folder = RunFolder(f"{work}/run")
        for repeat in range(options.repeats + 1):  # the first warms up
            for index, (name, seconds) in enumerate(found.items()):
                checksum = (lambda tensors: "") if name == "without" else tensor_files.checksum
                with mock.patch.object(tensor_files, "checksum", checksum):
                    seconds.append(measure(folder, values, 2 * repeat + index + 1))
    print(f"\na checkpoint of {options.model}, {size / 1e6:.0f} MB\n")
    rows = [
        [name, *(f"{statistics.median(part):.3f}" for part in zip(*seconds[1:], strict=True))]
        for name, seconds in found.items()
    ]
    print_table(["", "seconds to save", "seconds to restore"], rows)


if __name__ == "__main__":
    main()
