"""The arguments of a call: what the user gave, where, and what of ours it means.

Arguments and flagfiles are read in order into `Given` entries, each of which sets one of our flags;
flags of other projects (aliases.py) are translated on the way. What is given twice in one place
under different names is refused, and what comes later wins over a flagfile's, as with absl. Types
and ranges are not looked at here.
"""

import collections
import dataclasses
import os

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.cli import flagfile
from bert_gpu.cli.translations import is_true

TRUTHS = ("true", "false")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an argument stands: a line of a flagfile, or the command line (path None).

    files: the flagfiles that are being read there, outermost first.
    """

    path: str | None = None
    line: int = 0
    files: tuple[str, ...] = ()

    def __str__(self):
        return "command line" if self.path is None else f"{self.path}: line {self.line}"

    @property
    def where(self):
        """The same for a message; None for the command line."""
        return None if self.path is None else str(self)

    @property
    def prefix(self):
        """Begins a message about what stands there."""
        return "" if self.path is None else f"{self}: "


COMMAND_LINE = Place()


@dataclasses.dataclass(frozen=True)
class Given:
    """A flag of ours that was given.

    Attributes:
      name: of our flag. argument: --name=value, as absl reads it. place: where it stands.
      said: what the user wrote, and via: the alias's name, if that was one; else None.
      yields: whether it is what another project's switch means when it is off, which any other
        value wins over.
    """

    name: str
    argument: str
    place: Place
    said: str | None = None
    via: str | None = None
    yields: bool = False

    @property
    def source(self):
        """For --show_config."""
        return str(self.place) if self.said is None else f"{self.place}, as {self.said}"

    @property
    def origin(self):
        """Where the value comes from, for a message; None where the message itself says it."""
        return self.place.where if self.said is None else f"{self.place.prefix}from {self.said}"


class Reader:
    """Reads the arguments of one command.

    Args:
      switches: {name of a flag of ours: whether it is true or false}. aliases: {name: Alias}.
      takes_positionals: whether there may be arguments that are not flags. script: the command's
        name in aliases.SCRIPTS, or None. listing: what lists all flags.
    """

    def __init__(self, switches, aliases, takes_positionals, script, listing="--helpfull"):
        self.switches, self.aliases, self.script = switches, aliases, script
        self.listing = listing
        self.takes_positionals = takes_positionals
        self.all_switches = {name: alias.is_switch for name, alias in aliases.items()} | switches

    def read(self, arguments):
        """([Given] in order, [positional arguments]) of a call. UserError for what is wrong."""
        tokens = collections.deque((text, COMMAND_LINE) for text in arguments)
        flags, positionals = [], []
        while tokens:
            text, place = tokens.popleft()
            if text == "--" and place is COMMAND_LINE:
                rest = [text for text, _ in tokens]
                for text in rest:
                    self._check_positional(text, place)
                positionals += rest
                break
            if not text.startswith("-") or text in ("-", "--"):
                self._check_positional(text, place)
                positionals.append(text)
                continue
            check_unicode(text)
            name, value, said = self._split(text, place, tokens)
            if name == "flagfile":
                tokens.extendleft(reversed(lines_of(value, place)))
            else:
                flags.append((name, value, said, place))
        return self._translate(flags), positionals

    def _check_positional(self, text, place):
        if not self.takes_positionals or place is not COMMAND_LINE:
            raise UserError(
                f"{text[:100]!r}: not a flag",
                f"flags are written --name=value ({self.listing.removesuffix('full')} lists them)",
                where=place.where,
            )

    def _split(self, text, place, tokens):
        """(name, value, what the user wrote) of the flag that an argument begins; takes its value
        from `tokens` where that is an argument of its own.
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
            from bert_gpu.cli import suggestions  # here, because only a mistake need wait for it

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
                tokens.popleft()  # the refusal says more than "not a flag"
                return name, follows, f"{text}={follows}"
            return name, "true", text
        if not tokens:
            raise UserError(f"{text}: needs a value", f"write {text}=VALUE", where=place.where)
        value = tokens.popleft()[0]
        return name, value, f"{text}={value}"

    @property
    def all_names(self):
        """The names of the flags that are taken, those of switches also with "no" before them."""
        refused = {name for name, alias in self.aliases.items() if alias.refusal is not None}
        names = [name for name in self.all_switches if name not in refused]
        return [*names, *(f"no{name}" for name in names if self.all_switches[name])]

    def _translate(self, flags):
        """[Given] of [(name, value, what the user wrote, place)]."""
        names = {name for name, *_ in flags}
        found = []
        for name, value, said, place in flags:
            alias = self.aliases.get(name)
            if alias is None or name in self.switches:
                found.append(Given(name, f"--{name}={value}", place))
                continue
            try:
                settings = alias.translate(value, names)
                yields = alias.refusal is None and alias.is_switch and not is_true(value)
            except ValueError as problem:
                raise UserError(f"{said[:80]}: {problem}", where=place.where) from None
            if alias.note is not None:
                console.warn(f"{place.prefix}{said[:80]} has no effect here: {alias.note}")
            found += [
                Given(flag, f"--{flag}={text}", place, said, name, yields)
                for flag, text in settings.items()
            ]
        return without_conflicts(found)


def without_conflicts(flags):
    """[Given] without those that yield to another. UserError when one place sets a flag under two
    names.
    """
    last = {(flag.name, flag.place.path, flag.via): flag for flag in flags}
    groups = {}
    for (name, path, _), flag in last.items():
        groups.setdefault((name, path), []).append(flag)
    kept = []
    for group in groups.values():
        firm = [flag for flag in group if not flag.yields]
        if firm and all(flag.via for flag in group):
            group = firm
        for other in group[1:]:
            first = group[0]
            if first.via and other.via and first.argument == other.argument:
                continue
            raise UserError(
                f"{first.said or first.argument} and {other.said or other.argument}: "
                f"both set --{first.name}",
                "give one of them",
                where=other.place.where,
            )
        kept += group
    return [flag for flag in flags if any(flag is one for one in kept)]


def lines_of(path, place):
    """[(text, Place)] of a flagfile that an argument at `place` names. UserError when it is being
    read already, or cannot be read.
    """
    try:
        if not path:
            raise UserError(
                "is empty", "name a file, or leave the flag out", setting="flagfile", value=""
            )
        known = os.path.realpath(os.path.expanduser(path))
        if known in place.files:
            raise UserError("names itself", "remove this line", setting="flagfile", value=path)
        lines = flagfile.read_lines(path)
    except UserError as error:
        if place.path is None:
            raise
        raise UserError(str(error), where=place.where) from None
    files = (*place.files, known)
    return [(text, Place(path, number, files)) for number, text in lines]


def check_unicode(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        # bytes of the command line that are not UTF-8 arrive as lone surrogates
        raise UserError(
            "is not UTF-8",
            "rename the file, or write the flag in UTF-8",
            where=f"{text.encode('utf-8', 'surrogateescape')!r}",
        ) from None
