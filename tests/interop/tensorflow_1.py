"""Google's BERT as TensorFlow 1 stores it: variables under its names, written by tf.train.Saver.

The names and shapes are written down here once more, from google-research/bert's modeling.py,
so that a mistake in bert_gpu/interop/google.py is seen.
"""

import json

import numpy as np
import tensorflow as tf

SHAPE = dict(
    vocab_size=13,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    max_position_embeddings=12,
    type_vocab_size=2,
)
SETTINGS = SHAPE | dict(
    hidden_act="gelu",
    initializer_range=0.02,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    directionality="bidi",
)
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg", "##b"]


def variables(num_classes=None):
    """{Google's name: shape}."""
    hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    found = {
        "bert/embeddings/word_embeddings": (SHAPE["vocab_size"], hidden),
        "bert/embeddings/token_type_embeddings": (2, hidden),
        "bert/embeddings/position_embeddings": (12, hidden),
        "bert/pooler/dense/kernel": (hidden, hidden),
        "bert/pooler/dense/bias": (hidden,),
    }
    norms = ["bert/embeddings/LayerNorm"]
    for layer in range(SHAPE["num_hidden_layers"]):
        scope = f"bert/encoder/layer_{layer}"
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            found[f"{scope}/attention/{part}/kernel"] = (hidden, hidden)
            found[f"{scope}/attention/{part}/bias"] = (hidden,)
        found[f"{scope}/intermediate/dense/kernel"] = (hidden, inner)
        found[f"{scope}/intermediate/dense/bias"] = (inner,)
        found[f"{scope}/output/dense/kernel"] = (inner, hidden)
        found[f"{scope}/output/dense/bias"] = (hidden,)
        norms += [f"{scope}/attention/output/LayerNorm", f"{scope}/output/LayerNorm"]
    if num_classes is None:
        transform = "cls/predictions/transform"
        found[f"{transform}/dense/kernel"] = (hidden, hidden)
        found[f"{transform}/dense/bias"] = (hidden,)
        norms.append(f"{transform}/LayerNorm")
        found["cls/predictions/output_bias"] = (SHAPE["vocab_size"],)
        found["cls/seq_relationship/output_weights"] = (2, hidden)
        found["cls/seq_relationship/output_bias"] = (2,)
    else:
        found["output_weights"], found["output_bias"] = (num_classes, hidden), (num_classes,)
    for scope in norms:
        found[f"{scope}/gamma"] = found[f"{scope}/beta"] = (hidden,)
    return found


def write(folder, num_classes=None, **settings):
    """Writes a checkpoint with an optimizer's variables, its config and its vocabulary; returns
    {name: array} without the optimizer's.
    """
    generator = np.random.default_rng(5)
    values = {
        name: (0.3 * generator.standard_normal(shape)).astype(np.float32)
        for name, shape in variables(num_classes).items()
    }
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(1)  # deterministic ops, which other tests switch on, need it
        variable = tf.compat.v1.get_variable
        stored = {name: variable(name, initializer=value) for name, value in values.items()}
        for name in values:
            for slot in ("adam_m", "adam_v"):
                stored[f"{name}/{slot}"] = variable(f"{name}/{slot}", values[name].shape)
        stored["global_step"] = variable("global_step", initializer=np.int64(9))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(stored).save(session, str(folder / "bert_model.ckpt"))
    (folder / "bert_config.json").write_text(json.dumps(SETTINGS | settings))
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return values
