"""A SavedModel's signatures take batches of any size, none among them."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.base.fused import inlined
from bert_gpu.interop import savedmodel
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoders import open_encoder
from bert_gpu.model.weights import initialize
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from tests import pretraining, task_heads

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc"]


def open_served(tmp_path, changes):
    """The Served of a model with all heads."""
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES))
    config = ModelConfig(
        vocab_size=len(PIECES),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=16,
        **changes,
    )
    encoder = open_encoder(config)
    specs = pretraining.weights(encoder) | task_heads.specs("classifier", encoder, 2)
    weights = {name: 9 * value for name, value in initialize(specs, 1).items()}
    notes = Notes([], [], "BertForPreTraining", ("no", "yes"))
    tokenizer = WordPieceTokenizer(str(path))
    return savedmodel.Served(Model(config, weights, notes, tokenizer))


def check_parts(functions, max_examples):
    """Compares the answers of a batch of texts with those of its parts; functions: {name of a
    signature: function}.
    """
    words = st.lists(st.sampled_from([*"abc", "[MASK]"]), max_size=20).map(" ".join)

    def answers(name, texts):
        names = ["text_a", "text_b"] if name == "classify_pairs" else ["text"]
        texts = tf.constant(texts, tf.string, [len(texts)])
        return functions[name](**dict.fromkeys(names, texts))

    @settings(max_examples=max_examples)
    @given(st.lists(words, max_size=4), st.sampled_from([0.0, 0.5, 1.0]))
    def check(texts, share):
        size = int(share * len(texts))
        for name in functions:
            whole = answers(name, texts)
            first, rest = answers(name, texts[:size]), answers(name, texts[size:])
            if name == "fill_mask":  # numbers of texts
                rest["text"] += size
            for key, values in whole.items():
                joined = tf.concat([first[key], rest[key]], 0).numpy()
                if joined.dtype == object:
                    assert joined.tolist() == values.numpy().tolist()
                else:
                    np.testing.assert_allclose(joined, values, rtol=0, atol=1e-5)

    check()


class CharacterOps:
    """A tokenizer in the graph that gives an id for each character, and takes no time to open."""

    def tokenize(self, texts):
        return tf.strings.unicode_decode(texts, "UTF-8") % len(PIECES)


def test_the_answers_of_parts_are_those_of_the_whole(tmp_path, monkeypatch):
    """Wherever a batch is cut, at its begin and its end too."""
    monkeypatch.setattr(savedmodel, "open_ops", lambda tokenizer: CharacterOps())
    served = open_served(tmp_path, {})
    with inlined():  # as `signatures` does, of which this is the quickest one
        embed = tf.function(served.embed, autograph=False).get_concrete_function(savedmodel.TEXT)
    check_parts(dict(embed=embed), 12)


@pytest.mark.long
def test_every_signatures_answers_of_parts_are_those_of_the_whole(tmp_path):
    changes = dict(position_embedding_type="rotary", pooling="mean", norm_type="rms_norm")
    functions = open_served(tmp_path, changes).signatures()
    del functions["serving_default"]
    check_parts(functions, 12)
