#!/usr/bin/env python3
"""Writes docs/reference.md, a page of all flags: ours from the settings classes, those of other
projects from cli/aliases.py. `make docs` calls it; the page is not kept in the repository.

Each command is called as for its help, up to where it parses its flags; what it hands to the parser
is what it takes. A class that several commands have stands once, and names them.
"""

import pathlib

from bert_gpu.__main__ import COMMANDS, run
from bert_gpu.base.settings import value_type
from bert_gpu.cli import aliases, flags, help_text

TARGET = pathlib.Path(__file__).with_name("reference.md")
START = """# All flags

For everybody who looks for a flag that other pages do not name: every flag of every command, then
those of other projects. `--helpfull` of a command prints its part, and
[flags that matter](flags.md) says how flags are written.
"""
OTHERS = """## Flags of other projects

[From other BERTs](migration.md) has what differs although no flag says so. A flag of another
project that is not below is unknown, unless a flag above has its name: then it means the same.
"""
HEAD = "| script | theirs | ours | |"


class Asked(Exception):
    """Ends a command where it would parse its flags."""


def classes_of(command):
    """(settings classes of a command, {flag: default where it is another}, its summary)."""
    found = []

    def parse(argv, summary, example, classes, *, defaults=None, **_):
        found.append((classes, defaults or {}, summary))
        raise Asked

    real, flags.parse = flags.parse, parse
    try:
        run(["bert-gpu", command])
    except Asked:
        pass
    finally:
        flags.parse = real
    return found[0]


def table_of_project(owner):
    """The flags of another project that are translated, refused or without an effect."""
    scripts = {}  # {row without its scripts: scripts}
    for script, table in aliases.ALIASES.items():
        for name, alias in sorted((table | aliases.BESIDE.get(script, {})).items()):
            if owner in alias.owners:
                scripts.setdefault(f"`--{name}` | {cells_of(alias)}", []).append(script)
    rows = [f"| {', '.join(found)} | {cells} |" for cells, found in scripts.items()]
    return "\n".join([f"### {owner}\n", HEAD, "|---|---|---|---|", *rows]) + "\n"


def cells_of(alias):
    """What a flag of another project is here, and a remark."""
    kind = "refused" if alias.refusal else "changes results" if alias.line else "no effect"
    ours = ", ".join(f"`--{flag}`" for flag in alias.flags) or kind
    remarks = [
        *(
            f"{value}: " + " ".join(f"`--{name}={text}`" for name, text in settings.items())
            for value, settings in (alias.values or {}).items()
            if settings
        ),
        *(f"with `--{flag}={text}` if that is not given" for flag, text in alias.implies.items()),
        alias.refusal,
        alias.note,
    ]
    others = sorted(alias.beside - {alias.name})
    if alias.beside == aliases.ONLY_ACADEMIC:
        remarks.append("beside flags that only 24-hour BERT has")
    elif others:
        remarks.append(f"beside {', '.join(f'`--{name}`' for name in others)}")
    elif alias.beside:
        remarks.append("without a value")
    return f"{ours} | {plain('; '.join(filter(None, remarks)))}"


def reference():
    """The text of docs/reference.md."""
    asked = {command: classes_of(command) for command in COMMANDS}
    parts = [
        START,
        *(line_of_command(name, summary) for name, (_, _, summary) in asked.items()),
        "",
    ]
    users = {}
    for command, (classes, _, _) in asked.items():
        for kind in classes:
            users.setdefault(kind, []).append(command)
    groups = {}
    for kind, commands in users.items():
        groups.setdefault(tuple(commands), []).append(kind)
    for commands, kinds in groups.items():
        parts.append(f"## Flags of {', '.join(commands)}\n")
        defaults = {command: asked[command][1] for command in commands}
        parts += [table(kind, defaults) for kind in kinds]
    owners = (aliases.GOOGLE, aliases.HUGGING_FACE, aliases.NVIDIA, aliases.ACADEMIC)
    parts += [OTHERS, *(table_of_project(owner) for owner in owners)]
    return "\n".join(parts).rstrip() + "\n"


def line_of_command(command, summary):
    script = f", or {aliases.SCRIPTS[command]}" if command in aliases.SCRIPTS else ""
    return f"- **{command}** (`python -m bert_gpu {command}`{script}): {plain(summary)}"


def table(kind, defaults):
    """The flags of a settings class. defaults: {command: {flag: its own default}}."""
    topic = plain(kind.__doc__.strip().split("\n\n")[0]).rstrip(".")
    lines = [f"### {topic}\n", "| flag | value | default | |", "|---|---|---|---|"]
    for field in kind.__dataclass_fields__.values():
        names = ", ".join(f"`--{name}`" for name in (field.name, *field.metadata["aliases"]))
        cells = (names, form_of(field), default_of(field, defaults), plain(meaning_of(field)))
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
    return "\n".join(lines) + "\n"


def form_of(field):
    """What a value looks like."""
    rules = field.metadata
    kind = "time" if rules["unit"] else value_type(field)[0].__name__
    names = dict(bool="on or off", int="whole number", float="number", str="text", tuple="list")
    words = [f"`{word}`" for word in (*(rules["choices"] or ()), *rules["words"]) if word]
    return " ".join(words if rules["choices"] else [names.get(kind, kind), *words])


def default_of(field, defaults):
    """The default, or those of the commands where they differ."""
    own = {command: values[field.name] for command, values in defaults.items()
           if field.name in values}  # fmt: skip
    if not own:
        return shown_default(field, field.default)
    found = {command: shown_default(field, own.get(command, field.default)) for command in defaults}
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    return "; ".join(f"{command}: {text}" for command, text in found.items())


def shown_default(field, value):
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{help_text.format_value(value, field.metadata['unit'])}`"


def meaning_of(field):
    rules, bounds = field.metadata, []
    words = (("low", "at least"), ("above", "above"), ("high", "at most"), ("below", "below"))
    bounds = [f"{word} {rules[name]:g}" for name, word in words if rules[name] is not None]
    needs = ""
    if rules["needs"]:
        name, values = rules["needs"]
        told = "" if values is None else "=" + " or ".join(map(shown_value, values))
        needs = f" Only with --{name}{told}."
    limits = f" {', '.join(bounds).capitalize()}." if bounds else ""
    return f"{rules['help']}{limits}{needs}"


def shown_value(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def plain(text):
    """A text in one line, in which nothing is taken for markup."""
    for mark in "*<":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
