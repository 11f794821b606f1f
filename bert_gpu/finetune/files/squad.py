"""Questions on contexts, in the JSON of SQuAD 1.1 and 2.0 as it is distributed, or in rows.

Articles hold paragraphs, a paragraph a context and its questions; the answers of a question are
parts of its context, with the place where each begins. In 2.0 a question may have none. The other
form has rows, as the `datasets` of Hugging Face: a row is an object with a question and its
context; the rows are the list "data", an array or the lines of the file. The place of an answer
counts the unit (characters, UTF-16 units or bytes) in which most of a file's answers are found, as
not all tools count characters.
"""

import bisect
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from bert_gpu.base import files
from bert_gpu.base.errors import UserError, shortened_path
from bert_gpu.finetune.files.examples import Loaded, Source
from bert_gpu.finetune.files.parts import share_of
from bert_gpu.finetune.tasks.table import TaskSpec
from bert_gpu.text.formats.cells import text_of
from bert_gpu.text.formats.rows import WholeFile

EXAMPLE = '{"data": [{"paragraphs": [{"context": "", "qas": [{"id": "", "question": ""}]}]}]}'
NEAR = 2  # number of characters by which an answer_start may be wrong
MAX_LOST = 0.01  # share of a training file's questions whose answers may be lost
# a unit in which the places of answers are counted: its name, an encoding, the bytes of a unit in
# that encoding, and the line break that is counted for each line break of the context
Unit = tuple[str, str, int, str]
UNITS: list[Unit] = [
    (name + more, encoding, num_bytes, line_break)
    for more, line_break in (
        ("", r"\g<0>"),
        (" and line breaks as LF", "\n"),
        (" and line breaks as CRLF", "\r\n"),
    )
    for name, encoding, num_bytes in (
        ("characters", "utf-32-le", 4),
        ("UTF-16 units", "utf-16-le", 2),
        ("UTF-8 bytes", "utf-8", 1),
    )
]
MAX_TELLING = 1000  # number of answers from which the unit is inferred
LINES = re.compile(r"\s*\{.*\}\s*\n\s*\{")  # matches JSON with an object a line


@dataclasses.dataclass(frozen=True)
class Question:
    """A question of a file.

    context: index of the question's context. answers: the texts of its true answers, () for a
    question without an answer; None where the file has no "answers". start: index of the character
    of the context at which the first answer begins; None without an answer or where the file is not
    trained on.
    """

    id: str
    text: str
    context: int
    answers: tuple[str, ...] | None
    start: int | None = None


