"""Functions compiled on their own: sums for the gradients of biases, and rows that have nothing to
attend to.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base import fused
from bert_gpu.model.attention import attention, mask_bias


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_gradient_of_a_bias_is_a_sum_of_columns(dtype):
    x = tf.cast(np.random.default_rng(0).standard_normal((300, 7)).astype(np.float32), dtype)
    sums = fused.column_sums(x)
    assert sums.dtype == tf.float32
    np.testing.assert_allclose(
        sums,
        np.asarray(tf.cast(x, tf.float32)).sum(0),
        rtol=1e-2 if dtype == "bfloat16" else 1e-4,
        atol=1e-3,
    )


def test_sums_may_be_larger_than_float16():
    np.testing.assert_allclose(
        fused.column_sums(tf.fill([16, 2], tf.constant(30_000, tf.float16))), 16 * 30_000
    )


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_a_row_of_padding_alone_is_finite(dtype):
    q = tf.cast(np.random.default_rng(1).standard_normal((2, 2, 5, 4)), dtype)
    bias = mask_bias(np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]))
    with tf.GradientTape() as tape:
        tape.watch(q)
        mixed = attention(q, q, q, bias, rate=0.5, seed=tf.constant([1, 2]))
    assert (
        np.isfinite(tf.cast(mixed, tf.float32)).all()
        and np.isfinite(tf.cast(tape.gradient(mixed, q), tf.float32)).all()
    )


@pytest.mark.parametrize(
    "given, is_told",
    [
        ("", True),
        pytest.param("--xla_allow_excess_precision=true", False, marks=pytest.mark.long),
        pytest.param("FILE", False, marks=pytest.mark.long),
    ],
)
def test_what_is_rounded_between_passes_stays_rounded(tmp_path, given, is_told):
    """Only GPUs show the effect, between their kernels; here we only check that XLA gets the option
    and that a user's own value wins.
    """
    program = (
        "import bert_gpu; bert_gpu.prepare(); import tensorflow as tf, bert_gpu.base.fused as f; "
        "f.fused(lambda x: x + 1.0)(tf.constant(1.0))"
    )
    flags, dump = tmp_path / "flags", f"--xla_dump_to={tmp_path}"
    flags.write_text(dump)
    environment = os.environ | dict(
        XLA_FLAGS=str(flags) if given == "FILE" else f"{given} {dump}".strip()
    )
    subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True
    )
    said = {
        line.strip()
        for path in tmp_path.glob("*.debug_options")
        for line in path.read_text().splitlines()
    }
    assert f'xla_dump_to: "{tmp_path}"' in said
    assert ("xla_allow_excess_precision: false" in said) == is_told
