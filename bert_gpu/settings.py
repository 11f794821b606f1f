"""Settings are frozen dataclasses; each field defines a flag's name, default, range and help.

Every package keeps its settings in its config.py, as subclasses of `Settings`. Only the command
line (cli/flags.py) turns the fields into flags and back. A value out of range, like any other bad
input, raises `UserError`, which the command line prints as one line with exit code 2.
"""

import dataclasses
import math
import types
import typing

ROLES = ("size", "rate", "departure")


class UserError(Exception):
    """Bad input. The message is one line of at most 300 characters: what is wrong, where,
    and what to do.
    """


class GaveUp(Exception):
    """A training stops: it diverged, reached an early stop, or cannot save. The message says when
    and what to try.

    is_told: whether the message has been printed.
    """

    is_told = False


def setting(
    default, help, *, low=None, high=None, above=None, below=None, choices=None, words=(),
    aliases=(), needs=None, role=None, bert_values=None, none_means=None,
):  # fmt: skip
    """A dataclass field that is also a flag.

    Args:
      default: value when the user gives none. A field typed `T | None` may be None, which means
        "decided later".
      help: one or two sentences for --help; says the unit.
      low, high: inclusive bounds. above, below: exclusive bounds.
      choices: the allowed strings. words: strings that a number may also be, such as "auto".
      aliases: other names of the flag.
      needs: (field, values): this field has no effect unless that field of the same class has one
        of the values; values None = any value but None.
      role: only for the model's fields: "size" or "rate", which BERT has, or "departure" from BERT.
      bert_values: a container of the values that are BERT. None = any value of a size or rate; for
        a departure, only its default.
      none_means: for a departure that may be None, the field whose value it then takes.
    """
    assert role in (None, *ROLES), role
    rules = dict(
        help=help,
        low=low,
        high=high,
        above=above,
        below=below,
        choices=choices,
        words=tuple(words),
        aliases=tuple(aliases),
    )
    return dataclasses.field(
        default=default,
        metadata=rules
        | dict(needs=needs, role=role, bert_values=bert_values, none_means=none_means),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings: the constructor checks every field's type and range."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            problem = complaint(field, getattr(self, field.name))
            if problem:
                raise UserError(problem)

    def idle(self, name):
        """A message why the value of a field has no effect; None when it has one."""
        needs = next(field for field in dataclasses.fields(self) if field.name == name).metadata[
            "needs"
        ]
        if needs is None or (
            getattr(self, needs[0]) is not None
            if needs[1] is None
            else getattr(self, needs[0]) in needs[1]
        ):
            return None
        return f"--{name} has no effect without --{needs[0]}" + (
            "" if needs[1] is None else f"={' or '.join(map(str, needs[1]))}"
        )

    def to_dict(self):
        return dataclasses.asdict(self)


def value_type(field):
    """(type, optional) of a settings field: bool, int, float, str or tuple (of strings)."""
    options = [kind for kind in typing.get_args(field.type) if kind is not types.NoneType]
    if isinstance(field.type, types.UnionType):
        return options[0], True
    return (tuple if typing.get_origin(field.type) is tuple else field.type), False


def complaint(field, value):
    """The error message for the value of a field; None when it is valid."""
    rules, (kind, optional) = field.metadata, value_type(field)
    shown = f"--{field.name}={value}"
    if value is None:
        return None if optional else f"--{field.name}: a value is needed"
    if value in rules["words"]:
        return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return f"{shown}: must be {' or '.join([f'of type {kind.__name__}', *rules['words']])}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{shown}: must be a finite number"
    if rules.get("choices") and value not in rules["choices"]:
        return f"{shown}: must be one of {', '.join(map(str, rules['choices']))}"
    bounds = [
        ("low", lambda bound: value >= bound, "at least"),
        ("high", lambda bound: value <= bound, "at most"),
        ("above", lambda bound: value > bound, "above"),
        ("below", lambda bound: value < bound, "below"),
    ]
    for name, holds, words in bounds:
        if rules.get(name) is not None and not holds(rules[name]):
            return f"{shown}: must be {words} {rules[name]}"
    return None
