"""The list of all flags. A new one is a decision: it needs a user, and a line here."""

import dataclasses

from bert_gpu.__main__ import COMMANDS
from docs.make_reference import classes_of

FLAGS = """
""".split()


def test_the_flags_are_those_of_the_list():
    kinds = {kind for command in COMMANDS for kind in classes_of(command)[0]}
    found = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert sorted(found) == FLAGS
