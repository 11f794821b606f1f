"""Settings: frozen dataclasses, each field of which defines a flag's name, default, range and help.

Every package keeps its settings in its config.py, as subclasses of `Settings`. Only cli/flags.py
makes flags from the fields, and settings from flags. A value out of range, like any other bad
input, raises `UserError`, which the command line prints as one line with exit code 2.
"""

import dataclasses
import math
import os
import re
import sys
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

from bert_gpu.base.errors import UserError, shortened

ROLES = ("bert", "departure")
# {kind of a path setting: pattern of what precedes a ~ for the home folder, and of ~ or ~user}
HOME = dict(one=r"(^\s*)(~[^/]*)", list=r"((?:^|,)\s*)(~[^/,]*)")
# the letters in a time such as 1h30m, with their seconds, from large to small
TIME_LETTERS = dict(d=86400, h=3600, m=60, s=1)
TIME_UNITS = dict(hours="h", minutes="m", seconds="s")  # {unit of a setting: its letter}
# {key of a JSON object: the settings field with the rules for its value; or, for a value that is an
# object, JsonFields}
JsonFields = Mapping[str, "dataclasses.Field | JsonFields"]
# {removed flag: its default}, of flags that decided the results of what revision 6ecee0dd stored
REMOVED: Mapping[str, object] = dict(
    gzip_compress=False,
    lr_reference_batch_size=None,
    ngram_weights="inverse",
    normalization="none",
    use_v2_feature_names=False,
    window_megabytes=8.0,
)


