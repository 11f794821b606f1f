"""Google's BasicTokenizer over many lines at once: text -> words (the step before WordPiece).

The rules are those of `BasicTokenizer` in google-research/bert, tokenization.py. There they run
character by character in Python; here each rule is a table for str.translate, so that a whole batch
of lines takes a few C calls. Tables fill themselves as characters occur, from the `unicodedata` of
the running Python, which Google's code uses too.
"""

import unicodedata
from collections.abc import Callable, Sequence

CJK_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
ASCII_PUNCTUATION = "".join(
    chr(code) for code in (*range(33, 48), *range(58, 65), *range(91, 97), *range(123, 127))
)


def is_cjk(code: int) -> bool:
    return any(low <= code <= high for low, high in CJK_RANGES)


def is_punctuation(character: str) -> bool:
    """Return whether a character is punctuation. In ASCII that is every character but letters,
    digits, space and control characters, so also symbols such as "$" and "^".
    """
    return character in ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")


def clean(code: int) -> int | str | None:
    """Return the replacement of a character, given by its code, in the cleaning that precedes
    lower-casing: a space for white space, None for control characters, CJK characters between
    spaces, and the code itself for all others.
    """
    character = chr(code)
    # str.split, which Google uses, splits at the line and paragraph separators (Zl, Zp) too.
    if character in "\t\n\r" or unicodedata.category(character) in ("Zs", "Zl", "Zp"):
        return " "
    if code == 0xFFFD or unicodedata.category(character) in ("Cc", "Cf"):
        return None
    return f" {character} " if is_cjk(code) else code


def strip_accent(code: int) -> int | str | None:
    """Return the replacement of a character, given by its code, after canonical decomposition: None
    for a combining mark, punctuation between spaces, and the code itself for all others.
    """
    return None if unicodedata.category(chr(code)) == "Mn" else split_punctuation(code)


def split_punctuation(code: int) -> int | str:
    return f" {chr(code)} " if is_punctuation(chr(code)) else code


class Table(dict[int, int | str | None]):
    """A table for str.translate that calls a rule once for each character that occurs."""

    def __init__(self, rule: Callable[[int], int | str | None]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> int | str | None:
        self[code] = result = self._rule(code)
        return result


CLEAN = Table(clean)
STRIP_ACCENT = Table(strip_accent)
SPLIT_PUNCTUATION = Table(split_punctuation)


def uncase(text: str) -> str:
    """Lower-case and decompose cleaned text (NFD), drop combining marks, and put spaces around
    punctuation, as for uncased models.
    """
    return unicodedata.normalize("NFD", text.lower()).translate(STRIP_ACCENT)


def spaced(text: str, do_lower_case: bool, strip_accents: bool = True) -> str:
    """Return cleaned text, in lower case and without accents as the flags say, with spaces around
    punctuation.
    """
    if do_lower_case and strip_accents:
        return uncase(text)
    return (text.lower() if do_lower_case else text).translate(SPLIT_PUNCTUATION)


def split_words(
    lines: Sequence[str], do_lower_case: bool, strip_accents: bool = True
) -> list[list[str]]:
    """Return the words of each line, by Google's rules.

    Args:
      lines: a line break inside one counts as a space.
      do_lower_case: lower-case, decompose (NFD) and drop combining marks, as for uncased models.
      strip_accents: False = do_lower_case only lower-cases, and accents stay.

    Returns:
      One list of words, never empty strings, for each line. A punctuation mark or CJK character is
        a word by itself.
    """
    if not lines:
        return []
    # Lines can be joined with line breaks, because no rule looks across a line break: canonical
    # reordering stops there, and a final sigma depends on letters of the same word only.
    text = "\n".join(line.translate(CLEAN) for line in lines)
    text = spaced(text, do_lower_case, strip_accents)
    return [line.split() for line in text.split("\n")]
