"""Standard input as a text or table: the name that stands for it, and its bytes."""

import sys
import typing

from bert_gpu.base.errors import UserError

STANDARD_INPUT = "-"


def open_standard_input(complaint: str) -> typing.BinaryIO:
    """Return the stream of bytes; UserError with the complaint at a terminal, to which nothing is
    piped.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError(complaint)
    return sys.stdin.buffer
