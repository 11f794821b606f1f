"""The errors that end a command: bad input, and a training that stops. Both become one line on
stderr.
"""

import copy
import os

LINE_CHARACTERS = 300  # the most characters in the line of a warning or an error
# In a message that is too long, the place (such as a path) and the setting's value each keep at
# most MANY_CHARACTERS, and the description of the problem keeps at least LEAST_CHARACTERS.
MANY_CHARACTERS = 90
LEAST_CHARACTERS = 60


class UserError(Exception):
    """An error for bad input. Its text is one line of at most LINE_CHARACTERS printable characters:
    `--setting=value: problem; remedy (origin)` or `where: problem; remedy`.

    Args:
      problem: what is wrong. remedy: what to do; None when the problem implies it.
      setting: name of the wrong setting; or several names that conflict, of which the message shows
        the first. value: the setting's value; None = the message shows no value.
      where: the file and line, or the command, that has the error; the message then shows the
        setting without dashes.

    Attributes:
      problem, remedy, value, where: the arguments. settings: the names in `setting`.
      origin: the source of the setting's value, such as a recipe; None = the command line.
    """

    def __init__(
        self,
        problem: str,
        remedy: str | None = None,
        *,
        setting: str | tuple[str, ...] | None = None,
        value: object = None,
        where: str | os.PathLike | None = None,
    ) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy
        self.settings: tuple[str, ...] = (setting,) if isinstance(setting, str) else setting or ()
        self.value = value
        self.where = where
        self.origin: str | None = None

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        origin = f" ({self.origin})" if self.origin else ""
        end = f"{remedy}{origin}"
        place = self._place(None)
        problem = self.problem
        if len(one_line(f"{place}{problem}{end}", None)) > LINE_CHARACTERS:
            limit = LINE_CHARACTERS - len(one_line(end, None)) - 2 * LEAST_CHARACTERS
            place = self._place(min(MANY_CHARACTERS, max(LEAST_CHARACTERS // 2, limit)))
            room = LINE_CHARACTERS - len(one_line(f"{place}{end}", None)) - 1
            problem = shortened(one_line(problem, None), max(LEAST_CHARACTERS, room))
        return one_line(f"{place}{problem}{end}")

    def _place(self, limit: int | None) -> str:
        """Return the beginning of the message, such as "FILE: setting=value: "; `where` and the
        value are each cut to `limit` characters. None = no limit.
        """
        parts = [] if self.where is None else [shortened_start(str(self.where), limit)]
        if self.settings:
            dashes = "" if parts else "--"
            value = "" if self.value is None else f"={shortened_start(str(self.value), limit)}"
            is_off = self.value is False and not parts
            parts.append(
                f"--no{self.settings[0]}" if is_off else f"{dashes}{self.settings[0]}{value}"
            )
        return "".join(f"{part}: " for part in parts)

    def within(self, where: str, remedy: str | None = None) -> "UserError":
        """Return a copy of the error whose message begins with `where`, such as the file that has
        the error. remedy: the copy's remedy if this error has none.
        """
        error = copy.copy(self)
        error.where = where if self.where is None else f"{where}: {self.where}"
        error.remedy = self.remedy or remedy
        return error


class TrainingStopped(Exception):
    """The end of a training that diverged, reached an early stop, cannot save or was stopped. The
    message says at which step, and what to try.

    Attributes:
      is_reported: whether the message has been printed. exit_code: exit code of the command.
      ends_at_once: whether the process should end without waiting for TensorFlow.
    """

    is_reported = False
    exit_code = 3
    ends_at_once = False


def one_line(text: str, limit: int | None = LINE_CHARACTERS) -> str:
    """Return a text as one line of at most `limit` printable characters; None = any number."""
    line = printable(" ".join(text.split()))
    return line if limit is None else shortened(line, limit)


def printable(text: str) -> str:
    """Return a text with escapes in place of characters that are not printable; line breaks and
    tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def shortened(value: object, limit: int = 60) -> str:
    """Return a value as text; a text longer than `limit` characters loses its end."""
    text = str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shortened_start(text: str, limit: int | None) -> str:
    """Return a text; one longer than `limit` characters, such as a path, loses its beginning."""
    return text if limit is None or len(text) <= limit else f"...{text[3 - limit :]}"


def shortened_path(path: str) -> str:
    """Return a path; one longer than 90 characters is shortened to "..." and the end of its file's
    name, so that a message has room for more.
    """
    return path if len(path) <= 90 else f"...{os.path.basename(path)[-87:]}"
