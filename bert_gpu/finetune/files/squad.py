"""Questions on contexts, in the JSON of SQuAD 1.1 and 2.0 as it is distributed, or in rows.

Articles hold paragraphs, a paragraph a context and its questions; the answers of a question are
pieces of its context, with the place where each begins. In 2.0 a question may have none. A row is a
question with its context, as in the `datasets` of Hugging Face; rows are "data", an array or lines.
Places are in the unit in which most of a file's answers are found, as not all tools count
characters.
"""

import bisect
import dataclasses
import hashlib
import itertools
import re

import numpy as np

from bert_gpu.base import files
from bert_gpu.base.errors import UserError, shortened_path
from bert_gpu.finetune.files.examples import Loaded
from bert_gpu.finetune.files.tables import hash_of, read_pieces, share_of
from bert_gpu.text.formats.encodings import not_utf8

EXAMPLE = '{"data": [{"paragraphs": [{"context": "", "qas": [{"id": "", "question": ""}]}]}]}'
NEAR = 2  # characters that an answer may lie beside its answer_start
MAX_LOST = 0.01  # share of a training file whose answers may not be in their contexts
# what places count: a name, an encoding and the bytes of a unit in it, and the line breaks that are
# counted for those of the context
UNITS = [
    (name + more, encoding, num_bytes, line_break)
    for more, line_break in (
        ("", r"\g<0>"),
        (" and line breaks as CRLF", "\r\n"),
        (" and line breaks as LF", "\n"),
    )
    for name, encoding, num_bytes in (
        ("characters", "utf-32-le", 4),
        ("UTF-16 units", "utf-16-le", 2),
        ("UTF-8 bytes", "utf-8", 1),
    )
]
MOST_TELLING = 1000  # answers by which the unit is found
LINES = re.compile(r"\s*\{.*\}\s*\n\s*\{")  # begins a text with an object a line


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

    In a training file, questions whose answer is empty or not at its place are left out, as in
    Google's run_squad, and counted; more than MAX_LOST of them are an error.

    Raises:
      UserError: the file is missing, not JSON or not SQuAD's, two questions have an id, no
        question.
    """

    has_pairs = True

    def __init__(self, task, source, needs_label=True):
        super().__init__(task, source, needs_label)
        self.is_training = source.stem == "train"
        digest = hashlib.sha256()
        content = b"".join(read_pieces(source.path, digest))
        self.digest = digest.hexdigest()
        self.contexts, self.questions, seen = [], [], set()
        read = [
            (context, [question for _, questions in parts for question in questions])
            for context, parts in itertools.groupby(self._paragraphs(content), lambda one: one[0])
        ]
        if source.part.split is not None:
            self.fit_part(share_of([context]) for context, found in read if found)
        for context, found in read:
            if not found or not self.source.part.takes([context]):
                continue
            for question in found:
                if question.id in seen:
                    raise UserError(
                        f"two questions have the id {question.id[:60]!r}",
                        "every one needs its own",
                        where=self.path,
                    )
                seen.add(question.id)
            self.questions += [
                dataclasses.replace(question, context=len(self.contexts)) for question in found
            ]
            self.contexts.append(context)
        if self.is_training:
            self._place()
        told = [one for one in self.questions if one.answers is not None]
        self.has_labels = bool(told) and len(told) == len(self.questions)
        self.has_impossible = any(not one.answers for one in told)
        self.check_some(len(self.questions))
        self.num_examples = len(self.questions)
        self.text_hashes = np.array(
            [hash_of(one.text, self.contexts[one.context]) for one in self.questions], np.uint64
        )

    def _paragraphs(self, content):
        """Yields (context, list of Question) of each paragraph; their `start` is as in the file."""
        try:
            text = content.decode("utf-8-sig")
            lines = ",\n".join(filter(str.strip, text.split("\n")))
            value = files.parse_json(f"[{lines}]" if LINES.match(text) else text)
        except UnicodeDecodeError:
            raise not_utf8(self.path, "", content) from None
        except (ValueError, RecursionError) as error:
            raise self._refused("", f"is not valid JSON ({str(error)[:60]})") from None
        holder = dict(data=value) if isinstance(value, list) else value
        for article, place in self._inside(holder, "", "data", {"paragraphs", "context"}):
            for paragraph, where in self._inside(article, place, "paragraphs", {"context"}):
                asked = self._inside(paragraph, where, "qas", {"question"})
                context = self._text(paragraph, where, "context")
                yield context, [self._question(*one) for one in asked]

    def _inside(self, holder, where, name, keys):
        """`_entries` of a list in an object, or the object itself where it has one of the keys of
        an entry and not the list.
        """
        if isinstance(holder, dict) and name not in holder and keys & holder.keys():
            return [(holder, where)]
        return self._entries(holder, where, name)

    def _question(self, entry, where):
        name, text = entry.get("id"), self._text(entry, where, "question")
        if not isinstance(name, str | int) or name == "":
            raise self._refused(where, "has no 'id'")
        question = Question(str(name), text, 0, None)
        is_impossible = entry.get("is_impossible")  # null as if it were not there
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
        if self.is_training:  # an empty answer has no place
            answers = [one for one in answers if self._text(*one, "text").strip()] or answers
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
        return UserError(f"{where}{problem}", f"SQuAD's form is {EXAMPLE}", where=self.path)

    def _place(self):
        """Sets the `start` of each answer to its character; questions without it are left out."""
        asked = [(self.contexts[one.context], one) for one in self.questions if one.answers]
        unit = find_unit(asked)
        if unit != UNITS[0]:
            self.warnings += (f"answer_start counts {unit[0]}, and is read so",)
        starts = {
            one.id: find_answer(context, one.answers[0], character_at(context, one.start, unit))
            for context, one in asked
        }
        if lost := [one for _, one in asked if starts[one.id] is None]:
            self._note_lost(lost)
        self.questions = [
            dataclasses.replace(one, start=starts.get(one.id))
            for one in self.questions
            if not one.answers or starts[one.id] is not None
        ]

    def _note_lost(self, lost):
        """Notes how many questions are left out; UserError when they are too many."""
        first, number = lost[0], len(lost)
        if number > MAX_LOST * len(self.questions):
            answer, more = first.answers[0], f" (and {number - 1:,} more)" if number > 1 else ""
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


def as_rows(answers):
    """The columns "text" and "answer_start", as Hugging Face has the answers of a question, as a
    list of objects; anything else as it is.
    """
    columns = isinstance(answers, dict) and list(answers.values())
    if columns and all(isinstance(column, list) for column in columns):
        return [dict(zip(answers, row, strict=True)) for row in itertools.zip_longest(*columns)]
    return answers


def find_unit(asked):
    """The first of UNITS in which most answers begin where the file says. asked: list of (context,
    Question), of which contexts with other characters than ASCII, or several lines, tell the unit.
    """
    telling = [one for one in asked if not one[0].isascii() or "\n" in one[0]][:MOST_TELLING]
    return max(
        UNITS,
        key=lambda unit: sum(
            context.startswith(one.answers[0], character_at(context, one.start, unit))
            for context, one in telling
        ),
    )


def character_at(context, start, unit):
    """The character of a context at a place in a unit."""
    _, encoding, num_bytes, line_break = unit

    def num_bytes_before(end):
        return len(re.sub("\r?\n", line_break, context[:end]).encode(encoding, "surrogatepass"))

    return (
        start
        if unit == UNITS[0]
        else bisect.bisect_right(range(len(context)), start * num_bytes, key=num_bytes_before) - 1
    )


def find_answer(context, answer, start):
    """The character of a context at which an answer begins: `start`, or one at most NEAR beside it;
    None when it is at none of them.
    """
    places = (start + shift for shift in sorted(range(-NEAR, NEAR + 1), key=abs))
    found = (place for place in places if place >= 0 and context.startswith(answer, place))
    return next(found, None) if answer.strip() else None
