"""Compressed text in, plain files in a spool folder out, because only a plain file can be read from
the middle.

The name of a spool file has a hash of the compressed bytes, and the file gets it when it is
complete: an existing file need not be unpacked again, and a changed source gets another name.
"""

import hashlib
import os
import zlib

import tensorflow as tf
import zstandard

from bert_gpu.settings import UserError

READ_BYTES = 1 << 20
PIECE_BYTES = 1 << 12  # unpacked at once; a run of one character may grow 32,000-fold, to 128 MiB
ENDINGS = (".gz", ".zst")
LARGEST_ZSTD_WINDOW = 1 << 31  # bytes; the maximum, as `zstd --long=31` writes it


def is_compressed(path):
    return path.endswith(ENDINGS)


def compressed_bytes(paths):
    """The total that `unpack` will report: the size of the compressed files among the paths."""
    return sum(tf.io.gfile.stat(path).length for path in paths if is_compressed(path))


def unpack(paths, folder, report=lambda num_bytes: None):
    """Unpacks the compressed files among the paths.

    Args:
      paths: list of str. Files that end in .gz or .zst (with one or several members or frames) are
        unpacked; others stay as they are.
      folder: of the plain files; created when it is needed. Complete files of an earlier call are
        kept while their source has not changed.
      report: called with the number of compressed bytes done since the last call; they add up to
        the size of the compressed files.

    Returns:
      list of str, one per path.

    Raises:
      UserError: a file is missing, truncated or corrupt, or the disk is full. The
        incomplete file is removed.
    """
    return [unpack_file(path, folder, report) if is_compressed(path) else path for path in paths]


def unpack_file(path, folder, report):
    try:
        target = os.path.join(
            folder, f"{content_hash(path)}-{os.path.splitext(os.path.basename(path))[0]}"
        )
    except (FileNotFoundError, tf.errors.NotFoundError):
        raise UserError(f"{path}: no such file; check the path"[:300]) from None
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"{path}: cannot be read ({type(error).__name__}); name a readable file"[:300]
        ) from None
    if os.path.exists(target):
        report(tf.io.gfile.stat(path).length)
        return target
    unfinished = f"{target}.unfinished"
    created_folder = not os.path.exists(folder)
    try:
        os.makedirs(folder, exist_ok=True)
        with open(unfinished, "wb") as file:
            for text in unpacked_pieces(path, report):
                file.write(text)
            file.flush()
            # otherwise a power failure could leave the name without the content
            os.fsync(file.fileno())
        os.rename(unfinished, target)
        return target
    except (OSError, tf.errors.OpError, EOFError, zlib.error, zstandard.ZstdError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            problem = (
                f"cannot be unpacked to {folder} ({error.strerror}); "
                "make room or choose another folder"
            )
        elif isinstance(error, EOFError):
            problem = "the archive is truncated; copy it again"
        else:
            problem = (
                f"the archive is corrupt ({' '.join(str(error).split())[:80]}); "
                "copy it again, or rename it if it is not compressed"
            )
        raise UserError(f"{path}: {problem}"[:300]) from None
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        if created_folder and os.path.exists(folder) and not os.listdir(folder):
            os.rmdir(folder)


def content_hash(path):
    """32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    with tf.io.gfile.GFile(path, "rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


def unpacked_pieces(path, report):
    """Yields the plain bytes. Raises EOFError when the file ends too early, zlib.error or ZstdError
    when it is corrupt.
    """
    unpacker = start_member(path)
    with tf.io.gfile.GFile(path, "rb") as file:
        while packed := file.read(READ_BYTES):
            for first in range(0, len(packed), PIECE_BYTES):
                rest = packed[first : first + PIECE_BYTES]
                while rest:
                    if unpacker.eof:
                        rest = rest.lstrip(b"\0")  # some tools pad the file with zeros
                        if not rest:
                            break
                        unpacker = start_member(path)
                    yield unpacker.decompress(rest)
                    rest = unpacker.unused_data if unpacker.eof else b""
            report(len(packed))
    if not unpacker.eof:
        raise EOFError


def start_member(path):
    """An unpacker of one gzip member or zstd frame, with decompress(bytes), eof and unused_data.
    Both verify the checksum at the end.
    """
    if path.endswith(".gz"):
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    return zstandard.ZstdDecompressor(max_window_size=LARGEST_ZSTD_WINDOW).decompressobj()
