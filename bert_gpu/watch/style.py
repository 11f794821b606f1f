"""How runs, numbers and names look in a report: colours, dashes, short numbers, slugs."""

import itertools
import math
import re

INK, MUTED, GRID, PAPER = "#1b2430", "#5b6776", "#e2e6eb", "#ffffff"
# Okabe & Ito (2008), which colour-blind readers tell apart; their yellow is too faint on white
SERIES = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#6b6b6b",
)  # fmt: skip
DASHES = ("-", (0, (5, 1.5)), (0, (2, 1)), (0, (5, 1, 1, 1)))
# what the time of a run is spent on, and its colour
ACTIVITIES = {
    "training": SERIES[0],
    "input": SERIES[1],
    "compiling": SERIES[3],
    "validation": SERIES[2],
    "saving": SERIES[4],
}
# (the least number that has it, what it stands for, its letter)
UNITS = ((1e12, 1e12, "T"), (1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
SLUG_CHARACTERS = 80  # a file's name has to hold it
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"} | {
    color: f"series-{index}" for index, color in enumerate(SERIES)
}


def style_of(index):
    """(colour, dashes) of the run with an index."""
    return SERIES[index % len(SERIES)], DASHES[index // len(SERIES) % len(DASHES)]


def short_number(value):
    """A number as on an axis: 20k, 1.5M, 0.25, 1e-4; to four digits, rounded before the unit is
    chosen.
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


def encodable(text):
    """A text in which what UTF-8 cannot hold, such as half of a pair of surrogates, is escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def slug(name):
    """A name in what ids and names of files may have: a to z, 0 to 9 and -; "" if nothing is
    left.
    """
    return re.sub("[^a-z0-9]+", "-", name.lower())[:SLUG_CHARACTERS].strip("-")


def slugs(names):
    """{name: its slug}, with a number behind that of a name whose slug is taken."""
    found, taken = {}, set()
    for name in dict.fromkeys(names):
        numbered = (f"{slug(name)}-{number}" for number in itertools.count(2))
        tried = itertools.chain([slug(name)], numbered)
        found[name] = next(one for one in tried if one and one not in taken)
        taken.add(found[name])
    return found
