"""The type of task whose questions are each answered by a span of their context.

Rows are [CLS] question [SEP] window of the context [SEP], with as many [SEP] between the two as the
tokenizer puts between the texts of a pair. The head scores each token as the answer's first and as
its last; [CLS] as both stands for no answer. n_best.py makes answers of the scores.

Legend: N questions, R rows, T tokens, B batch, S sequence.
"""

import dataclasses
import itertools
import json
import os
import typing
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.finetune import results
from bert_gpu.finetune.config import FinetuneSettings, first_set
from bert_gpu.finetune.files.disk_array import DiskArray
from bert_gpu.finetune.files.encoded import EncodedExamples, hash_texts, splits_of
from bert_gpu.finetune.files.examples import Source
from bert_gpu.finetune.files.squad import Question, Questions
from bert_gpu.finetune.tasks import n_best, squad_metrics
from bert_gpu.finetune.tasks.interface import Evaluated, RowFormat, TaskType
from bert_gpu.finetune.tasks.n_best import NO_ANSWER, AnswerRules, Best
from bert_gpu.finetune.tasks.windows import cut_windows
from bert_gpu.model.encoders import Encoder
from bert_gpu.model.heads import cross_entropy, span_logits
from bert_gpu.text.framing import ranges
from bert_gpu.text.tokenizers.offsets import locate_pieces

CONTEXTS_PER_CALL = 512  # contexts that are tokenized at once
MASKED_SCORE = -1e9  # the score of a token that cannot be chosen
Answered = Evaluated[Questions, Sequence[Best]]


class Origin(typing.NamedTuple):
    """The places in the file's contexts from which rows come.

    questions: int64 (R,), index of each row's question. starts: int64 (R,), index, among the
    context's pieces, of the first piece of each row's window. contexts: int64 (N,), index of each
    question's context. splits: int64, where each context starts in `begins` and `ends`. begins,
    ends: int32, the characters that each piece of a context stands for, from `begins` to before
    `ends`.
    """

    questions: np.ndarray
    starts: np.ndarray
    contexts: np.ndarray
    splits: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


