"""Standard input in place of a file: its name in a flag, and its bytes."""

import sys
import typing

from bert_gpu.base.errors import UserError

STANDARD_INPUT = "-"


def open_standard_input(complaint: str) -> typing.BinaryIO:
    """Return standard input as a stream of bytes.

    Raises UserError(complaint) when it is a terminal, so that nothing is piped into it.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError(complaint)
    return sys.stdin.buffer
