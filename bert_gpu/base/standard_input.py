"""Standard input in place of a file: the name that stands for it in a flag, and its stream of
bytes.
"""

import sys
import typing

from bert_gpu.base.errors import UserError

STANDARD_INPUT = "-"


def open_standard_input(complaint: str) -> typing.BinaryIO:
    """Return standard input as a stream of bytes.

    Raises UserError(complaint) when standard input is a terminal or closed, because nothing is
    piped into it.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError(complaint)
    return sys.stdin.buffer
