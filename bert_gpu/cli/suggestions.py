"""Finds the flags that the user may have meant by an unknown flag: those with a similar name."""

import difflib
import importlib
import re

from bert_gpu.base.settings import fields_of
from bert_gpu.cli.aliases import ALIASES, SCRIPTS

RESUME = frozenset(
    "resume continue continue_training resume_from auto_resume resume_training".split()
)


def unknown(argument: str, script: str, names: list[str], listing: str = "--helpfull") -> str:
    """Return the message about an argument whose flag does not exist.

    Args:
      script: the command's key in aliases.SCRIPTS; "" = it has none. names: the names of the
        command's flags, a boolean flag also as noNAME. listing: the flag or call that lists all
        flags.
    """
    start = f"{argument[:80]}: no such flag"
    name = argument.lstrip("-").partition("=")[0]
    plain_name = plain(name)
    elsewhere = flags_elsewhere(script)
    if plain_name in RESUME and script:
        return f"{start}; a job resumes by itself: repeat its command"
    close = (
        [plain_name]
        if plain_name in names
        else difflib.get_close_matches(plain_name, names, 2, 0.85)
    )
    if not close and name in elsewhere:
        return f"{start}; it is one of {elsewhere[name]}"
    if not close and plain_name in elsewhere:
        return f"{start}; did you mean --{plain_name} of {elsewhere[plain_name]}?"
    if close := close or difflib.get_close_matches(plain_name, names, 2, 0.7):
        flags = " or ".join(f"--{flag}" for flag in close)
        return f"{start}; did you mean {flags}? ({listing} lists all)"
    main = "--help shows those that matter, " if listing == "--helpfull" else ""
    return f"{start} ({main}{listing} lists all)"


def plain(name: str) -> str:
    """Return a name in lower case with underscores: max_steps for maxSteps and max-steps."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("-", "_")).lower()


def flags_elsewhere(script: str) -> dict[str, str]:
    """Return {name of a flag, or noNAME: file name of the first other script that has the flag}; {}
    if `script` is "".
    """
    others = [other for other in SCRIPTS if other != script] if script else []
    scripts: dict[str, str] = {}
    for other in reversed(others):
        fields = fields_of(*importlib.import_module(f"bert_gpu.cli.{other}").CLASSES)
        names = [*fields, *(n for n, a in ALIASES[other].items() if a.refusal is None)]
        scripts |= dict.fromkeys([*names, *(f"no{name}" for name in names)], SCRIPTS[other])
    return scripts
