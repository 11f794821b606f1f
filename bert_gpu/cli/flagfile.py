"""Flagfiles: --flagfile=FILE reads flags from a file, --save_config=FILE writes one.

The format is absl's: one --name=value a line, blank lines and lines that begin with # or // are
comments, and one flagfile may include another. Error messages name the file and the line, unlike
absl's.
"""

import os
from collections.abc import Sequence

import bert_gpu
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_regular, write_text

MARK = "# flags of bert-gpu, written by --save_config"  # how a file of bert-gpu begins
MAX_BYTES = 1 << 20
NOT_SAVED = frozenset(("save_config", "show_config", "overwrite", "quiet", "show", "dry_run"))


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


def save(path: str, script: str, flags: Sequence[str], others: Sequence[str]) -> None:
    """Write a flagfile that starts the same run. Replaces an earlier file of --save_config, but no
    other file.

    Args:
      script: the command's name. flags: the user's flags, as --flag=value. others: lines on the
        other settings, written as comments.
    """
    name = f"--save_config={path}"
    check_target(path, name)
    for flag in flags:
        if flag.splitlines() != [flag.strip()]:
            raise UserError(
                "a flagfile cannot hold line breaks, nor spaces at the end of a "
                f"value: {flag[:60]!r}",
                "change that value",
                where=name,
            )
    head = [
        f"{MARK} ({bert_gpu.__version__})",
        f"# {script} --flagfile=FILE starts the same run; flags after it win.",
        f"# Relative paths start at the folder of the call, which was {os.getcwd()}",
    ]
    comments = [
        "",
        "# Other settings in this version:",
        *(f"# {line}" for line in others),
    ]
    text = "\n".join([*head, "", *flags, *(comments if others else [])]) + "\n"
    try:
        write_text(path, text)
    except (OSError, ValueError) as error:
        raise UserError(
            getattr(error, "strerror", None) or str(error),
            "check the path, its permissions and the space on the disk",
            where=name,
        ) from error


def check_target(target: str, name: str) -> None:
    """Raise UserError unless a flagfile can be written to the path `target` and replaces no file
    but a flagfile of bert-gpu. name: the beginning of the error's message.
    """
    folder = os.path.dirname(target) or "."
    if "://" in target:
        raise UserError(
            "must be on a local or mounted file system", "copy it there later", where=name
        )
    if not os.path.isdir(folder):
        raise UserError(f"there is no folder {folder}", "make it, or name another", where=name)
    if not os.path.lexists(target):
        return
    if not os.path.isfile(target):
        raise UserError("is not a regular file", "name another", where=name)
    with open(target, "rb") as file:
        if not file.read(len(MARK)) == MARK.encode():
            raise UserError(
                "exists, and was not written by --save_config",
                "name another file, or remove it",
                where=name,
            )
