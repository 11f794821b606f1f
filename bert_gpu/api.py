"""The calls of a program that uses the library: each does what the command of its name does.

Keyword arguments become the words of that command's line, so that names, ranges, recipes and
defaults are the same; or settings objects take their place. Messages go to Python's logger
"bert_gpu".
"""

import dataclasses
import inspect
import itertools
import numbers
import os
import pkgutil

from bert_gpu.base import console, environment
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.signals import reraise
from bert_gpu.cli import (
    classify,
    data,
    embed,
    export,
    fill_mask,
    flags,
    help_text,
    import_,
    pretrain,
)
from bert_gpu.data.config import DataConfig
from bert_gpu.finetune.config import FinetuneSettings
from bert_gpu.pretrain.config import PretrainSettings
from bert_gpu.text.config import TextFormat

# {call: what its settings objects are for, and their classes}
OF_SETTINGS = dict(
    create_pretraining_data=("bert_gpu.data.build.build", (DataConfig, TextFormat)),
    run_pretraining=("bert_gpu.pretrain.run.pretrain", (PretrainSettings,)),
    run_classifier=("bert_gpu.finetune.run.finetune", (FinetuneSettings,)),
)
COMMANDS = dict(
    create_pretraining_data=data,
    run_pretraining=pretrain,
    run_classifier=classify,
    embed=embed,
    fill_mask=fill_mask,
    export=export,
    import_model=import_,
)
HELP = """
Keyword arguments are the flags below, without dashes: learning_rate=3e-4 is --learning_rate=3e-4.
A value is a number, a text, a path, True or False, or a list of these; None is not given.

Returns an object that says what was made; where show_config is a flag, with show_config=True the
settings, as text.

Raises bert_gpu.UserError for what is wrong with a setting or a file; a training also
bert_gpu.TrainingStopped when it diverges or cannot save, and KeyboardInterrupt when it has saved
after Ctrl-C.

"""


def make_call(name, command):
    """A function that does what a command does; its signature and its help are the flags'."""

    def call(*settings, **arguments):
        return run(name, command, settings, arguments)

    defaults = getattr(command, "DEFAULTS", {})
    words = help_text.text(
        name,
        command.SUMMARY,
        (),
        command.CLASSES,
        defaults,
        positionals=None,
        main=None,
        aliases={},
        is_full=True,
    )
    summary, _, listed = flags.name_commands(words).partition("\n\n")
    call.__doc__ = f"{summary}\n{HELP}{listed.strip()}"
    call.__name__ = call.__qualname__ = name
    call.__module__ = "bert_gpu"
    flag_parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(field.name, field.default),
            annotation=field.type,
        )
        for kind in command.CLASSES
        for field in dataclasses.fields(kind)
    ]
    positionals = inspect.Parameter("settings", inspect.Parameter.VAR_POSITIONAL)
    call.__signature__ = inspect.Signature([positionals, *flag_parameters])
    return call


def run(name, command, positionals, arguments):
    """Do a call of a command's module; return its result.

    Args:
      positionals: settings objects alone, or texts or lists of texts. arguments: {flag: value}.
    """
    environment.hint()
    parts = [one if isinstance(one, list | tuple) else [one] for one in positionals]
    texts = list(itertools.chain.from_iterable(parts))
    with console.warnings_to_log():
        if not all(isinstance(text, str) for text in texts):
            return run_settings(name, texts, arguments)
        words = [
            f"--{flag}={text_of(flag, value)}"
            for flag, value in arguments.items()
            if value is not None
        ]
        ends = ["--"] if texts else []
        return answered(command.main([name, *words, *ends, *texts], in_program=True))


def run_settings(name, settings, arguments):
    """Do a call with settings objects in place of arguments; return its result."""
    function, kinds = OF_SETTINGS.get(name, (None, ()))
    if arguments or tuple(map(type, settings)) not in (kinds[:1], kinds):
        names = " and ".join(kind.__name__ for kind in kinds) or "arguments alone"
        raise UserError("settings objects stand alone", f"this call takes {names}", where=name)
    return answered(pkgutil.resolve_name(function)(*settings))


def answered(result):
    """The result of a call. A signal that was kept until its end is answered now."""
    reraise(getattr(result, "signal", None))
    return result


def text_of(name: str, value: object) -> str:
    """The value of a flag as on a command line."""
    if isinstance(value, list | tuple):
        texts = [text_of(name, part) for part in value]
        if any("," in text for text in texts):
            raise UserError(
                "a comma separates values", "leave it out of a list", setting=name, value=value
            )
        return ",".join(texts)
    if not isinstance(value, str | os.PathLike | numbers.Real):
        raise UserError(
            "must be a number, a text, a path, True, False, None or a list of these",
            setting=name,
            value=shortened(value),
        )
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    return text.lower() if isinstance(value, bool) else text


globals().update({name: make_call(name, command) for name, command in COMMANDS.items()})
