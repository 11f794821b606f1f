"""python -m bert_gpu launch: runs a command as several workers on this machine."""

import os
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
    "machines do. Worker 0 prints here, the others write logs. One Ctrl-C stops all of them after "
    "they have saved."
)
EXAMPLE = (
    "python -m bert_gpu launch --num_workers=2 -- run_pretraining_gpu.py --output_dir=runs/two",
    "python -m bert_gpu launch --num_workers=2 -- run_classifier.py",
)
TAKES_PART = ("pretrain", "classify")


def main(argv: list[str]) -> int:
    end = argv.index("--") if "--" in argv else len(argv)
    config = flags.parse(argv[:end], SUMMARY, EXAMPLE, [LaunchConfig]).make(LaunchConfig)
    command = command_of(argv[end + 1 :])
    log_dir = tempfile.mkdtemp(prefix="bert-gpu-launch-")
    code = launch.run(command, config.num_workers, count_gpus(), log_dir, Console())
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
    if name not in TAKES_PART:
        raise UserError(
            f"needs a command after --, one of {', '.join(TAKES_PART)} or a "
            f"script, not {name[:60]!r}, as in: launch --num_workers=2 -- "
            "run_pretraining_gpu.py",
            where="launch",
        )
    return [sys.executable, "-m", "bert_gpu", name, *arguments]
