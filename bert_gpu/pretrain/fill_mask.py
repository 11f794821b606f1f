"""Predicts the words behind [MASK] with a pretrained model, to see what it has learnt."""

import numpy as np
import tensorflow as tf

from bert_gpu import fused
from bert_gpu.interop import models
from bert_gpu.model.encoders import open_encoder
from bert_gpu.model.heads import mlm_logits, mlm_weights
from bert_gpu.settings import UserError

MASK = "[MASK]"


def fill_mask(config, text):
    """The most probable words for each [MASK] of a text: a list of [(probability, piece), ...],
    the best first.

    Args:
      config: FillMaskConfig. text: str with one [MASK] or more.
    """
    if MASK not in text:
        raise UserError(
            f"{text[:100]!r}: has no {MASK}; write {MASK}, in capitals, for each word to guess"
        )
    fused.compile_silently_once()
    folder = models.find_model(config.model, "model")
    model, weights, *_ = models.read_model(folder)
    encoder = open_encoder(model)
    missing = [name for name in {**encoder.weights(), **mlm_weights(model)} if name not in weights]
    if missing:
        raise UserError(
            f"--model={config.model}: has no {missing[0]}, so it cannot "
            "guess words; name a pretrained model, not a classifier"
        )
    tokenizer = models.load_tokenizer(folder, config.vocab_file, config.do_lower_case)
    models.check_vocabulary(tokenizer, model, config.vocab_file or f"{folder}/vocab.txt")
    ids = encode_text(tokenizer, text)
    if len(ids) > model.max_position_embeddings:
        raise UserError(
            f"the text has {len(ids)} tokens, the model "
            f"{model.max_position_embeddings} positions; shorten it"
        )
    rows = mask_probabilities(weights, encoder, ids, np.flatnonzero(ids == tokenizer.mask_id))
    best = [np.argsort(-probabilities, kind="stable")[: config.top_k] for probabilities in rows]
    return [
        [(row[piece], tokenizer.vocab[piece]) for piece in pieces]
        for row, pieces in zip(rows, best, strict=True)
    ]


def encode_text(tokenizer, text):
    """[CLS] text [SEP] as int32 (S,). Handles the literal [MASK], which a tokenizer would split."""
    ids, splits = tokenizer.tokenize(text.split(MASK))
    parts = [[tokenizer.cls_id]]
    for part in range(len(splits) - 1):
        parts += [[tokenizer.mask_id]] if part else []
        parts.append(ids[splits[part] : splits[part + 1]])
    return np.concatenate([*parts, [tokenizer.sep_id]]).astype(np.int32)


def mask_probabilities(weights, encoder, ids, positions):
    """Probabilities of all words at some positions of one row: (S,), (P,) -> float32 (P, V)."""
    length = encoder.fixed_length or len(ids)
    row = tf.constant(np.pad(ids, (0, length - len(ids)))[None])
    mask = tf.constant((np.arange(length) < len(ids))[None], tf.int32)
    batch = dict(input_ids=row, input_mask=mask, segment_ids=tf.zeros_like(row))
    weights = {name: tf.constant(value) for name, value in weights.items()}
    logits = mlm_logits(
        weights,
        encoder.encode(weights, batch),
        tf.constant(positions[None], tf.int32),
        encoder.config,
    )
    return tf.nn.softmax(logits[0]).numpy()
