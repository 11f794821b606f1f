"""What is said of files that are not UTF-8, and that it works."""

import bz2
import gzip
import io
import lzma
import pathlib
import re
import subprocess
import zipfile

import pytest
import zstandard

from bert_gpu.base.errors import UserError
from bert_gpu.text import corpus
from bert_gpu.text.config import TextFormat
from bert_gpu.text.formats import archives, containers

TEXT = "caf\xe9\n\nna\xefve\n"
ENCODINGS = {"cp1252": "WINDOWS-1252", "utf-16": "UTF-16", "utf-32": "UTF-32"}
PACKERS = dict(
    gzip=gzip.compress, zstd=zstandard.compress, xz=lzma.compress, bzip2=bz2.compress, zip=None
)


def packed(kind, content, folder):
    if kind != "zip":
        return PACKERS[kind](content)
    with zipfile.ZipFile(folder / "made.zip", "w") as file:
        file.writestr("NEW", content)  # not compressed, so that the archive might be UTF-8
    return (folder / "made.zip").read_bytes()


def refusal(path, read):
    with pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and len(message) <= 300
    return message


def as_lines(path):
    corpus.plan_blocks([str(path)], 1000)


def as_json(path):
    pieces = archives.plain_pieces(str(path), lambda num_bytes: None)
    list(containers.json_texts(pieces, TextFormat(input_format="json"), str(path)))


def as_csv(path):
    pieces = archives.plain_pieces(str(path), lambda num_bytes: None)
    list(containers.table_texts(pieces, TextFormat(input_format="csv"), str(path)))


@pytest.mark.parametrize("read", [as_lines, as_csv])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_advice_converts_the_text(tmp_path, encoding, read):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT.encode(encoding))
    message = refusal(path, read)
    assert "line 1 is not UTF-8; " in message and ENCODINGS[encoding] in message
    follow(message, tmp_path)
    assert (tmp_path / "NEW").read_text(encoding="utf-8") == TEXT


@pytest.mark.parametrize("read", [as_lines, as_csv])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_known_by_its_zeros(tmp_path, encoding, read):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT.encode(encoding))
    message = refusal(path, read)
    assert "without a byte order mark" in message
    follow(message, tmp_path)
    assert (tmp_path / "NEW").read_text(encoding="utf-8") == TEXT


@pytest.mark.parametrize("read", [as_lines, as_csv, as_json])
@pytest.mark.parametrize("kind", PACKERS)
def test_the_advice_unpacks_an_archive(tmp_path, kind, read):
    path = tmp_path / "a.txt"
    path.write_bytes(packed(kind, TEXT.encode("utf-8"), tmp_path))
    if (kind, read) == ("zip", as_json):
        pytest.skip("no JSON, but UTF-8")
    message = refusal(path, read)
    assert f": is a {kind} archive, not plain text; " in message
    follow(message, tmp_path)
    assert (tmp_path / "NEW").read_text(encoding="utf-8") == TEXT
    assert ("give its name the ending" in message) == (kind in ("gzip", "zstd"))


def zipped(name, content):
    """A zip archive whose time has the bytes of CR and LF."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name, (2026, 11, 28, 1, 40, 20)), content)
    assert b"\r" in file.getvalue()[:30] and b"\n" in file.getvalue()[:30]
    return file.getvalue()


@pytest.mark.parametrize("read", [as_lines, as_csv, as_json])
@pytest.mark.parametrize(
    "content, kind, command",
    [
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a PDF", "pdftotext FILE"),
        (b"{\\rtf1\\ansi caf\xe9\n}", "an RTF document", "pandoc -f rtf -t plain FILE"),
        (
            zipped("[Content_Types].xml", b"\xff"),
            "a document of Microsoft Office",
            "soffice --convert-to txt FILE",
        ),
        (
            zipped("mimetype", "application/vnd.oasis.opendocument.text") + b"\xff",
            "an OpenDocument",
            "soffice --convert-to txt FILE",
        ),
        (
            zipped("mimetype", "application/epub+zip") + b"\xff",
            "an EPUB",
            "pandoc -f epub -t plain FILE",
        ),
    ],
)
def test_a_document_is_named_with_what_extracts_its_text(tmp_path, content, kind, command, read):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    message = refusal(path, read)
    assert message.endswith(f": is {kind}, not plain text; extract it, as with {command}")


def follow(message, folder):
    """Does what a message says to a.txt."""
    (shell,) = re.findall(r"\(?((?:iconv|unzip|\w+ -dc) [^)]*FILE[^)]*)", message)
    pathlib.Path(folder / "a.txt").rename(folder / "FILE")
    subprocess.run(shell, shell=True, cwd=folder, check=True, capture_output=True, timeout=60)


def test_an_archive_in_an_archive_is_to_be_unpacked(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    assert refusal(path, as_lines).endswith("; unpack it (gzip -dc < FILE > NEW)")


def test_a_text_may_begin_as_an_archive_might(tmp_path):
    (tmp_path / "a.txt").write_text("BZh is no word\n")
    as_lines(tmp_path / "a.txt")
