"""Runs `python -m bert_gpu COMMAND`, which is installed as `bert-gpu COMMAND`.

Importing this module sets the environment variables that TensorFlow reads.
"""

import importlib
import keyword
import sys
import textwrap
from typing import Any

from bert_gpu.base import environment
from bert_gpu.base.signals import quiet_interrupts

environment.prepare()

COMMANDS = {
    "data": "text -> TFRecords (create_pretraining_data.py)",
    "pretrain": "TFRecords -> BERT (run_pretraining_gpu.py)",
    "classify": "BERT -> downstream task (run_classifier.py)",
    "vocab": "learn a WordPiece or SentencePiece vocabulary",
    "fill-mask": "guess the words for [MASK]",
    "evaluate": "score models on held-out text or on minimal pairs",
    "import": "a model in any format -> a model folder of bert-gpu",
    "extend": "add words of one's own to a model",
    "export": "a model -> Hugging Face and other formats",
    "embed": "write a vector for each line of a text",
    "search": "find the lines of a text that are nearest to a query",
    "report": "draw runs, in one HTML file",
    "runs": "list the runs under a folder",
    "doctor": "check whether a training would work on this machine",
    "launch": "run a command as several workers that train together",
}


def main(argv: list[str] | None = None) -> int:
    with quiet_interrupts():
        from bert_gpu.base import console

        console.open_streams()
        from bert_gpu.cli import flags
    try:
        return flags.exit_code(run, sys.argv if argv is None else argv)
    finally:
        console.close_streams()


def run(argv: list[str]) -> object:
    """Run the command that argv[1] names; return its result, from which flags.exit_code makes the
    exit code.
    """
    import bert_gpu
    from bert_gpu.base.console import answer
    from bert_gpu.base.errors import UserError
    from bert_gpu.cli.help_text import WHOLE, columns

    command = argv[1] if len(argv) > 1 else "--help"
    if command in ("--help", "-h", "help"):
        lines = [
            "usage: bert-gpu COMMAND [--flags]    (bert-gpu COMMAND --help lists the flags)",
            "",
            *(f"  {name:<10} {summary}" for name, summary in COMMANDS.items()),
        ]
        indent: dict[str, Any] = dict(subsequent_indent=" " * len(f"  {'':<10} "), **WHOLE)
        answer("\n".join(textwrap.fill(line, columns(), **indent) for line in lines))
        return 0
    if command == "--version":
        answer(f"bert-gpu {bert_gpu.__version__}")
        return 0
    if command not in COMMANDS:
        raise UserError(
            "no such command", f"known are {', '.join(COMMANDS)}", where=f"{command[:100]!r}"
        )
    name = command.replace("-", "_") + "_" * keyword.iskeyword(command)
    with quiet_interrupts():
        module = importlib.import_module(f"bert_gpu.cli.{name}")
    return module.main([f"bert-gpu {command}", *argv[2:]])


if __name__ == "__main__":
    sys.exit(main())
