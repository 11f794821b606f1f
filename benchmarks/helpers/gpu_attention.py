"""cuDNN attention on a GPU, beside plain bfloat16: error against float32, and time, forward and
backward.

    python benchmarks/helpers/gpu_attention.py padding|packed B S N D

Prints one line of JSON; without a GPU of plain attention alone.
"""

import json
import sys
import time

import numpy as np
import tensorflow as tf

from bert_gpu.model import attention, cudnn_attention, packed


def make_batch(kind, batch_size, length, generator):
    """Return masks of a batch. Padded: rows of S/4 to S tokens. Packed: rows full of sequences of
    about S/4.
    """
    mask = np.arange(length) < generator.integers(length // 4, length + 1, (batch_size, 1))
    if kind == "padding":
        return dict(input_mask=tf.constant(mask, tf.int32))
    ids = 1 + np.cumsum(generator.random((batch_size, length)) < 4 / length, 1)
    return dict(
        input_mask=tf.constant(mask, tf.int32), sequence_ids=tf.constant(ids * mask, tf.int32)
    )


def run(implementation, dtype, kind, batch, qkv, upstream, repeats=50):
    """Return (output, gradient) as float32 and seconds of one forward and backward pass."""

    @tf.function(jit_compile=True)
    def step(qkv, upstream, batch):
        if implementation == "cudnn":
            mask = cudnn_attention.make_mask(batch, dtype)
        else:
            mask = attention.mask_bias(batch["input_mask"])
            if kind == "packed":
                mask = packed.sequence_bias(batch["sequence_ids"])
        with tf.GradientTape() as tape:
            tape.watch(qkv)
            mixed = attention.self_attention(qkv, [], mask)
        return mixed, tape.gradient(mixed, qkv, upstream)

    qkv, upstream = tf.cast(qkv, dtype), tf.cast(upstream, dtype)
    results = [tf.cast(x, tf.float32).numpy() for x in step(qkv, upstream, batch)]
    started = time.perf_counter()
    for _ in range(repeats):
        last = step(qkv, upstream, batch)
    last[1].numpy()
    return results, (time.perf_counter() - started) / repeats


def compare(kind, shape, repeats=50):
    batch_size, length, num_heads, size = shape
    generator = np.random.default_rng(0)
    batch = make_batch(kind, batch_size, length, generator)
    real = batch["input_mask"].numpy()[:, :, None, None].astype(np.float32)

    def draw(*sizes):
        values = generator.standard_normal(sizes).astype(np.float32)
        return tf.cast(tf.cast(values, tf.bfloat16), tf.float32)

    def far(x, y):
        return float(np.linalg.norm(x - y) / np.linalg.norm(y))

    qkv = draw(batch_size, length, 3, num_heads, size)
    upstream = draw(batch_size, length, num_heads, size) * real
    tf.config.experimental.enable_tensor_float_32_execution(False)
    exact, _ = run("plain", tf.float32, kind, batch, qkv, upstream, 1)
    tf.config.experimental.enable_tensor_float_32_execution(True)
    result = dict(kind=kind, shape=shape)
    has_gpu = tf.config.list_physical_devices("GPU")
    for name in ("plain", "cudnn") if has_gpu else ("plain",):
        (mixed, gradient), seconds = run(name, tf.bfloat16, kind, batch, qkv, upstream, repeats)
        result[name] = dict(
            ms=1e3 * seconds,
            finite=bool(np.isfinite(mixed).all() and np.isfinite(gradient).all()),
            output_error=far(mixed * real, exact[0] * real),
            gradient_error=far(gradient, exact[1]),
        )
    if has_gpu:
        plain, cudnn = result["plain"], result["cudnn"]
        errors = ("output_error", "gradient_error")
        agrees = all(cudnn[error] <= 2 * plain[error] + 1e-3 for error in errors)
        result |= dict(agrees=cudnn["finite"] and agrees, speedup=plain["ms"] / cudnn["ms"])
    return result


if __name__ == "__main__":
    for gpu in tf.config.list_physical_devices("GPU"):  # others may use it as well
        tf.config.experimental.set_memory_growth(gpu, True)
    print(json.dumps(compare(sys.argv[1], tuple(map(int, sys.argv[2:])))))
