"""The best answers to questions, from the scores of the tokens of their rows.

As in Google's run_squad the candidates are pairs of the best first and last tokens of each row; a
first token counts in the row that shows most of its context. Unlike in run_squad, the characters of
each token are known (text/tokenizers/offsets.py), so answers are cut out of the context itself.

Legend: R rows, T tokens of a row, K best tokens of a row, P pairs.
"""

import typing
from collections.abc import Sequence

import numpy as np

from bert_gpu.finetune.files.encoded import EncodedExamples
from bert_gpu.finetune.files.squad import Questions
from bert_gpu.finetune.tasks.windows import best_windows

NO_ANSWER = 0  # index of the token, [CLS], that stands for no answer


class AnswerRules(typing.NamedTuple):
    """Rules of the choice of answers.

    allows_none: whether a question may have no answer. max_answer_length,
    null_score_diff_threshold: as the settings of that name. n_best_size: number of the best first
    and of the best last tokens of a row that are kept, and of the best answers.
    """

    allows_none: bool = False
    max_answer_length: int = 30
    null_score_diff_threshold: float = 0.0
    n_best_size: int = 20


class Entry(typing.TypedDict):
    """A possible answer to a question."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


class Best(typing.NamedTuple):
    """The K best first tokens (starts) and last tokens (ends) of a row, the best first, with their
    scores, and the scores of [CLS], which stands for no answer, as first and as last; scores are
    float64.
    """

    starts: np.ndarray
    start_scores: np.ndarray
    ends: np.ndarray
    end_scores: np.ndarray
    null_scores: tuple[float, float]


def best_of(scores: np.ndarray, number: int) -> Best:
    """Return the `number` best first and last tokens of a row. scores: (T, 2), of each token as
    first and as last. Of tokens with equal scores the earlier one comes first.
    """
    order = np.argsort(-scores, axis=0, kind="stable")[:number]
    best = np.take_along_axis(scores, order, 0)
    null = tuple(scores[NO_ANSWER].tolist())
    return Best(order[:, 0], best[:, 0], order[:, 1], best[:, 1], null)


class Predicted(typing.NamedTuple):
    """The predictions for questions; the keys are the questions' ids.

    answers: {id: text, "" for no answer}. n_best: {id: list of possible answers, the best first}.
    null_odds: {id: score of no answer minus that of the best answer}; None where every question has
    an answer.
    """

    answers: dict[str, str]
    n_best: dict[str, list[Entry]]
    null_odds: dict[str, float] | None


def predict(
    examples: Questions, rows: EncodedExamples, outputs: Sequence[Best], rules: AnswerRules
) -> Predicted:
    """Return the predictions for the questions of a file. outputs: a Best for each row."""
    predicted = Predicted({}, {}, {} if rules.allows_none else None)
    bounds = np.searchsorted(rows.origin.questions, np.arange(len(examples) + 1))
    for index, question in enumerate(examples.questions):
        of_question = range(bounds[index], bounds[index + 1])
        context = examples.contexts[question.context]
        pairs = candidates(rows, index, of_question, outputs, rules)
        null = min((outputs[row].null_scores for row in of_question), key=sum)
        entries = n_best(context, pairs, rules, null)
        best = next((entry for entry in entries if entry["text"]), None)
        answer = entries[0]["text"]
        if predicted.null_odds is not None:
            odds = sum(null)
            if best is not None:
                odds -= best["start_logit"] + best["end_logit"]
            is_none = odds > rules.null_score_diff_threshold
            answer = "" if best is None or is_none else best["text"]
            predicted.null_odds[question.id] = odds
        predicted.answers[question.id] = answer
        predicted.n_best[question.id] = entries
    return predicted


class Pairs(typing.NamedTuple):
    """Possible answers to a question: the character of the context at which each begins, the one
    before which it ends, and the scores of its first and last token; (P,) each, in the order of
    rows and of their best tokens.
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
    rules: AnswerRules,
) -> Pairs:
    """Return the pairs of a question's best tokens that may be an answer: inside the context, in
    order, at most --max_answer_length tokens long, with the first token in the row that shows most
    of that token's context.

    Args:
      index: index of the question. of_question: indices of its rows. outputs: a Best for each of
        all R rows.
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
        first, last = np.nonzero(fits & (ends - starts < rules.max_answer_length))
        places = origin.starts[row] - begin + np.stack([best.starts[first], best.ends[last]])
        is_owner = owners[places[0]] == window
        begins, ends = base + places[:, is_owner]
        scores = best.start_scores[first[is_owner]], best.end_scores[last[is_owner]]
        parts.append((origin.begins[begins], origin.ends[ends], *scores))
    return Pairs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def n_best(
    context: str, pairs: Pairs, rules: AnswerRules, null: tuple[float, float]
) -> list[Entry]:
    """Return the best answers with different texts, at most n_best_size, as Predicted.n_best has
    them for a question; where a question may have no answer, also the entry "". null: the scores of
    no answer as first and as last.
    """
    begins, ends, start_scores, end_scores = (values.tolist() for values in pairs)
    texts = [context[begin:end] for begin, end in zip(begins, ends, strict=True)]
    rows = list(zip(texts, start_scores, end_scores, strict=True))
    if rules.allows_none:
        rows.append(("", *null))
    rows.sort(key=lambda row: row[1] + row[2], reverse=True)
    best: dict[str, tuple[str, float, float]] = {}
    for row in rows:
        if len(best) == rules.n_best_size:
            break
        best.setdefault(row[0], row)
    if rules.allows_none:
        best.setdefault("", ("", *null))
    entries = list(best.values()) or [("", 0.0, 0.0)]
    totals = np.array([first + last for _, first, last in entries])
    shares = np.exp(totals - totals.max())
    shares /= shares.sum()
    return [
        Entry(text=text, probability=share, start_logit=first, end_logit=last)
        for (text, first, last), share in zip(entries, shares.tolist(), strict=True)
    ]
