"""Reads and writes files safely: a file is written completely or not at all, errors say what to do,
and a folder has one writer at a time.
"""

import collections
import contextlib
import errno
import json
import math
import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import filelock
import google_crc32c

from bert_gpu.base.errors import UserError
from bert_gpu.base.locks import read_holder, this_process, write_holder
from bert_gpu.base.settings import JsonFields, stored_complaint

CHECKSUM = "crc32c"  # key of the checksum, the last entry in the JSON files of bert-gpu
# Keys that transformers adds when it saves one of our models again; it copies our checksum, which
# then no longer matches.
SAVED_ANEW = {"transformers_version", "is_local", "added_tokens_decoder"}
MAX_DEPTH = 16  # deepest nesting of lists and objects allowed in a JSON file
LARGEST = sys.float_info.max


def exists(path: str) -> bool:
    """Return whether a file or folder exists. TensorFlow checks paths with a scheme, such as
    gs://.
    """
    if "://" not in str(path):
        return os.path.exists(path)
    import tensorflow as tf

    return tf.io.gfile.exists(path)


def check_local(path: str, setting: str) -> None:
    """Raise UserError for a path with a scheme, such as gs://."""
    if "://" in str(path):
        raise UserError(
            "records, runs and models must be on a local or mounted file system",
            "copy or mount it",
            setting=setting,
            value=path,
        )


