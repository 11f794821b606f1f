"""Exact match and F1 of answers, as the official evaluations of SQuAD 1.1 and 2.0 define them
(Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1; 2018, arXiv 1806.03822): shares between 0 and
1, where those scripts print percent.

Answers are compared without case, punctuation, articles and further white space; of several true
answers, the one with the highest score counts.
"""

import collections
import re
import statistics
import string
from collections.abc import Iterable, Mapping, Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
PLAIN = ("f1", "exact_match")
# further metrics of SQuAD 2.0, where a question may have no answer
OF_IMPOSSIBLE = ("HasAns_f1", "HasAns_exact", "NoAns_f1", "NoAns_exact")


def words_of(answer: str) -> list[str]:
    """Return the words of an answer that are compared: in lower case, without punctuation and
    articles.
    """
    return ARTICLES.sub(" ", answer.lower().translate(NO_PUNCTUATION)).split()


def exact_match(predicted: str, answer: str) -> int:
    """Return 1 if two answers are the same, else 0."""
    return int(words_of(predicted) == words_of(answer))


def f1(predicted: str, answer: str, equals_if_empty: bool) -> float:
    """Return the F1 of the words of a predicted answer against a true one. Where one of the two has
    no words, it is 0 or, with `equals_if_empty` (SQuAD 2.0), 1 if neither has any.
    """
    words = words_of(predicted)
    true_words = words_of(answer)
    if equals_if_empty and not (words and true_words):
        return int(words == true_words)
    common = sum((collections.Counter(words) & collections.Counter(true_words)).values())
    if not common:
        return 0
    precision = common / len(words)
    recall = common / len(true_words)
    return 2 * precision * recall / (precision + recall)


def score(
    predictions: Mapping[str, str],
    answers: Mapping[str, Sequence[str]],
    allows_none: bool = False,
) -> dict[str, float | None]:
    """Return {name: value} of the metrics in PLAIN and, with allows_none, in OF_IMPOSSIBLE; None
    for a metric that applies to no question.

    Args:
      predictions: {id of a question: predicted text, "" for no answer}. answers: {id: true answers,
        () for none}, of the same questions. allows_none: whether a question may have no answer, as
        in SQuAD 2.0.
    """
    has_none = allows_none or not all(answers.values())
    exact: dict[str, float] = {}
    overlap: dict[str, float] = {}
    for name, texts in answers.items():
        if has_none:
            texts = [text for text in texts if words_of(text)] or [""]
        exact[name] = max(exact_match(predictions[name], text) for text in texts)
        overlap[name] = max(f1(predictions[name], text, has_none) for text in texts)
    values = dict(f1=mean(overlap.values()), exact_match=mean(exact.values()))
    if not allows_none:
        return values
    for title, has_answer in (("HasAns", True), ("NoAns", False)):
        names = [name for name, texts in answers.items() if bool(texts) is has_answer]
        values[f"{title}_f1"] = mean(overlap[name] for name in names)
        values[f"{title}_exact"] = mean(exact[name] for name in names)
    return values


def mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return statistics.fmean(values) if values else None
