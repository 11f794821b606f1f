"""Text for embed and fill-mask is read, and refused, as the data script does it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.inference import lines
from bert_gpu.text.config import TextFormat
from bert_gpu.text.corpus import plan_blocks

# The codec that writes a text, and bytes before it: byte order marks, archives and documents.
CODECS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "shift_jis"])
HEADS = st.sampled_from([b""] * 6 + [b"%PDF-1.7\n", b"\x1f\x8b\x08", b"PK\x03\x04", b"{\\rtf1"])
TEXTS = st.text(st.sampled_from("ab é\u3042\n\r\u2028\x85\0"), max_size=60)


def lines_by_definition(content):
    """Lines of bytes without their ends and without the byte order mark."""
    *whole, last = content.split(b"\n")
    found = [line.removesuffix(b"\r") for line in [*whole, *([last] if last else [])]]
    return [line.removeprefix(b"" if i else b"\xef\xbb\xbf") for i, line in enumerate(found)]


def outcome(read, *arguments):
    """(what is read, None) or (None, the message of the UserError)."""
    try:
        return read(*arguments), None
    except UserError as error:
        return None, str(error)


def read_windows(path):
    return [line for window in lines.windows(path, Console(quiet=True)) for line in window]


def test_a_file_is_read_or_refused_as_the_data_script_does(tmp_path, monkeypatch):
    path = tmp_path / "text"
    monkeypatch.setattr(lines, "WINDOW_LINES", 3)
    monkeypatch.setattr(lines.archives, "READ_BYTES", 7)
    refused = []

    @settings(max_examples=120)
    @given(HEADS, TEXTS, CODECS)
    def check(head, text, codec):
        path.write_bytes(head + text.encode(codec, "ignore"))
        documents = TextFormat(input_format="documents")
        _, expected = outcome(plan_blocks, [str(path)], 1 << 20, documents)
        found, problem = outcome(read_windows, str(path))
        refused.append(problem)
        if expected and "has no document" not in expected:
            assert problem == expected
        else:
            assert problem is None and found == lines_by_definition(path.read_bytes())

    check()
    assert 20 < sum(problem is not None for problem in refused) < len(refused) - 20


def test_standard_input_is_read_as_a_file_is(monkeypatch):
    def windows_of(*pieces):
        monkeypatch.setattr(lines, "standard_input", lambda: iter(pieces))
        return list(lines.windows("-", Console(quiet=True)))

    assert windows_of(b"\xef", b"\xbb\xbfa\n", b"b") == [[b"a", b"b"]]
    with pytest.raises(UserError, match="^standard input: line 1 is not UTF-8; the file is UTF-16"):
        windows_of(b"\xff", "a\nb".encode("utf-16")[1:])
