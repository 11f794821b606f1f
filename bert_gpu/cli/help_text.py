"""Writes the texts of --help and --helpfull.

--help shows a command's main flags by topic, two lines each; --helpfull shows all flags by settings
class, with their names in other projects. For a command without main flags, both show all.
"""

import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field
from typing import Any

from bert_gpu.base.settings import TIME_UNITS, Settings, fields_of, value_type
from bert_gpu.cli.aliases import Alias

MORE = (
    "--flagfile=FILE reads flags from a file, one --name=value a line; flags that come later win."
)
OTHERS = (
    "--show_config prints all settings and their sources. Flags of Google's, Hugging Face's, "
    "NVIDIA's and 24-hour BERT work too, such as --max_steps: docs/migration.md."
)
LINES = 2  # the most lines of a flag's help text in --help
# options of textwrap: break lines at spaces only, so that flags and paths stay whole
WHOLE: dict[str, Any] = dict(break_long_words=False, break_on_hyphens=False)


def text(
    program: str,
    summary: str,
    example: Iterable[str],
    classes: Sequence[type[Settings]],
    defaults: Mapping[str, object],
    *,
    positionals: str | None,
    main: Mapping[str, Sequence[str]] | None,
    aliases: Mapping[str, Alias],
    is_full: bool,
) -> str:
    """Return the help of a command.

    Args:
      program: the command's name. is_full: whether all flags are shown. summary, example, classes,
        defaults, positionals, main: as in flags.parse. aliases: {name: Alias} of other projects'
        flags.
    """
    width = columns()
    lines = (
        []
        if positionals is None
        else [textwrap.fill(f"usage: {program} [--flags] {positionals}", width, **WHOLE), ""]
    )
    examples = [line for command in example for line in command_lines(command, width)]
    lines += [textwrap.fill(summary, width), "", *examples, ""]
    fields = fields_of(*classes)
    is_whole = main is None or is_full
    topics = (
        {
            " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split()): fields_of(kind)
            for kind in classes
        }
        if main is None or is_full
        else {topic: {name: fields[name] for name in names} for topic, names in main.items()}
    )
    for topic, topic_fields in topics.items():
        lines += [textwrap.fill(topic, width), ""]
        for field in topic_fields.values():
            names = names_of(field, aliases) if is_whole else ""
            lines += describe(field, defaults, names, width, None if is_whole else LINES)
        lines.append("")
    more = [] if is_whole else ["--helpfull shows all flags."]
    more += [MORE, *([OTHERS] if "show_config" in fields else [])]
    return "\n".join([*lines, textwrap.fill(" ".join(more), width)])


def columns() -> int:
    """Return the width of the help in characters: the variable COLUMNS or the terminal's width, but
    at most 110.
    """
    return min(110, shutil.get_terminal_size((100, 24)).columns)


def command_lines(command: str, width: int) -> list[str]:
    """Return a command as lines of at most `width` characters that a shell reads as one command; a
    word or a quoted text stays in one line.
    """
    command = re.sub(r"(['\"]).*?\1", lambda quoted: quoted[0].replace(" ", "\xa0"), command)
    *parts, last = textwrap.wrap(
        command, width - len(" \\"), initial_indent="  ", subsequent_indent=" " * 6, **WHOLE
    )
    return [line.replace("\xa0", " ") for line in (*(f"{part} \\" for part in parts), last)]


def describe(
    field: Field,
    defaults: Mapping[str, object],
    names: str,
    width: int,
    num_lines: int | None = None,
) -> list[str]:
    """Return the help on a flag: its names with the default, and its help text, both wrapped at
    `width`.

    Args:
      names: a sentence on the flag's names in other projects, added to the help text; or "".
      num_lines: the most lines of the help text, which is cut at a sentence; None = all.
    """
    rules = field.metadata
    flag_names = ", ".join(f"--{name}" for name in (field.name, *rules["aliases"]))
    value = defaults.get(field.name, field.default)
    kind = value_type(field)[0]
    default = "" if value is None else f" (default: {format_value(value, rules['unit'])})"
    words = "".join(f"|{word}" for word in rules["words"] if word)
    form = "TIME" if rules["unit"] else kind.__name__.upper()
    choices = f" One of: {', '.join(map(str, rules['choices']))}." if rules["choices"] else ""
    unit = f" Such as 24h, 90m or 1h30m; a bare number: {rules['unit']}." if rules["unit"] else ""
    about = rules["help"] if num_lines is None else brief(rules["help"], width - 6, num_lines)
    head = f"  {flag_names}{'' if kind is bool else '=' + form + words}{default}"
    return [
        textwrap.fill(head, width, subsequent_indent=" " * 4, **WHOLE),
        textwrap.fill(
            about + unit + choices + names,
            width,
            initial_indent=" " * 6,
            subsequent_indent=" " * 6,
        ),
    ]


def format_value(value: object, unit: str | None) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return value if unit is None else f"{value}{TIME_UNITS[unit]}"


def brief(content: str, width: int, num_lines: int) -> str:
    """Return as many first sentences of a text as fit into `num_lines` lines, at least one, and
    the sentence that states the default.
    """
    sentences = re.split(r"(?<=[.?;]) (?=[A-Za-z\-])", content)
    while len(sentences) > 1 and len(textwrap.wrap(" ".join(sentences), width)) > num_lines:
        others = [i for i, one in enumerate(sentences) if i and not one.startswith("Default")]
        if not others:
            break
        del sentences[others[-1]]
    return re.sub(r";(?= Default|$)", ".", " ".join(sentences))


def names_of(field: Field, aliases: Mapping[str, Alias]) -> str:
    """Return a sentence that lists the flags of other projects that set a field; "" if there are
    none.
    """
    names = [
        f"--{alias.name} ({', '.join(alias.owners)})"
        for alias in aliases.values()
        if field.name in alias.flags and alias.owners
    ]
    return f" Also set by {', '.join(names)}." if names else ""
