"""An error is one printable line of at most 300 characters, whatever it is about, and its remedy is
never cut where it can be helped.
"""

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.base.errors import (
    LEAST_CHARACTERS,
    LINE_CHARACTERS,
    MANY_CHARACTERS,
    UserError,
    one_line,
)

TEXTS = st.text(min_size=1, max_size=400).filter(lambda text: text.split())
PLACES = st.fixed_dictionaries(
    {},
    optional=dict(
        setting=st.sampled_from(["vocab_file", ("num_gpus", "xla")]),
        value=st.one_of(TEXTS, st.integers()),
        where=TEXTS,
    ),
)


@settings(deadline=None, derandomize=True)
@given(problem=TEXTS, remedy=st.one_of(st.none(), TEXTS), place=PLACES, origin=TEXTS)
def test_a_message_is_one_printable_line_that_keeps_its_remedy(problem, remedy, place, origin):
    error = UserError(problem, remedy, **place)
    error.origin = origin
    line = str(error)
    assert len(line) <= LINE_CHARACTERS and line.isprintable()
    end = one_line(f"{f'; {remedy}' if remedy else ''} ({origin})", None)
    longest = 2 * (MANY_CHARACTERS + 2) + len("vocab_file=") + LEAST_CHARACTERS
    if len(end) < LINE_CHARACTERS - longest:
        assert line.endswith(end)


def test_a_short_message_has_all_its_parts():
    error = UserError("is odd", "give 2", setting=("a_b", "c"), value=3)
    assert str(error) == "--a_b=3: is odd; give 2"
    assert str(error.within("run.json")) == "run.json: a_b=3: is odd; give 2"
    error.origin = "a.flags: line 1"
    assert str(error) == "--a_b=3: is odd; give 2 (a.flags: line 1)"
    assert (
        str(UserError("is odd").within("x, line 2", "remove it")) == "x, line 2: is odd; remove it"
    )
    assert str(UserError("is odd", where="a\nb\x1b")) == "a b\\x1b: is odd"


def test_an_error_comes_back_whole_from_another_process():
    error = UserError("is odd", "give 2", setting="a", value=3, where="x")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