def is_inside(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` itself or lies in it, at any depth; links are followed."""
    path = os.path.realpath(path)
    folder = os.path.realpath(folder)
    return os.path.commonpath([path, folder]) == folder


LEFT_FREE_BYTES = 256 << 20  # free space to leave on a disk; on a small disk, a twentieth of it
LOOK_AGAIN_BYTES = 64 << 20  # bytes that may be written between two checks of free space

SPECIAL_FILES = {
    stat.S_IFIFO: "a pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: str) -> None:
    """Raise UserError for a pipe, a device or a socket, whose content might never end. A missing
    file or a folder passes: opening it raises an error of its own.
    """
    try:
        kind = SPECIAL_FILES.get(stat.S_IFMT(os.stat(path).st_mode))
    except (OSError, ValueError):
        return
    if kind is not None:
        raise UserError(
            f"is {kind}, not a file", "write its content to a file and name that", where=path
        )


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn an OSError that opening or reading a file raises inside this context into a UserError
    that names the file.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or path
        if isinstance(error, IsADirectoryError):
            raise UserError("is a folder, not a file", where=where) from error
        problem = f"cannot be read ({error.strerror})"
        raise UserError(problem, "change its permissions", where=where) from error


def within_free_space(pieces: Iterable[bytes], folder: str) -> Iterator[bytes]:
    """Yield the given pieces one by one, for a caller that writes each to a file in `folder`.

    Raises OSError before a piece that would fill the folder's disk: a small archive may unpack into
    more than any disk holds.
    """
    room = 0
    for piece in pieces:
        if room < len(piece):
            usage = shutil.disk_usage(folder)
            free = usage.free - min(LEFT_FREE_BYTES, usage.total // 20)
            if free < len(piece):
                raise OSError(errno.ENOSPC, f"its content would fill the disk of {folder}")
            room = min(free, LOOK_AGAIN_BYTES)  # other processes write too, so check again later
        room -= len(piece)
        yield piece


@contextlib.contextmanager
def atomic_file(path: str, mode: str = "w", partial: str | None = None) -> Iterator[IO]:
    """Yield a new file, open for writing, that replaces `path` when the block ends without an error
    and is removed otherwise. After a power cut `path` is the old file or the whole new one.

    Args:
      path: if it has a scheme, TensorFlow's file systems decide what is atomic. mode: "w" (UTF-8)
        or "wb". partial: path of the file until it is complete; None = .NAME.PID.partial in the
        same folder.

    Raises: OSError or, for a path with a scheme, tf.errors.OpError.
    """
    folder, name = os.path.split(path)
    partial = partial or os.path.join(folder, f".{name}.{os.getpid()}.partial")
    open_file = remote_file if "://" in path else local_file
    with open_file(path, mode, partial) as file:
        yield file


@contextlib.contextmanager
def local_file(path: str, mode: str, partial: str) -> Iterator[IO]:
    file = open(partial, mode, encoding=None if "b" in mode else "utf-8")
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())  # before the rename, so that no power cut leaves an empty file
        file.close()
        publish(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise


@contextlib.contextmanager
def remote_file(path: str, mode: str, partial: str) -> Iterator[IO]:
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(partial, mode) as file:
            yield file
        tf.io.gfile.rename(partial, path, overwrite=True)
    except BaseException:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(partial)
        raise


def publish(partial: str, path: str) -> None:
    """Rename the file `partial`, whose content is on the disk, to `path`, and write the folder's
    list of names to the disk too.
    """
    os.replace(partial, path)
    # Some file systems cannot sync a folder; the file is complete nevertheless.
    with contextlib.suppress(OSError):
        sync(os.path.dirname(path) or ".")


def sync(path: str) -> None:
    """Write the buffered content of a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: str, text: str) -> None:
    """Write a text file completely or not at all; see `atomic_file`."""
    with atomic_file(path) as file:
        file.write(text)


def write_json(path: str, content: Mapping[str, object]) -> None:
    """Write a JSON object, with a checksum that `read_json` verifies."""
    whole = {**content, CHECKSUM: json_checksum(content)}
    write_text(path, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def json_checksum(content: Mapping[str, object]) -> str:
    """Return the CRC-32C of a JSON object, as 8 hexadecimal digits; the order of keys does not
    matter.
    """
    text = json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    return f"{google_crc32c.value(text.encode()):08x}"


def read_json(
    path: str, what: str, fields: JsonFields | None = None, keys: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the JSON object in a file, without its checksum. Every JSON file is read and checked
    here.

    Args:
      what: the kind of file that is expected, such as "a tokenizer", for messages.
      fields: the types and ranges of values; other keys are not checked.
      keys: keys that must be in the object.

    Raises:
      UserError: the file is not a JSON object (NaN, repeated keys and deep nesting are not
        allowed), a key is missing, a value breaks its field's rules, or the checksum does not
        match.
    """
    check_regular(path)
    try:
        with open(path, encoding="utf-8") as file:
            content = parse_json(file.read())
    except OSError as error:
        problems = {FileNotFoundError: "no such file", IsADirectoryError: "is a folder"}
        problem = problems.get(type(error), f"cannot be read ({error.strerror})")
        raise UserError(problem, f"it should be {what}", where=path) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON ({error})", f"it should be {what}", where=path) from None
    if not isinstance(content, dict):
        raise UserError("must hold a JSON object", f"it should be {what}", where=path)
    missing = [key for key in keys if key not in content]
    if missing:
        raise UserError(f"has no {missing[0]!r}", f"it should be {what}", where=path)
    check_values(path, content, fields or {})
    checksum = content.pop(CHECKSUM, None)
    is_ours = SAVED_ANEW.isdisjoint(content)
    if checksum is not None and is_ours and checksum != json_checksum(content):
        raise UserError(
            "does not match its checksum, so it is damaged",
            f"put back a copy (or, if you have changed it, remove its entry {CHECKSUM!r})",
            where=path,
        )
    return content


def check_values(path: str, content: Mapping[str, object], fields: JsonFields) -> None:
    """Raise UserError if a value in a file's JSON object breaks the rules of its settings field."""
    if error := stored_complaint(content, fields):
        raise error.within(path)


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises ValueError for invalid JSON, and also for what Python's own parser would accept: NaN,
    infinities, numbers too large for a float, repeated keys, deep nesting.
    """

    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is not a JSON number")

    def refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        content = dict(pairs)
        if len(content) < len(pairs):
            twice = collections.Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise ValueError(f"key {twice[:60]!r} is given twice")
        return content

    value = json.loads(
        text,
        parse_constant=refuse_constant,
        object_pairs_hook=refuse_duplicates,
        parse_float=lambda digits: finite(digits, float(digits)),
        parse_int=lambda digits: finite(digits, int(digits) if len(digits) < 400 else math.inf),
    )
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
    if any(isinstance(child, dict | list) for child in level):
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return value


def finite(digits: str, value: float) -> float:
    """Return `value`, the number that `digits` stands for. Raises ValueError when the number is too
    large for a float.
    """
    if not -LARGEST <= value <= LARGEST:
        raise ValueError(f"{digits[:20]}... is too large a number")
    return value


def comma_hint(patterns: str) -> str:
    """Return a hint to append to a message about a missing file: if `patterns`, the names that the
    user gave, has a comma, the comma may belong to a name. Without a comma return "".
    """
    return "; commas separate names: write ? for one in a name" if "," in patterns else ""


def existing_parent(path: str) -> str:
    """Return a path, made absolute, if it exists; else the nearest folder above it that exists."""
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def check_writable(folder: str, setting: str, value: str) -> None:
    """Raise UserError, about a setting and its value, unless `folder` can be written to or
    created.
    """
    path = existing_parent(folder)
    if not os.path.isdir(path):
        raise UserError(
            f"{path} is a file, not a folder", "choose another folder", setting=setting, value=value
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise UserError(
            f"cannot write to {path}",
            "choose another folder, or change its permissions",
            setting=setting,
            value=value,
        )


@contextlib.contextmanager
def only_writer(folder: str, name: str, setting: str, value: str | None = None) -> Iterator[None]:
    """Reserve `folder`, created if needed, for this process by a lock on the hidden file
    .NAME.lock.

    The file is never removed: otherwise a process that has the old file open and one that creates
    a new file could both hold a lock.

    Raises:
      UserError: another process holds the folder, or it cannot be written to; the error names the
        setting and its value.
    """
    path = os.path.join(folder, f".{name}.lock")
    lock = filelock.FileLock(path, timeout=0, preserve_lock_file=True)
    try:
        os.makedirs(folder, exist_ok=True)
        lock.acquire()
        write_holder(path, this_process())  # read for the message below, and by watch/
    except filelock.Timeout as error:
        holder = read_holder(path)
        who = "unknown" if holder is None else str(holder.process_id)
        if holder and holder.host not in (None, socket.gethostname()):
            who += f" on {holder.host}"
        raise UserError(
            f"another process ({who}) writes to {folder}",
            "wait, or end it, or choose another folder",
            setting=setting,
            value=value,
        ) from error
    except OSError as error:
        lock.release()
        raise UserError(
            f"cannot write to {folder} ({error.strerror})",
            "choose another folder",
            setting=setting,
            value=value,
        ) from error
    try:
        yield
    finally:
        lock.release()
