"""Writes a SavedModel that takes raw strings: tokenizer, encoder and heads in one graph. Where the
tokenizer is a tokenizer.json, which no TensorFlow ops compute, the SavedModel takes token ids.

Whoever loads it needs TensorFlow and, for strings, tensorflow_text, which has the tokenizer's ops,
but not bert-gpu. Signatures follow from the heads: `embed` always; `fill_mask` with the masked-word
head; `classify` and, for strings, `classify_pairs` with a classifier. Batches may have any size and
texts any length. A text is cut to the length of the model's training texts, at most its number of
positions; in a pair, the longer text is cut first; a classifier reads long texts as in its training
(text/long_texts.py). Rows of ids are not cut.

Legend: N texts, S sequence, H hidden, M masked positions of all texts, K words for each, C classes.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.base.fused import inlined
from bert_gpu.interop import card
from bert_gpu.interop.folders import replace_folder, saved_files
from bert_gpu.interop.formats import Model
from bert_gpu.interop.usage import check_scores, class_names, written_usage
from bert_gpu.model import heads
from bert_gpu.model.encoders import open_encoder
from bert_gpu.text.long_texts import CUT, FIRST_TOKENS, HEAD_PARTS, HEAD_TAIL, LongTexts
from bert_gpu.text.tokenizers.ops import CharacterMap, open_ops
from bert_gpu.text.vocabulary.file import has_piece

MASK = "[MASK]"
TOP_K = 5  # number of words that fill_mask returns for each [MASK]
WITHOUT_SIGNATURE = ("BertForTokenClassification", "BertForQuestionAnswering")
TEXT = tf.TensorSpec([None], tf.string, name="text")
IDS = [
    tf.TensorSpec([None, None], tf.int32, name=name)
    for name in ("input_ids", "input_mask", "segment_ids")
]
PAIRS = [tf.TensorSpec([None], tf.string, name=name) for name in ("text_a", "text_b")]


class Served(tf.Module):
    """A model as functions of strings, or of token ids. The functions that `signatures` returns are
    saved.

    dtype: number format of the matrices and of the computation; results are float32.
    """

    def __init__(self, model: Model, dtype: tf.DType = tf.float32) -> None:
        super().__init__()
        assert model.tokenizer is not None  # `write` has checked it
        self.problem_type = model.notes.problem_type
        self.embedding = model.notes.embedding
        self.long_texts = model.notes.long_texts
        self.encoder = open_encoder(model.config)
        self.dtype = dtype
        self.config = model.config
        self.tokenizer = model.tokenizer
        self.takes_ids = "tokenizer.json" in model.tokenizer.files()
        self.ops: Any = None if self.takes_ids else open_ops(model.tokenizer)
        self.rows = IDS[: 3 if model.config.type_vocab_size > 1 else 2]
        weights = model.weights
        # the variables are in a list, because a name with slashes cannot be an attribute
        self.names = sorted(weights)
        self.variables_ = [
            tf.Variable(weights[name], dtype=dtype if np.ndim(weights[name]) >= 2 else tf.float32)
            for name in self.names
        ]
        self.words = tf.Variable(self.tokenizer.vocab, trainable=False)
        self.lower = CharacterMap(str.lower, True) if self.embedding.lowers else tf.identity
        self.labels = tf.constant(class_names(model), tf.string)
        positions = self.config.num_positions
        self.max_seq_length = min(model.notes.max_seq_length or positions, positions)

    def weights(self) -> dict[str, tf.Tensor]:
        return dict(zip(self.names, map(tf.convert_to_tensor, self.variables_), strict=True))

    def signatures(self) -> dict[str, object]:
        """Return {name: concrete function}; "serving_default" is the function for the model's main
        purpose.
        """
        functions: dict[str, tuple[Callable[..., dict[str, tf.Tensor]], list[tf.TensorSpec]]] = {
            "embed": (self.embed, [TEXT])
        }
        if self.embedding.query_prefix != self.embedding.prefix and not self.takes_ids:
            functions["embed_query"] = (self.embed_query, [TEXT])
        if heads.mlm_weights(self.config).keys() <= set(self.names):
            functions["fill_mask"] = (self.fill_mask, [TEXT])
        if "classifier/kernel" in self.names:
            functions["classify"] = (self.classify, [TEXT])
            functions["classify_pairs"] = (self.classify_pairs, PAIRS)
        if self.takes_ids:
            computations = dict(
                embed=self.vectors, fill_mask=self.best_words, classify=self.class_scores
            )
            functions = {
                name: (of_ids(compute), self.rows)
                for name, compute in computations.items()
                if name in functions
            }
        with inlined():
            signatures = {
                name: tf.function(function, autograph=False).get_concrete_function(*specs)
                for name, (function, specs) in functions.items()
            }
        purpose = next(name for name in ("classify", "fill_mask", "embed") if name in signatures)
        return signatures | dict(serving_default=signatures[purpose])

    def embed(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return, for texts (N,), {"cls": (N, H), the hidden state of [CLS]; "mean": (N, H), the
        mean of the hidden states of all tokens}. A sentence model also has "embedding" (N, H), the
        vector that its rules make.
        """
        return self.prefixed(self.embedding.prefix, text)

    def embed_query(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the same as `embed`, for queries (N,) of a search."""
        return self.prefixed(self.embedding.query_prefix, text)

    def prefixed(self, prefix: str, text: tf.Tensor) -> dict[str, tf.Tensor]:
        text = self.lower(tf.strings.join([prefix, text]))
        return self.vectors(self.frame(self.ops.tokenize(text)))

    def vectors(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        rules = self.embedding
        hidden = tf.cast(self.hidden(batch), tf.float32)
        mean = heads.mean_of_tokens(hidden, batch["input_mask"])
        vectors = dict(cls=hidden[:, 0], mean=mean)
        if rules.is_known:
            pooled = vectors[str(rules.pooling)]
            scaled = tf.nn.l2_normalize(pooled, -1, 1e-24)
            vectors["embedding"] = scaled if rules.is_normalized else pooled
        return vectors

    def fill_mask(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return, for each [MASK] in texts (N,) in order: "text" (M,), the index of the text;
        "words" and "probabilities" (M, K), the likeliest word first.
        """
        return self.best_words(self.frame(self.tokenize_masked(text)))

    def best_words(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        places = tf.where(batch["input_ids"] == self.tokenizer.mask_id)  # (M, 2)
        hidden = tf.gather_nd(self.hidden(batch), places)  # (M, H)
        size = tf.shape(hidden)[0]
        logits = heads.mlm_logits(
            self.weights(), hidden[None], tf.range(size)[None], self.config, self.dtype
        )[0]
        are_words = has_piece(self.tokenizer.vocab, self.config.vocab_size)
        best, pieces = heads.best_words(logits, are_words, TOP_K)
        return dict(
            text=tf.cast(places[:, 0], tf.int32),
            words=tf.gather(self.words, pieces),
            probabilities=best,
        )

    def classify(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return, for texts (N,), "probabilities" (N, C) and "label" (N,), the name of the
        likeliest class. Where a text may have any number of labels, return "labels" (C,), the names
        of all classes, in place of "label"; for a regression, return only "score" (N,).
        """
        return self.class_scores(self.frame(self.ops.tokenize(text), None, self.long_texts))

    def classify_pairs(self, text_a: tf.Tensor, text_b: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the same as `classify`, for pairs of texts, text_a (N,) and text_b (N,). A pair
        whose second text is empty is a single text.
        """
        ids_a, ids_b = self.ops.tokenize(text_a), self.ops.tokenize(text_b)
        return self.class_scores(self.frame(ids_a, ids_b, self.long_texts))

    def class_scores(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        weights = self.weights()
        mask = batch["input_mask"]
        vectors = heads.sentence_vector(weights, self.hidden(batch), mask, self.config)
        logits = tf.cast(heads.classifier_logits(weights, vectors), tf.float32)
        if "texts" in batch:
            logits = tf.math.segment_mean(logits, batch["texts"])
        if self.problem_type == "regression":
            return dict(score=logits[:, 0])
        if self.problem_type == "multi_label_classification":
            return dict(probabilities=tf.sigmoid(logits), labels=tf.identity(self.labels))
        shares = tf.nn.softmax(logits)
        return dict(probabilities=shares, label=tf.gather(self.labels, tf.argmax(shares, -1)))

    def hidden(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Return the hidden states (N, S, H) of a batch, in the number format of the
        computation.
        """
        return self.encoder.encode(self.weights(), batch, dtype=self.dtype)

    def tokenize_masked(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Return the token ids of texts (N,), one ragged row for each. A literal [MASK] in a text,
        which the tokenizer would split, becomes the special piece; so does the tokenizer's own name
        for it.
        """
        own = self.tokenizer.vocab[self.tokenizer.mask_id]
        # ragged: the parts of each of N texts
        parts = tf.strings.split(tf.strings.regex_replace(text, re.escape(own), MASK), MASK)
        ids = self.ops.tokenize(parts.values)
        num_parts = tf.size(parts.values)
        masks = tf.RaggedTensor.from_row_lengths(
            tf.fill([num_parts], self.tokenizer.mask_id), tf.ones([num_parts], tf.int64)
        )
        ids = tf.concat([ids, masks], 1)  # a mask after each part
        whole = tf.RaggedTensor.from_row_splits(
            ids.values, tf.gather(ids.row_splits, parts.row_splits)
        )
        return first_ids(whole, whole.row_lengths() - 1)  # without the mask after the last part

    def frame(
        self,
        ids_a: tf.RaggedTensor,
        ids_b: tf.RaggedTensor | None = None,
        long_texts: LongTexts = FIRST_TOKENS,
    ) -> dict[str, tf.Tensor]:
        """Return the encoder's batch of rows [CLS] A [SEP] or [CLS] A [SEP] B [SEP], cut to
        max_seq_length as text.framing.frame does; unless long texts are cut, also "texts", int32,
        the text of each row. ids_a, ids_b: N ragged rows of token ids each.
        """
        lengths_a = ids_a.row_lengths()
        lengths_b = tf.zeros_like(lengths_a) if ids_b is None else ids_b.row_lengths()
        has_b = lengths_b > 0
        room = self.max_seq_length - 2 - tf.cast(has_b, tf.int64)
        size_b = tf.minimum(lengths_b, tf.maximum(room // 2, room - lengths_a))
        size_a = tf.minimum(lengths_a, room - size_b)
        more = {}
        if long_texts.rule != CUT:
            excess = tf.where(has_b, lengths_b - size_b, lengths_a - size_a)
            texts, firsts, skipped = parts(long_texts, tf.where(has_b, size_b, size_a), excess)
            size_a, size_b, has_b = (tf.gather(sizes, texts) for sizes in (size_a, size_b, has_b))
            skipped_b = skipped * tf.cast(has_b, tf.int64)
            ids_a = without_ids(tf.gather(ids_a, texts), firsts, skipped - skipped_b)
            ids_b = (
                None if ids_b is None else without_ids(tf.gather(ids_b, texts), firsts, skipped_b)
            )
            more = dict(texts=texts)
        once = tf.ones_like(size_a)
        rows = [
            repeat_id(self.tokenizer.cls_id, once),
            first_ids(ids_a, size_a),
            repeat_id(self.tokenizer.sep_id, once),
        ]
        if ids_b is not None:
            once_b = tf.cast(has_b, tf.int64)
            rows += [first_ids(ids_b, size_b), repeat_id(self.tokenizer.sep_id, once_b)]
        framed = tf.concat(rows, 1)
        input_ids = framed.to_tensor(0, shape=[None, self.encoder.fixed_length])
        # a batch of no texts must have two columns or more too, the width of [CLS] [SEP]
        missing = tf.maximum(0, 2 - tf.shape(input_ids)[1])
        input_ids = tf.pad(input_ids, [[0, 0], [0, missing]])
        positions = tf.range(tf.shape(input_ids, tf.int64)[1])
        is_token = positions < framed.row_lengths()[:, None]
        is_second = is_token & (positions >= (size_a + 2)[:, None])
        return dict(
            input_ids=input_ids,
            input_mask=tf.cast(is_token, tf.int32),
            segment_ids=tf.cast(is_second, tf.int32),
            **more,
        )


def of_ids(
    compute: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]],
) -> Callable[..., dict[str, tf.Tensor]]:
    """Return a function of token ids, mask and, for a model of several segments, segments; it calls
    `compute`, a function of the encoder's batch.
    """

    def call(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        segments = tf.zeros_like(input_ids) if segment_ids is None else segment_ids
        return compute(dict(input_ids=input_ids, input_mask=input_mask, segment_ids=segments))

    return call


def repeat_id(value: int, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Return N ragged rows, of which row i has the id `value` lengths[i] times."""
    return tf.RaggedTensor.from_row_lengths(tf.fill([tf.reduce_sum(lengths)], value), lengths)


def parts(
    long_texts: LongTexts, rooms: tf.Tensor, excess: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the index of each row's text, int32 (M,), and what LongTexts.parts returns of the
    rows; arguments as there.
    """
    texts = tf.range(tf.size(rooms))
    if long_texts.rule == HEAD_TAIL:
        return texts, rooms // HEAD_PARTS, excess
    counts = -(-excess // tf.maximum(tf.minimum(rooms, long_texts.stride or rooms), 1)) + 1
    counts = tf.minimum(counts, long_texts.max_windows)
    texts = tf.repeat(texts, counts)
    gaps = tf.maximum(counts - 1, 1)
    skipped = tf.ragged.range(counts) * excess[:, None] // gaps[:, None]
    return texts, tf.zeros_like(skipped.values), skipped.values


def without_ids(ids: tf.RaggedTensor, firsts: tf.Tensor, skipped: tf.Tensor) -> tf.RaggedTensor:
    """Return ragged rows without the skipped[i] ids after the first firsts[i] of row i."""
    places = tf.ragged.range(ids.row_lengths())
    begins, ends = (tf.repeat(x, ids.row_lengths()) for x in (firsts, firsts + skipped))
    is_kept = (places.values < begins) | (places.values >= ends)
    return tf.ragged.boolean_mask(ids, places.with_values(is_kept))


def first_ids(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Return ragged rows with only the first lengths[i] ids of row i."""
    places = tf.ragged.range(ids.row_lengths())
    is_first = places.values < tf.repeat(lengths, ids.row_lengths())
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(ids.values, is_first), lengths)


def write(model: Model, folder: str, precision: str = "float32") -> str:
    """Write a model as a SavedModel; see formats.FormatModule."""
    if model.tokenizer is None:
        raise UserError(
            "the tokenizer is part of it, and the model has no vocabulary",
            "give --vocab_file",
            setting="format",
            value="savedmodel",
        )
    if model.notes.architecture in WITHOUT_SIGNATURE:
        raise UserError(
            f"has no signature for a {model.notes.architecture}, whose scores are of tokens",
            "give --format=onnx or huggingface",
            setting="format",
            value="savedmodel",
        )
    if "classifier/bias" in model.weights:
        check_scores("--format=savedmodel: the model", model)
    encoder = open_encoder(model.config)
    encoder.check(encoder.fixed_length, precision)
    served = Served(model, tf.as_dtype(precision))
    signatures = served.signatures()
    contents = saved_files(lambda temporary: tf.saved_model.save(served, temporary, signatures))
    inputs = [spec.name for spec in served.rows] if served.takes_ids else []
    contents |= {
        **written_usage(model),
        "README.md": card.readme(model, usage(signatures, inputs)),
    }
    replace_folder(folder.rstrip("/"), contents, is_whole_model=True)
    names = ", ".join(name for name in signatures if name != "serving_default")
    takes = f"token ids ({', '.join(inputs)})" if inputs else "raw strings"
    return (
        f"{folder}: a SavedModel of {takes}, "
        f"{'because its tokenizer.json cannot be ops of TensorFlow, ' if inputs else ''}"
        f"{precision}, with {names}; "
        f"load it with tensorflow{'' if inputs else ' and tensorflow_text'}"
    )


def usage(signatures: Iterable[str], inputs: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return {title: lines of Python} that open a folder, for the model card. inputs: names of the
    arrays of token ids that it takes; () for texts.
    """
    name = "classify_pairs" if "classify_pairs" in signatures else "serving_default"
    arguments = "text_a=texts, text_b=texts" if name == "classify_pairs" else "text=texts"
    given = ", ".join(f"{name}={name}" for name in inputs)
    lines = (
        "import tensorflow as tf",
        *(() if inputs else ("import tensorflow_text  # the tokenizer's ops",)),
        'signatures = tf.saved_model.load("FOLDER").signatures',
        *(() if inputs else ('texts = tf.constant(["a text"])',)),
        f'signatures["serving_default"]({given})  # int32 (texts, tokens) each'
        if inputs
        else f'signatures["{name}"]({arguments})',
    )
    return {"In TensorFlow": lines}
