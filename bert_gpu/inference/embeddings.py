"""Texts -> the hidden states behind the last layer: of [CLS], their mean, or of all tokens.

Legend: N texts, T tokens of all of them, B batch, S sequence, H hidden.
"""

import contextlib
import dataclasses
import os
import typing

import numpy as np
import tensorflow as tf

from bert_gpu.base.console import LOG
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_local
from bert_gpu.base.signals import sigterm_unwinds
from bert_gpu.base.standard_input import STANDARD_INPUT
from bert_gpu.devices.cluster import find_cluster
from bert_gpu.inference.arrays import NpyWriter
from bert_gpu.inference.config import DEFAULT_LENGTH
from bert_gpu.inference.lines import count_lines, empty, windows
from bert_gpu.inference.opened import ROWS, open_model
from bert_gpu.interop.tokenizers import describe_tokenizer
from bert_gpu.text.framing import frame


class Embedded(typing.NamedTuple):
    """What `embed_file` wrote. files: their paths. num_truncated: texts that were cut."""

    files: tuple[str, ...]
    num_texts: int
    num_tokens: int
    num_truncated: int
    width: int


class Embedder:
    """A model that embeds texts; config: EmbedConfig, whose input and output are not used.

    Calling it with a list of N str or bytes gives float32 (N, H); with pooling "none" a pair:
    float32 (T, H), and the int64 (N + 1,) offsets of the texts' first tokens in it. An empty text
    is [CLS] [SEP].
    """

    def __init__(self, config):
        self.opened = open_model(config, "model")
        model, notes = self.opened.config, self.opened.notes
        own = self.own = notes.embedding
        if own.lacking and config.pooling is None:
            raise UserError(
                f"its sentence vectors need {own.lacking}, which bert-gpu does not have",
                "give --pooling=cls, mean or none for those of the encoder alone",
                where=self.opened.path,
            )
        self.pooling = config.pooling or own.pooling or "cls"
        self.is_normalized = own.is_normalized and config.pooling is None
        self.width, limit = model.hidden_size, model.max_position_embeddings
        default = min(notes.max_seq_length or DEFAULT_LENGTH, limit)
        self.max_seq_length = config.max_seq_length or default
        if self.max_seq_length > limit:
            raise UserError(
                f"the model (--model={config.model}) has {limit} positions",
                "at most that many",
                setting="max_seq_length",
                value=self.max_seq_length,
            )
        self.compute = self.opened.compile(self._pooled, *ROWS)

    def __call__(self, texts):
        rows = self.frame(texts)
        if self.pooling != "none":
            return self.collect(rows, len(texts))
        return self.collect(rows, len(rows.ids)), rows.splits

    def collect(self, rows, num_results: int) -> np.ndarray:
        """Return the results of all `parts` in order, float32 (num_results, H)."""
        result = np.zeros((num_results, self.width), np.float32)
        for first, values in self.parts(rows):
            result[first : first + len(values)] = values
        return result

    def describe(self) -> str:
        """How texts become vectors, for the log."""
        own = self.own
        length, prefix = "of length 1" * self.is_normalized, f"prefix {own.prefix[:40]!r}"
        source = f"modules.json: {own.lacking or own.pooling}" * bool(own.lacking or own.pooling)
        parts = [f"pooling {self.pooling}", length, prefix * bool(own.prefix), source]
        return ", ".join(filter(None, parts))

    def frame(self, texts):
        """The texts as text.framing.Framed rows, with the prefix and the case of their training."""
        if self.own.prefix or self.own.lowers:
            change = str.lower if self.own.lowers else str
            strings = (x if isinstance(x, str) else x.decode(errors="ignore") for x in texts)
            texts = [change(self.own.prefix + text) for text in strings]
        return frame(self.opened.tokenizer, texts, None, self.max_seq_length)

    def parts(self, rows):
        """Computes Framed rows in the order that suits the machine: yields (index of the first
        result, results (n, H)); results are numbered by texts or, with pooling "none", by tokens.
        """
        lengths = rows.lengths
        for chosen, length, num_rows in self.opened.batches(lengths, self.max_seq_length):
            batch = self.opened.pad(rows.ids, rows.splits, chosen, length, num_rows)
            values = self.compute(*batch).numpy()
            if self.is_normalized:
                values /= np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12)
            for row, value in zip(chosen, values, strict=False):  # the batch may have empty rows
                if self.pooling == "none":
                    yield rows.splits[row], value[: lengths[row]]
                else:
                    yield row, value[None]

    def _pooled(self, input_ids, num_tokens):
        if self.pooling == "cls":
            first = tf.zeros([tf.shape(input_ids)[0], 1], tf.int32)
            return tf.cast(self.opened.hidden(input_ids, num_tokens, first)[:, 0], tf.float32)
        hidden = tf.cast(self.opened.hidden(input_ids, num_tokens), tf.float32)
        if self.pooling == "none":
            return hidden
        is_token = tf.range(tf.shape(hidden)[1]) < num_tokens[:, None]
        share = tf.cast(is_token, tf.float32) / tf.cast(num_tokens, tf.float32)[:, None]
        return tf.reduce_sum(hidden * share[:, :, None], 1)


