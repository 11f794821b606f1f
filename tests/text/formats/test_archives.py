"""Unpacking gives the original text; complete files are kept; errors name a broken archive, which
leaves no file.
"""

import gzip
import os
import pathlib

import pytest
import zstandard

from bert_gpu.base.errors import UserError
from bert_gpu.text.config import LINES
from bert_gpu.text.formats import archives

TEXT = "".join(f"Sentence {number} of a text.\n" for number in range(5000)).encode()
PACK = {"gz": gzip.compress, "zst": zstandard.ZstdCompressor(write_checksum=True).compress}


def unpack(paths, folder, report=lambda num_bytes: None):
    plain, formats = archives.unpack(paths, [LINES] * len(paths), folder, report)
    assert formats == [LINES] * len(paths)
    return plain


def compressed_bytes(paths):
    return archives.packed_bytes(paths, [LINES] * len(paths))


def pack_without_size(text):
    return zstandard.ZstdCompressor(write_content_size=False).compress(text)


def write(folder, content, name):
    path = folder / name
    path.write_bytes(content)
    return str(path)


def read(path):
    return pathlib.Path(path).read_bytes()


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 12])
@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_what_was_packed_comes_out(tmp_path, monkeypatch, ending, piece_bytes):
    monkeypatch.setattr(archives, "PIECE_BYTES", piece_bytes)
    pack = PACK[ending]
    contents = [
        pack(TEXT),
        pack(b""),
        pack(b"one\n") + pack(b"") + pack(TEXT),
        pack(b"one\n") + bytes(99),
    ]
    if ending == "zst":
        contents[2] = pack(b"one\n") + b"\x50\x2a\x4d\x18\x04\0\0\0skip" + pack_without_size(TEXT)
    paths = [
        write(tmp_path, content, f"{number}.txt.{ending}")
        for number, content in enumerate(contents)
    ]
    plain = write(tmp_path, TEXT, "plain.txt")
    reported = []
    unpacked = unpack([paths[0], plain, *paths[1:]], str(tmp_path / "spool"), reported.append)
    assert unpacked[1] == plain and os.path.basename(unpacked[0]).endswith("-0.txt")
    texts = [read(path) for path in unpacked]
    assert texts == [TEXT, TEXT, b"", b"one\n" + TEXT, b"one\n"]
    assert sum(reported) == compressed_bytes([*paths, plain]) == sum(map(len, contents))


def test_what_is_whole_is_kept_until_the_source_changes(tmp_path, monkeypatch):
    source = write(tmp_path, gzip.compress(TEXT), "a.gz")
    (path,) = unpack([source], str(tmp_path / "spool"))
    pieces = archives.unpacked_pieces
    monkeypatch.setattr(archives, "unpacked_pieces", lambda *_: pytest.fail("unpacked again"))
    reported = []
    assert unpack([source], str(tmp_path / "spool"), reported.append) == [path] and sum(
        reported
    ) == os.path.getsize(source)
    monkeypatch.setattr(archives, "unpacked_pieces", pieces)
    times = os.stat(source)
    write(tmp_path, gzip.compress(TEXT.replace(b"a text", b"A text")), "a.gz")
    os.utime(source, (times.st_atime, times.st_mtime))
    (other,) = unpack([source], str(tmp_path / "spool"))
    assert other != path and b"A text" in read(other)


def test_what_was_half_unpacked_is_done_again(tmp_path):
    source = write(tmp_path, gzip.compress(TEXT), "a.gz")
    (path,) = unpack([source], str(tmp_path / "spool"))
    os.rename(path, f"{path}.unfinished")
    os.truncate(f"{path}.unfinished", 10)
    assert unpack([source], str(tmp_path / "spool")) == [path]
    assert read(path) == TEXT and os.listdir(tmp_path / "spool") == [os.path.basename(path)]


@pytest.mark.parametrize("has_folder", [True, False])
@pytest.mark.parametrize("ending", ["gz", "zst"])
@pytest.mark.parametrize(
    "damage, problem",
    [
        (lambda packed: packed[:-1], "truncated"),
        (lambda packed: packed[: len(packed) // 2], "truncated"),
        (lambda packed: b"", "truncated"),
        (lambda packed: packed + packed[:9], "truncated"),
        (lambda packed: b"plain text in it", "corrupt"),
        (lambda packed: packed[:-6] + bytes(6), "corrupt"),
        (lambda packed: packed + b"more, not packed", "corrupt"),
    ],
)
def test_a_broken_archive_is_named_and_leaves_nothing(
    tmp_path, ending, damage, problem, has_folder
):
    source = write(tmp_path, damage(PACK[ending](TEXT)), f"a.txt.{ending}")
    spool = tmp_path / "spool"
    if has_folder:
        spool.mkdir()
    with pytest.raises(UserError) as error:
        unpack([source], str(spool))
    message = str(error.value)
    assert (
        message.startswith(f"{source}: the archive is {problem}")
        and "\n" not in message
        and len(message) <= 300
    )
    assert spool.exists() == has_folder and not (has_folder and os.listdir(spool))


def test_what_cannot_be_read_or_written_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no such file"):
        unpack([str(tmp_path / "absent.gz")], str(tmp_path / "spool"))
    (tmp_path / "folder.gz").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        unpack([str(tmp_path / "folder.gz")], str(tmp_path / "spool"))
    source = write(tmp_path, gzip.compress(TEXT), "a.gz")
    with pytest.raises(UserError, match="cannot be unpacked to .*; choose another folder"):
        unpack([source], str(tmp_path / "a.gz" / "spool"))
    monkeypatch.setattr(
        archives.os,
        "fsync",
        lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    with pytest.raises(UserError, match="No space left on device.*make room"):
        unpack([source], str(tmp_path / "spool"))
    assert not (tmp_path / "spool").exists()
