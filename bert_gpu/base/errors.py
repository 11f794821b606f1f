"""What ends a command: bad input, and a training that stops. Both become one line on stderr."""

import copy
import os

LINE_CHARACTERS = 300  # of a warning or an error
LEAST_SHOWN = 60  # characters of a long problem or place that a message keeps


class UserError(Exception):
    """Bad input. As text it is one line of at most LINE_CHARACTERS printable characters:
    `--setting=value: problem; remedy (origin)` or `where: problem; remedy`.

    Args:
      problem: what is wrong. remedy: what to do, None where the problem says it.
      setting: name of the setting that is wrong, None = none; or names, of which the others are in
        conflict with the first. value: of the setting, None = not shown.
      where: the file and line, or the command, that is wrong; a setting in it has no dashes.

    Attributes: those, with the names in a tuple, settings; and origin: what gave the setting its
      value, such as a recipe, None = the user, on the command line.
    """

    def __init__(
        self,
        problem: str,
        remedy: str | None = None,
        *,
        setting: str | tuple[str, ...] | None = None,
        value: object = None,
        where: str | os.PathLike | None = None,
    ):
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy
        self.settings = (setting,) if isinstance(setting, str) else setting or ()
        self.value = value
        self.where = where
        self.origin = None

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        origin = f" ({self.origin})" if self.origin else ""
        place = self._place()
        line = one_line(f"{place}{self.problem}{remedy}{origin}", None)
        if len(line) <= LINE_CHARACTERS:
            return line
        rest = len(one_line(f"{remedy}{origin}", None))
        place = shortened_start(one_line(place, None), LINE_CHARACTERS - rest - LEAST_SHOWN - 1)
        room = max(LEAST_SHOWN, LINE_CHARACTERS - rest - len(place) - 1)
        problem = shortened(one_line(self.problem, None), room)
        return one_line(f"{place} {problem}{remedy}{origin}")

    def _place(self) -> str:
        parts = [] if self.where is None else [str(self.where)]
        if self.settings:
            dashes = "" if parts else "--"
            value = "" if self.value is None else f"={self.value}"
            parts.append(f"{dashes}{self.settings[0]}{value}")
        return "".join(f"{part}: " for part in parts)

    def within(self, where: str, remedy: str | None = None) -> "UserError":
        """The same error, as one of something in `where`, such as a file; with a remedy if it has
        none.
        """
        error = copy.copy(self)
        error.where = where if self.where is None else f"{where}: {self.where}"
        error.remedy = self.remedy or remedy
        return error


class TrainingStopped(Exception):
    """A training stops: it diverged, reached an early stop, or cannot save. The message says when
    and what to try.

    is_reported: whether the message has been printed. exit_code: of the command that it ends.
    ends_at_once: whether the process should not wait for TensorFlow to end.
    """

    is_reported, exit_code, ends_at_once = False, 3, False


def one_line(text: str, limit: int | None = LINE_CHARACTERS) -> str:
    """Text as one line of printable characters, at most `limit`."""
    line = printable(" ".join(text.split()))
    return line if limit is None else shortened(line, limit)


def printable(text: str) -> str:
    """Text in which characters that print nothing are escapes; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def shortened(value: object, limit: int = 60) -> str:
    """The beginning of a text, of at most `limit` characters."""
    text = str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shortened_start(text: str, limit: int) -> str:
    """The end of a text, of at most `limit` characters, such as of a path."""
    return text if len(text) <= limit else "..." + text[3 - max(limit, LEAST_SHOWN) :]


def shortened_path(path: str) -> str:
    """A path that leaves room for the message: of a long one the end."""
    return path if len(path) <= 90 else f"...{os.path.basename(path)[-87:]}"