def embed_file(config, console=LOG):
    """Embeds the lines of a file as EmbedConfig says; returns an Embedded. UserError for
    a setting or a file that is wrong, or a full disk; then no file is left.

    One of several workers embeds its share of the lines, and writes it to a file of its own.
    """
    cluster = find_cluster()
    if cluster is not None and config.output is not None:
        config = dataclasses.replace(config, output=cluster.part_of(config.output))
    outputs = check_outputs(config)
    share = None if cluster is None else share_of(config.input, cluster)
    if share is not None:
        console.warn(
            f"{config.output[-100:]}: holds only {len(share):,} lines, from line "
            f"{share.start + 1:,} on, because {cluster.variable} makes this worker {cluster.index} "
            f"of {len(cluster)} (counted from 0); unset the variable to embed all lines here"
        )
    embedder = Embedder(config)
    path = embedder.opened.path
    casing = describe_tokenizer(embedder.opened.tokenizer, path)
    console.say(f"{path}: {casing}; {embedder.describe()}")
    num_texts = num_tokens = num_truncated = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_unwinds())
        array = stack.enter_context(NpyWriter(config.output, (embedder.width,)))
        offsets = None
        if config.pooling == "none":
            offsets = stack.enter_context(NpyWriter(config.offsets_file, (), np.int64))
            offsets.write(np.zeros(1))
        for texts in windows(config.input, console, share=share):
            rows = embedder.frame(texts)
            base = array.num_rows
            if embedder.pooling == "none":
                for index, values in embedder.parts(rows):
                    array.write(values, base + index)
                offsets.write(num_tokens + rows.splits[1:])
            else:  # at once
                array.write(embedder.collect(rows, len(texts)), base)
            num_texts, num_tokens = num_texts + len(texts), num_tokens + len(rows.ids)
            num_truncated += rows.num_truncated
        if not num_texts and share is None:
            raise empty(config.input)
        # The stack publishes the first file last: where it is, all are whole.
        for file in filter(None, (offsets, array)):
            file.finish()
    return Embedded(outputs, num_texts, num_tokens, num_truncated, embedder.width)


def share_of(path, cluster):
    """The range of the lines of a file that one of the workers of a Cluster embeds."""
    if path == STANDARD_INPUT:
        raise UserError(
            "standard input is that of one worker",
            "write it to a file that all of them see, and name that",
            setting="input",
            value="-",
        )
    num_lines = count_lines(path)
    if not num_lines:
        raise empty(path)
    return cluster.share(num_lines)


def check_outputs(config):
    """The paths that an EmbedConfig writes. UserError when they cannot or must not be written."""
    if config.output is None:
        raise UserError(
            "a file for the results is needed, such as --output=texts.npy", setting="output"
        )
    check_local(config.output, "output")
    outputs = (config.output,) + ((config.offsets_file,) if config.pooling == "none" else ())
    for path in outputs:
        check_output(path, config.overwrite)
    return outputs


def check_output(path, overwrite):
    """UserError when a file cannot be written there, or exists and must not be replaced."""
    if os.path.isdir(path):
        raise UserError("is a folder", "name a file", setting="output", value=path)
    if os.path.exists(path) and not overwrite:
        raise UserError(
            "exists",
            "name another file, or give --overwrite to replace it",
            setting="output",
            value=path,
        )
