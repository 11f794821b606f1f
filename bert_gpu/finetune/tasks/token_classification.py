"""The type of task that gives each word a tag.

A word's tag is read at its first piece. A sentence that is longer than a row becomes several rows
that overlap (windows.py); each word is learnt and predicted in one of them. A word of which the
tokenizer leaves nothing, such as a control character, becomes [UNK], so that it has a tag like any
other.

Legend: N sentences, W words of all sentences, T pieces, B batch, S sequence, C tags.
"""

import dataclasses
import itertools
import os
import typing
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import shortened
from bert_gpu.finetune import results
from bert_gpu.finetune.config import FinetuneSettings, first_set
from bert_gpu.finetune.files.conll import TaggedExamples
from bert_gpu.finetune.files.disk_array import DiskArray
from bert_gpu.finetune.files.encoded import NO_LABEL, EncodedExamples, hash_texts, splits_of
from bert_gpu.finetune.files.examples import Source
from bert_gpu.finetune.tasks import metrics
from bert_gpu.finetune.tasks.interface import Evaluated, RowFormat, TaskType
from bert_gpu.finetune.tasks.labels import find_classes
from bert_gpu.finetune.tasks.tag_schemes import (
    as_entities,
    entity_scores,
    find_scheme,
    foreign_scheme,
)
from bert_gpu.finetune.tasks.text_classification import softmax
from bert_gpu.finetune.tasks.windows import best_windows, cut_windows
from bert_gpu.model.encoders import Encoder
from bert_gpu.model.heads import cross_entropy, token_logits
from bert_gpu.text.framing import ranges
from bert_gpu.text.tokenizers.wordpiece import Tokenizer


