"""Shapes of the models that benchmarks train, and the arithmetic of their steps."""

import numpy as np

from bert_gpu.model.config import PRESETS, ModelConfig

from .serve import VOCAB_SIZE, make_batch

SHAPES = PRESETS | {
    "6x512": dict(
        num_hidden_layers=6, hidden_size=512, num_attention_heads=8, intermediate_size=2048
    ),
    "6x384": dict(
        num_hidden_layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536
    ),
    "deberta-v3-small": dict(PRESETS["base"], num_hidden_layers=6)
    | dict(position_embedding_type="disentangled", type_vocab_size=0, vocab_size=128100),
}
DROPOUT = 0.1


def shape_of(name):
    """Return settings of a named BERT that all peers understand, with the names of Google's
    bert_config.json.
    """
    fields = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    if "vocab_size" in SHAPES[name]:  # only ours has this model
        fields += ("position_embedding_type", "type_vocab_size", "vocab_size")
    sizes = {field: SHAPES[name][field] for field in fields}
    return sizes | dict(
        max_position_embeddings=512,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
    )


def flops_per_token(name, length, packed=False):
    """Return the model FLOPs of a training step for each position of its rows
    (bert_gpu/model/flops.py).
    """
    from bert_gpu.model.encoder import BertEncoder  # imports TensorFlow, which --help does not need
    from bert_gpu.pretrain.objectives.joint import open_objective

    encoder = BertEncoder(ModelConfig(**dict(vocab_size=VOCAB_SIZE) | shape_of(name)))
    objective = open_objective(("mlm",) if packed else ("mlm", "nsp"), encoder)
    batch = make_batch(64, length, packed=packed)
    return objective.flops(batch).model / batch["input_mask"].size


def real_share(rows, length):
    """Return the share of the positions of a generated batch that hold tokens."""
    return float(np.mean(make_batch(rows, length)["input_mask"]))
