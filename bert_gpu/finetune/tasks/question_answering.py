"""The task type of squad: a span of its context answers each question; interface.TaskType describes
the functions of this module.

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
from typing import Any

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.finetune import results
from bert_gpu.finetune.config import FinetuneSettings, TokenConfig
from bert_gpu.finetune.files.disk_array import DiskArray
from bert_gpu.finetune.files.encoded import EncodedExamples, hash_texts, padding_of, splits_of
from bert_gpu.finetune.files.examples import Source
from bert_gpu.finetune.files.squad import Question, Questions
from bert_gpu.finetune.start import Start
from bert_gpu.finetune.tasks import problem_types, squad_metrics
from bert_gpu.finetune.tasks.heads import SPAN
from bert_gpu.finetune.tasks.interface import Evaluated
from bert_gpu.finetune.tasks.n_best import NO_ANSWER, Best, best_of, predict
from bert_gpu.finetune.tasks.offsets import locate_pieces
from bert_gpu.finetune.tasks.table import TaskSpec
from bert_gpu.finetune.tasks.windows import cut_windows
from bert_gpu.model.heads import cross_entropy
from bert_gpu.text.framing import ranges
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

HEAD = SPAN
PREDICTED = results.ANSWERS
CONTEXTS_PER_CALL = 512  # contexts that are tokenized at once


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


@dataclasses.dataclass(frozen=True)
class Answers(problem_types.ProblemType):
    """Problem type of answers, whose targets are their first and their last token; the loss is the
    mean of the two cross-entropies.

    allows_none: whether a question may have no answer. n_best_size: number of the best first and of
    the best last tokens of a row that are kept, and of the best answers.
    """

    allows_none: bool = False
    n_best_size: int = 20
    head = HEAD

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the loss of each row, float32 (B,), from scores, float32 (B, S, 2), and targets,
        int32 (B, 2).
        """
        first, last = tf.unstack(logits, axis=-1)
        return (cross_entropy(first, targets[:, 0]) + cross_entropy(last, targets[:, 1])) / 2

    def weights(self, targets: tf.Tensor) -> tf.Tensor:
        return tf.ones_like(targets[:, 0], tf.float32)

    def row_outputs(self, logits: np.ndarray, batch: Mapping[str, np.ndarray]) -> list[Best]:
        """Return a Best for each row: its best first and last tokens, with their scores."""
        lengths = batch["input_mask"].sum(-1)
        rows = zip(logits.astype(np.float64), lengths, strict=True)
        return [best_of(scores[:length], self.n_best_size) for scores, length in rows]

    def join_rows(self, rows: Sequence[Best]) -> Sequence[Best]:
        return rows


def open_examples(
    task: TaskSpec, source: Source, needs_label: bool, labels: tuple[str, ...] | None
) -> Questions:
    return Questions(task, source, needs_label)


def defaults(examples: Questions) -> dict[str, Any]:
    return dict(
        doc_stride=128, max_query_length=64, version_2_with_negative=examples.has_impossible
    )


def make_problem_type(
    settings: FinetuneSettings, task: TaskSpec, labels: tuple[str, ...], examples: Questions | None
) -> Answers:
    return Answers(bool(settings.tokens.version_2_with_negative))