@typing.final
@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnswering(TaskType[Questions, Best, Sequence[Best]]):
    """A task whose targets are the first and the last token of an answer; the loss is the mean of
    the two cross-entropies, and the outputs are a Best for each row.

    doc_stride, max_query_length: as the settings of that name. rules: of the choice of answers.
    """

    head = "span"
    architecture = "BertForQuestionAnswering"

    doc_stride: int = 128
    max_query_length: int = 64
    rules: AnswerRules = AnswerRules()

    def read(self, source: Source, needs_label: bool) -> Questions:
        return Questions(self.spec, source, needs_label)

    def configured(
        self,
        settings: FinetuneSettings,
        holders: Sequence[object],
        examples: Questions,
        trains: bool,
    ) -> typing.Self:
        tokens = settings.tokens
        allows_none = first_set(
            "version_2_with_negative", *holders, default=examples.has_impossible
        )
        return dataclasses.replace(
            self,
            doc_stride=first_set("doc_stride", *holders, default=self.doc_stride),
            max_query_length=first_set("max_query_length", *holders, default=self.max_query_length),
            rules=AnswerRules(
                allows_none=allows_none,
                max_answer_length=tokens.max_answer_length,
                null_score_diff_threshold=tokens.null_score_diff_threshold,
            ),
        )

    @property
    def stored(self) -> dict[str, object]:
        return dict(
            doc_stride=self.doc_stride,
            max_query_length=self.max_query_length,
            version_2_with_negative=self.rules.allows_none,
        )

    @property
    def metric_names(self) -> tuple[str, ...]:
        more = squad_metrics.OF_IMPOSSIBLE if self.rules.allows_none else ()
        return (*squad_metrics.PLAIN, *more)

    def encode(self, examples: Questions, form: RowFormat) -> EncodedExamples:
        """Return questions as encoded rows, with an Origin and, for a training file, the first and
        last token of the answer as labels, int32 (R, 2).
        """
        questions = examples.questions
        if form.max_seq_length < self.max_query_length + form.tokenizer.separators + 3:
            raise UserError(
                f"leaves no room beside a question of --max_query_length={self.max_query_length} "
                "tokens",
                "raise it, or lower --max_query_length",
                setting="max_seq_length",
                value=form.max_seq_length,
            )
        ids, begins, ends = DiskArray(form.folder), DiskArray(form.folder), DiskArray(form.folder)
        sizes, parts, hashes = [], [], []
        groups = itertools.groupby(enumerate(questions), lambda one: one[1].context)
        while chunk := [list(group) for _, group in itertools.islice(groups, CONTEXTS_PER_CALL)]:
            contexts = [examples.contexts[group[0][1].context] for group in chunk]
            located = locate_pieces(form.tokenizer, contexts)
            cut = cut_rows(form, chunk, located, self.doc_stride, self.max_query_length)
            ids.append(cut.ids)
            parts.append((cut.lengths, cut.firsts, cut.rows, cut.labels))
            splits = splits_of([cut.lengths])
            hashes.append(hash_texts(cut.ids, splits[:-1], splits[1:]))
            for _, begin, end in located:
                begins.append(begin)
                ends.append(end)
            sizes.append(np.array([len(pieces) for pieces, _, _ in located], np.int64))
        lengths, firsts, rows, labels = map(np.concatenate, zip(*parts, strict=True))
        # contexts are numbered anew, as those without questions were not cut into pieces
        text_hashes = np.zeros((len(questions), 1), np.uint64)
        np.add.at(text_hashes[:, 0], rows[:, 0], np.concatenate(hashes))
        of_questions = np.array([one.context for one in questions], np.int64)
        origin = Origin(
            questions=rows[:, 0],
            starts=rows[:, 1],
            contexts=np.unique(of_questions, return_inverse=True)[1],
            splits=splits_of(sizes),
            begins=begins.finish(),
            ends=ends.finish(),
        )
        return EncodedExamples(
            ids=ids.finish(),
            splits=splits_of([lengths]),
            first_lengths=firsts,
            labels=labels if examples.is_training else None,
            max_seq_length=form.max_seq_length,
            padding=form.padding,
            origin=origin,
            text_hashes=np.stack([text_hashes] * 2),
        )

    def describe(self, examples: Questions, rows: EncodedExamples) -> str:
        num_cut = (
            0
            if rows.labels is None
            else sum(one.start is not None for one in examples.questions)
            - len(np.unique(rows.origin.questions[rows.labels[:, 0] != NO_ANSWER]))
        )
        return (
            f"{len(examples):,} questions on {len(examples.contexts):,} paragraphs, "
            f"{len(rows):,} rows of {len(rows.ids) / len(rows):.1f} tokens each"
        ) + (
            f"; {num_cut:,} answers fit whole into no row and are learnt as no answer (raise "
            "--max_seq_length, or lower --doc_stride)"
            if num_cut
            else ""
        )

    def logits(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        encoder: Encoder,
        dtype: tf.DType,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Return the scores of each token as an answer's first and as its last, float32 (B, S, 2).
        Padding has MASKED_SCORE, so that no result depends on the amount of padding.
        """
        hidden = encoder.encode(weights, batch, dtype=dtype, seed=seed)
        scores = tf.cast(tf.stack(span_logits(weights, hidden, encoder.config), -1), tf.float32)
        return tf.where(batch["input_mask"][:, :, None] > 0, scores, MASKED_SCORE)

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the loss of each row, float32 (B,), from scores, float32 (B, S, 2), and targets,
        int32 (B, 2).
        """
        first, last = tf.unstack(logits, axis=-1)
        return (cross_entropy(first, targets[:, 0]) + cross_entropy(last, targets[:, 1])) / 2

    def row_outputs(self, logits: np.ndarray, batch: Mapping[str, np.ndarray]) -> list[Best]:
        """Return a Best for each row: its best first and last tokens, with their scores."""
        lengths = batch["input_mask"].sum(-1)
        rows = zip(logits.astype(np.float64), lengths, strict=True)
        return [n_best.best_of(scores[:length], self.rules.n_best_size) for scores, length in rows]

    def join_rows(self, rows: Sequence[Best]) -> Sequence[Best]:
        return rows

    def predict(self, evaluated: Answered) -> n_best.Predicted:
        """Return the predictions for the questions of a file."""
        return n_best.predict(evaluated.examples, evaluated.rows, evaluated.outputs, self.rules)

    def judge(self, evaluated: Answered) -> dict[str, float | None]:
        every = (best.start_scores + best.end_scores for best in evaluated.outputs)
        if not all(np.isfinite(scores).all() for scores in every):
            return dict.fromkeys(self.metric_names)  # a model that has overflowed predicts nothing
        predicted = self.predict(evaluated)
        questions = evaluated.examples.questions
        answers = {question.id: question.answers or () for question in questions}
        values = squad_metrics.score(predicted.answers, answers, self.rules.allows_none)
        return {name: values[name] for name in self.metric_names}

    def after_evaluation(self, output_dir: str, evaluated: Answered) -> None:
        """Write the predictions for a dev file, which the official evaluation reads."""
        if evaluated.stem != "test":
            self.write(output_dir, evaluated)

    def write(self, output_dir: str, evaluated: Answered) -> str:
        """Write predictions.json, {id: answer}, nbest_predictions.json and, where a question may
        have no answer, null_odds.json; for a dev file with _dev in the names.
        """
        predicted = self.predict(evaluated)
        suffix = results.suffix_of(evaluated.examples.source)
        contents: dict[str, object] = {
            results.ANSWERS: predicted.answers,
            results.N_BEST: predicted.n_best,
        }
        if predicted.null_odds is not None:
            contents[results.NULL_ODDS] = predicted.null_odds
        for name, content in contents.items():
            text = json.dumps(content, indent=4)
            results.write(output_dir, results.with_suffix(name, suffix), [text, "\n"])
        return os.path.join(output_dir, results.with_suffix(results.ANSWERS, suffix))


class Cut(typing.NamedTuple):
    """Rows of questions.

    ids: int32 (T,), the tokens of all rows. lengths: int64 (R,), number of tokens of each row.
    firsts: int64 (R,), number of tokens of each row before the context. rows: int64 (R, 2), index
    of the question, and of the window's first piece in its context. labels: int32 (R, 2), the first
    and last token of the answer in each row.
    """

    ids: np.ndarray
    lengths: np.ndarray
    firsts: np.ndarray
    rows: np.ndarray
    labels: np.ndarray


def cut_rows(
    form: RowFormat,
    chunk: Sequence[Sequence[tuple[int, Question]]],
    located: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    doc_stride: int,
    max_query_length: int,
) -> Cut:
    """Return the rows of the questions on some contexts.

    Args:
      chunk: for each context the list of (index, question) on it. located: the result of
        `locate_pieces` for the contexts. doc_stride, max_query_length: as the settings.
    """
    tokenizer = form.tokenizer
    queries, query_splits = tokenizer.tokenize([one.text for group in chunk for _, one in group])
    counts = np.minimum(np.diff(query_splits), max_query_length)
    bounds = np.cumsum([0, *(len(pieces) for pieces, _, _ in located)])
    windows: list[tuple[int, ...]] = []
    labels = []
    number = 0
    separators = tokenizer.separators  # number of [SEP] between question and context
    for (pieces, begins, ends), base, group in zip(located, bounds[:-1], chunk, strict=True):
        for index, question in group:
            room = form.max_seq_length - 2 - separators - counts[number]
            starts, lengths = cut_windows(len(pieces), room, doc_stride)
            span = answer_pieces(question, begins, ends)
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                windows.append((index, start, base + start, length, number))
                shift = counts[number] + 1 + separators - start
                labels.append(
                    (span[0] + shift, span[1] + shift)
                    if span is not None and start <= span[0] and span[1] < start + length
                    else (NO_ANSWER,) * 2
                )
            number += 1
    index, start, place, length, number = np.array(windows, np.int64).T
    query = counts[number]
    firsts = query + 1 + separators
    splits = np.cumsum(np.append(0, firsts + length + 1))
    ids = np.full(splits[-1], tokenizer.sep_id, np.int32)
    ids[splits[:-1]] = tokenizer.cls_id
    ids[ranges(splits[:-1] + 1, query)] = queries[ranges(query_splits[number], query)]
    context = np.concatenate([pieces for pieces, _, _ in located])
    ids[ranges(splits[:-1] + firsts, length)] = context[ranges(place, length)]
    rows = np.stack([index, start], 1)
    return Cut(ids, firsts + length + 1, firsts, rows, np.array(labels, np.int32))


def answer_pieces(
    question: Question, begins: np.ndarray, ends: np.ndarray
) -> tuple[int, int] | None:
    """Return the indices of the first and the last piece of a context that hold characters of a
    question's answer; None without an answer. begins, ends: the characters that each piece stands
    for.
    """
    if question.start is None or not question.answers or not len(begins):
        return None
    first = int(np.searchsorted(ends, question.start, side="right"))
    end = question.start + len(question.answers[0])
    last = int(np.searchsorted(begins, end, side="left")) - 1
    return (first, last) if first <= last else None
