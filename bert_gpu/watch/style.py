"""Styles of a report: colours and dashes of runs, short forms of numbers, and forms of names for
ids and files.
"""

import itertools
import math
import re
from collections.abc import Iterable

INK = "#1b2430"
MUTED = "#5b6776"
GRID = "#e2e6eb"
PAPER = "#ffffff"
# colours of Okabe & Ito (2008) for colour-blind readers, except yellow, too faint on white
SERIES = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#6b6b6b",
)  # fmt: skip
DASHES: tuple[str | tuple[float, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (2, 1)),
    (0, (5, 1, 1, 1)),
)
# {activity on which a run spends time: its colour}
ACTIVITIES = {
    "training": SERIES[0],
    "input": SERIES[1],
    "compiling": SERIES[3],
    "validation": SERIES[2],
    "saving": SERIES[4],
}
# (the least number that is written with the unit, the value of the unit, its letter)
UNITS = ((1e12, 1e12, "T"), (1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
SLUG_CHARACTERS = 80  # maximum length of a slug, so that it fits into a file's name
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"} | {
    color: f"series-{index}" for index, color in enumerate(SERIES)
}


def style_of(index: int) -> tuple[str, str | tuple[float, tuple[float, ...]]]:
    """Return (colour, dashes) of the curves of a run, whose index in its section is `index`."""
    return SERIES[index % len(SERIES)], DASHES[index // len(SERIES) % len(DASHES)]


def short_number(value: float) -> str:
    """Return a number as text for an axis, with up to four digits: 20k, 1.5M, 0.25, 1e-4. It is
    rounded before the unit is chosen.
    """
    value = float(f"{value:.4g}")
    size = abs(value)
    for limit, unit, letter in UNITS:
        if limit <= size < 1e16:
            return f"{value / unit:.4g}{letter}"
    if 0 < size < 1e-3 or 1e16 <= size < math.inf:
        digits, exponent = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:.4g}"


def encodable(text: str) -> str:
    """Return a text in which characters that UTF-8 cannot encode, such as half of a surrogate pair,
    are escaped.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def slug(name: str) -> str:
    """Return a name reduced to the characters that are safe in ids and file names: a to z, 0 to 9
    and -; "" if none is left.
    """
    return re.sub("[^a-z0-9]+", "-", name.lower())[:SLUG_CHARACTERS].strip("-")


def slugs(names: Iterable[str]) -> dict[str, str]:
    """Return {name: its slug}; where two names have the same slug, the later one gets a number at
    its end.
    """
    by_name = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        numbered = (f"{slug(name)}-{number}" for number in itertools.count(2))
        candidates = itertools.chain([slug(name)], numbered)
        by_name[name] = next(one for one in candidates if one and one not in taken)
        taken.add(by_name[name])
    return by_name