def encode(
    examples: Questions,
    problem_type: Answers,
    start: Start,
    settings: FinetuneSettings,
    max_seq_length: int,
    folder: str,
) -> EncodedExamples:
    """Return questions as encoded rows, with an Origin and, for a training file, the first and last
    token of the answer as labels, int32 (R, 2).
    """
    tokens = settings.tokens
    questions = examples.questions
    assert tokens.max_query_length is not None
    if max_seq_length < tokens.max_query_length + start.tokenizer.separators + 3:
        raise UserError(
            f"leaves no room beside a question of --max_query_length={tokens.max_query_length} "
            "tokens",
            "raise it, or lower --max_query_length",
            setting="max_seq_length",
            value=max_seq_length,
        )
    ids, begins, ends = DiskArray(folder), DiskArray(folder), DiskArray(folder)
    sizes, parts, hashes = [], [], []
    groups = itertools.groupby(enumerate(questions), lambda one: one[1].context)
    while chunk := [list(group) for _, group in itertools.islice(groups, CONTEXTS_PER_CALL)]:
        contexts = [examples.contexts[group[0][1].context] for group in chunk]
        located = locate_pieces(start.tokenizer, contexts)
        cut = cut_rows(start.tokenizer, chunk, located, tokens, max_seq_length)
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
        max_seq_length=max_seq_length,
        padding=padding_of(settings, start.encoder),
        origin=origin,
        text_hashes=np.stack([text_hashes] * 2),
    )


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
    tokenizer: Tokenizer,
    chunk: Sequence[Sequence[tuple[int, Question]]],
    located: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    tokens: TokenConfig,
    max_seq_length: int,
) -> Cut:
    """Return the rows of the questions on some contexts.

    Args:
      chunk: for each context the list of (index, question) on it. located: the result of
        `locate_pieces` for the contexts.
    """
    queries, query_splits = tokenizer.tokenize([one.text for group in chunk for _, one in group])
    assert tokens.doc_stride is not None and tokens.max_query_length is not None
    counts = np.minimum(np.diff(query_splits), tokens.max_query_length)
    bounds = np.cumsum([0, *(len(pieces) for pieces, _, _ in located)])
    windows: list[tuple[int, ...]] = []
    labels = []
    number = 0
    separators = tokenizer.separators  # number of [SEP] between question and context
    for (pieces, begins, ends), base, group in zip(located, bounds[:-1], chunk, strict=True):
        for index, question in group:
            room = max_seq_length - 2 - separators - counts[number]
            starts, lengths = cut_windows(len(pieces), room, tokens.doc_stride)
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


def describe(examples: Questions, rows: EncodedExamples) -> str:
    num_cut = (
        0
        if rows.labels is None
        else sum(one.start is not None for one in examples.questions)
        - len(np.unique(rows.origin.questions[rows.labels[:, 0] != NO_ANSWER]))
    )
    return (
        f"{len(examples):,} questions on {len(examples.contexts):,} paragraphs, {len(rows):,} rows "
        f"of {len(rows.ids) / len(rows):.1f} tokens each"
    ) + (
        f"; {num_cut:,} answers fit whole into no row and are learnt as no answer (raise "
        "--max_seq_length, or lower --doc_stride)"
        if num_cut
        else ""
    )


def metric_names(task: TaskSpec, problem_type: Answers, labels: tuple[str, ...]) -> tuple[str, ...]:
    more = squad_metrics.OF_IMPOSSIBLE if problem_type.allows_none else ()
    return (*squad_metrics.PLAIN, *more)


def judge(evaluated: Evaluated, names: Sequence[str]) -> dict[str, float | None]:
    every = (best.start_scores + best.end_scores for best in evaluated.outputs)
    if not all(np.isfinite(scores).all() for scores in every):
        return dict.fromkeys(names)  # a model that has overflowed predicts nothing
    predicted = predict(evaluated)
    answers = {question.id: question.answers for question in evaluated.examples.questions}
    values = squad_metrics.score(predicted.answers, answers, predicted.null_odds)
    return {name: values[name] for name in names}


def after_evaluation(output_dir: str, evaluated: Evaluated) -> None:
    """Write the predictions for a dev file, which the official evaluation reads."""
    if evaluated.stem != "test":
        write(output_dir, evaluated)


def write(output_dir: str, evaluated: Evaluated) -> str:
    """Write predictions.json, {id: answer}, nbest_predictions.json and, where a question may have
    no answer, null_odds.json; for a dev file with _dev in the names.
    """
    predicted = predict(evaluated)
    stem = evaluated.stem
    suffix, named = (
        ("", evaluated.settings.run.predictions_file) if stem == "test" else (f"_{stem}", None)
    )
    where, name = results.predictions_path(output_dir, suffix, named, PREDICTED)
    contents: dict[tuple[str, str], Any] = {(where, name): predicted.answers}
    contents[output_dir, results.with_suffix(results.N_BEST, suffix)] = predicted.n_best
    if predicted.null_odds is not None:
        contents[output_dir, results.with_suffix(results.NULL_ODDS, suffix)] = predicted.null_odds
    for path, content in contents.items():
        results.write(*path, [json.dumps(content, indent=4), "\n"], output_dir)
    return os.path.join(where, name)
