"""Flagfiles: --flagfile=FILE reads flags from a file.

The format is absl's: one --name=value a line, blank lines and lines that begin with # or // are
comments, and one flagfile may include another. Error messages name the file and the line, unlike
absl's.
"""

import os

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_regular

MAX_BYTES = 1 << 20


def read_lines(path: str) -> list[tuple[int, str]]:
    """Return (number of the line, flag) for the lines of a flagfile that are not comments. Numbers
    start at 1.

    Raises UserError when the file cannot be read, is not UTF-8 or is larger than MAX_BYTES.
    """
    name = f"--flagfile={path}"
    try:
        check_regular(os.path.expanduser(path))
        with open(os.path.expanduser(path), "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UserError(
            getattr(error, "strerror", None) or str(error),
            "name a file with one --flag=value a line",
            where=name,
        ) from error
    if len(content) > MAX_BYTES:
        raise UserError(
            "is larger than 1 MB, the limit of a flagfile", "name another file", where=name
        )
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(
            "is not UTF-8", "name a file with one --flag=value a line", where=name
        ) from error
    flags = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    return [(number, flag) for number, flag in flags if flag and not flag.startswith(("#", "//"))]