class Questions(Loaded):
    """The questions of one Source.

    Attributes, beside those of Loaded:
      questions: the questions, with those on one context together. has_labels: whether the file
        gives the answers to all questions. has_impossible: whether some question has no answer.

    In a training file, questions whose answer is empty or not at its place are left out, as in
    Google's run_squad, and counted; a share of them above MAX_LOST is an error.

    Raises:
      UserError: the file is missing, not JSON or not SQuAD's, two questions have the same id, or
        there is no question.
    """

    has_pairs = True

    def __init__(self, task: TaskSpec, source: Source, needs_label: bool = True) -> None:
        super().__init__(task, source, needs_label)
        self.is_training = source.stem == "train"
        file = WholeFile(source.path)
        text = "".join(file.lines())
        self.digest = file.digest
        self.contexts: list[str] = []
        self.questions: list[Question] = []
        ids = set()
        paragraphs = [
            (context, [question for _, questions in parts for question in questions])
            for context, parts in itertools.groupby(self._paragraphs(text), lambda one: one[0])
        ]
        if source.part.split is not None:
            self.fit_part(share_of([context]) for context, questions in paragraphs if questions)
        for context, questions in paragraphs:
            if not questions or not self.source.part.takes([context]):
                continue
            for question in questions:
                if question.id in ids:
                    raise UserError(
                        f"two questions have the id {question.id[:60]!r}",
                        "every one needs its own",
                        where=self.path,
                    )
                ids.add(question.id)
            self.questions += [
                dataclasses.replace(question, context=len(self.contexts)) for question in questions
            ]
            self.contexts.append(context)
        if self.is_training:
            self._place()
        answered = [one for one in self.questions if one.answers is not None]
        self.has_labels = bool(answered) and len(answered) == len(self.questions)
        self.has_impossible = any(not one.answers for one in answered)
        self.check_some(len(self.questions))
        self.num_examples = len(self.questions)

    def _paragraphs(self, text: str) -> Iterator[tuple[str, list[Question]]]:
        """Yield (context, questions) of each paragraph; the `start` of a question is still the
        file's number, in the file's unit.
        """
        try:
            lines = ",\n".join(filter(str.strip, text.split("\n")))
            value = files.parse_json(f"[{lines}]" if LINES.match(text) else text)
        except (ValueError, RecursionError) as error:
            raise self._refused("", f"is not valid JSON ({str(error)[:60]})") from None
        holder = dict(data=value) if isinstance(value, list) else value
        for article, place in self._inside(holder, "", "data", {"paragraphs", "context"}):
            for paragraph, where in self._inside(article, place, "paragraphs", {"context"}):
                entries = self._inside(paragraph, where, "qas", {"question"})
                context = self._text(paragraph, where, "context")
                yield context, [self._question(*one) for one in entries]

    def _inside(
        self, holder: object, where: str, name: str, keys: Set[str]
    ) -> list[tuple[dict[str, Any], str]]:
        """Return the `_entries` of the list `name` in `holder`; or `holder` as the only entry where
        it lacks the list and has one of `keys`, the keys of an entry.
        """
        if isinstance(holder, dict) and name not in holder and keys & holder.keys():
            return [(holder, where)]
        return self._entries(holder, where, name)

    def _question(self, entry: Mapping[str, object], where: str) -> Question:
        name = entry.get("id")
        text = self._text(entry, where, "question")
        if not isinstance(name, str | int) or name == "":
            raise self._refused(where, "has no 'id'")
        question = Question(str(name), text, 0, None)
        is_impossible = entry.get("is_impossible")  # null counts as a missing key
        if not isinstance(is_impossible, bool | None):
            raise self._refused(where, "has an 'is_impossible' that is neither true nor false")
        if entry.get("answers") is None and not is_impossible:
            if self.needs_label:
                raise self._refused(where, "has no 'answers'")
            return question
        answers = self._entries(
            dict(answers=[] if is_impossible else as_rows(entry["answers"])), where, "answers"
        )
        if not answers and is_impossible is False:
            raise self._refused(where, "has no answers, and 'is_impossible' is false")
        if self.is_training:  # training needs a place, and an empty answer has none
            answers = [
                (answer, place)
                for answer, place in answers
                if self._text(answer, place, "text").strip()
            ] or answers
        texts = tuple(self._text(answer, place, "text") for answer, place in answers)
        start = None
        if answers and self.is_training:  # only a training reads answer_start
            start = answers[0][0].get("answer_start")
            if not isinstance(start, int) or start < 0:
                raise self._refused(answers[0][1], "has no 'answer_start'")
        return dataclasses.replace(question, answers=texts, start=start)

    def _entries(self, holder: object, where: str, name: str) -> list[tuple[dict[str, Any], str]]:
        """Return (object, its place in the file, such as data[0]) for each entry of the list `name`
        in `holder`.
        """
        entries = holder.get(name) if isinstance(holder, dict) else None
        if not isinstance(entries, list):
            raise self._refused(where, f"has no list {name!r}")
        place = f"{where}.{name}" if where else name
        for index, one in enumerate(entries):
            if not isinstance(one, dict):
                raise self._refused(f"{place}[{index}]", "is not an object")
        return [(one, f"{place}[{index}]") for index, one in enumerate(entries)]

    def _text(self, holder: Mapping[str, object], where: str, name: str) -> str:
        if not isinstance(holder.get(name), str):
            raise self._refused(where, f"has no text {name!r}")
        return text_of(holder[name])

    def _refused(self, where: str, problem: str) -> UserError:
        where = f"{where} " if where else ""
        return UserError(f"{where}{problem}", f"SQuAD's form is {EXAMPLE}", where=self.path)

    def _place(self) -> None:
        """Convert the `start` of each question from the file's unit to a character of the context;
        leave out questions whose answer is not found there.
        """
        answers = {
            one.id: (self.contexts[one.context], one.answers[0], one.start)
            for one in self.questions
            if one.answers and one.start is not None
        }
        unit = find_unit(list(answers.values()))
        if unit != UNITS[0]:
            self.warnings += (f"answer_start counts {unit[0]}, and is read so",)
        starts = {
            name: find_answer(context, answer, start, unit)
            for name, (context, answer, start) in answers.items()
        }
        if lost := [one for one in self.questions if starts.get(one.id, 0) is None]:
            self._note_lost(lost, answers[lost[0].id][1])
        self.questions = [
            dataclasses.replace(one, start=starts.get(one.id))
            for one in self.questions
            if starts.get(one.id, 0) is not None
        ]

    def _note_lost(self, lost: Sequence[Question], answer: str) -> None:
        """Record how many questions are left out. Raises UserError when they are too many.

        lost: the left-out questions. answer: the first question's answer.
        """
        first = lost[0]
        number = len(lost)
        if number > MAX_LOST * len(self.questions):
            more = f" (and {number - 1:,} more)" if number > 1 else ""
            raise UserError(
                f"{shortened_path(self.path)}: {answer[:40]!r}, the answer of question "
                f"{first.id[:40]!r}{more}, "
                + (
                    f"is not in its context at answer_start={first.start}; answer_start counts "
                    "characters from 0"
                    if answer.strip()
                    else 'is empty; set "is_impossible": true where there is no answer, and leave '
                    "other such questions out"
                )
            )
        self.num_skipped = number
        self.why_skipped = (
            f"questions whose answer is empty or not at its answer_start (first: {first.id[:40]})"
        )


