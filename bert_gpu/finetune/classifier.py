"""Text pairs -> batches -> a classifier's loss and probabilities.

All text is tokenized once, up front, into flat arrays. A batch is padded only to its longest row,
unless the encoder has a fixed length. As in pretraining, the order of the examples is a function of
(seed, epoch) alone and the position of a run is the number of examples consumed.

Legend: N examples, T tokens of all of them, B batch, S sequence, C classes.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_gpu.data.pipeline import consume, epoch_order
from bert_gpu.model.heads import classifier_logits, cross_entropy, sentence_vector
from bert_gpu.train.evaluation import ForwardPass
from bert_gpu.train.step import Objective

LENGTH_MULTIPLE = 8  # matrix units like multiples of 8, and fewer lengths mean fewer compilations


@dataclasses.dataclass(frozen=True)
class EncodedExamples:
    """Encoded examples: [CLS] A [SEP] B [SEP], or [CLS] A [SEP] where there is no second text.

    Attributes:
      ids: int32 (T,), all examples concatenated. splits: int64 (N + 1,), where each begins.
      first_lengths: int64 (N,), tokens of [CLS] A [SEP], which is segment 0.
      labels: int32 (N,), or None. max_seq_length: maximum tokens of an example. num_truncated:
        examples that were cut to it.
      length_multiple: the length of a batch is a multiple of it, or max_seq_length.
    """

    ids: np.ndarray
    splits: np.ndarray
    first_lengths: np.ndarray
    labels: np.ndarray | None
    max_seq_length: int
    num_truncated: int
    length_multiple: int = LENGTH_MULTIPLE

    def __len__(self):
        return len(self.first_lengths)


def encode_examples(
    tokenizer, texts_a, texts_b, labels, max_seq_length, length_multiple=LENGTH_MULTIPLE
):
    """Tokenizes, truncates and joins texts to EncodedExamples.

    Args:
      tokenizer: text.tokenizer.Tokenizer. texts_a: list of N str. texts_b: the same, or None.
      labels: N ints, or None. max_seq_length: S, at least 5, so that each text of a pair keeps a
        token. length_multiple: as in EncodedExamples.
    """
    ids_a, splits_a = tokenizer.tokenize(texts_a)
    ids_b, splits_b = (
        tokenizer.tokenize(texts_b)
        if texts_b is not None
        else (np.zeros(0, np.int32), np.zeros(len(texts_a) + 1, np.int64))
    )
    lengths_a, lengths_b = np.diff(splits_a), np.diff(splits_b)
    kept_a, kept_b = truncated_lengths(lengths_a, lengths_b, max_seq_length)
    first_lengths = kept_a + 2
    splits = np.cumsum(np.concatenate([[0], first_lengths + kept_b + (lengths_b > 0)]))
    starts = splits[:-1]
    ids = np.full(splits[-1], tokenizer.sep_id, np.int32)  # what the texts do not fill is [SEP]
    ids[starts] = tokenizer.cls_id
    ids[ranges(starts + 1, kept_a)] = ids_a[ranges(splits_a[:-1], kept_a)]
    ids[ranges(starts + first_lengths, kept_b)] = ids_b[ranges(splits_b[:-1], kept_b)]
    return EncodedExamples(
        ids=ids,
        splits=splits,
        first_lengths=first_lengths,
        labels=None if labels is None else np.asarray(labels, np.int32),
        max_seq_length=max_seq_length,
        num_truncated=int(np.sum((kept_a < lengths_a) | (kept_b < lengths_b))),
        length_multiple=length_multiple,
    )


def truncated_lengths(lengths_a, lengths_b, max_seq_length):
    """Tokens that each text keeps, (N,) and (N,).

    Equals Google's run_classifier, which drops the last token of the longer text (on a tie: of B)
    until the row fits: a text shorter than half the room stays whole, and the other gets the rest.
    A row without a second text has one [SEP] less.
    """
    room = np.where(lengths_b > 0, max_seq_length - 3, max_seq_length - 2)
    kept_b = np.minimum(lengths_b, np.maximum(room // 2, room - lengths_a))
    return np.minimum(lengths_a, room - kept_b), kept_b


def ranges(starts, lengths):
    """The integers start, ..., start + length - 1 of each pair, concatenated."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


