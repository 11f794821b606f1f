"""python -m bert_gpu doctor: checks whether a training would work on this machine."""

import sys

from bert_gpu.base import console
from bert_gpu.cli import flags
from bert_gpu.doctor import checks

SUMMARY = (
    "Examines this machine: versions, memory, disks, GPUs and whether TensorFlow finds them, one "
    "training step on one GPU, and one on all GPUs together, or one on the CPU. Exit code 0: "
    "training would work; 2: it would not, and the output says what to do. Put the output into a "
    "bug report."
)
EXAMPLE = ("python -m bert_gpu doctor",)


def main(argv: list[str]) -> int:
    flags.parse(argv, SUMMARY, EXAMPLE, [])

    def say(text: str) -> None:
        if console.is_terminal(sys.stderr):
            console.print_to(sys.stderr, f"{text} ...")

    findings = checks.examine(say=say)
    console.answer("\n".join(checks.report(findings, console.columns_of(sys.stdout))))
    return 0 if checks.works(findings) else 2
