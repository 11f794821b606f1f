"""A normalised sentence is still one sentence; duplicates are those that a dict of whole documents
finds; temporary files are removed.
"""

import itertools
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_gpu.base.errors import UserError
from bert_gpu.text import clean
from bert_gpu.text.clean import find_duplicates, normalize
from bert_gpu.text.config import NORMALIZATIONS
from bert_gpu.text.corpus import plan_blocks, read_block


@pytest.fixture(scope="module")
def characters():
    """All but spaces, surrogates, and those without a meaning, which Unicode keeps as they are."""
    found = map(chr, range(sys.maxunicode + 1))
    meanings = [one for one in found if unicodedata.category(one) not in ("Cn", "Co", "Cs")]
    return [one.encode() for one in meanings if one.strip()]


@pytest.mark.parametrize("form", NORMALIZATIONS)
def test_every_character_stays_a_sentence(form, characters):
    assert len(characters) > 100_000
    for sentence, result in zip(characters, normalize(characters, form), strict=True):
        text = result.decode()
        assert text and text == text.strip() and b"\n" not in result
        assert form == "none" or text == unicodedata.normalize(form, sentence.decode()).strip()


def test_forms():
    text = ["ﬁne Ａ e\u0301".encode(), b"plain"]
    assert normalize(text, "none") is text
    assert normalize(text, "NFC") == ["ﬁne Ａ é".encode(), b"plain"]
    assert normalize(text, "NFKC") == ["fine A é".encode(), b"plain"]


def expected_duplicates(documents, form, lowers):
    """Whether an earlier document has the same sentences in NFC, and in lower case if `lowers`."""
    seen = set()
    texts = [b"\n".join(normalize(document, form)).decode() for document in documents]
    keys = [unicodedata.normalize("NFC", text.lower() if lowers else text) for text in texts]
    return [key in seen or seen.add(key) or False for key in keys]


@pytest.mark.parametrize("rows_in_memory", [2, 7, 1 << 20])
def test_duplicates_are_those_of_a_set_of_documents(tmp_path_factory, monkeypatch, rows_in_memory):
    monkeypatch.setattr(clean, "ROWS_IN_MEMORY", rows_in_memory)
    folder = tmp_path_factory.mktemp("clean")
    path, spool = folder / "text.txt", folder / "spool"
    letters = ["a", "A", "a b", "ﬁ", "fi", "é", "e\u0301", "É", "E\u0301", "ΑΣ", "ας", "\uac00"]
    sentences = st.sampled_from([*letters, "\u1100\u1161", "\u212b", "Å", "İ", "i\u0307"])

    @given(
        st.lists(st.lists(sentences, min_size=1, max_size=3), min_size=1, max_size=40),
        st.sampled_from([1, 20, 10**6]),
    )
    def check(documents, block_bytes):
        path.write_text("\n\n".join("\n".join(document) for document in documents))
        blocks = plan_blocks([str(path)], block_bytes)
        read = [document for block in blocks for document in read_block(block)]
        assert len(read) == len(documents)
        for form, lowers in itertools.product(("none", "NFKC"), (False, True)):
            found = find_duplicates(blocks, str(spool), lowers, normalization=form)
            assert found.dtype == bool and found.tolist() == expected_duplicates(read, form, lowers)
            assert not spool.exists()

    check()


def test_duplicates_do_not_depend_on_the_order_in_which_blocks_are_done(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"document {number % 70}\n\n" for number in range(200)))
    blocks = plan_blocks([str(path)], 100)
    monkeypatch.setattr(clean, "ROWS_IN_MEMORY", 30)
    monkeypatch.setattr(
        clean,
        "map_blocks",
        lambda function, blocks, *_: map(function, ([block] for block in reversed(blocks))),
    )
    assert find_duplicates(blocks, str(tmp_path / "spool")).tolist() == [False] * 70 + [True] * 130


def test_sentences_are_told_apart_from_their_sum(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a\nb\n\na b\n\nab\n\na\nb\n")
    assert find_duplicates(plan_blocks([str(path)], 1), str(tmp_path / "spool")).tolist() == [
        False,
        False,
        False,
        True,
    ]


def test_files_stay_small_when_most_documents_are_one(tmp_path, monkeypatch):
    monkeypatch.setattr(clean, "ROWS_IN_MEMORY", 50)
    path = tmp_path / "text.txt"
    path.write_text(
        "".join(
            "not found\n\n" if number % 10 else f"document {number}\n\n" for number in range(5000)
        )
    )
    sizes = []
    mark = clean.mark_repeats
    monkeypatch.setattr(
        clean, "mark_repeats", lambda rows, *rest: sizes.append(len(rows)) or mark(rows, *rest)
    )
    found = find_duplicates(plan_blocks([str(path)], 100), str(tmp_path / "spool"))
    assert found.sum() == 4499 and max(sizes) < 200


def test_what_a_killed_run_left_is_not_counted(tmp_path):
    path, spool = tmp_path / "text.txt", tmp_path / "spool"
    path.write_text("a\n\nb\n\na\n")
    blocks = plan_blocks([str(path)], 1)
    spool.mkdir()
    clean.hash_documents(blocks[1:], "none").tofile(spool / "hashes-00000")
    assert find_duplicates(blocks, str(spool)).tolist() == [False, False, True]
    assert not spool.exists()


def test_no_documents(tmp_path):
    assert find_duplicates([], str(tmp_path / "spool")).tolist() == []


def test_an_unusable_folder_and_changed_text_are_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a\n\nb\n")
    blocks = plan_blocks([str(path)], 1)
    with pytest.raises(UserError, match="cannot be used to look for duplicates"):
        find_duplicates(blocks, str(path / "spool"))
    path.write_text("c\n")
    with pytest.raises(UserError, match="changed"):
        find_duplicates(blocks, str(tmp_path / "spool"))
    assert not (tmp_path / "spool").exists()