def make_batch(examples, indices, row_weights=None):
    """The examples `indices` (B,) as a batch, padded to the longest of them, rounded up.

    Returns:
      dict of input_ids, input_mask, segment_ids int32 (B, S), row_weights float32 (B,) and, if the
        examples have labels, labels int32 (B,).
    """
    starts, lengths = examples.splits[indices], np.diff(examples.splits)[indices]
    longest = min(
        examples.max_seq_length,
        -(-int(lengths.max()) // examples.length_multiple) * examples.length_multiple,
    )
    positions = np.arange(longest)
    is_token = positions < lengths[:, None]
    input_ids = np.zeros(is_token.shape, np.int32)
    input_ids[is_token] = examples.ids[ranges(starts, lengths)]
    is_second = is_token & (positions >= examples.first_lengths[indices][:, None])
    weights = np.ones(len(indices), np.float32) if row_weights is None else row_weights
    batch = dict(
        input_ids=input_ids,
        input_mask=is_token.astype(np.int32),
        segment_ids=is_second.astype(np.int32),
        row_weights=weights,
    )
    return batch if examples.labels is None else batch | dict(labels=examples.labels[indices])


def training_batches(examples, *, batch_size, position, seed):
    """Endless batches of `batch_size` examples from `position` (examples consumed) on, in a new
    order each epoch.
    """
    for indices, _ in consume(
        len(examples), batch_size, position, lambda epoch: epoch_order(len(examples), seed, epoch)
    ):
        yield make_batch(examples, indices)


def evaluation_batches(examples, *, batch_size):
    """All examples once, in order. The last batch is padded with rows whose "row_weights" (B,) are
    0.
    """
    for start in range(0, len(examples), batch_size):
        indices = np.arange(start, start + batch_size)
        is_real = indices < len(examples)
        yield make_batch(examples, np.where(is_real, indices, start), is_real.astype(np.float32))


def class_logits(weights, batch, encoder, dtype, seed=None):
    """(B, C) in the compute dtype. The sentence vector has the dropout of the hidden states, as in
    Google's BERT.
    """
    config, hidden = encoder.config, encoder.encode(weights, batch, dtype=dtype, seed=seed)
    return classifier_logits(
        weights,
        sentence_vector(weights, hidden, batch["input_mask"], config),
        seed,
        config.hidden_dropout_prob,
    )


def classification_objective(encoder):
    """The Objective of a classifier on an Encoder: cross-entropy of the labels, weighted by
    row_weights.
    """

    def losses(weights, batch, dtype, seed):
        logits = class_logits(weights, batch, encoder, dtype, seed)
        return {
            "classifier": tf.reduce_sum(
                cross_entropy(logits, batch["labels"]) * batch["row_weights"]
            )
        }

    return Objective(
        counts=lambda batch: {"classifier": tf.reduce_sum(batch["row_weights"])}, losses=losses
    )


class Predictor:
    """Callable (EncodedExamples, batch_size) -> probabilities float64 (N, C), in the same order.
    batch_size is that of all replicas together.

    The softmax is taken in float64, so that even a very unlikely class has a probability above 0.
    """

    def __init__(self, devices, state, encoder):
        self.num_replicas = devices.num_replicas
        self.forward = ForwardPass(
            devices,
            state,
            lambda weights, batch, dtype: {
                "logits": tf.cast(class_logits(weights, batch, encoder, dtype), tf.float32)
            },
        )

    def __call__(self, examples, batch_size):
        if batch_size % self.num_replicas:
            raise ValueError(
                f"a batch of {batch_size} rows does not divide among {self.num_replicas} replicas"
            )
        # a larger batch would only be padding
        everything = -(-len(examples) // self.num_replicas) * self.num_replicas
        logits = []
        for batch in evaluation_batches(examples, batch_size=min(batch_size, everything)):
            is_real = batch["row_weights"] > 0
            features = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
            outputs = np.concatenate([result["logits"] for result in self.forward(features)])
            logits.append(outputs[is_real])
        wide = np.concatenate(logits).astype(np.float64)
        exponentials = np.exp(wide - wide.max(-1, keepdims=True))
        return exponentials / exponentials.sum(-1, keepdims=True)