@typing.final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenClassification(TaskType[TaggedExamples, np.ndarray, np.ndarray]):
    """A task whose words have one of C tags; the loss is the mean cross-entropy of the words, in
    nats, and the outputs are the probabilities of the tags, float64 (W, C).

    tag_scheme: how tags spell entities (tag_schemes.py). doc_stride: pieces between consecutive
    rows of a long sentence, None for half a row.
    """

    head = "token_classifier"
    architecture = "BertForTokenClassification"
    target = "token_labels"
    stores_columns = True

    tag_scheme: str | None = None
    doc_stride: int | None = None

    def read(self, source: Source, needs_label: bool) -> TaggedExamples:
        return TaggedExamples(self.spec, source, needs_label)

    def find_labels(self, examples: TaggedExamples) -> tuple[str, ...]:
        return find_classes(examples.path, len(examples), examples.label_names)

    def configured(
        self,
        settings: FinetuneSettings,
        holders: Sequence[object],
        examples: TaggedExamples,
        trains: bool,
    ) -> typing.Self:
        stride: int | None = first_set("doc_stride", *holders, default=None)
        if not trains:
            scheme = first_set("tag_scheme", *holders, default=foreign_scheme(self.labels))
            return dataclasses.replace(self, tag_scheme=scheme, doc_stride=stride)
        scheme = find_scheme(examples.tag_counts)
        pairs = zip(self.labels, as_entities(self.labels, scheme) or self.labels, strict=True)
        if odd := [label for label, tag in pairs if tag == "O" != label.upper()]:
            examples.warnings += (
                f"{len(odd)} of {len(self.labels)} tags do not fit the scheme {scheme} and count "
                f"as O: {shortened(', '.join(odd))}; correct them if they are entities",
            )
        return dataclasses.replace(self, tag_scheme=scheme, doc_stride=stride)

    @property
    def stored(self) -> dict[str, object]:
        return dict(doc_stride=self.doc_stride)

    @property
    def details(self) -> dict[str, object]:
        return dict(tag_scheme=self.tag_scheme) if self.tag_scheme else {}

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics of entities where the tags mark entities, else those of single words."""
        if as_entities(self.labels, self.tag_scheme) is None:
            return ("accuracy", "f1_of_classes", "loss")
        return ("f1", "precision", "recall", "accuracy", "loss")

    def logits(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        encoder: Encoder,
        dtype: tf.DType,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Return the scores of the tags of each token, (B, S, C), in the compute dtype, with the
        dropout of the hidden states, as in Hugging Face's BertForTokenClassification.
        """
        hidden = encoder.encode(weights, batch, dtype=dtype, seed=seed)
        config = encoder.config
        return token_logits(weights, hidden, config, seed, config.hidden_dropout_prob)

    def encode(self, examples: TaggedExamples, form: RowFormat) -> EncodedExamples:
        """Return sentences as encoded rows, with token_labels: the index of each word's tag at its
        first piece, 0 where the file has no tags; tags that the model lacks are numbered after the
        model's. The rows' origin is int64 (N,), the number of words of each sentence.
        """
        labels = with_unknown(self.labels, examples)
        indices = {label: index for index, label in enumerate(labels)}
        if unknown := labels[len(self.labels) :]:
            line = examples.label_lines[examples.label_names.index(unknown[0])]
            examples.warnings += (
                f"line {line} has the tag {unknown[0][:40]!r}, one of {len(unknown)} that the "
                f"model does not have ({shortened(', '.join(unknown))}); words with them "
                "count as errors",
            )
        stride = self.doc_stride or max(1, (form.max_seq_length - 2) // 2)
        ids = DiskArray(form.folder)
        marks = DiskArray(form.folder)
        lengths: list[np.ndarray] = []
        sizes: list[np.ndarray] = []
        hashes: list[np.ndarray] = []
        for sentences in examples.chunks():
            words = list(itertools.chain.from_iterable(one.words for one in sentences))
            tags = itertools.chain.from_iterable(one.tags or one.words for one in sentences)
            codes = np.fromiter(map(indices.get, tags), np.int32) if examples.has_labels else None
            sizes.append(np.array([len(one.words) for one in sentences], np.int64))
            pieces, counts = word_pieces(form.tokenizer, words)
            splits = splits_of([counts])[splits_of([sizes[-1]])]  # where each sentence begins
            hashes.append(hash_texts(pieces, splits[:-1], splits[1:]))
            rows = cut_sentences(pieces, counts, codes, sizes[-1], form.max_seq_length, stride)
            framed_ids, framed_marks, framed_lengths = frame(form.tokenizer, *rows)
            ids.append(framed_ids)
            marks.append(framed_marks)
            lengths.append(framed_lengths)
        splits = splits_of(lengths)
        return EncodedExamples(
            ids=ids.finish(),
            splits=splits,
            first_lengths=np.diff(splits),
            labels=None,
            max_seq_length=form.max_seq_length,
            padding=form.padding,
            token_labels=marks.finish(),
            origin=np.concatenate(sizes),
            text_hashes=np.stack([np.concatenate(hashes)[:, None]] * 2),
        )

    def describe(self, examples: TaggedExamples, rows: EncodedExamples) -> str:
        more = len(rows) - len(examples)
        cut = f"; {more:,} further rows for sentences of more than {rows.max_seq_length} tokens"
        comments = f"; {examples.num_comments:,} comment lines skipped"
        return (
            f"{len(examples):,} sentences, {examples.num_words:,} words, "
            f"{len(rows.ids) / len(rows):.1f} tokens each{cut if more else ''}"
            f"{comments if examples.num_comments else ''}"
        )

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the sum of the losses of each row's words, float32 (B,), from scores, (B, S, C),
        and targets, int32 (B, S).
        """
        is_word = tf.cast(targets >= 0, tf.float32)
        labels = tf.reshape(tf.maximum(targets, 0), [-1])
        rows = tf.reshape(logits, [-1, logits.shape[-1]])
        losses = tf.reshape(cross_entropy(rows, labels), tf.shape(targets))
        return tf.reduce_sum(losses * is_word, -1)

    def weights(self, targets: tf.Tensor) -> tf.Tensor:
        """Return the number of words of each row, float32 (B,)."""
        return tf.reduce_sum(tf.cast(targets >= 0, tf.float32), -1)

    def row_outputs(self, logits: np.ndarray, batch: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the scores (words of the row, C) of each row's words."""
        is_word = batch[self.target][:, : logits.shape[1]] >= 0
        return [scores[marked] for scores, marked in zip(logits, is_word, strict=True)]

    def join_rows(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        return softmax(np.concatenate(rows).astype(np.float64))

    def judge(self, evaluated: Evaluated[TaggedExamples, np.ndarray]) -> dict[str, float | None]:
        rows, outputs = evaluated.rows, evaluated.outputs
        labels, names = self.labels, self.metric_names
        if not np.isfinite(outputs).all():  # a model that has overflowed predicts nothing
            return dict.fromkeys(names)
        targets = np.asarray(rows.token_labels)
        targets = targets[targets >= 0]
        is_known = targets < len(labels)
        loss = metrics.loss(outputs[is_known], targets[is_known]) if is_known.any() else None
        values = dict(accuracy=metrics.accuracy(outputs, targets), loss=loss)
        if "f1_of_classes" in names:
            values |= dict(f1_of_classes=metrics.f1_of_classes(outputs, targets))
        else:
            every = with_unknown(labels, evaluated.examples)
            bounds = np.cumsum(rows.origin)[:-1]
            tags = as_entities(every, self.tag_scheme) or every
            truth, predicted = (
                [[tags[index] for index in sentence] for sentence in np.split(indices, bounds)]
                for indices in (targets, np.argmax(outputs, -1))
            )
            values |= entity_scores(truth, predicted, tags)
        return {name: values[name] for name in names}

    def write(self, output_dir: str, evaluated: Evaluated[TaggedExamples, np.ndarray]) -> str:
        """Write predictions.conll, the lines of the file with the predicted tag as a further
        column, and test_results.tsv, with the probability of each tag.
        """
        examples, outputs, labels = evaluated.examples, evaluated.outputs, self.labels
        answers = [labels[index] for index in np.argmax(outputs, -1)]

        def lines() -> Iterator[str]:
            first = 0
            for sentence in examples.sentences():
                yield from (f"{line}\n\n" for line in sentence.before)  # lines between documents
                for offset, cells in enumerate(sentence.rows):
                    yield line_of((*cells, answers[first + offset]), examples.separator)
                yield "\n"
                first += len(sentence.rows)

        def cells() -> Iterator[list[str]]:
            names = ((one.id, word) for one in examples.sentences() for word in one.words)
            for index, (sentence, word) in enumerate(names):
                shares = (f"{value:.6g}" for value in outputs[index])
                yield [sentence, answers[index], word, *shares]

        titles = ("id", "prediction", "word", *(f"probability_{label}" for label in labels))
        results.write_table(output_dir, results.PROBABILITIES, titles, cells())
        results.write(output_dir, results.TAGGED, lines())
        return os.path.join(output_dir, results.TAGGED)


def with_unknown(labels: Sequence[str], examples: TaggedExamples) -> list[str]:
    """Return the labels of a model, then the tags of examples that are not among these labels."""
    return list(dict.fromkeys((*labels, *examples.label_names)))


def word_pieces(tokenizer: Tokenizer, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the pieces of words: (ids of all pieces, int32 (T,); number of pieces of each word,
    int64 (W,), at least 1). For byte-level BPE a space is put before each word.
    """
    ids, splits = tokenizer.tokenize([tokenizer.word_prefix + word for word in words])
    counts = np.diff(splits)
    empty = np.flatnonzero(counts == 0)
    return np.insert(ids, splits[empty], tokenizer.unk_id), np.maximum(counts, 1)


def cut_sentences(
    pieces: np.ndarray,
    counts: np.ndarray,
    codes: np.ndarray | None,
    sizes: np.ndarray,
    max_seq_length: int,
    stride: int,
) -> tuple[np.ndarray, ...]:
    """Return (pieces, marks, starts, lengths, first, last) of R rows: pieces and marks int32 (T,),
    the others int64 (R,). Marks are the words' codes at their first pieces, elsewhere NO_LABEL. A
    row has `lengths` pieces from index `starts` on; of its marks, those from index `first` to
    before `last` count.

    Args:
      pieces, counts: the result of `word_pieces`. codes: int32 (W,), index of each word's tag, or
        None. sizes: int64 (N,), number of words of each sentence. stride: pieces from the beginning
        of a row to that of the next.
    """
    firsts = np.cumsum(counts) - counts
    marks = np.full(len(pieces), NO_LABEL, np.int32)
    marks[firsts] = 0 if codes is None else codes
    ends = np.append(firsts, len(pieces))[np.cumsum(sizes)]  # (N,), after each sentence
    begins = np.append(0, ends[:-1])
    rows = np.stack([begins, ends - begins, begins, ends], 1)
    room = max_seq_length - 2
    long = np.flatnonzero(rows[:, 1] > room)
    if len(long):
        parts = np.split(rows, np.stack([long, long + 1], 1).reshape(-1))
        for place, sentence in enumerate(long):
            parts[2 * place + 1] = windows_of(rows[sentence, 0], rows[sentence, 1], room, stride)
        rows = np.concatenate(parts)
    return pieces, marks, *rows.T


def windows_of(begin: int, num_pieces: int, room: int, stride: int) -> np.ndarray:
    """Return the rows of a long sentence, int64 (R, 4), with the columns starts, lengths, first and
    last of `cut_sentences`. begin: index of the sentence's first piece. room: maximum pieces of a
    row.
    """
    starts, lengths = cut_windows(num_pieces, room, stride)
    best = best_windows(starts, lengths, num_pieces)
    every = np.arange(len(starts))
    first = np.searchsorted(best, every)
    last = np.searchsorted(best, every, side="right")
    return np.stack([starts, lengths, first, last], 1) + np.array([begin, 0, begin, begin])


def frame(
    tokenizer: Tokenizer,
    pieces: np.ndarray,
    marks: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows as [CLS] pieces [SEP]: (ids int32 (T,), token_labels int32 (T,), lengths
    int64 (R,)). The arguments are as `cut_sentences` returns them.
    """
    splits = np.cumsum(np.append(0, lengths + 2))
    inside = ranges(splits[:-1] + 1, lengths)
    places = ranges(starts, lengths)
    ids = np.full(splits[-1], tokenizer.sep_id, np.int32)
    ids[splits[:-1]] = tokenizer.cls_id
    ids[inside] = pieces[places]
    labels = np.full(splits[-1], NO_LABEL, np.int32)
    counts = (places >= np.repeat(first, lengths)) & (places < np.repeat(last, lengths))
    labels[inside] = np.where(counts, marks[places], NO_LABEL)
    return ids, labels, lengths + 2


def line_of(cells: Sequence[str], separator: str) -> str:
    """Return cells as a line of a file in columns, from which the same cells can be read: with tabs
    between them where a cell is empty or holds a space, else with `separator`.
    """
    texts = [results.one_line(cell) for cell in cells]
    needs_tabs = any(not text or " " in text for text in texts)
    return ("\t" if needs_tabs else separator).join(texts) + "\n"
