"""Recomputing changes no gradient, with dropout too, and saves memory in XLA's schedule and in
TensorFlow's optimized graph.
"""

import collections
import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from bert_gpu.model import encoder
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from tests import pretraining
from tests.model.variants import (
    VARIANTS,
    as_tensors,
    random_batch,
    random_weights,
    value_and_gradients,
)

SEED = tf.constant([5, 6])
DEEP = ModelConfig(
    vocab_size=40,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=128,
    max_position_embeddings=64,
)


def gradients_of(config, every, *, dtype=tf.float32, jit=False):
    weights, batch = as_tensors(random_weights(config)), as_tensors(random_batch(config, [9, 5], 9))
    weights = {
        name: tf.cast(value, dtype) if value.shape.rank > 1 else value
        for name, value in weights.items()
    }
    own = BertEncoder(config, recompute_every=every, xla=jit)

    def loss_fn(weights):
        return pretraining.losses(weights, batch, own, dtype=dtype, seed=SEED)["mlm"]

    return value_and_gradients(loss_fn, weights, jit=jit)


@pytest.fixture
def no_rewriting():
    """Keeps TensorFlow's graph optimizer from fusing and reordering products whose parts have no
    other use.
    """
    before = tf.config.optimizer.get_experimental_options()
    switches = ("remapping", "arithmetic_optimization")
    tf.config.optimizer.set_experimental_options(dict.fromkeys(switches, False))
    yield
    tf.config.optimizer.set_experimental_options(
        {switch: before.get(switch, True) for switch in switches}
    )


@pytest.mark.parametrize("name, dtype", [("bert", tf.float32), ("crammed", tf.bfloat16)])
def test_gradients_are_the_same_bits(no_rewriting, name, dtype):
    """Of every layer alone, and of two layers and the one that is left."""
    config = dataclasses.replace(VARIANTS[name], num_hidden_layers=3)
    expected, expected_gradients = gradients_of(config, 0, dtype=dtype)
    for every in (1, 2):
        loss, gradients = gradients_of(config, every, dtype=dtype)
        assert loss == expected
        for key, gradient in gradients.items():
            np.testing.assert_array_equal(gradient, expected_gradients[key], err_msg=key)


@pytest.mark.parametrize(
    "name, jit", [("all at once", False), ("all at once", True), ("disentangled", False)]
)
def test_gradients_are_the_same_but_for_the_order_of_sums(name, jit):
    """Holds with the graph optimizer's rewriting, with layers that share weights or a table of
    distances and so sum their gradients, and under XLA.
    """
    config = dataclasses.replace(VARIANTS[name], num_hidden_layers=2)
    (expected, expected_gradients), (loss, gradients) = (
        gradients_of(config, every, jit=jit) for every in (0, 1)
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    for key, gradient in gradients.items():
        assert (
            np.linalg.norm(gradient - expected_gradients[key])
            <= 2e-6 * np.linalg.norm(expected_gradients[key]) + 1e-7
        ), key


def gradient_function(every, jit):
    """(tf.function, its arguments) of the gradients of a deep encoder with dropout."""
    weights = as_tensors(
        {
            name: np.zeros(spec.shape, np.float32)
            for name, spec in encoder.encoder_weights(DEEP).items()
        }
    )
    ones = tf.ones([8, 64], tf.int32)
    batch = dict(input_ids=ones, input_mask=ones, segment_ids=tf.zeros_like(ones))

    @tf.function(jit_compile=jit)
    def gradients(weights, batch):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            hidden = encoder.encode(weights, batch, DEEP, seed=SEED, recompute_every=every, xla=jit)
            loss = tf.reduce_sum(tf.square(hidden))
        return tape.gradient(loss, weights)

    return gradients, (weights, batch)


def peak_bytes(program):
    """Peak bytes of live values that a scheduled HLO program computes, without its arguments and
    constants.
    """
    widths = dict(f32=4, s32=4, u32=4, u16=2, pred=1, u8=1, s8=1, u64=8, s64=8)
    entry = re.search(r"\nENTRY .*?\n}", program, re.S)[0]
    found = re.findall(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)", entry, re.M)
    views, bytes_of, last_use = {}, {}, {}
    for time, (name, shape, op, rest) in enumerate(found):
        operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
        operands = [views.get(operand, operand) for operand in operands]
        if op in ("bitcast", "get-tuple-element", "tuple"):
            views[name] = operands[0]
        elif op not in ("parameter", "constant"):
            arrays = re.findall(r"\b(\w+)\[([\d,]*)\]", shape)
            bytes_of[name] = sum(
                widths[kind] * int(np.prod([int(size) for size in sizes.split(",") if size]))
                for kind, sizes in arrays
            )
        last_use.update(dict.fromkeys([name, *operands], time))
    dying = collections.defaultdict(list)
    for name, time in last_use.items():
        dying[time].append(name)
    alive = most = 0
    for time, (name, *_) in enumerate(found):
        alive += bytes_of.get(name, 0)
        most = max(most, alive)
        alive -= sum(bytes_of.get(other, 0) for other in dying[time])
    return most


@pytest.mark.long
def test_xla_keeps_one_activation_a_layer():
    peaks = []
    for every in (0, 1):
        function, arguments = gradient_function(every, jit=True)
        peaks.append(
            peak_bytes(
                function.experimental_get_compiler_ir(*arguments)(
                    stage="optimized_hlo", platform_name="CPU"
                )
            )
        )
    assert peaks[1] < 0.55 * peaks[0], peaks  # three layers of activations, and one


def test_tensorflow_does_not_merge_the_second_run_with_the_first():
    """The second run needs five of a layer's six products; nothing uses the last one's result."""
    num_products = {}
    for every in (0, 1):
        function, arguments = gradient_function(every, jit=False)
        context.enable_run_metadata()
        function(*arguments)
        graphs = context.export_run_metadata().function_graphs
        context.disable_run_metadata()
        ops = [node.op for graph in graphs for node in graph.post_optimization_graph.node]
        num_products[every] = sum(op in ("MatMul", "BatchMatMulV2", "_FusedMatMul") for op in ops)
    assert num_products[1] - num_products[0] >= 5 * DEEP.num_hidden_layers, num_products
