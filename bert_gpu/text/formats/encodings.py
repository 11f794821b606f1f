"""The first bytes of a file that is not plain text -> what it is and how to convert it.

Archives and documents are recognised by their magic bytes, whatever their names are, and UTF-16 and
UTF-32 by their byte order marks. Other encodings have no mark; messages name WINDOWS-1252, the
commonest one.
"""

import typing
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import zstandard

from bert_gpu.base.errors import UserError


class Archive(typing.NamedTuple):
    """A kind of archive or compressed file, a row of ARCHIVES.

    Attributes:
      magic: its first bytes, or several possible ones. command: shell command that unpacks a file.
      endings: endings of the names of files that bert-gpu unpacks itself; empty if it does not.
      start: then returns an unpacker of a member (gzip) or frame (zstd), with decompress(bytes),
        eof and unused_data, which verifies the checksum.
    """

    name: str
    magic: tuple[bytes, ...]
    command: str
    endings: tuple[str, ...] = ()
    start: Callable[[], Any] | None = None


ARCHIVES = (
    Archive(
        name="gzip",
        magic=(b"\x1f\x8b",),
        command="gzip -dc < FILE > NEW",
        endings=(".gz",),
        start=lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    ),
    Archive(
        name="zstd",
        magic=(b"\x28\xb5\x2f\xfd",),
        command="zstd -dc < FILE > NEW",
        endings=(".zst",),
        # the largest window, as `zstd --long=31` writes it
        start=lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(),
    ),
    Archive("xz", (b"\xfd7zXZ\0",), "xz -dc < FILE > NEW"),
    # includes the beginning of a block, because a text may begin with BZh
    Archive("bzip2", tuple(b"BZh%d1AY&SY" % n for n in range(1, 10)), "bzip2 -dc < FILE > NEW"),
    Archive("zip", (b"PK\x03\x04",), "unzip FILE"),
)
ENDINGS = tuple(ending for row in ARCHIVES for ending in row.endings)
# {(first bytes of a document, bytes in the name or content of the first entry if it is a zip
# archive): (name of its kind, command that extracts its text)}
DOCUMENTS = {
    (b"%PDF-", b""): ("a PDF", "pdftotext FILE"),
    (b"{\\rtf", b""): ("an RTF document", "pandoc -f rtf -t plain FILE"),
    (b"PK\x03\x04", b"[Content_Types].xml"): (
        "a document of Microsoft Office",
        "soffice --convert-to txt FILE",
    ),
    (b"PK\x03\x04", b"application/vnd.oasis.opendocument"): (
        "an OpenDocument",
        "soffice --convert-to txt FILE",
    ),
    (b"PK\x03\x04", b"application/epub+zip"): ("an EPUB", "pandoc -f epub -t plain FILE"),
}
# first bytes of a zip archive, which hold the name of its first entry and, if that is `mimetype`,
# the content of this entry
ENTRY_BYTES = 200
BYTE_ORDER_MARKS = {  # the longer ones first
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
COMMONEST = "WINDOWS-1252"


def check_plain(name: str, head: bytes, endings: Sequence[str] = ()) -> None:
    """Raise UserError when a file begins like an archive or a document, such as a PDF, or has the
    zeros of UTF-16.

    Args:
      name: of the file in the message. head: its first bytes, 200 or more where it has them.
      endings: endings of the names of files that the caller would have unpacked.
    """
    for (magic, part), (kind, command) in DOCUMENTS.items():
        if head.startswith(magic) and part in head[:ENTRY_BYTES]:
            raise UserError(
                f"is {kind}, not plain text", f"extract it, as with {command}", where=name
            )
    archive = next((row for row in ARCHIVES if head.startswith(row.magic)), None)
    if archive is None:
        has_mark = head.startswith(tuple(BYTE_ORDER_MARKS))
        if not has_mark and len(head) > 8 and 0.3 < head.count(0) / len(head) < 0.6:
            encoding = "UTF-16LE" if head[1::2].count(0) > head[::2].count(0) else "UTF-16BE"
            raise UserError(
                f"seems to be {encoding} without a byte order mark",
                f"convert it: iconv -f {encoding} -t UTF-8 FILE > NEW",
                where=name,
            )
        return
    remedy = f"unpack it ({archive.command})"
    ending = next(filter(endings.__contains__, archive.endings), None)
    if ending and not name.lower().endswith(ending):
        remedy = f"give its name the ending {ending}, or {remedy}"
    raise UserError(f"is a {archive.name} archive, not plain text", remedy, where=name)


def not_utf8(name: str, where: str, head: bytes = b"") -> UserError:
    """Return the UserError for bytes that are not UTF-8.

    Args:
      name: of the file. where: the part that is not UTF-8, such as "line 3"; empty for the file
        itself. head: the first bytes of the file; empty if these are not known.
    """
    encoding = next(
        (kind for mark, kind in BYTE_ORDER_MARKS.items() if head.startswith(mark)), None
    )
    command = f"iconv -f {encoding or COMMONEST} -t UTF-8 FILE > NEW"
    guess = f"convert the file from its encoding; if that is {COMMONEST}: {command}"
    remedy = f"the file is {encoding}, so convert it: {command}" if encoding else guess
    return UserError(f"{where} is not UTF-8".lstrip(), remedy, where=name)
