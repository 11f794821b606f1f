"""python -m bert_gpu launch: runs a command as several workers on this machine."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.cli import flags
from bert_gpu.devices import launch
from bert_gpu.devices.config import LaunchConfig
from bert_gpu.devices.nvml import count_gpus

SUMMARY = (
    "Runs a command as several workers on this machine, which train together as workers on several "
    "machines do: to try that out, or to survive the death of one. Worker 0 prints here, the "
    "others write logs. One Ctrl-C stops all of them after they have saved."
)
EXAMPLE = (
    "python -m bert_gpu launch --num_workers=2 -- run_pretraining_gpu.py --output_dir=runs/two",
    "python -m bert_gpu launch --num_workers=2 --restarts=3 -- run_classifier.py",
)
TRAINS = ("pretrain", "classify")


def main(argv: list[str]) -> int:
    end = argv.index("--") if "--" in argv else len(argv)
    config = flags.parse(argv[:end], SUMMARY, EXAMPLE, [LaunchConfig]).make(LaunchConfig)
    words = argv[end + 1 :]
    command = command_of(words)
    next_command = command_of(resuming(words))
    log_dir = tempfile.mkdtemp(prefix="bert-gpu-launch-")
    code = launch.run(command, next_command, config, count_gpus(), log_dir, Console())
    if code == 0:
        shutil.rmtree(log_dir, ignore_errors=True)
    return code


def command_of(words: Sequence[str]) -> list[str]:
    """Return the command line that starts the script or command that the user has named after "--".

    Raises UserError when `words`, the arguments after "--", begin with neither a Python script nor
    a command of bert_gpu.
    """
    name, *arguments = words or [""]
    if name.endswith(".py") and os.path.exists(name):
        return [sys.executable, name, *arguments]
    name = flags.COMMANDS.get(name, name).removeprefix("bert-gpu ")
    if name.endswith(".py"):
        raise UserError(f"{name[:150]}: no such script", "name one that is there", where="launch")
    if name not in TRAINS:
        raise UserError(
            f"needs a command after --, one of {', '.join(TRAINS)} or a "
            f"script, not {name[:60]!r}, as in: launch --num_workers=2 -- "
            "run_pretraining_gpu.py",
            where="launch",
        )
    return [sys.executable, "-m", "bert_gpu", name, *arguments]


def resuming(words: Sequence[str]) -> list[str]:
    """Return the arguments after "--" for a restart, which must not remove what the first attempt
    has saved.

    One of our scripts gets --nooverwrite at the end: the last value of a flag wins, also over a
    flagfile's. Another script may not have that flag, so --overwrite is removed.
    """
    name, *arguments = words
    if name in TRAINS or os.path.basename(name) in flags.COMMANDS:
        return [*words, "--nooverwrite"]
    return [name, *(word for word in arguments if not re.match("--?overwrite", word))]
