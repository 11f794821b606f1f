"""The functions for programs that use the library, such as run_pretraining: each does the same as a
command.

The keyword arguments of a call become the command line of that command, so that names, ranges,
recipes and defaults are the same. Some functions take settings objects instead. Messages go to
Python's logger "bert_gpu".
"""

import dataclasses
import inspect
import itertools
import numbers
import os
import pkgutil
import signal
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from bert_gpu.base import console, environment
from bert_gpu.base.errors import TrainingStopped, UserError, shortened
from bert_gpu.cli import (
    classify,
    data,
    embed,
    evaluate,
    export,
    extend,
    fill_mask,
    flags,
    help_text,
    import_,
    pretrain,
    search,
)
from bert_gpu.data.config import DataConfig
from bert_gpu.finetune.config import FinetuneSettings
from bert_gpu.pretrain.config import PretrainSettings
from bert_gpu.text.config import TextFormat

# {name of a call: (path of the function that runs it with settings objects, their classes)}
OF_SETTINGS: dict[str, tuple[str, tuple[type, ...]]] = dict(
    create_pretraining_data=("bert_gpu.data.build.build", (DataConfig, TextFormat)),
    run_pretraining=("bert_gpu.pretrain.run.pretrain", (PretrainSettings,)),
    run_classifier=("bert_gpu.finetune.run.finetune", (FinetuneSettings,)),
)
COMMANDS = dict(
    create_pretraining_data=data,
    run_pretraining=pretrain,
    run_classifier=classify,
    embed=embed,
    evaluate=evaluate,
    fill_mask=fill_mask,
    export=export,
    extend=extend,
    import_model=import_,
    search=search,
)
HELP = """
Keyword arguments are the flags below, without dashes: learning_rate=3e-4 is --learning_rate=3e-4.
A value is a number, a text, a path, True or False, or a list of these. None leaves a flag out.

Returns an object that describes the result; with show_config=True, if that is a flag, the settings
as text.

Raises bert_gpu.UserError for a setting or a file that is wrong. A training also raises
bert_gpu.TrainingStopped when it diverges, cannot save or is stopped by SIGTERM, and
KeyboardInterrupt after Ctrl-C, when it has saved.

"""


def make_call(name: str, command: ModuleType) -> Callable:
    """Return the library's function called `name`, which does the same as a command. Its signature
    and its docstring are made from the command's flags.
    """

    def call(*settings: object, **arguments: object) -> Any:
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
    summary, _, flag_list = flags.name_commands(words).partition("\n\n")
    call.__doc__ = f"{summary}\n{HELP}{flag_list.strip()}"
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
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("settings", inspect.Parameter.VAR_POSITIONAL), *flag_parameters]
    )
    return call


def run(
    name: str, command: ModuleType, positionals: Sequence[object], arguments: Mapping[str, object]
) -> object:
    """Run a command with the arguments of a call; return its result.

    Args:
      name: the call's name. command: the command's module.
      positionals: settings objects, with which `arguments` is empty; or texts or lists of texts.
        arguments: {flag: value}.
    """
    environment.hint()
    parts = [one if isinstance(one, list | tuple) else [one] for one in positionals]
    texts = list(itertools.chain.from_iterable(parts))
    with console.warnings_to_log(), environment.process_kept():
        if all(isinstance(text, str) for text in texts):
            words = [
                f"--{flag}={text_of(flag, value)}"
                for flag, value in arguments.items()
                if value is not None
            ] + (["--", *texts] if texts else [])
            result = command.main([name, *words], in_program=True)
        else:
            result = run_settings(name, texts, arguments)
    return deliver_signal(result)


def run_settings(name: str, settings: Sequence[object], arguments: Mapping[str, object]) -> object:
    """Run the call `name` with settings objects instead of keyword arguments; return its result."""
    function, kinds = OF_SETTINGS.get(name, ("", ()))
    if arguments or tuple(map(type, settings)) not in (kinds[:1], kinds):
        names = " and ".join(kind.__name__ for kind in kinds) or "arguments alone"
        raise UserError("settings objects stand alone", f"this call takes {names}", where=name)
    return pkgutil.resolve_name(function)(*settings)


def deliver_signal(result: object) -> object:
    """Return the result of a call, after a signal that has arrived meanwhile has reached the
    program's own handler. A training that the signal has stopped raises an exception even if the
    handler raises none: KeyboardInterrupt for SIGINT, else TrainingStopped.
    """
    run = getattr(result, "outcome", None) or result
    stop = getattr(run, "signal", None)
    if arrived := stop or getattr(run, "late_signal", None):
        signal.raise_signal(arrived)
    if stop:
        raise (
            KeyboardInterrupt
            if stop == signal.SIGINT
            else TrainingStopped(f"stopped by {signal.Signals(stop).name}; the same call resumes")
        )
    return result


def text_of(name: str, value: object) -> str:
    """Return the value of a flag as text for a command line, such as "true" for True and "a,b" for
    a list. name: the flag's name, for messages.
    """
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
