"""Questions on contexts, in the JSON of SQuAD 1.1 and 2.0 as it is distributed.

Articles hold paragraphs, a paragraph a context and its questions; the answers of a question are
pieces of its context, with the place where each begins. In 2.0 a question may have none.
"""

import dataclasses
import hashlib

import numpy as np

from bert_gpu import files
from bert_gpu.finetune.examples import Loaded
from bert_gpu.finetune.tables import hash_of, read_pieces
from bert_gpu.settings import UserError
from bert_gpu.text.encodings import not_utf8

EXAMPLE = (
    '{"data": [{"paragraphs": [{"context": "...", "qas": [{"id": "...", "question": "..."}]}]}]}'
)
NEAR = 2  # characters that an answer may lie beside its answer_start
MAX_LOST = 0.01  # share of a training file whose answers may not be in their contexts


@dataclasses.dataclass(frozen=True)
class Question:
    """A question of a file.

    context: index of its context. answers: their texts, () where the context has none; None where
    the file does not say. start: character of the context at which the first answer begins, None
    without one or where the file is not trained on.
    """

    id: str
    text: str
    context: int
    answers: tuple[str, ...] | None
    start: int | None = None


class Questions(Loaded):
    """The questions of one Source.

    Attributes:
      those of Loaded. contexts: list of str. questions: list of Question, those of a context
      together. has_labels: whether the file tells the answers. has_impossible: whether some
      question has none.

    In a training file, questions whose answer is not at its place are left out, as in Google's
    run_squad, and counted; more than MAX_LOST of them are an error.

    Raises:
      UserError: the file is missing, not JSON or not SQuAD's, two questions have an id, no
        question.
    """

    has_pairs = True

    def __init__(self, task, source, needs_label=True):
        self.source, self.path, self.task = source, source.path, task
        self.needs_label, self.is_training = needs_label, source.stem == "train"
        digest = hashlib.sha256()
        content = b"".join(read_pieces(source.path, digest))
        self.digest = digest.hexdigest()
        self.contexts, self.questions, self.lost, seen = [], [], [], set()
        for context, found in self._paragraphs(content):
            if not source.part.takes([context]):
                continue
            for question in found:
                if question.id in seen:
                    raise UserError(
                        f"{self.path}: two questions have the id {question.id[:60]!r}; every one "
                        "needs its own"
                    )
                seen.add(question.id)
            if found:
                self.contexts.append(context)
                self.questions += [self._placed(context, question) for question in found]
        told = [one for one in self.questions if one.answers is not None]
        self.has_labels = bool(told) and len(told) == len(self.questions)
        self.has_impossible = any(not one.answers for one in told)
        if self.lost:
            self._leave_out()
        self.check_some(len(self.questions))
        self.num_examples = len(self.questions)
        self.text_hashes = np.array(
            [hash_of(one.text, self.contexts[one.context]) for one in self.questions], np.uint64
        )

    def _paragraphs(self, content):
        """Yields (context, list of Question) of each paragraph; their `start` is as in the file."""
        try:
            record = files.parse_json(content.decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise not_utf8(self.path, "", content) from None
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{self.path}: not valid JSON ({str(error)[:80]}); SQuAD's form is {EXAMPLE}"
            ) from None
        for article, place in self._entries(record, "", "data"):
            for paragraph, where in self._entries(article, place, "paragraphs"):
                context = self._text(paragraph, where, "context")
                yield (
                    context,
                    [self._question(*one) for one in self._entries(paragraph, where, "qas")],
                )

    def _question(self, entry, where):
        name, text = entry.get("id"), self._text(entry, where, "question")
        if not isinstance(name, str | int) or name == "":
            raise self._refused(where, "has no 'id'")
        question = Question(str(name), text, 0, None)
        is_impossible = entry.get("is_impossible", False)
        if not isinstance(is_impossible, bool):
            raise self._refused(where, "has an 'is_impossible' that is neither true nor false")
        if "answers" not in entry and not is_impossible:
            if self.needs_label:
                raise self._refused(where, "has no 'answers'")
            return question
        answers = [] if is_impossible else self._entries(entry, where, "answers")
        if not answers and "is_impossible" in entry and not is_impossible:
            raise self._refused(where, "has no answers, and 'is_impossible' is false")
        texts = tuple(self._text(answer, place, "text") for answer, place in answers)
        start = None
        if answers and self.is_training:  # nothing else reads it
            start = answers[0][0].get("answer_start")
            if not isinstance(start, int) or start < 0:
                raise self._refused(answers[0][1], "has no 'answer_start'")
        return dataclasses.replace(question, answers=texts, start=start)

    def _entries(self, holder, where, name):
        """[(object, its place in the file)] of a list of objects."""
        found = holder.get(name) if isinstance(holder, dict) else None
        if not isinstance(found, list):
            raise self._refused(where, f"has no list {name!r}")
        place = f"{where}.{name}" if where else name
        for index, one in enumerate(found):
            if not isinstance(one, dict):
                raise self._refused(f"{place}[{index}]", "is not an object")
        return [(one, f"{place}[{index}]") for index, one in enumerate(found)]

    def _text(self, holder, where, name):
        if not isinstance(holder.get(name), str):
            raise self._refused(where, f"has no text {name!r}")
        return holder[name]

    def _refused(self, where, problem):
        where = f"{where} " if where else ""
        return UserError(f"{self.path}: {where}{problem}; SQuAD's form is {EXAMPLE}"[:300])

    def _placed(self, context, question):
        """The Question with its context's index and its answer's place, which is noted as lost
        where the context does not have the answer there.
        """
        question = dataclasses.replace(question, context=len(self.contexts) - 1)
        if not self.is_training or not question.answers:
            return question
        start = find_answer(context, question.answers[0], question.start)
        if start is None:
            self.lost.append(question)
        return dataclasses.replace(question, start=start)

    def _leave_out(self):
        """Drops the lost questions; UserError when they are too many."""
        first, number = self.lost[0], len(self.lost)
        problem = f"{first.answers[0][:40]!r}, the answer of question {first.id[:40]!r}, is not in "
        if number > MAX_LOST * len(self.questions):
            more = f" (and {number - 1:,} more)" if number > 1 else ""
            raise UserError(
                f"{self.path}: {problem}its context at answer_start={first.start}{more}; "
                "answer_start counts characters from 0"
            )
        lost = {question.id for question in self.lost}
        self.questions = [one for one in self.questions if one.id not in lost]
        self.num_skipped = number
        self.why_skipped = f"questions whose answer is not at its answer_start (first: {first.id})"


def find_answer(context, answer, start):
    """The character of a context at which an answer begins: `start`, or one at most NEAR beside it;
    None when it is at none of them.
    """
    if not answer.strip():
        return None
    for shift in sorted(range(-NEAR, NEAR + 1), key=abs):
        if start + shift >= 0 and context.startswith(answer, start + shift):
            return start + shift
    return None
