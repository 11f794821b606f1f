"""Finds the flags that an unknown flag may stand for: those that are spelt like it."""

import difflib
import importlib
import re

from bert_gpu.base.settings import fields_of
from bert_gpu.cli.aliases import ALIASES, SCRIPTS

RESUME = frozenset(
    "resume continue continue_training resume_from auto_resume resume_training".split()
)


def unknown(
    argument: str, script: str | None, names: list[str], listing: str = "--helpfull"
) -> str:
    """The message about an argument whose flag is not known.

    Args:
      argument: as given. script: in aliases.SCRIPTS, or None. names: what the command takes, a
        switch also as noNAME. listing: what lists all flags.
    """
    name = argument.lstrip("-").partition("=")[0]
    shown, wanted, elsewhere = argument[:80], plain(name), flags_elsewhere(script)
    if wanted in RESUME and script is not None:
        return f"{shown}: no such flag; a job resumes by itself: repeat its command"
    close = [wanted] if wanted in names else difflib.get_close_matches(wanted, names, 2, 0.85)
    if not close and name in elsewhere:
        return f"{shown}: no such flag; it is one of {elsewhere[name]}"
    if not close and wanted in elsewhere:
        return f"{shown}: no such flag; did you mean --{wanted} of {elsewhere[wanted]}?"
    if close := close or difflib.get_close_matches(wanted, names, 2, 0.7):
        flags = " or ".join(f"--{flag}" for flag in close)
        return f"{shown}: no such flag; did you mean {flags}? ({listing} lists all)"
    main = "--help shows those that matter, " if listing == "--helpfull" else ""
    return f"{shown}: no such flag ({main}{listing} lists all)"


def plain(name: str) -> str:
    """A name in lower case with underscores: maxSteps and max-steps are max_steps."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("-", "_")).lower()


def flags_elsewhere(script: str | None) -> dict[str, str]:
    """{name, or noNAME: the first other script that takes it} for one script; {} for None."""
    others = [] if script is None else [other for other in SCRIPTS if other != script]
    found = {}
    for other in reversed(others):
        fields = fields_of(*importlib.import_module(f"bert_gpu.cli.{other}").CLASSES)
        names = [*fields, *(n for n, a in ALIASES[other].items() if a.refusal is None)]
        found |= dict.fromkeys([*names, *(f"no{name}" for name in names)], SCRIPTS[other])
    return found
