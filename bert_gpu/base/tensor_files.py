"""safetensors files with a checksum of their tensors, which is verified when they are read.

The checksum is the CRC-32C of every tensor's name, dtype, shape and bytes, in the metadata of the
file's header. Files without one, of other tools, are read as they are.
"""

import json
import os
import re

import google_crc32c
import numpy as np
import safetensors
import safetensors.numpy

from bert_gpu.base.errors import UserError

KEY = "crc32c"  # in the metadata


def checksum(tensors):
    """8 hexadecimal digits, for {name: array}."""
    crc = 0
    for name in sorted(tensors):
        array = tensors[name]
        entry = f"{name} {array.dtype.str} {array.shape};"
        content = np.asarray(array, order="C").reshape(-1).view(np.uint8)  # no copy
        crc = google_crc32c.extend(google_crc32c.extend(crc, entry.encode()), content)
    return f"{crc:08x}"


def check(path, tensors, metadata):
    """UserError when the tensors do not match the checksum in the metadata of the file's header, if
    there is one. metadata: None where the file has none.
    """
    if metadata and KEY in metadata and metadata[KEY] != checksum(tensors):
        raise UserError("is damaged: its tensors do not match their checksum", where=path)


def metadata_of(content):
    """The metadata in the header of the bytes of a safetensors file; {} without any."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]).get("__metadata__") or {}


def save(tensors):
    """The bytes of a safetensors file of {name: array} that other tools open too."""
    metadata = {"format": "pt", KEY: checksum(tensors)}
    return with_sorted_metadata(safetensors.numpy.save(tensors, metadata=metadata))


def with_sorted_metadata(content):
    """The bytes of a safetensors file with its metadata in alphabetic order: the library writes it
    in another order in each process, but equal tensors should make equal files.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return b"".join((content[:8], text.ljust(end - 8), memoryview(content)[end:]))


def save_file(tensors, path):
    """Writes {name: array}. Raises OSError like any other write."""
    tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    try:
        safetensors.numpy.save_file(tensors, path, metadata={KEY: checksum(tensors)})
    except safetensors.SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), path) from error


def load_file(path):
    """{name: array}. UserError when the file is damaged or cannot be read."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except Exception as error:  # safetensors raises several kinds for corrupt files
        raise UserError(f"cannot be read ({error})", where=path) from error
    check(path, tensors, metadata)
    return tensors
