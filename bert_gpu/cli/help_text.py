"""The texts of --help and --helpfull.

--help shows a command's main flags by topic, two lines each; --helpfull shows all, by settings
class, with the names that they have in other projects. A command without main flags shows all in
both.
"""

import re
import shutil
import textwrap

from bert_gpu.base.settings import TIME_UNITS, fields_of, value_type

MORE = (
    "--flagfile=FILE reads flags from a file, one --name=value a line; flags that come later win."
)
SAVING = "--save_config=FILE writes such a file. --show_config prints what is set and why."
OTHERS = (
    "Flags of Google's, Hugging Face's and NVIDIA's BERT are taken, too, such as --max_steps: "
    "docs/migration.md."
)
LINES = 2  # of a flag in --help
WHOLE = dict(break_long_words=False, break_on_hyphens=False)  # what is typed is not cut


def text(program, summary, example, classes, defaults, *, positionals, main, aliases, is_full):
    """The help of a command.

    Args:
      program: its name. summary, example, classes, defaults, positionals, main: of flags.parse.
      aliases: {name: Alias}. is_full: whether all flags are shown.
    """
    width = columns()
    usage = f"usage: {program} [--flags] {positionals}"
    lines = [] if positionals is None else [textwrap.fill(usage, width, **WHOLE), ""]
    examples = [line for command in example for line in command_lines(command, width)]
    lines += [textwrap.fill(summary, width), "", *examples, ""]
    is_whole, fields = main is None or is_full, fields_of(*classes)
    topics = (
        {
            " ".join(kind.__doc__.strip().split("\n\n")[0].split()): fields_of(kind)
            for kind in classes
        }
        if is_whole
        else {topic: {name: fields[name] for name in names} for topic, names in main.items()}
    )
    for topic, of_topic in topics.items():
        lines += [textwrap.fill(topic, width), ""]
        for field in of_topic.values():
            names = names_of(field, aliases) if is_whole else ""
            lines += describe(field, defaults, names, width, None if is_whole else LINES)
        lines.append("")
    more = [] if is_whole else ["--helpfull shows all flags."]
    more += [MORE, *([SAVING, OTHERS] if "save_config" in fields else [])]
    return "\n".join([*lines, textwrap.fill(" ".join(more), width)])


def columns():
    """The width of the help: that of COLUMNS or the terminal, but at most 110."""
    return min(110, shutil.get_terminal_size((100, 24)).columns)


def command_lines(command, width):
    """Lines that a shell reads as one command; a word or a quoted text stays in one line."""
    command = re.sub(r"(['\"]).*?\1", lambda quoted: quoted[0].replace(" ", "\xa0"), command)
    indents = dict(initial_indent="  ", subsequent_indent=" " * 6)
    *parts, last = textwrap.wrap(command, width - len(" \\"), **indents, **WHOLE)
    return [line.replace("\xa0", " ") for line in (*(f"{part} \\" for part in parts), last)]


def describe(field, defaults, names, width, num_lines=None):
    """Lines on a flag. names: a sentence on its other names. num_lines: at most so many of its help
    text, whole sentences; None = all.
    """
    rules = field.metadata
    own = ", ".join(f"--{name}" for name in (field.name, *rules["aliases"]))
    value = defaults.get(field.name, field.default)
    kind = value_type(field)[0]
    default = "" if value is None else f" (default: {shown(value, rules['unit'])})"
    words = "".join(f"|{word}" for word in rules["words"] if word)
    form = "TIME" if rules["unit"] else kind.__name__.upper()
    choices = f" One of: {', '.join(map(str, rules['choices']))}." if rules["choices"] else ""
    time = f" Such as 24h, 90m or 1h30m; a bare number: {rules['unit']}."
    unit = time if rules["unit"] else ""
    about = rules["help"] if num_lines is None else brief(rules["help"], width - 6, num_lines)
    indent = dict(initial_indent=" " * 6, subsequent_indent=" " * 6)
    head = f"  {own}{'' if kind is bool else '=' + form + words}{default}"
    return [
        textwrap.fill(head, width, subsequent_indent=" " * 4, **WHOLE),
        textwrap.fill(about + unit + choices + names, width, **indent),
    ]


def shown(value, unit):
    if isinstance(value, bool):
        return str(value).lower()
    return value if unit is None else f"{value}{TIME_UNITS[unit]}"


def brief(content, width, num_lines):
    """The first sentences of a text, and one that says the default, as many as go into some lines
    of a width; at least one.
    """
    sentences = re.split(r"(?<=[.?;]) (?=[A-Za-z\-])", content)
    while len(sentences) > 1 and len(textwrap.wrap(" ".join(sentences), width)) > num_lines:
        others = [i for i, one in enumerate(sentences) if i and not one.startswith("Default")]
        if not others:
            break
        del sentences[others[-1]]
    return re.sub(r";(?= Default|$)", ".", " ".join(sentences))


def names_of(field, aliases):
    """A sentence on the flags of other projects that set a field's flag."""
    found = [
        f"--{alias.name} ({', '.join(alias.owners)})"
        for alias in aliases.values()
        if field.name in alias.flags
    ]
    return f" Set by {', '.join(found)}, too." if found else ""
