"""The count equals the products in the traced and the compiled program, for any architecture."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.model import disentangled
from bert_gpu.model.config import preset
from bert_gpu.model.encoder import BertEncoder, encoder_weights
from bert_gpu.model.encoders import open_encoder
from bert_gpu.model.flops import mean_attended
from tests import pretraining
from tests.model.variants import VARIANTS, as_tensors, random_batch

SMALL = dict(vocab_size=2000, max_position_embeddings=64)
CRAMMED = dict(num_hidden_layers=4, hidden_size=128, num_attention_heads=4, intermediate_size=512)
COMPILED = {
    "tiny": preset("tiny", **SMALL),
    "mini": preset("mini", **SMALL),
    "crammed": preset("crammed", **SMALL, **CRAMMED),
    "factorised": preset("mini", **SMALL, embedding_size=64, num_hidden_groups=1),
    "rotary": preset(
        "tiny",
        **SMALL,
        position_embedding_type="rotary",
        hidden_act="swiglu",
        norm_type="rms_norm",
    ),
}


def products_of(program):
    """FLOPs of the dot operations in the text of an HLO module: twice the size of the result times
    the length of the sum. Products of one row are left out: they are sums that CPUs compute as
    products with ones (fused.column_sums), and GPUs do not.
    """
    shapes = {
        name: [int(size) for size in sizes.split(",") if size]
        for name, sizes in re.findall(r"(\S+) = \w+\[([\d,]*)\]", program)
    }
    total = 0
    dots = re.findall(
        r"(\S+) = \S+ dot\((?:\w+\[[^ ]* )?([^ ,)]+), .*?lhs_contracting_dims=\{([\d,]*)\}", program
    )
    assert len(dots) == len(re.findall(r" dot\(", program)) > 0
    for result, left, axes in dots:
        if shapes[left][0] == 1 and len(shapes[left]) == 2:
            continue
        summed = [shapes[left][int(axis)] for axis in axes.split(",") if axis]
        total += 2 * np.prod(shapes[result], dtype=float) * np.prod(summed, dtype=float)
    return total


def compiled_products(encoder, next_sentence, batch_size, length, num_predictions, packed=False):
    """FLOPs of the products in the compiled program of loss and gradients, and of the one-hot
    products that look up segments and positions.
    """
    batch = {
        name: tf.ones([batch_size, length], tf.int32)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    if packed:
        batch["sequence_ids"] = tf.ones([batch_size, length], tf.int32)
    batch |= {
        name: tf.ones([batch_size, num_predictions], tf.int32)
        for name in ("masked_lm_positions", "masked_lm_ids")
    }
    batch["masked_lm_weights"] = tf.ones([batch_size, num_predictions])
    if next_sentence:
        batch["next_sentence_labels"] = tf.ones([batch_size], tf.int32)
    config = encoder.config
    weights = {
        name: tf.zeros(spec.shape)
        for name, spec in pretraining.weights(encoder, next_sentence).items()
    }

    @tf.function(jit_compile=True)
    def gradients(weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            losses = pretraining.losses(weights, batch, encoder, seed=tf.constant([1, 2]))
            loss = tf.add_n(list(losses.values()))
        return tape.gradient(loss, weights)

    # get_compiler_ir draws a random number, which needs a seed when another test has enabled
    # determinism
    tf.random.set_seed(1)
    lookups = (
        4
        * batch_size
        * length
        * (
            config.type_vocab_size * config.embedding_width
            + (num_predictions + next_sentence) * config.hidden_size
        )
    )
    return products_of(
        gradients.experimental_get_compiler_ir(weights)(stage="hlo", platform_name="CPU")
    ), lookups


def traced_products(graph):
    """FLOPs of the products in a graph and the functions that it calls, lookups left out: products
    with one-hot rows.
    """
    total = 0
    for operation in graph.get_operations():
        if operation.type in ("MatMul", "BatchMatMulV2"):
            left = operation.inputs[0]
            transposed = operation.get_attr(
                "transpose_a" if operation.type == "MatMul" else "adj_x"
            )
            if left.op.type != "OneHot":
                total += (
                    2
                    * operation.outputs[0].shape.num_elements()
                    * left.shape[-2 if transposed else -1]
                )
        else:
            assert not re.search("MatMul|Einsum|Conv|Dot", operation.type), (
                f"{operation.type}: count it"
            )
        for called in {value.func.name for value in operation.node_def.attr.values()} - {""}:
            total += traced_products(graph._get_function(called).graph)
    return total


def row_flops(encoder, next_sentence, length, num_predictions):
    """Flops of a row."""
    row = dict(input_mask=np.ones([1, length]), masked_lm_positions=np.zeros([1, num_predictions]))
    return pretraining.objective(encoder, next_sentence).flops(row)


def projected_distances(config, length):
    """FLOPs of the projections of the rows of distances, which are the same for any number of
    rows of a batch.
    """
    distances = disentangled.make_distances(length, config)
    num_rows = (distances.last - distances.first) * config.num_hidden_layers
    return 2 * num_rows * config.num_terms * config.hidden_size**2


@pytest.mark.parametrize(
    "name, next_sentence",
    [*((name, True) for name in VARIANTS), ("bert", False), ("bare decoder", False)],
)
def test_no_product_of_the_forward_pass_is_forgotten(name, next_sentence):
    """For each switch of ModelConfig, the traced loss has twice the multiply-adds: a third of the
    count of a step.
    """
    encoder, rows, length, num_predictions = BertEncoder(VARIANTS[name]), 3, 24, 5
    arrays = random_batch(encoder.config, [length] * rows, length, num_predictions)
    batch = as_tensors(
        arrays | (dict(next_sentence_labels=np.zeros(rows, np.int32)) if next_sentence else {})
    )
    weights = {
        name: tf.zeros(spec.shape)
        for name, spec in pretraining.weights(encoder, next_sentence).items()
    }
    losses = tf.function(
        lambda weights: pretraining.losses(weights, batch, encoder, seed=tf.constant([1, 2])),
        autograph=False,
    )
    counted = traced_products(losses.get_concrete_function(weights).graph)
    counted -= projected_distances(encoder.config, length)
    assert rows * row_flops(encoder, next_sentence, length, num_predictions).hardware == 3 * counted


@pytest.mark.parametrize("next_sentence", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("name", [name for name in COMPILED if name != "mini"])
def test_the_count_agrees_with_the_compiled_program(name, next_sentence):
    config, rows, length, num_predictions = COMPILED[name], 3, 48, 8
    counted, lookups = compiled_products(
        BertEncoder(config), next_sentence, rows, length, num_predictions
    )
    flops = row_flops(BertEncoder(config), next_sentence, length, num_predictions)
    assert flops.model == flops.hardware
    assert rows * flops.model == pytest.approx(counted, rel=0.03)
    # It leaves out only the products that look up segments and masked positions.
    assert rows * flops.model == pytest.approx(counted - lookups, rel=1e-6)


@pytest.mark.parametrize("name, variant", [("bert", "tiny"), ("albert", "factorised")])
def test_the_count_holds_for_model_gardens_encoders_that_have_one(name, variant):
    config = COMPILED[variant]
    model, other = (
        open_encoder(dataclasses.replace(config, encoder=f"garden:{name}"))
        for name in (name, "fnet")
    )
    assert other.token_products(1) is None
    counted, lookups = compiled_products(model, True, 2, 32, 4)
    # The rest are products that repeat masks and position embeddings.
    assert 2 * row_flops(model, True, 32, 4).model == pytest.approx(counted - lookups, rel=1e-3)


@pytest.mark.parametrize(
    "name, every",
    [
        ("mini", 3),
        pytest.param("crammed", 1, marks=pytest.mark.long),
    ],
)
def test_recomputed_layers_are_hardware_flops_alone(name, every):
    config, rows, length, num_predictions = COMPILED[name], 2, 32, 4
    encoder = BertEncoder(config, recompute_every=every, xla=True)
    counted, lookups = compiled_products(encoder, True, rows, length, num_predictions)
    flops = row_flops(encoder, True, length, num_predictions)
    assert flops.model == row_flops(BertEncoder(config), True, length, num_predictions).model
    again = 2 * rows * length * (num_predictions + 1) * config.hidden_size  # looked up twice
    assert rows * flops.hardware == pytest.approx(counted - lookups - again, rel=1e-6)
    assert 1.1 < flops.hardware / flops.model < 4 / 3


def test_large_models_take_six_flops_a_weight_and_token():
    """The rule of thumb of Kaplan et al. 2020 holds where the weights of the layers dominate."""
    config = preset("large", vocab_size=2)
    layers = [
        spec
        for name, spec in encoder_weights(config).items()
        if name.startswith("layer_") and name.endswith("kernel")
    ]
    num_weights = sum(np.prod(spec.shape) for spec in layers)
    flops = row_flops(BertEncoder(config), False, 128, 1).model
    assert flops / 128 == pytest.approx(6 * num_weights, rel=0.03)


def test_packed_rows_need_their_own_pairs_and_compute_all():
    config, length, num_predictions = COMPILED["tiny"], 48, 8
    ids = np.repeat([[1, 2, 3, 0], [4, 5, 5, 6]], 12, axis=1)
    assert mean_attended(ids) == (6 * 12 * 12 + 24 * 24) / 96
    batch = dict(
        input_mask=np.ones([2, length]),
        masked_lm_positions=np.zeros([2, num_predictions]),
        sequence_ids=ids,
    )
    objective = pretraining.objective(BertEncoder(config), False)
    flops = objective.flops(batch)
    whole = objective.flops({name: batch[name] for name in batch if name != "sequence_ids"})
    # where each word of a sequence is masked, the count is linear in what is masked
    encoder = BertEncoder(config)
    alone = [row_flops(encoder, False, size, 0).model for size in [12] * 6 + [24]]
    words = [
        (row_flops(encoder, False, size, size).model - row) / size
        for size, row in zip([12] * 6 + [24], alone, strict=True)
    ]
    mean = np.average(words, weights=[12] * 6 + [24])
    assert flops.model == pytest.approx(sum(alone) + 2 * num_predictions * mean)
    assert flops.hardware == whole.hardware > flops.model
    counted, lookups = compiled_products(
        BertEncoder(config), False, 2, length, num_predictions, packed=True
    )
    assert flops.hardware == pytest.approx(counted - lookups, rel=1e-6)
