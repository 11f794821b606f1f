"""Small models, one for each switch of ModelConfig and some with several switches, in which every
weight matters.
"""

import numpy as np
import tensorflow as tf

from bert_gpu.model.config import PRESETS, ModelConfig
from bert_gpu.model.encoder import BertEncoder
from tests import pretraining, task_heads

SMALL = dict(
    vocab_size=40, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=24, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
)  # fmt: skip
SWITCHES = {
    "bert": {},
    "pre": dict(norm_first=True),
    "rms": dict(norm_type="rms_norm"),
    "no embedding norm": dict(embedding_norm=False, norm_first=True),
    "sinusoidal": dict(position_embedding_type="scaled_sinusoidal"),
    "rotary": dict(position_embedding_type="rotary"),
    "local": dict(local_attention=5, global_attention_every=2),
    "local rotary": dict(
        local_attention=4, position_embedding_type="rotary", rotary_base=50.0,
        local_rotary_base=20.0,
    ),
    "disentangled": dict(
        position_embedding_type="disentangled", position_buckets=4, max_relative_positions=16
    ),
    "c2p pre": dict(
        position_embedding_type="disentangled", position_buckets=0, max_relative_positions=5,
        pos_att_type="c2p", norm_first=True, use_bias=False,
    ),
    "p2c local": dict(
        position_embedding_type="disentangled", pos_att_type="p2c", local_attention=5,
        global_attention_every=2, norm_type="rms_norm",
    ),
    "no segments": dict(type_vocab_size=0),
    **{act: dict(hidden_act=act) for act in ("gelu_new", "relu", "geglu", "reglu", "swiglu")},
    "no biases": dict(use_bias=False),
    "bare decoder": dict(mlm_transform=False, decoder_bias=False),
    "factorised": dict(embedding_size=6),
    "shared": dict(num_hidden_groups=1),
    "shared in pairs": dict(
        num_hidden_layers=4, num_hidden_groups=2, embedding_size=6, use_bias=False
    ),
    "crammed": {name: value for name, value in PRESETS["crammed"].items() if name not in SMALL},
    "all at once": dict(
        norm_first=True, norm_type="rms_norm", position_embedding_type="rotary",
        hidden_act="swiglu", use_bias=False, num_hidden_layers=4,
        embedding_size=6, num_hidden_groups=2, decoder_bias=False,
    ),
}  # fmt: skip
VARIANTS = {
    name: ModelConfig(**SMALL | dict(num_hidden_layers=2) | switches)
    for name, switches in SWITCHES.items()
}


def random_weights(config, seed=0, num_classes=None):
    generator = np.random.default_rng(seed)
    specs = pretraining.weights(BertEncoder(config))
    if num_classes:
        specs |= task_heads.specs("classifier", BertEncoder(config), num_classes)
    return {
        name: (0.3 * generator.standard_normal(spec.shape)).astype(np.float32)
        for name, spec in specs.items()
    }


def as_tensors(weights):
    return {name: tf.constant(value) for name, value in weights.items()}


def random_batch(config, lengths, length, num_predictions=3, seed=0):
    """A batch as NumPy arrays: rows of the given lengths, padded to `length`."""
    generator = np.random.default_rng(seed)
    shape, lengths = (len(lengths), length), np.array(lengths)
    return {
        "input_ids": generator.integers(0, config.vocab_size, shape, np.int32),
        "input_mask": (np.arange(length) < lengths[:, None]).astype(np.int32),
        "segment_ids": generator.integers(0, 2, shape, np.int32),
        "masked_lm_positions": (
            generator.random((len(lengths), num_predictions)) * lengths[:, None]
        ).astype(np.int32),
        "masked_lm_ids": generator.integers(
            0, config.vocab_size, (len(lengths), num_predictions), np.int32
        ),
        "masked_lm_weights": np.ones((len(lengths), num_predictions), np.float32),
    }


def value_and_gradients(loss_fn, weights, jit=False, is_traced=True):
    """(loss, {name: gradient}) of loss_fn(weights), as NumPy. Without tracing it takes a tenth of
    the time.
    """

    def run(weights):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            loss = loss_fn(weights)
        return loss, tape.gradient(
            loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )

    loss, gradients = (tf.function(run, jit_compile=jit) if is_traced else run)(weights)
    return loss.numpy(), {name: gradient.numpy() for name, gradient in gradients.items()}