def setting(
    default: object,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Collection[str] | None = None,
    words: Collection[str] = (),
    aliases: Collection[str] = (),
    needs: tuple[str, Collection | None] | None = None,
    instead: Collection[str] = (),
    role: str | None = None,
    bert_values: Collection | None = None,
    none_means: str | None = None,
    inside: JsonFields | None = None,
    unit: str | None = None,
    path: str | None = None,
) -> Any:
    """Return a dataclass field that is also a flag.

    Args:
      default: value when the user gives none. A field typed `T | None` may be None, which means
        "decided later".
      help: one or two sentences for --help, with the unit.
      low, high: inclusive bounds. above, below: exclusive bounds.
      choices: the allowed strings. words: strings allowed in place of a number, such as "auto".
      aliases: other names of the flag.
      needs: (name of another field of the class, values): this field has no effect unless the other
        field has one of the values; values None = any value but None.
      instead: fields of the same class: if the user gives one of them, a command's own default for
        this field does not apply.
      role: only for the model's fields: "bert" for a field that the original BERT has, "departure"
        for one that departs from it.
      bert_values: the values with which the model is still a BERT. None = any value if the role is
        "bert", only the default if it is "departure".
      none_means: for a departure that may be None, the field whose value it then takes.
      inside: for a field that holds a dict, {key: settings field} with the rules for the dict's
        values.
      unit: for a time, a float: "hours", "minutes" or "seconds". Its flag also accepts texts such
        as 1h30m; see `parse_time`.
      path: for a text that names files or folders: "one", or "list" for names or globs that are
        separated by commas. ~ at the beginning of a name is the home folder, as in a shell, which
        leaves it in --name=~/path.
    """
    assert role in (None, *ROLES), role
    assert unit in (None, *TIME_UNITS), unit
    return dataclasses.field(
        default=default,
        metadata=dict(
            help=help,
            low=low,
            high=high,
            above=above,
            below=below,
            choices=choices,
            words=tuple(words),
            aliases=tuple(aliases),
            needs=needs,
            instead=tuple(instead),
            role=role,
            bert_values=bert_values,
            none_means=none_means,
            inside=inside or {},
            unit=unit,
            path=path,
        ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings: the constructor checks every field's type and range, and expands ~ in
    paths.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            error = complaint(field, value)
            if error:
                raise error
            if value and (pattern := HOME.get(field.metadata["path"])):
                object.__setattr__(
                    self,
                    field.name,
                    re.sub(pattern, lambda part: part[1] + os.path.expanduser(part[2]), value),
                )

    def without_effect(self, name: str) -> str | None:
        """Return a message that says why the field `name` has no effect beside the other fields'
        values; None when it has an effect.
        """
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

    def to_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def fields_of(*kinds: type) -> dict[str, dataclasses.Field]:
    """Return {name: field} of several dataclasses; of fields with the same name, the one of the
    first class.
    """
    return {field.name: field for kind in reversed(kinds) for field in dataclasses.fields(kind)}


def like(kind: type[Settings], name: str) -> Any:
    """Return a new dataclass field with the default and rules of the field `name` of a settings
    class.
    """
    field = fields_of(kind)[name]
    return dataclasses.field(default=field.default, metadata=field.metadata)


def stored_complaint(
    content: Mapping[str, object], fields: JsonFields, prefix: str = ""
) -> UserError | None:
    """Return a UserError about the first value in a JSON object that breaks its field's rules; None
    if all values are valid.

    Args:
      content: the object; a list in it stands for a tuple. fields: the rules; `content` may lack
        keys of it, and keys without a rule are not checked.
      prefix: text before each key in the message, such as "model.".
    """
    for key, rule in fields.items():
        if key not in content:
            continue
        name = f"{prefix}{key}"
        value = content[key]
        if isinstance(rule, dataclasses.Field):
            error = complaint(rule, as_tuple(rule, value), name)
        elif isinstance(value, dict):
            error = stored_complaint(value, rule, f"{name}.")
        else:
            error = UserError("must be an object", setting=name, value=shortened(value))
        if error:
            return error
    return None


def as_tuple(field: dataclasses.Field, value: object) -> object:
    """Return a JSON value in the type of its settings field: a list as a tuple if the field is a
    tuple.
    """
    return tuple(value) if isinstance(value, list) and value_type(field)[0] is tuple else value


def without_removed(stored: Mapping[str, object], where: str) -> dict[str, object]:
    """Return stored settings, {name: value}, without those of REMOVED. Raise UserError, about the
    file or folder `where`, when one of these has another value than its default.
    """
    for name in stored.keys() & REMOVED.keys():
        if stored[name] != REMOVED[name]:
            raise UserError(
                f"was made with --{name}={shortened(stored[name])}, a flag that was removed",
                "name another folder, or --overwrite starts over",
                where=where,
            )
    return {name: value for name, value in stored.items() if name not in REMOVED}


def number_in(text: str) -> float | None:
    """Return the finite number that a text spells; None where it spells none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def parse_time(text: str, unit: str) -> float:
    """Return a time in `unit` ("hours", "minutes" or "seconds") from a text: 24h, 90m, 1.5d or
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


def value_type(field: dataclasses.Field) -> tuple[Any, bool]:
    """Return (type, whether None is allowed) of a settings field. The type is bool, int, float,
    str, tuple (of strings) or dict.
    """
    options = [kind for kind in typing.get_args(field.type) if kind is not types.NoneType]
    if isinstance(field.type, types.UnionType):
        return typing.get_origin(options[0]) or options[0], True
    return typing.get_origin(field.type) or field.type, False


def complaint(field: dataclasses.Field, value: object, name: str | None = None) -> UserError | None:
    """Return a UserError if a value breaks the rules of a settings field, else None. name: the
    field's name in the message; None = field.name.
    """
    rules = field.metadata
    kind, optional = value_type(field)
    name = name or field.name
    if value is None:
        return None if optional else UserError("a value is needed", setting=name)
    if value in rules["words"]:
        return None
    if value == "" != field.default:
        return UserError("is empty", "name a value, or leave the flag out", setting=name, value="")
    if kind is float and type(value) is int and abs(value) < sys.float_info.max:
        value = float(value)
    if kind is dict and isinstance(value, dict):
        return stored_complaint(value, rules["inside"], f"{name}.")
    problem = type_problem(value, kind, rules) or range_problem(value, rules)
    text = ",".join(map(str, value)) if isinstance(value, tuple) else value
    return UserError(f"must be {problem}", setting=name, value=shortened(text)) if problem else None


def type_problem(value: Any, kind: Any, rules: Mapping[str, Any]) -> str | None:
    """Return a phrase to follow "must be", such as "of type int", if a value does not have its
    field's type; else None. kind, rules: the field's type and metadata.
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        name = dict(tuple="list", dict="object").get(kind.__name__, kind.__name__)
        return " or ".join([f"of type {name}", *rules["words"]])
    if kind is tuple and not all(isinstance(part, str) for part in value):
        return "a list of texts"
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    return None


def range_problem(value: Any, rules: Mapping[str, Any]) -> str | None:
    """Return a phrase to follow "must be", such as "at least 1", if a value of the right type is
    out of its field's range; else None. rules: the field's metadata.
    """
    values = value if isinstance(value, tuple | list) else [value]
    if rules.get("choices") and not set(values) <= set(rules["choices"]):
        return f"one of {', '.join(map(str, rules['choices']))}"
    bounds = [
        ("low", lambda bound: value >= bound, "at least"),
        ("high", lambda bound: value <= bound, "at most"),
        ("above", lambda bound: value > bound, "above"),
        ("below", lambda bound: value < bound, "below"),
    ]
    for name, holds, words in bounds:
        if rules.get(name) is not None and not holds(rules[name]):
            return f"{words} {rules[name]}"
    return None
