"""The best answers to questions, from the scores of the tokens of their rows.

As in Google's run_squad the candidates are pairs of the best first and last tokens of each row,
each token in the row that shows most of its context. Unlike there, the characters of each token are
known (offsets.py), so that answers are cut out of the context itself.

Legend: R rows, T tokens of a row, K best tokens of a row, P pairs.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_gpu.finetune.config import TokenConfig
from bert_gpu.finetune.files.encoded import EncodedExamples
from bert_gpu.finetune.tasks.interface import Evaluated
from bert_gpu.finetune.tasks.windows import best_windows

if TYPE_CHECKING:
    from bert_gpu.finetune.tasks.question_answering import Answers

NO_ANSWER = 0  # index of the token, [CLS], that stands for no answer


class Best(typing.NamedTuple):
    """The best scores of a row: its K best first and last tokens, the best first, with their
    scores, and the score of no answer as first and as last; float64.
    """

    starts: np.ndarray
    start_scores: np.ndarray
    ends: np.ndarray
    end_scores: np.ndarray
    null_scores: tuple[float, float]


def best_of(scores: np.ndarray, number: int) -> Best:
    """Return the `number` best tokens of a row by their scores (T, 2); of equals the first."""
    order = np.argsort(-scores, axis=0, kind="stable")[:number]
    best = np.take_along_axis(scores, order, 0)
    null = tuple(scores[NO_ANSWER].tolist())
    return Best(order[:, 0], best[:, 0], order[:, 1], best[:, 1], null)


class Predicted(typing.NamedTuple):
    """The predictions for questions, by the id of the question.

    answers: text, "" for no answer. n_best: list of {"text", "probability", "start_logit",
    "end_logit"}, the best first. null_odds: the score of no answer less that of the best answer;
    None where every question has an answer.
    """

    answers: dict[str, str]
    n_best: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float] | None


def predict(evaluated: Evaluated) -> Predicted:
    """Return the predictions for the questions of a file, whose outputs are a list of R Best."""
    examples, rows, outputs = evaluated.examples, evaluated.rows, evaluated.outputs
    problem_type, tokens = evaluated.problem_type, evaluated.settings.tokens
    predicted = Predicted({}, {}, {} if problem_type.allows_none else None)
    bounds = np.searchsorted(rows.origin.questions, np.arange(len(examples) + 1))
    for index, question in enumerate(examples.questions):
        of_question = range(bounds[index], bounds[index + 1])
        context = examples.contexts[question.context]
        pairs = candidates(rows, index, of_question, outputs, tokens)
        null = min((outputs[row].null_scores for row in of_question), key=sum)
        entries = n_best(context, pairs, problem_type, null)
        best = next((entry for entry in entries if entry["text"]), None)
        answer = entries[0]["text"]
        if predicted.null_odds is not None:
            odds = sum(null)
            if best is not None:
                odds -= best["start_logit"] + best["end_logit"]
            is_none = odds > tokens.null_score_diff_threshold
            answer = "" if best is None or is_none else best["text"]
            predicted.null_odds[question.id] = odds
        predicted.answers[question.id] = answer
        predicted.n_best[question.id] = entries
    return predicted


class Pairs(typing.NamedTuple):
    """Possible answers to a question: their first characters, the ends after their last ones, and
    their scores, (P,) each, in the order of rows and of their best tokens.
    """

    begins: np.ndarray
    ends: np.ndarray
    start_scores: np.ndarray
    end_scores: np.ndarray


def candidates(
    rows: EncodedExamples,
    index: int,
    of_question: range,
    outputs: Sequence[Best],
    tokens: TokenConfig,
) -> Pairs:
    """Return the pairs of a question's best tokens that may be an answer: inside the context, in
    order, at most --max_answer_length tokens long, the first one in the row that shows most of its
    context.

    Args:
      index: of the question. of_question: its rows. outputs: those of all R rows.
    """
    origin = rows.origin
    parts: list[tuple[np.ndarray, ...]] = []
    here = slice(of_question.start, of_question.stop)
    base, limit = origin.splits[origin.contexts[index]], origin.splits[origin.contexts[index] + 1]
    firsts = rows.first_lengths[here]
    lengths = np.diff(rows.splits[of_question.start : of_question.stop + 1]) - firsts - 1
    owners = best_windows(origin.starts[here], lengths, limit - base)
    for window, row in enumerate(of_question):
        best = outputs[row]
        begin = firsts[window]
        starts, ends = best.starts[:, None], best.ends[None]
        fits = (starts >= begin) & (starts <= ends) & (ends < begin + lengths[window])
        first, last = np.nonzero(fits & (ends - starts < tokens.max_answer_length))
        places = origin.starts[row] - begin + np.stack([best.starts[first], best.ends[last]])
        is_owner = owners[places[0]] == window
        begins, ends = base + places[:, is_owner]
        scores = best.start_scores[first[is_owner]], best.end_scores[last[is_owner]]
        parts.append((origin.begins[begins], origin.ends[ends], *scores))
    return Pairs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def n_best(
    context: str, pairs: Pairs, problem_type: Answers, null: tuple[float, float]
) -> list[dict[str, Any]]:
    """Return the best answers of different texts, at most n_best_size of them, in the form of
    Predicted.n_best; with allows_none also no answer, "". null: its scores as first and as last.
    """
    begins, ends, start_scores, end_scores = (values.tolist() for values in pairs)
    texts = [context[begin:end] for begin, end in zip(begins, ends, strict=True)]
    rows = list(zip(texts, start_scores, end_scores, strict=True))
    if problem_type.allows_none:
        rows.append(("", *null))
    rows.sort(key=lambda row: row[1] + row[2], reverse=True)
    best: dict[str, tuple[str, float, float]] = {}
    for row in rows:
        if len(best) == problem_type.n_best_size:
            break
        best.setdefault(row[0], row)
    if problem_type.allows_none:
        best.setdefault("", ("", *null))
    entries = list(best.values()) or [("", 0.0, 0.0)]
    totals = np.array([first + last for _, first, last in entries])
    shares = np.exp(totals - totals.max())
    shares /= shares.sum()
    return [
        dict(text=text, probability=share, start_logit=first, end_logit=last)
        for (text, first, last), share in zip(entries, shares.tolist(), strict=True)
    ]
