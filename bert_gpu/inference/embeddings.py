"""Texts -> hidden states of the last layer: of [CLS], the mean over all tokens, or of each token.

Legend: N texts, T tokens of all texts, B batch, S sequence, H hidden.
"""

import contextlib
import os
import typing
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.console import LOG, Console
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_local
from bert_gpu.base.nearest import units
from bert_gpu.base.signals import sigterm_unwinds
from bert_gpu.inference.arrays import NpyWriter
from bert_gpu.inference.config import DEFAULT_LENGTH, OFFSETS, EmbedConfig
from bert_gpu.inference.lines import empty_input, windows
from bert_gpu.inference.opened import ROWS, open_model
from bert_gpu.interop.tokenizers import describe_tokenizer
from bert_gpu.model.heads import mean_of_tokens
from bert_gpu.text.framing import Framed, frame


class Embedded(typing.NamedTuple):
    """The result of `embed_file`. files: paths of the files that were written. num_truncated:
    number of texts that were cut. width: H.
    """

    files: tuple[str, ...]
    num_texts: int
    num_tokens: int
    num_truncated: int
    width: int


class Embedder:
    """A model that embeds texts. config: its input and output are not used.

    A call with N texts returns float32 (N, H). With pooling "none" it returns a pair: float32
    (T, H), and int64 (N + 1,), the index in it of each text's first row, and T. An empty text is
    [CLS] [SEP]. The prefix is that of `prompt`, as --prompt, by default the config's.
    """

    def __init__(self, config: EmbedConfig) -> None:
        self.opened = open_model(config, "model")
        notes = self.opened.notes
        own = self.own = notes.embedding
        if own.lacking and config.pooling is None:
            raise UserError(
                f"its sentence vectors need {own.lacking}, which bert-gpu does not have",
                "give --pooling=cls, mean or none for those of the encoder alone",
                where=self.opened.path,
            )
        self.pooling = config.pooling or own.pooling or "cls"
        self.is_normalized = own.is_normalized and config.pooling is None
        self.prompt = config.prompt
        if config.prompt and not (own.query_prefix or own.passage_prefix):
            raise UserError(
                f"the model (--model={config.model}) was trained without prefixes",
                "leave it out",
                setting="prompt",
                value=config.prompt,
            )
        self.prefixes = dict(query=own.query_prefix, passage=own.passage_prefix)
        self.width = self.opened.config.hidden_size
        limit = self.opened.config.num_positions
        self.max_seq_length = config.max_seq_length or min(
            notes.max_seq_length or DEFAULT_LENGTH, limit
        )
        if self.max_seq_length > limit:
            raise UserError(
                f"the model (--model={config.model}) has {limit} positions",
                "give at most that many",
                setting="max_seq_length",
                value=self.max_seq_length,
            )
        self.compute = self.opened.compile(self._pooled, *ROWS)

    def __call__(
        self, texts: Sequence[str | bytes], prompt: str | None = None
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        rows = self.frame(texts, prompt)
        if self.pooling != "none":
            return self.collect(rows, len(texts))
        return self.collect(rows, len(rows.ids)), rows.splits

    def collect(self, rows: Framed, num_results: int) -> np.ndarray:
        """Return the results that `parts` yields for these rows, in their order: float32
        (num_results, H).
        """
        result = np.zeros((num_results, self.width), np.float32)
        for first, values in self.parts(rows):
            result[first : first + len(values)] = values
        return result

    def describe(self) -> str:
        """Return how texts become vectors, for the log."""
        rules = self.own.lacking or self.own.pooling
        prefix = self.prefixes.get(str(self.prompt), self.own.prefix)
        facts = {
            f"pooling {self.pooling}": True,
            "of length 1": self.is_normalized,
            f"prefix {prefix[:40]!r}": prefix,
            f"modules.json: {rules}": rules,
        }
        return ", ".join(text for text, is_so in facts.items() if is_so)

    def frame(self, texts: Sequence[str | bytes], prompt: str | None = None) -> Framed:
        """Tokenize texts, with the prefix and the case that the model was trained with."""
        prefix = self.prefixes.get(str(prompt or self.prompt), self.own.prefix)
        if prefix or self.own.lowers:
            change = str.lower if self.own.lowers else str
            strings = (x if isinstance(x, str) else x.decode(errors="ignore") for x in texts)
            texts = [change(prefix + text) for text in strings]
        return frame(self.opened.tokenizer, texts, None, self.max_seq_length)

    def parts(self, rows: Framed) -> Iterator[tuple[int, np.ndarray]]:
        """Compute the results in batches of similar length. Yields (index of the first result,
        results float32 (n, H)); an index counts texts or, with pooling "none", tokens.
        """
        lengths = rows.lengths
        for indices, length, num_rows in self.opened.batches(lengths, self.max_seq_length):
            batch = self.opened.pad(rows.ids, rows.splits, indices, length, num_rows)
            values = self.compute(*batch).numpy()
            if self.is_normalized:
                values = units(values)
            for row, value in zip(indices, values, strict=False):  # the batch may have padding rows
                if self.pooling == "none":
                    yield rows.splits[row], value[: lengths[row]]
                else:
                    yield row, value[None]

    def _pooled(self, input_ids: tf.Tensor, num_tokens: tf.Tensor) -> tf.Tensor:
        """Return the vectors of a padded batch: float32 (B, H), or (B, S, H) with pooling "none".
        input_ids: int32 (B, S). num_tokens: int32 (B,).
        """
        if self.pooling == "cls":
            first = tf.zeros([tf.shape(input_ids)[0], 1], tf.int32)
            return tf.cast(self.opened.hidden(input_ids, num_tokens, first)[:, 0], tf.float32)
        hidden = tf.cast(self.opened.hidden(input_ids, num_tokens), tf.float32)
        if self.pooling == "none":
            return hidden
        return mean_of_tokens(hidden, tf.range(tf.shape(hidden)[1]) < num_tokens[:, None])


def embed_file(config: EmbedConfig, console: Console = LOG) -> Embedded:
    """Write the vectors of the lines of a file to --output. Raises UserError for a wrong setting, a
    wrong file or a full disk; then no file is left.
    """
    outputs = check_outputs(config)
    embedder = Embedder(config)
    opened = embedder.opened
    casing = describe_tokenizer(opened.tokenizer, opened.path)
    console.say(f"{opened.path}: {casing}; {embedder.describe()}")
    num_texts = num_tokens = num_truncated = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_unwinds())
        array = stack.enter_context(NpyWriter(outputs[0], (embedder.width,)))
        offsets = None
        if config.pooling == "none":
            offsets = stack.enter_context(NpyWriter(outputs[1], (), np.int64))
            offsets.write(np.zeros(1))
        for texts in windows(config.input, console):
            rows = embedder.frame(texts)
            base = array.num_rows
            if offsets is not None:
                for index, values in embedder.parts(rows):
                    array.write(values, base + index)
                offsets.write(num_tokens + rows.splits[1:])
            else:  # all rows in one write
                array.write(embedder.collect(rows, len(texts)), base)
            num_texts += len(texts)
            num_tokens += len(rows.ids)
            num_truncated += rows.num_truncated
        if not num_texts:
            raise empty_input(config.input)
        # The stack renames the first file last: when it exists, both files are complete.
        for file in filter(None, (offsets, array)):
            file.finish()
    return Embedded(outputs, num_texts, num_tokens, num_truncated, embedder.width)


def check_outputs(config: EmbedConfig) -> tuple[str, ...]:
    """Return the paths of the files to write: the results and, with --pooling=none, the offsets.
    Raises UserError when they cannot or must not be written.
    """
    if config.output is None:
        raise UserError(
            "a file for the results is needed, such as --output=texts.npy", setting="output"
        )
    check_local(config.output, "output")
    offsets_file = config.output.removesuffix(".npy") + OFFSETS
    outputs = (config.output, offsets_file) if config.pooling == "none" else (config.output,)
    for path in outputs:
        check_output(path, config.overwrite)
    return outputs


def check_output(path: str, overwrite: bool) -> None:
    """Raise UserError when a path is a folder, or a file that must not be replaced."""
    if os.path.isdir(path):
        raise UserError("is a folder", "name a file", setting="output", value=path)
    if os.path.exists(path) and not overwrite:
        raise UserError(
            "exists",
            "name another file, or give --overwrite to replace it",
            setting="output",
            value=path,
        )
