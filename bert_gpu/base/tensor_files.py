"""Reads and writes safetensors files with a checksum of their tensors, which reading verifies.

The checksum is the CRC-32C of every tensor's name, dtype, shape and bytes, in the metadata of the
file's header. Other tools' files have no checksum and are read without that check.
"""

import json
import os
import re
import stat
from collections.abc import Mapping

import google_crc32c
import numpy as np
import safetensors
import safetensors.numpy

from bert_gpu.base.errors import UserError

KEY = "crc32c"  # key of the checksum in a file's metadata


def checksum(tensors: Mapping[str, np.ndarray]) -> str:
    """Return the checksum of {name: tensor}, as 8 hexadecimal digits."""
    crc = 0
    for name in sorted(tensors):
        array = tensors[name]
        entry = f"{name} {array.dtype.str} {array.shape};"
        content = np.asarray(array, order="C").reshape(-1).view(np.uint8)  # bytes, not copied
        crc = google_crc32c.extend(google_crc32c.extend(crc, entry.encode()), content)
    return f"{crc:08x}"


def check(path: str, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None) -> None:
    """Raise UserError when the tensors of a file do not match the checksum in its metadata."""
    if metadata and KEY in metadata and metadata[KEY] != checksum(tensors):
        raise UserError("is damaged: its tensors do not match their checksum", where=path)


def metadata_of(content: bytes) -> dict[str, str]:
    """Return the metadata in a safetensors file's header, given the file's bytes; {} if it has
    none.
    """
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]).get("__metadata__") or {}


def save(tensors: dict[str, np.ndarray]) -> bytes:
    """Return the bytes of a safetensors file with these tensors, which other tools can read too."""
    metadata = {"format": "pt", KEY: checksum(tensors)}
    return with_sorted_metadata(safetensors.numpy.save(tensors, metadata=metadata))


def with_sorted_metadata(content: bytes) -> bytes:
    """Return the bytes of a safetensors file with its metadata in alphabetic order.

    The library writes the metadata in another order in each process, but equal tensors should make
    equal files.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return b"".join((content[:8], text.ljust(end - 8), memoryview(content)[end:]))


def save_file(tensors: Mapping[str, np.ndarray], path: str) -> None:
    """Write tensors to a file. Raises OSError when that fails."""
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    # safetensors replaces the file by one that only its owner may read
    with open(path, "wb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    try:
        safetensors.numpy.save_file(arrays, path, metadata={KEY: checksum(arrays)})
    except safetensors.SafetensorError as error:
        match = re.search(r"os error (\d+)", str(error))
        if match is None:
            raise
        raise OSError(int(match[1]), os.strerror(int(match[1])), path) from error
    os.chmod(path, mode)


def load_file(path: str) -> dict[str, np.ndarray]:
    """Return the tensors of a file. Raises UserError when it is damaged or cannot be read."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except Exception as error:  # safetensors raises several kinds for corrupt files
        raise UserError(f"cannot be read ({error})", where=path) from error
    check(path, tensors, metadata)
    return tensors
