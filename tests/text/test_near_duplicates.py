"""Near duplicates are those that a comparison of all pairs finds, whatever the blocks and workers;
planted copies are found; a document that is removed removes no other.
"""

import functools
import itertools
import random
import unicodedata

import numpy as np
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.text import clean
from bert_gpu.text import near_duplicates as near
from bert_gpu.text.corpus import plan_blocks, read_block
from bert_gpu.text.parallel import Workers

WORDS = [f"word{number}" for number in range(3000)]


@functools.cache
def shingles(text):
    """Return the set of shingles of a text, by Python alone."""
    words = unicodedata.normalize("NFC", text.lower()).split()
    return {tuple(words[start : start + 5]) for start in range(max(1, len(words) - 4))}


def similarity(one, other):
    return len(shingles(one) & shingles(other)) / len(shingles(one) | shingles(other))


def expected(texts, threshold):
    """Return (document, the first that it is similar to, their similarity) of each that a
    comparison with all earlier ones removes.
    """
    rows, kept = [], []
    for index, text in enumerate(texts):
        values = ((first, similarity(text, texts[first])) for first in kept)
        match = next(((first, value) for first, value in values if value >= threshold), None)
        if match:
            rows.append((index, *match))
        else:
            kept.append(index)
    return rows


def changed(draw, text, num_words):
    """Return a text with some of its words replaced, at random places."""
    words = text.split()
    for place in draw.sample(range(len(words)), num_words):
        words[place] = draw.choice(WORDS)
    return " ".join(words)


