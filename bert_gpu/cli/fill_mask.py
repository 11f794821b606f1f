"""python -m bert_gpu fill-mask: the words that a pretrained model puts behind [MASK]."""

import numpy as np
import tensorflow as tf

from bert_gpu import fused
from bert_gpu.cli import flags
from bert_gpu.interop import huggingface, pretrained
from bert_gpu.model.encoders import open_encoder
from bert_gpu.model.heads import mlm_logits, mlm_weights
from bert_gpu.pretrain.config import FillMaskConfig
from bert_gpu.settings import UserError

SUMMARY = "Guesses the words behind each [MASK] of a text with a pretrained model."
EXAMPLE = (
    'python -m bert_gpu fill-mask "the capital of france is [MASK] ."',
    'python -m bert_gpu fill-mask --model=bert-base-uncased --top_k=10 "a [MASK] of [MASK]"',
)
MASK = "[MASK]"


def main(argv):
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, [FillMaskConfig], positionals='"TEXT WITH [MASK]"')
    fused.hush()
    config = parsed.make(FillMaskConfig)
    if len(parsed.positionals) != 1:
        raise UserError(f'one text is needed, not {len(parsed.positionals)}; put it in quotes: fill-mask "the sky is [MASK] ."')
    text = parsed.positionals[0]
    if MASK not in text:
        raise UserError(f"{text[:100]!r}: has no {MASK}; write {MASK}, in capitals, for each word to guess")
    folder = pretrained.find_model(config.model, "model")
    model, weights, _ = huggingface.read_model(folder)
    encoder = open_encoder(model)
    missing = [name for name in {**encoder.weights(), **mlm_weights(model)} if name not in weights]
    if missing:
        raise UserError(f"--model={config.model}: has no {missing[0]}, so it cannot guess words; name a pretrained model, not a classifier")
    tokenizer = pretrained.load_tokenizer(folder, config.vocab_file, config.do_lower_case)
    pretrained.check_vocabulary(tokenizer, model, config.vocab_file or f"{folder}/vocab.txt")
    ids = encode_text(tokenizer, text)
    if len(ids) > model.max_position_embeddings:
        raise UserError(f"the text has {len(ids)} tokens, the model {model.max_position_embeddings} positions; shorten it")
    for number, probabilities in enumerate(mask_probabilities(weights, encoder, ids, np.flatnonzero(ids == tokenizer.mask_id)), 1):
        print(f"{MASK} {number}")
        for piece in np.argsort(-probabilities, kind="stable")[: config.top_k]:
            print(f"  {probabilities[piece]:.4f}  {tokenizer.vocab[piece]}")
    return 0


def encode_text(tokenizer, text):
    """[CLS] text [SEP] as int32 (S,). The literal [MASK], which a tokenizer would split, is the mask piece."""
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
    logits = mlm_logits(weights, encoder.encode(weights, batch), tf.constant(positions[None], tf.int32), encoder.config)
    return tf.nn.softmax(logits[0]).numpy()
