"""Replacing a model's folder as a whole: {file name: bytes} in, a folder that is the old one or the
new one, never a mixture.

The new folder is written under a hidden name, .NAME.PID.partial; then the old one is renamed to
.NAME.PID.old and the new one to NAME. A process killed between these two renames leaves no NAME:
the next write puts the old one back before it begins, and who reads is told where it lies
(displaced).
"""

import os
import re
import shutil

from bert_gpu.files import check_local
from bert_gpu.settings import UserError


def replace_folder(folder, contents):
    """Makes `folder` hold the files `contents` {name: bytes}, and what it held under other names.

    Raises:
      UserError: something that is no folder is there, it is the current folder, or the disk
        refuses; then nothing has changed.
    """
    check_local(folder, "--output_dir")
    folder = os.path.realpath(folder)  # a link stays, and what it points to is replaced
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UserError(f"{folder}: is a file; name a folder")
    if os.path.commonpath([folder, os.path.realpath(os.curdir)]) == folder:
        raise UserError(
            f"{folder}: is where this command runs, so it cannot "
            "be replaced; go elsewhere, or name a folder inside it"
        )
    new, old = (beside(folder, f"{os.getpid()}.{state}") for state in ("partial", "old"))
    try:
        recover(folder)
        os.makedirs(new)
        write_files(new, contents)
        if os.path.isdir(folder):
            copy_others(folder, new, contents)
            os.rename(folder, old)
        os.rename(new, folder)
    except (OSError, shutil.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            (
                f"{folder}: cannot be written ({reason}); "
                "make room and rights there, or name another folder"
            )[:300]
        ) from None
    finally:
        recover(folder)


def recover(folder):
    """Tidies up after a write, ended or killed: the old folder comes back where there is no new
    one; what else is left goes.
    """
    parent, name = os.path.split(folder)
    if not os.path.isdir(parent):
        return
    old = displaced(folder)
    if old is not None and not os.path.lexists(folder):
        os.rename(old, folder)
    for left in os.listdir(parent):
        if re.fullmatch(rf"\.{re.escape(name)}\.\d+\.(old|partial)", left):
            shutil.rmtree(os.path.join(parent, left), ignore_errors=True)


def displaced(folder):
    """Where the old content of a model's folder lies since a write of the folder was killed between
    its two renames; None if nowhere.
    """
    parent, name = os.path.split(os.path.realpath(folder))
    if os.path.lexists(folder) or not os.path.isdir(parent):
        return None
    found = [
        os.path.join(parent, other)
        for other in os.listdir(parent)
        if re.fullmatch(rf"\.{re.escape(name)}\.\d+\.old", other)
    ]
    return max(found, key=os.path.getmtime, default=None)


def beside(folder, suffix):
    parent, name = os.path.split(folder)
    return os.path.join(parent, f".{name}.{suffix}")


def write_files(folder, contents):
    for name, data in contents.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def copy_others(source, target, contents):
    """Copies what `source` has under names that are not written; links stay links."""
    for entry in os.scandir(source):
        path = os.path.join(target, entry.name)
        if entry.name in contents:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.copytree(entry.path, path, symlinks=True)
        else:
            shutil.copy2(entry.path, path, follow_symlinks=False)
