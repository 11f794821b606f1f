"""Reads the arguments of a command into flags of ours, with the place of each.

Arguments and flagfiles are read in order into `UserFlag` objects, each of which sets one of our
flags; flags of other projects (aliases.py) are translated. A flag that is set twice in one place
under different names must have one value, and a later argument wins over an earlier one or a
flagfile, as with absl. Types and ranges are not checked here.
"""

import collections
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import number_in
from bert_gpu.cli import flagfile
from bert_gpu.cli.aliases import BESIDE, Alias
from bert_gpu.cli.translations import Call, is_true
from bert_gpu.recipes.table import RECIPES

TRUTHS = ("true", "false")


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of an argument: a line of a flagfile, or the command line (path None).

    files: paths of the flagfiles that include each other down to this line, outermost first.
    """

    path: str | None = None
    line: int = 0
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "command line" if self.path is None else f"{self.path}: line {self.line}"

    @property
    def where(self) -> str | None:
        """The place as text, for the `where` of a UserError; None for the command line."""
        return None if self.path is None else str(self)

    @property
    def prefix(self) -> str:
        """The beginning of a message about an argument at this place: "FILE: line 3: ", or "" for
        the command line.
        """
        return "" if self.path is None else f"{self}: "


COMMAND_LINE = Place()


@dataclasses.dataclass(frozen=True)
class UserFlag:
    """A flag of ours that the user has set.

    Attributes:
      name: our flag's name. argument: --name=value, as absl reads it. place: where the user has set
        the flag.
      alias_text: the argument that the user wrote, if it names an alias; else None.
      alias: the alias's name, or None.
      yields: whether any other value of the same flag wins over this one: another project's switch
        that is off yields to one that is on.
    """

    name: str
    argument: str
    place: Place
    alias_text: str | None = None
    alias: str | None = None
    yields: bool = False

    @property
    def value(self) -> float | str:
        """The value, comparable with those of the same flag: a number, or text."""
        text = self.argument.partition("=")[2]
        number = number_in(text)
        return (text.lower() if text.lower() in TRUTHS else text) if number is None else number

    @property
    def source(self) -> str:
        """The source of the value, for --show_config."""
        return str(self.place) if self.alias_text is None else f"{self.place}, as {self.alias_text}"

    @property
    def origin(self) -> str | None:
        """The source of the value, for a message; None if the message shows it anyway."""
        return (
            self.place.where
            if self.alias_text is None
            else f"{self.place.prefix}from {self.alias_text}"
        )


class Reader:
    """Reads the arguments of one command.

    Args:
      switches: {name of a flag of ours: whether it is boolean}. aliases: {name: Alias}.
      takes_positionals: whether there may be arguments that are not flags. script: the command's
        name in aliases.SCRIPTS; "" = it is not there. listing: the command that lists all flags.
      defaults: {flag: the command's default}.
    """

    def __init__(
        self,
        switches: dict[str, bool],
        aliases: Mapping[str, Alias],
        takes_positionals: bool,
        script: str,
        listing: str = "--helpfull",
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        self.defaults = defaults or {}
        self.switches = switches
        self.aliases = aliases
        self.script = script
        self.listing = listing
        self.takes_positionals = takes_positionals
        self.all_switches = {name: alias.is_switch for name, alias in aliases.items()} | switches

    def read(self, arguments: Iterable[str]) -> tuple[list[UserFlag], list[str]]:
        """Return the flags of a call in order, and its positional arguments.

        Raises UserError for an argument that is not valid.
        """
        tokens = collections.deque((text, COMMAND_LINE) for text in arguments)
        flags = []
        positionals = []
        while tokens:
            text, place = tokens.popleft()
            if text == "--" and place is COMMAND_LINE:
                for text, _ in tokens:
                    self._check_positional(text, place)
                    positionals.append(text)
                break
            if not text.startswith("-") or text in ("-", "--"):
                self._check_positional(text, place, [word for word, _ in tokens])
                positionals.append(text)
                continue
            check_unicode(text)
            name, value, argument = self._split(text, place, tokens)
            if name == "flagfile":
                tokens.extendleft(reversed(lines_of(value, place)))
            else:
                flags.append((name, value, argument, place))
        return self._translate(flags), positionals

    def _check_positional(self, text: str, place: Place, others: Sequence[str] = ()) -> None:
        """Raise UserError if the argument `text`, which is no flag, may not be there. others: the
        arguments that follow.
        """
        words = {
            word.partition("=")[0] for word in (text, *others) if "=" in word and word[0] != "-"
        }
        if self.script and "=" in text and words - self.all_switches.keys():
            raise UserError(
                f"{text[:60]!r}: words with = are Cramming's; here it is --recipe=crammed of "
                "create_pretraining_data.py, run_pretraining_gpu.py and run_classifier.py",
                "flags are written --name=value",
                where=place.where,
            )
        if not self.takes_positionals or place is not COMMAND_LINE:
            raise UserError(
                f"{text[:100]!r}: not a flag",
                f"flags are written --name=value ({self.listing.removesuffix('full')} lists them)",
                where=place.where,
            )

    def _split(
        self, text: str, place: Place, tokens: collections.deque[tuple[str, Place]]
    ) -> tuple[str, str, str]:
        """Return (name, value, argument as the user wrote it) of the flag with which `text` begins.
        If the value is an argument of its own, removes it from `tokens`, the arguments that follow.
        """
        name, equals, value = text.removeprefix("-").removeprefix("-").partition("=")
        is_switch = self.all_switches.get(name)
        if name == "flagfile":
            is_switch = False
        elif is_switch is None and not equals and self.all_switches.get(name.removeprefix("no")):
            return name[2:], "false", text
        if is_switch is None:
            if place.path is not None and " " in name:
                raise UserError(
                    f"{text[:100]!r}: write --name=value, one flag a line", where=place.where
                )
            from bert_gpu.cli import suggestions  # imported here, because only a mistake needs it

            raise UserError(
                suggestions.unknown(text, self.script, self.all_names, self.listing),
                where=place.where,
            )
        if equals:
            return name, value, text
        if is_switch:
            follows = tokens[0][0] if tokens and not self.takes_positionals else "-"
            if follows.lower() in TRUTHS:
                tokens.popleft()
                return name, follows.lower(), f"{text}={follows}"
            if name in self.aliases and self.aliases[name].refusal and not follows.startswith("-"):
                tokens.popleft()  # else the error is "not a flag", not the refusal
                return name, follows, f"{text}={follows}"
            return name, "true", text
        if not tokens:
            raise UserError(f"{text}: needs a value", f"write {text}=VALUE", where=place.where)
        value = tokens.popleft()[0]
        return name, value, f"{text}={value}"

    @property
    def all_names(self) -> list[str]:
        """The names of the flags that do something here; those of switches also with "no"."""
        others = {name for name, alias in self.aliases.items() if alias.refusal or alias.note}
        names = [name for name in self.all_switches if name not in others]
        return [*names, *(f"no{name}" for name in names if self.all_switches[name])]

    def _translate(self, flags: Sequence[tuple[str, str, str, Place]]) -> list[UserFlag]:
        """Return our flags for the flags and aliases that the user has set, given as (name, value,
        argument as written, place).
        """
        given = {name: value for name, value, *_ in flags}
        recipe = RECIPES.get(given.get("recipe", ""))
        sourced = recipe.settings(self.script).items() if recipe else ()
        call = Call(given, {**self.defaults, **{n: v for n, (v, _) in sourced}, **given})
        user_flags = []
        unused = {}  # {name of a flag without effect: line that says so}
        lines: dict[str, None] = {}  # further lines, each once
        for name, value, argument, place in flags:
            alias = BESIDE.get(self.script, {}).get(name)
            if alias is None or not alias.holds(value, call):
                alias = None if name in self.switches else self.aliases.get(name)
            if alias is None:
                user_flags.append(UserFlag(name, f"--{name}={value}", place))
                continue
            try:
                settings = alias.translate(value, call)
                yields = alias.refusal is None and alias.is_switch and not is_true(value)
            except ValueError as problem:
                raise UserError(f"{argument[:80]}: {problem}", where=place.where) from None
            implied = {f: t for f, t in alias.implies.items() if f not in given and not yields}
            user_flags += [
                UserFlag(flag, f"--{flag}={text}", place, argument, name, yields)
                for flag, text in (settings | implied).items()
            ]
            if alias.line and (settings or not alias.convert):
                ours = " ".join(f"--{flag}={text}" for flag, text in settings.items())
                lines[alias.line.format(flag=argument[:80], settings=ours, note=alias.note)] = None
            elif alias.note and not settings:
                unused[name] = f"{place.prefix}{argument[:80]} has no effect here: {alias.note}"
        if len(unused) > 1:
            unused = {
                "": f"--{', --'.join(unused)} have no effect here; docs/migration.md says why"
            }
        for line in (*unused.values(), *lines):
            console.warn(line, limit=None)
        return without_conflicts(user_flags)


def without_conflicts(flags: Sequence[UserFlag]) -> list[UserFlag]:
    """Return the flags without those that yield to another.

    Raises UserError when one place, a flagfile or the command line, sets a flag under two names to
    different values.
    """
    last = {(flag.name, flag.place.path, flag.alias): flag for flag in flags}
    groups: dict[tuple[str, str | None], list[UserFlag]] = {}
    for (name, path, _), flag in last.items():
        groups.setdefault((name, path), []).append(flag)
    remaining: list[UserFlag] = []
    for group in groups.values():
        firm = [flag for flag in group if not flag.yields]
        if firm and all(flag.alias for flag in group):
            group = firm
        first = group[0]
        for other in group[1:]:
            if first.value != other.value:
                raise UserError(
                    f"{first.alias_text or first.argument} and "
                    f"{other.alias_text or other.argument}: both set --{first.name}",
                    "give one of them",
                    where=other.place.where,
                )
        remaining += group
    return [flag for flag in flags if any(flag is one for one in remaining)]


def lines_of(path: str, place: Place) -> list[tuple[str, Place]]:
    """Return (text, place) of each flag in the flagfile `path`, which an argument at `place` names.

    Raises UserError when the file includes itself or cannot be read.
    """
    try:
        if not path:
            raise UserError(
                "is empty", "name a file, or leave the flag out", setting="flagfile", value=""
            )
        real_path = os.path.realpath(os.path.expanduser(path))
        if real_path in place.files:
            raise UserError("includes itself", "remove this line", setting="flagfile", value=path)
        lines = flagfile.read_lines(path)
    except UserError as error:
        if place.path is None:
            raise
        raise UserError(str(error), where=place.where) from None
    files = (*place.files, real_path)
    return [(text, Place(path, number, files)) for number, text in lines]


def check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        # bytes of the command line that are not UTF-8 arrive as lone surrogates
        raise UserError(
            "is not UTF-8",
            "rename the file, or write the flag in UTF-8",
            where=f"{text.encode('utf-8', 'surrogateescape')!r}",
        ) from None
