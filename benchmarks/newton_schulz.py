#!/usr/bin/env python3
"""Times Muon's iteration with one, two and five Gram matrices for its five steps, and measures what
each loses to rounding.

    python benchmarks/newton_schulz.py [--models=mini,small] [--precision=bfloat16,float32]
        [--turns=15] [--rows=192]

The times are of all matrices of a model, in turns, on this machine; half of the work is square
matrices, which have one for each step anyhow. The errors are those of matrices of (rows, 4 x rows)
whose singular values are known, relative in the Frobenius norm to what the iteration gives without
rounding, and beside them is the largest singular value by default. "default": what training does
(bert_gpu/optim/muon.py).
"""

import statistics
import time

import numpy as np
from helpers.command import at_least_one, benchmark_parser, names_among
from helpers.report import origin, print_origin, print_table
from helpers.shapes import SHAPES, shape_of

from bert_gpu.base.environment import LazyModule
from bert_gpu.model.config import ModelConfig
from bert_gpu.optim import muon
from bert_gpu.optim.config import OptimizerConfig

# a plain import would be sorted before bert_gpu, which sets TensorFlow's environment
tf, fused = LazyModule("tensorflow"), LazyModule("bert_gpu.base.fused")

PRECISIONS = ("bfloat16", "float16", "float32")
PLANS = {  # steps of wide matrices with each Gram matrix
    "one for each step": (1, 1, 1, 1, 1),
    "two: 3 + 2": (3, 2),
    "two: 2 + 3": (2, 3),
    "one": (5,),
}
SPECTRA = {  # singular values by their indices 1, 2, 3, ..., as shares of the last
    "1 / k": lambda share, last: 1 / (share * last),
    "exponential": lambda share, last: np.exp(-12 * share),
    "half 1, half 0.003": lambda share, last: np.where(share <= 0.5, 1.0, 0.003),
    "one 1, others 0.01": lambda share, last: np.where(share * last < 1.5, 1.0, 0.01),
}
SEED = 1


def compiled(plan, inputs):
    """The iteration for tensors (K, m, n), as training compiles it on this device. plan: of PLANS,
    None = training's own.
    """
    own = muon.steps_per_gram

    def steps_per_gram(small, large, dtype):
        return own(small, large, dtype) if plan is None or large < 2 * small else plan

    def work(*tensors):
        muon.steps_per_gram = steps_per_gram
        try:
            return [muon.joint_work(matrices) for matrices in tensors]
        finally:
            muon.steps_per_gram = own

    function = tf.function(work, autograph=False, jit_compile=fused.has_gpu())
    return function.get_concrete_function(*inputs)


def compiled_ways(inputs):
    """{name: function} of each of PLANS and of training's own."""
    return {name: compiled(plan, inputs) for name, plan in (PLANS | {"default": None}).items()}


def matrices_of(model, dtype):
    """Random matrices with the shapes that Muon takes of a model: [(K, m, n), ...]."""
    from bert_gpu.model import heads
    from bert_gpu.model.encoder import BertEncoder
    from bert_gpu.model.weights import column_blocks
    from bert_gpu.optim import optimizers

    specs = heads.pretraining_weights(BertEncoder(ModelConfig(vocab_size=64, **shape_of(model))))
    config, counts = OptimizerConfig(optimizer="muon"), {}
    for part in optimizers.joint_parts(specs, config, column_blocks(specs)).values():
        counts[part.shape[1:]] = counts.get(part.shape[1:], 0) + part.shape[0]
    rng = np.random.default_rng(SEED)
    return [
        tf.constant(rng.standard_normal((count, *sides)) / np.sqrt(np.prod(sides)), dtype)
        for sides, count in counts.items()
    ]


def medians(inputs, turns):
    """{name: median milliseconds} of `compiled_ways`, in turns."""
    functions = compiled_ways(inputs)
    found = {name: [] for name in functions}
    for turn in range(-1, turns):  # the first is warm-up
        for name in list(functions)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            for result in functions[name](*inputs):
                result.numpy()
            if turn >= 0:
                found[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in found.items()}


def print_times(options):
    print("\nMilliseconds for all matrices of a model, medians\n")
    rows = []
    for model in options.models:
        for precision in options.precision:
            found = medians(matrices_of(model, precision), options.turns)
            share = found["default"] / found["one for each step"]
            cells = [f"{milliseconds:.1f}" for milliseconds in found.values()]
            rows.append([f"{model}, {precision}", *cells, f"{share:.2f}"])
    print_table(["model", *PLANS, "default", "default / one for each step"], rows)


def print_errors(options):
    print("\nErrors of wide matrices\n")
    rng, size, rows = np.random.default_rng(SEED), options.rows, []
    for name, spectrum in SPECTRA.items():
        left, right = (
            np.linalg.qr(rng.standard_normal((side, size)))[0] for side in (size, 4 * size)
        )
        values = spectrum(np.arange(1, size + 1) / size, size)
        values = values / np.linalg.norm(values)
        matrix, exact = left * values @ right.T, values
        for _ in range(muon.NUM_ITERATIONS):
            exact = muon.A * exact + muon.B * exact**3 + muon.C * exact**5
        for precision in options.precision:
            errors = []
            inputs = [tf.constant(matrix[None], precision)]
            for function in compiled_ways(inputs).values():
                [found] = function(*inputs)
                difference = tf.cast(found[0], tf.float32).numpy() - left * exact @ right.T
                errors.append(f"{np.linalg.norm(difference) / np.linalg.norm(exact):.2g}")
            largest = np.linalg.norm(tf.cast(found[0], tf.float32).numpy(), 2)  # of the default
            rows.append([f"{name}, {precision}", *errors, f"{largest:.2f}"])
    print_table(["singular values", *PLANS, "default", "largest"], rows)


def make_parser():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--models", type=names_among(SHAPES), default=["mini", "small"])
    parser.add_argument(
        "--precision", type=names_among(PRECISIONS), default=["bfloat16", "float32"]
    )
    parser.add_argument("--turns", type=at_least_one, default=15)
    parser.add_argument(
        "--rows", type=at_least_one, default=192, help="of the matrices of `errors`"
    )
    return parser


def main():
    options = make_parser().parse_args()
    print_origin(origin())
    print_times(options)
    print_errors(options)


if __name__ == "__main__":
    main()