def as_rows(answers: Any) -> Any:
    """Return the answers of a question as a list of objects where they are an object with the lists
    "text" and "answer_start", as in Hugging Face's `datasets`; return anything else unchanged.
    """
    columns = isinstance(answers, dict) and list(answers.values())
    if columns and all(isinstance(column, list) for column in columns):
        return [dict(zip(answers, row, strict=True)) for row in itertools.zip_longest(*columns)]
    return answers


def find_unit(answers: Sequence[tuple[str, str, int]]) -> Unit:
    """Return the unit in which most answers begin where the file says; on a tie the first of UNITS.

    answers: (context, answer, place of the answer in the file). Only contexts with several lines or
    with characters beyond ASCII count, as the units agree in all others.
    """
    telling = [one for one in answers if not one[0].isascii() or "\n" in one[0]][:MAX_TELLING]
    return max(
        UNITS,
        key=lambda unit: sum(
            context.startswith(answer, character_at(context, start, unit))
            for context, answer, start in telling
        ),
    )


def character_at(context: str, start: int, unit: Unit) -> int:
    """Return the index of the character of a context that lies `start` units from its beginning."""
    _, encoding, num_bytes, line_break = unit

    def num_bytes_before(end: int) -> int:
        return len(re.sub("\r?\n", line_break, context[:end]).encode(encoding, "surrogatepass"))

    return (
        start
        if unit == UNITS[0]
        else bisect.bisect_right(range(len(context)), start * num_bytes, key=num_bytes_before) - 1
    )


def find_answer(context: str, answer: str, start: int, unit: Unit = UNITS[0]) -> int | None:
    """Return the index of the character of a context at which an answer begins: `start` units from
    its beginning, or as far with line breaks counted otherwise, or at most NEAR characters away
    from one of these places; None when the answer is at none of them, or blank.
    """
    places = (
        character_at(context, start, one) + shift
        for shift in sorted(range(-NEAR, NEAR + 1), key=abs)
        for one in (unit, *(other for other in UNITS if other[1] == unit[1]))
    )
    matches = (place for place in places if place >= 0 and context.startswith(answer, place))
    return next(matches, None) if answer.strip() else None