def planted(seed, num_documents, num_copies):
    """Return texts of 60 to 200 words, and copies of some with a few words replaced, shuffled."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(60, 200))) for _ in range(num_documents)]
    texts += [changed(draw, draw.choice(texts), draw.randint(0, 4)) for _ in range(num_copies)]
    draw.shuffle(texts)
    return texts


def find(folder, texts, threshold=0.8, block_bytes=1000, **settings):
    """Return the rows that the search yields for texts, which are lists of lines or lines."""
    lines = [[text] if isinstance(text, str) else text for text in texts]
    path = folder / "text.txt"
    path.write_text("\n\n".join(map("\n".join, lines)) + "\n")
    blocks = plan_blocks([str(path)], block_bytes)
    assert sum(len(read_block(block)) for block in blocks) == len(texts)
    found = near.find_near_duplicates(blocks, str(folder / "spool"), threshold, **settings)
    assert not (folder / "spool").exists()
    return found.tolist()


def test_recall_on_planted_copies(tmp_path):
    """A copy counts if the similarity to its original is at least .8: of 300 at least 297 go."""
    draw = random.Random(5)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(60, 200))) for _ in range(300)]
    copies = []
    for text in texts:
        copy = text
        while similarity(further := changed(draw, copy, 1), text) >= 0.8:
            copy = further
        copies.append(copy)
    assert np.mean([similarity(*pair) for pair in zip(texts, copies, strict=True)]) < 0.84
    rows = find(tmp_path, texts + copies)
    assert len(rows) >= 297
    assert all(document == first + 300 for document, first, _ in rows)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_rows_are_those_of_a_comparison_of_all_pairs(tmp_path, threshold):
    """The seed is fixed: of 120 copies none is among those that MinHash may miss."""
    texts = planted(3, 100, 120)
    rows = find(tmp_path, texts, threshold)
    assert rows == expected(texts, threshold)
    assert len(rows) > 10


def test_rows_depend_neither_on_blocks_nor_on_workers_nor_on_memory(tmp_path, monkeypatch):
    texts = planted(4, 60, 60)
    whole = find(tmp_path, texts, block_bytes=10**6)
    assert len(whole) > 20
    assert find(tmp_path, texts, block_bytes=1) == whole
    monkeypatch.setattr(clean, "ROWS_IN_MEMORY", 50)
    monkeypatch.setattr(
        near,
        "map_blocks",
        lambda function, blocks, *_: map(function, ([block] for block in reversed(blocks))),
    )
    assert find(tmp_path, texts, workers=Workers(3)) == whole


def test_a_removed_document_removes_no_other(tmp_path):
    """In a chain A ~ B ~ C, of which A and C are less similar than the threshold, C stays."""
    words = WORDS[:100]
    a, b, c = (" ".join(words[start : start + 80]) for start in (0, 6, 12))
    assert similarity(a, b) == similarity(b, c) >= 0.85 > 0.8 > similarity(a, c)
    assert [row[:2] for row in find(tmp_path, [a, b, c])] == [(1, 0)]
    assert [row[:2] for row in find(tmp_path, [b, a, c])] == [(1, 0), (2, 0)]
    assert [row[:2] for row in find(tmp_path, [c, a, b])] == [(2, 0)]


def test_case_lines_and_spaces_do_not_matter_and_short_documents_must_be_equal(tmp_path):
    texts = [
        ["one two three four five six", "seven"],
        "ONE two three  four five six seven",
        "a b c",
        "A\tb c",
        "a b d",
        "a b",
        "\u200b",  # no word
        "\ufeff",
        ["Été à la mer avec toi", "demain"],
        "été À la mer avec toi demain",
        "中文的句子是這樣寫的",
        "中文的句 子是這樣寫的",
        "中文的句子是這樣寫成",
    ]
    rows = find(tmp_path, texts, 0.9)
    assert [row[:2] for row in rows] == [(1, 0), (3, 2), (7, 6), (9, 8), (11, 10)]
    assert {row[2] for row in rows} == {1.0}


def test_many_copies_of_one_document_are_compared_with_the_first(tmp_path):
    texts = ["the same notice on every page of it"] * 500
    assert find(tmp_path, texts) == [(index, 0, 1.0) for index in range(1, 500)]


def test_bands_have_the_recall_of_their_definition():
    assert near.choose_bands(0.8) == near.choose_bands(1.0) == (25, 5)
    for threshold in np.arange(0.5, 1.0, 0.01):
        bands, rows = near.choose_bands(threshold)
        assert bands * rows <= near.NUM_HASHES and (1 - threshold**rows) ** bands <= 0.01
        assert rows == 5 or (1 - threshold ** (rows + 1)) ** (125 // (rows + 1)) > 0.01


def test_functions_agree_with_the_probability_that_is_the_similarity():
    """1,000 sets of 40 hashes, of which 20 are common: the share of equal least values is 1/3."""
    draw = np.random.default_rng(1)
    hashes = draw.integers(1 << 32, size=(1000, 60), dtype=np.uint32)
    values = hashes[..., None] * near.FACTORS + near.OFFSETS
    is_equal = values[:, :40].min(1) == values[:, 20:].min(1)
    assert abs(is_equal.mean() - 1 / 3) < 3 * (2 / 9 / is_equal.size) ** 0.5
    # The functions are independent enough: the sum of 125 varies like 125 draws.
    assert 0.9 < is_equal.sum(1).var() / (125 * 2 / 9) < 1.15


def test_a_full_disk_and_a_changed_text_are_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b c\n\nd e f\n")
    blocks = plan_blocks([str(path)], 1)
    with pytest.raises(UserError, match="cannot be used to look for duplicates"):
        near.find_near_duplicates(blocks, str(path / "spool"), 0.8)
    path.write_text("c\n")
    with pytest.raises(UserError, match="changed"):
        near.find_near_duplicates(blocks, str(tmp_path / "spool"), 0.8)
    assert not (tmp_path / "spool").exists()


# -- repeated sentences


def repeated(folder, documents, limit, block_bytes, is_used=None):
    """Return (the documents without repeated sentences, the number of places)."""
    path = folder / "text.txt"
    path.write_text("\n\n".join(map("\n".join, documents)) + "\n")
    blocks = plan_blocks([str(path)], block_bytes)
    is_used = np.ones(len(documents), bool) if is_used is None else is_used
    spool, total = clean.find_repeated(blocks, str(folder / "spool"), limit, is_used)
    read = list(itertools.chain.from_iterable(map(read_block, blocks)))
    return (clean.drop_repeated(read, spool) if total else read), total


@pytest.mark.parametrize("rows_in_memory", [3, 1 << 20])
@pytest.mark.parametrize("block_bytes", [1, 40, 10**6])
def test_repeated_sentences_are_those_of_more_than_so_many_documents(
    tmp_path, monkeypatch, rows_in_memory, block_bytes
):
    monkeypatch.setattr(clean, "ROWS_IN_MEMORY", rows_in_memory)
    documents = [
        ["Menu", "One.", f"Page {number}", *["Twice"] * (number < 4)] for number in range(9)
    ]
    documents += [["menu", "PAGE 9"], ["Été 5", "one."], ["e\u0301te\u0301 77"]]
    documents += [["été", "menus"]]
    plain = ["menu", "one.", "page ", "twice", "été ", "été", "menus"]
    counts = [10, 10, 10, 4, 2, 1, 1]
    for limit in (1, 2, 4, 9, 10):
        gone = {line for line, count in zip(plain, counts, strict=True) if count > limit}
        left, total = repeated(tmp_path, documents, limit, block_bytes)
        lines = [[line.encode() for line in document] for document in documents]
        stay = [
            [line for line in document if clean.plain_lines([line])[0] not in gone]
            for document in lines
        ]
        assert left == [document for document in stay if document]
        assert total == sum(count for count in counts if count > limit)


def test_a_document_counts_once_and_dropped_documents_do_not_count(tmp_path):
    documents = [["a", "a", "a"], ["b", "a"], ["b"]]
    assert repeated(tmp_path, documents, 1, 1) == ([], 4)
    is_used = np.array([True, False, True])
    assert repeated(tmp_path, documents, 1, 1, is_used)[1] == 0


@pytest.mark.parametrize("count", [0, 3])
def test_case_and_the_form_of_letters_do_not_matter(tmp_path, count):
    """Copies in upper case, in NFD and in both, of texts with accents, Greek and Hangul."""
    draw = random.Random(3)
    words = [
        "\u00e9t\u00e9",
        "n\u00e3o",
        "\u03ad\u03c1\u03b3\u03bf",
        "\uac00\ub098",
        "plain",
        "\u1ea1\u0303b",
    ]
    texts = [
        " ".join(f"{draw.choice(words)}{draw.randrange(99)}" for _ in range(30)) for _ in "abc"
    ]
    forms = [str, str.upper, lambda text: unicodedata.normalize("NFD", text)]
    forms.append(lambda text: unicodedata.normalize("NFD", text.upper()))
    copies = [form(text) for form in forms for text in texts]
    removed = find(tmp_path, copies, workers=Workers(count))
    assert removed == [(row, row % 3, 1.0) for row in range(3, 12)]
