"""The first bytes of a file that is no plain text in, what it is and how to convert it out.

Archives and documents are known by their magic bytes, whatever their names are, and UTF-16 and
UTF-32 by their byte order marks. Other encodings have no mark; WINDOWS-1252, the commonest one,
stands for them.
"""

from bert_gpu.base.errors import UserError

# magic bytes: its name, the ending under which text is unpacked here, what unpacks it anywhere
ARCHIVES = {
    b"\x1f\x8b": ("gzip", ".gz", "gzip -dc < FILE > NEW"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst", "zstd -dc < FILE > NEW"),
    b"\xfd7zXZ\0": ("xz", None, "xz -dc < FILE > NEW"),
    b"BZh": ("bzip2", None, "bzip2 -dc < FILE > NEW"),
    b"PK\x03\x04": ("zip", None, "unzip FILE"),
}
# Documents by their first bytes, then those that are zip archives by what their first entry has in
# its name or content: its name, what extracts its text.
DOCUMENTS = {
    b"%PDF-": ("a PDF", "pdftotext FILE"),
    b"{\\rtf": ("an RTF document", "pandoc -f rtf -t plain FILE"),
}
ZIPPED = {
    b"[Content_Types].xml": ("a document of Microsoft Office", "soffice --convert-to txt FILE"),
    b"application/vnd.oasis.opendocument": ("an OpenDocument", "soffice --convert-to txt FILE"),
    b"application/epub+zip": ("an EPUB", "pandoc -f epub -t plain FILE"),
}
ENTRY_BYTES = 200  # that have the name of the first entry, and the content of a `mimetype`
ENDINGS = tuple(ending for _, ending, _ in ARCHIVES.values() if ending)
BZIP2_BLOCK = slice(4, 10), b"1AY&SY"  # a text may begin with BZh
BYTE_ORDER_MARKS = {  # the longer ones first
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
COMMONEST = "WINDOWS-1252"


def check_plain(name, head, endings=()):
    """UserError when a file begins as an archive or a document, such as a PDF, does, or has the
    zeros of UTF-16.

    Args:
      name: of the file in the message. head: its first bytes, 200 or more where it has them.
      endings: those under which the caller would have unpacked it.
    """
    if document := kind_of_document(head):
        kind, command = document
        raise UserError(f"is {kind}, not plain text", f"extract it, as with {command}", where=name)
    magic = next((magic for magic in ARCHIVES if head.startswith(magic)), None)
    if magic is None or (magic == b"BZh" and head[BZIP2_BLOCK[0]] != BZIP2_BLOCK[1]):
        return check_zeros(name, head)
    kind, ending, command = ARCHIVES[magic]
    remedy = f"unpack it ({command})"
    if ending in endings and not name.lower().endswith(ending):
        remedy = f"give its name the ending {ending}, or {remedy}"
    raise UserError(f"is a {kind} archive, not plain text", remedy, where=name)


def check_zeros(name: str, head: bytes) -> None:
    """UserError when a file's first bytes have the zeros of UTF-16, but no byte order mark."""
    has_mark = head.startswith(tuple(BYTE_ORDER_MARKS))
    if not has_mark and len(head) > 8 and 0.3 < head.count(0) / len(head) < 0.6:
        encoding = "UTF-16LE" if head[1::2].count(0) > head[::2].count(0) else "UTF-16BE"
        raise UserError(
            f"seems to be {encoding} without a byte order mark",
            f"convert it: iconv -f {encoding} -t UTF-8 FILE > NEW",
            where=name,
        )


def kind_of_document(head):
    """(name, what extracts its text) of a document that begins with these bytes, or None."""
    for magic, document in DOCUMENTS.items():
        if head.startswith(magic):
            return document
    if head.startswith(b"PK\x03\x04"):
        entry = head[:ENTRY_BYTES]
        return next((document for part, document in ZIPPED.items() if part in entry), None)
    return None


def not_utf8(name, where, head=b""):
    """The UserError for bytes that are not UTF-8.

    Args:
      name: of the file. where: what in it is not, such as "line 3"; empty for the file itself.
      head: the first bytes of the file, empty if they are no help.
    """
    marks = BYTE_ORDER_MARKS.items()
    found = next((kind for mark, kind in marks if head.startswith(mark)), None)
    problem = f"{where} is not UTF-8".lstrip()
    command = f"iconv -f {found or COMMONEST} -t UTF-8 FILE > NEW"
    if found:
        remedy = f"the file is {found}, so convert it: {command}"
    else:
        remedy = f"convert the file from its encoding; if that is {COMMONEST}: {command}"
    return UserError(problem, remedy, where=name)
