"""Safe file access: files are written completely or not at all, errors say what to do, and a folder
has one writer at a time.
"""

import contextlib
import json
import os

import filelock

from bert_gpu.settings import UserError


def exists(path):
    """Whether a file or folder exists; TensorFlow checks paths with a scheme, such as gs://."""
    if "://" not in str(path):
        return os.path.exists(path)
    import tensorflow as tf

    return tf.io.gfile.exists(path)


def check_local(path, flag):
    """UserError for a path with a scheme; its message names `flag`."""
    if "://" in str(path):
        raise UserError(
            (
                f"{flag}={path}: records, runs and models must be "
                "on a local or mounted file system; copy or mount it"
            )[:300]
        )


def write_text(path, text):
    """Writes a text file under a temporary name beside it, then renames."""
    partial = os.path.join(
        os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.partial"
    )
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def write_json(path, content):
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path, what, keys=()):
    """The JSON object in a file. UserError if it is not one or lacks one of `keys`; `what` says
    what the file should be.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); it should be {what}"[:300]) from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: should be {what}, as a JSON object")
    missing = [key for key in keys if key not in content]
    if missing:
        raise UserError(f"{path}: should be {what}, but has no {missing[0]!r}")
    return content


def check_writable(folder, flag):
    """UserError unless `folder` can be written to or created; its message names `flag`."""
    path = os.path.abspath(folder)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise UserError(f"{flag}: {path} is a file, not a folder; choose another folder")
    if not os.access(path, os.W_OK | os.X_OK):
        raise UserError(
            f"{flag}: cannot write to {path}; choose another folder, or change its permissions"
        )


@contextlib.contextmanager
def only_writer(folder, name, flag):
    """Reserves `folder`, created if needed, for this process by a lock on the hidden file
    .NAME.lock.

    The file is never removed: otherwise a process that has the old file open and one that creates
    a new file could both hold a lock.

    Raises:
      UserError: another process holds the folder, or it cannot be written to; the message names
        `flag`.
    """
    path = os.path.join(folder, f".{name}.lock")
    lock = filelock.FileLock(path, timeout=0, preserve_lock_file=True)
    try:
        os.makedirs(folder, exist_ok=True)
        lock.acquire()
        with open(path, "w", encoding="utf-8") as file:  # for the message below
            file.write(f"{os.getpid()}\n")
    except filelock.Timeout as error:
        with open(path, encoding="utf-8") as file:
            process_id = file.read().strip() or "unknown"
        raise UserError(
            f"{flag}: another process ({process_id}) writes to {folder}; "
            "wait, or end it, or choose another folder"
        ) from error
    except OSError as error:
        lock.release()
        raise UserError(
            f"{flag}: cannot write to {folder} ({error.strerror}); choose another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()
