"""Settings are frozen dataclasses; each field defines a flag's name, default, range and help.

Every package keeps its settings in its config.py, as subclasses of `Settings`. Only the command
line (cli/flags.py) turns the fields into flags and back. A value out of range, like any other bad
input, raises `UserError`, which the command line prints as one line with exit code 2.
"""

import dataclasses
import math
import os
import re
import sys
import types
import typing

ROLES = ("bert", "departure")
# seconds of the letters in a time such as 1h30m, from large to small; and the units of settings
TIME_LETTERS = dict(d=86400, h=3600, m=60, s=1)
TIME_UNITS = dict(hours="h", minutes="m", seconds="s")


class UserError(Exception):
    """Bad input. The message is one line of at most 300 characters: what is wrong, where,
    and what to do.
    """


class TrainingStopped(Exception):
    """A training stops: it diverged, reached an early stop, or cannot save. The message says when
    and what to try.

    is_reported: whether the message has been printed. exit_code: of the command that it ends.
    ends_at_once: whether the process should not wait for TensorFlow to end.
    """

    is_reported, exit_code, ends_at_once = False, 3, False


def setting(
    default, help, *, low=None, high=None, above=None, below=None, choices=None, words=(),
    aliases=(), needs=None, instead=(), role=None, bert_values=None, none_means=None, inside=None,
    unit=None,
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
      instead: fields of the same class: where the user gives one of them, a command's own default
        for this field does not hold.
      role: only for the model's fields: "bert", which BERT has, or "departure" from BERT.
      bert_values: a container of the values that are BERT. None = any value of BERT's own fields;
        for a departure, only its default.
      none_means: for a departure that may be None, the field whose value it then takes.
      inside: for a dict, {key: field} of the values in it.
      unit: of a time, a float: "hours", "minutes" or "seconds". Its flag takes texts such as 1h30m,
        too; see `parse_time`.
    """
    assert role in (None, *ROLES), role
    assert unit in (None, *TIME_UNITS), unit
    rules = dict(
        help=help,
        low=low,
        high=high,
        above=above,
        below=below,
        choices=choices,
        words=tuple(words),
        aliases=tuple(aliases),
        instead=tuple(instead),
    )
    return dataclasses.field(
        default=default,
        metadata=rules
        | dict(needs=needs, role=role, bert_values=bert_values, none_means=none_means)
        | dict(inside=inside or {}, unit=unit),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings: the constructor checks every field's type and range."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            problem = complaint(field, getattr(self, field.name))
            if problem:
                raise UserError(problem)

    def without_effect(self, name):
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


def fields_of(*kinds):
    """{name: field} of settings classes, the first one's where several have a name."""
    return {field.name: field for kind in reversed(kinds) for field in dataclasses.fields(kind)}


def like(kind, name):
    """A field with the default and the rules of a settings class's field."""
    field = fields_of(kind)[name]
    return dataclasses.field(default=field.default, metadata=field.metadata)


def stored_complaint(content, fields, prefix=""):
    """The error message for the values in a JSON object; None when they are valid.

    fields: {key: a settings field, or such a dict for an object}; keys that it lacks pass. prefix:
    of keys in the message. Lists stand for tuples.
    """
    for key, rule in fields.items():
        value = content.get(key)
        if key not in content:
            continue
        if isinstance(rule, dict) and not isinstance(value, dict):
            return f"{prefix}{key}={shortened(value)}: must be an object"
        if isinstance(rule, dict):
            problem = stored_complaint(value, rule, f"{prefix}{key}.")
        elif problem := complaint(rule, as_tuple(rule, value)):
            problem = prefix + problem.removeprefix("--")
        if problem:
            return problem
    return None


def as_tuple(field, value):
    """The value of a JSON entry for a field: a tuple in place of a list where it should be one."""
    return tuple(value) if isinstance(value, list) and value_type(field)[0] is tuple else value


def parse_time(text, unit):
    """A time in `unit` ("hours", "minutes" or "seconds"), a float, from a text: 24h, 90m, 1.5d or
    1h30m, larger units first; a bare number is in `unit`.

    Raises ValueError, whose message says what is allowed.
    """
    try:
        return float(text)
    except ValueError:
        number = r"(\d+\.?\d*|\.\d+)"
        parts = re.fullmatch("".join(f"(?:{number}{letter})?" for letter in TIME_LETTERS), text)
        if not text or parts is None:
            raise ValueError(
                "must be a time with the units d, h, m or s, such as 24h, 90m or 1h30m; "
                f"a bare number means {unit}"
            ) from None
    seconds = sum(
        float(part) * TIME_LETTERS[letter]
        for part, letter in zip(parts.groups(), TIME_LETTERS, strict=True)
        if part is not None
    )
    return seconds / TIME_LETTERS[TIME_UNITS[unit]]


def shortened(value, limit=60):
    text = str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shortened_path(path):
    """A path that leaves room for the message: of a long one the end."""
    return path if len(path) <= 90 else f"...{os.path.basename(path)[-87:]}"


def value_type(field):
    """(type, optional) of a settings field: bool, int, float, str or tuple (of strings)."""
    options = [kind for kind in typing.get_args(field.type) if kind is not types.NoneType]
    if isinstance(field.type, types.UnionType):
        return typing.get_origin(options[0]) or options[0], True
    return typing.get_origin(field.type) or field.type, False


def complaint(field, value):
    """The error message for the value of a field; None when it is valid."""
    rules, (kind, optional) = field.metadata, value_type(field)
    shown = f"--{field.name}={shortened(value)}"
    if value is None:
        return None if optional else f"--{field.name}: a value is needed"
    if value in rules["words"]:
        return None
    if value == "" != field.default:
        return f"--{field.name}=: is empty; name a value, or leave the flag out"
    if kind is float and type(value) is int and abs(value) < sys.float_info.max:
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        name = dict(tuple="list", dict="object").get(kind.__name__, kind.__name__)
        return f"{shown}: must be {' or '.join([f'of type {name}', *rules['words']])}"
    if kind is tuple and not all(isinstance(part, str) for part in value):
        return f"{shown}: must be a list of texts"
    if kind is dict and (problem := stored_complaint(value, rules["inside"], f"{field.name}.")):
        return f"--{problem}"
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
