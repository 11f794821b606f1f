"""Both encoders implement Encoder, and only one function chooses between them."""

import ast
import pathlib

import pytest
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoders import Encoder, open_encoder

ROOT = pathlib.Path(__file__).parents[2]
SMALL = dict(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=16,
)
METHODS = ("weights", "encode", "check", "cudnn_obstacle", "for_training")


@pytest.mark.parametrize("name, num_groups", [(None, 2), ("garden:bert", 2), ("garden:albert", 1)])
def test_each_is_an_encoder(name, num_groups):
    config = ModelConfig(**SMALL, encoder=name)
    encoder = open_encoder(config)
    assert (
        isinstance(encoder, Encoder)
        and encoder == open_encoder(config)
        and hash(encoder) == hash(open_encoder(config))
    )
    assert all(callable(getattr(type(encoder), method)) for method in METHODS)
    assert (encoder.config, encoder.num_groups, encoder.fixed_length) == (config, num_groups, None)
    specs = encoder.weights()
    assert specs["embeddings/word"].shape == (50, 16)
    ids = tf.ones([3, 8], tf.int32)
    weights = {name: tf.ones(spec.shape) for name, spec in specs.items()}
    batch = dict(input_ids=ids, input_mask=ids, segment_ids=ids)
    for dtype in (tf.float32, tf.bfloat16):
        hidden = encoder.for_training().encode(
            weights, batch, dtype=dtype, seed=tf.constant([1, 2])
        )
        assert hidden.shape == (3, 8, 16) and hidden.dtype == dtype
    encoder.check(16, "float32")
    encoder.check(None, "float32")
    with pytest.raises(
        UserError, match="rows of 17 tokens, but --max_position_embeddings=16; raise it"
    ):
        encoder.check(17, "float32")


def test_one_function_chooses_the_encoder():
    """Only encoders.py imports garden.py, and nothing outside model/ compares a config's `encoder`
    or uses the encoder's prefix.
    """
    for path in sorted((ROOT / "bert_gpu").rglob("*.py")):
        name, tree = str(path.relative_to(ROOT / "bert_gpu")), ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and name != "model/encoders.py":
                imported = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                assert "bert_gpu.model.garden" not in imported, name
            if name.startswith("model/"):
                continue
            if isinstance(node, ast.Compare):
                assert not any(
                    isinstance(side, ast.Attribute) and side.attr == "encoder"
                    for side in (node.left, *node.comparators)
                ), name
            if isinstance(node, ast.Constant):
                assert not str(node.value).startswith("garden:"), name
