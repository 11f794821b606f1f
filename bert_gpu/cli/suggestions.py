"""Finds the flags that an unknown flag may stand for: those that are spelt like it."""

import difflib
import importlib
import re

from bert_gpu.base.settings import fields_of
from bert_gpu.cli.aliases import ALIASES, SCRIPTS

RESUME = frozenset(
    "resume continue continue_training resume_from auto_resume resume_training".split()
)


def unknown(argument, script, names):
    """The message about an argument whose flag is not known.

    Args:
      argument: as given. script: in aliases.SCRIPTS, or None. names: the flags that the command
        takes.
    """
    name = argument.lstrip("-").partition("=")[0]
    shown = argument[:80]
    if plain(name) in RESUME and script is not None:
        return f"{shown}: no such flag; a job resumes by itself: repeat its command"
    if own := respelled(name, names) or similar(name, names, 0.85):
        return f"{shown}: no such flag; did you mean {' or '.join(own)}? (--helpfull lists all)"
    elsewhere = flags_elsewhere(script)
    for other, flags in elsewhere.items():
        if name in flags or name.removeprefix("no") in flags:
            return f"{shown}: no such flag; it is one of {SCRIPTS[other]}"
    for other, flags in elsewhere.items():
        if found := respelled(name, flags):
            return f"{shown}: no such flag; did you mean {found[0]} of {SCRIPTS[other]}?"
    if own := similar(name, names, 0.7):
        return f"{shown}: no such flag; did you mean {' or '.join(own)}? (--helpfull lists all)"
    return f"{shown}: no such flag (--help shows those that matter, --helpfull lists all)"


def plain(name):
    """A name in lower case with underscores: maxSteps and max-steps are max_steps."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("-", "_")).lower()


def respelled(name, names):
    """["--flag"] of the flag in `names` that a name is but for hyphens and capitals; [] without."""
    wanted = plain(name)
    negative = wanted.removeprefix("no_").removeprefix("no")
    for word in (wanted, negative):
        if word in names:
            return [f"--{word}" if word == wanted else f"--no{word}"]
    return []


def similar(name, names, least):
    """["--flag"] of the flags in `names`, at most two, that are spelt like a name. least: share of
    the letters that agree.
    """
    wanted = plain(name)
    found = difflib.get_close_matches(wanted, names, n=2, cutoff=least)
    if not found and wanted.startswith("no"):
        found = difflib.get_close_matches(wanted[2:], names, n=1, cutoff=least)
    return [f"--{flag}" for flag in found]


def flags_elsewhere(script):
    """{another script: names of its flags} for one script; {} for None."""
    others = [] if script is None else [other for other in SCRIPTS if other != script]
    classes = {other: importlib.import_module(f"bert_gpu.cli.{other}").CLASSES for other in others}
    return {
        other: [*fields_of(*kinds), *(n for n, a in ALIASES[other].items() if a.refusal is None)]
        for other, kinds in classes.items()
    }
