"""Each poor shape of text gets its warning, and good ones get none."""

import json
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.base.errors import UserError
from bert_gpu.text import quality
from bert_gpu.text.config import TextFormat
from bert_gpu.text.corpus import plan_blocks
from bert_gpu.text.formats import inputs
from bert_gpu.text.tokenizers.open import open_tokenizer

SENTENCES = [
    f"The {kind} of the house had {number} doors, and the wind came through every one of them."
    for number in range(10)
    for kind in ("front", "back", "side")
]
GUTENBERG = """\
It was the best of the long winter evenings, when the people of the
village came together in the room behind the shop. Nobody remembered who
had begun it, and nobody asked. There was a stove, and there were chairs
enough for those who came early.

The miller told the same story as ever, of the year in which the river
stood still and the wheel with it. His wife had heard it before. She knew
when to laugh, and the others laughed when she did.
"""


def paragraphs(num_sentences, count=40):
    return [
        " ".join(SENTENCES[(i + j) % len(SENTENCES)] for j in range(num_sentences))
        for i in range(count)
    ]


@pytest.fixture(autouse=True)
def without_copies(monkeypatch):
    """The texts here are a few sentences, again and again; test_repetition.py looks at that."""
    monkeypatch.setattr(quality, "COPIES_SHARE", 1)


JSON_LINES = "".join(json.dumps({"text": text}) + "\n" for text in paragraphs(3, 5))


def warnings_of(tmp_path, text, objective="nsp", **settings):
    path = tmp_path / "text"
    path.write_text(text, encoding="utf-8")
    text_format = TextFormat(**settings)
    ((kind, _),) = inputs.decide([str(path)], ["text"], text_format)
    blocks = plan_blocks([str(path)], 1 << 20, text_format.replaced(kind))
    return quality.shape_warnings(blocks, quality.sample(blocks), objective)


GOOD = "\n\n".join("\n".join(SENTENCES[:9]) for _ in range(9))
HTML = "\n".join(f"<p>{text}</p>" for text in paragraphs(3))
WIKI = "\n".join(f"[[House|{number}]] {text}" for number, text in enumerate(paragraphs(3)))


@pytest.mark.parametrize(
    "text, settings, parts",
    [
        (
            "\n".join(SENTENCES * 3),
            {},
            ["a document has 90 lines", "blank lines"],
        ),
        (JSON_LINES * 4, dict(input_format="lines"), ["look like JSON", "--input_format=jsonl"]),
        (JSON_LINES, dict(input_format="documents"), ["look like JSON"]),
        (HTML, {}, ["look like markup", "<p>The front", "extract the plain text"]),
        (WIKI, {}, ["look like markup", "[[House|0]]"]),
        (GOOD.replace("and the", "&amp; the"), {}, ["look like markup"]),
        (
            "".join(f"# Part {i}\n\n{text}\n\n" for i, text in enumerate(paragraphs(1))) * 2,
            dict(objective="packed"),
            ["look like markup", "# Part 0"],
        ),
        (GOOD.replace("the wind", "**the wind**"), {}, ["look like markup"]),
        (GOOD.replace("the wind", "the wind \\cite{a}"), {}, ["look like markup"]),
        ("id,text\n" + "".join(f'1,"{t}"\n' for t in SENTENCES), {}, ["--input_format=csv"]),
        (',text\n1,"A ""big"",\n old house. It fell."\n2,b\n', {}, ["--input_format=csv"]),
        ("id\ttext\n" + "".join(f"1\t{t} {t}\n" for t in SENTENCES), {}, ["--input_format=tsv"]),
        (GUTENBERG * 9, dict(objective=None), ["break off within a sentence"]),
        (HTML, dict(objective=None), ["look like markup"]),
        (GUTENBERG * 9, {}, ["break off within a sentence", "join the lines"]),
        (
            "\n\n".join("\n".join(paragraphs(3, 4)) for _ in range(9)),
            {},
            ["have several sentences", "--input_format=documents"],
        ),
        ("\n".join(paragraphs(4)), dict(language="xx"), ["--language=xx: the splitter has no"]),
    ],
)
def test_each_poor_shape_is_warned_of(tmp_path, text, settings, parts):
    (warning,) = warnings_of(tmp_path, text, **settings)
    assert all(part in warning for part in parts) and "\n" not in warning


@pytest.mark.parametrize(
    "text, settings",
    [
        (GOOD, {}),
        (GOOD, dict(language="xx")),  # its sentences are lines
        ("\n".join(paragraphs(4)), {}),
        ("\n".join(paragraphs(4)), dict(language="zh")),
        (JSON_LINES, {}),
        ("\n\n".join(SENTENCES), dict(objective="full_sentences")),
        ("\n".join(SENTENCES), dict(objective=None)),
        ("one\ntwo\n\nthree\n", {}),
        ("\n".join(SENTENCES[:3]), dict(objective="sop")),
        (GOOD.replace("had", "<b>had</b>", 3), {}),
        (GOOD.replace("9", "3 < 5 & x > y"), {}),
        (GOOD.replace("9", "#9 *of* C:\\dir, 2**3"), {}),
        ("Sun, moon\nWind, rain\nSnow, hail\n\nOne, two\n", {}),
        ("sun,moon\nWind came.\nSnow fell, and rain.\n\nOne, two\n", {}),
        (" ".join(SENTENCES * 2), dict(objective="packed")),
        (GOOD.lower().replace(",", "").replace(".", ""), {}),
    ],
)
def test_good_shapes_are_not(tmp_path, text, settings):
    assert warnings_of(tmp_path, text, **settings) == []


def test_an_endless_document_among_others(tmp_path, monkeypatch):
    monkeypatch.setattr(quality, "MAX_SENTENCES_PER_DOCUMENT", 80)
    (warning,) = warnings_of(tmp_path, "\n".join(SENTENCES * 3), "packed")
    assert "a document has 90 lines" in warning and "pairs" not in warning


@pytest.mark.parametrize("kind", ["lines", "documents"])
@pytest.mark.parametrize("sample_bytes", [50, 400, 1 << 20])
def test_samples_are_whole_documents_or_lines_from_all_over(
    tmp_path, monkeypatch, kind, sample_bytes
):
    monkeypatch.setattr(quality, "SAMPLE_BYTES", sample_bytes)
    documents = [[f"é{i}.{j} and so on." for j in range(1 + i % 7)] for i in range(200)]
    line, end = ("\n", "\n\n") if kind == "lines" else (" ", "\n")
    path = tmp_path / "text"
    path.write_text(end.join(line.join(lines) for lines in documents), encoding="utf-8")
    blocks = plan_blocks([str(path)], 3000, TextFormat(input_format=kind))
    assert len(blocks) > 3
    found = [sentence.decode() for document in quality.sample(blocks) for sentence in document]
    known = [sentence for document in documents for sentence in document]
    assert set(found) <= set(known)
    numbers = {int(sentence[1:].split(".")[0]) for sentence in found}
    assert numbers & set(range(10)) and numbers & set(range(180, 200))
    assert len(numbers) >= min(200, 8 + sample_bytes // 20)
    assert sample_bytes < 1 << 20 or found == known


def tokenizer(tmp_path, pieces, do_lower_case):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *pieces]), encoding="utf-8")
    return open_tokenizer(str(tmp_path / "vocab.txt"), do_lower_case)


WORDS = ["the", "house", "stood", ".", "still"]


@pytest.mark.parametrize(
    "pieces, do_lower_case, text, parts",
    [
        (WORDS, True, b"The house stood still.", []),
        (WORDS, True, b"The house stood still. " * 4 + b"zebra.", []),
        (
            WORDS,
            True,
            b"The zebra stood. A Zebra. A house.",
            ["40% of the tokens are [UNK]", "'a', 'zebra'", "drop --vocab_file"],
        ),
        ([*WORDS, "The"], False, b"The house stood.", []),
        ([*WORDS, "The"], True, b"The house stood.", ["1 pieces", "'The'", "--nodo_lower_case"]),
        ([*WORDS, "##fé"], True, b"The house stood.", ["1 pieces", "'##fé'", "accents"]),
        ([*WORDS, "##fé"], False, b"the house stood.", []),
        (WORDS, False, b"the house stood. " * 30 + b"The", ["no piece", "give --do_lower_case"]),
        (WORDS, False, b"the house stood.", []),
    ],
)
def test_vocabularies_that_do_not_fit(tmp_path, pieces, do_lower_case, text, parts):
    made = tokenizer(tmp_path, pieces, do_lower_case)
    ids, _ = made.tokenize([text])
    warnings = quality.vocabulary_warnings(made, [[text]], ids, do_lower_case, True)
    assert len(warnings) == bool(parts) and all(part in warnings[0] for part in parts)
    learnt = quality.vocabulary_warnings(made, [[text]], ids, do_lower_case, False)
    assert len(learnt) == sum("[UNK]" in part for part in parts), "casing fits what was learnt"


def test_the_commonest_unknown_words_come_first(tmp_path):
    made = tokenizer(tmp_path, WORDS, True)
    text = " ".join(f"{'xyz'[i % 3]}{i % 15} " * (i % 15) for i in range(15)).encode()
    words = quality.unknown_words(made, [[b"the " * 20, text]])
    assert words == ["z14", "y13", "x12", "z11", "y10", "x9", "z8", "y7", "x6", "z5"]


@pytest.fixture(scope="module")
def of_words(tmp_path_factory):
    return tokenizer(tmp_path_factory.mktemp("words"), WORDS, True)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=12, unique=True),
    is_given=st.booleans(),
)
def test_unknown_words_leave_the_remedy_whole_and_long_ones_name_the_limit(
    of_words, lengths, is_given
):
    text = " ".join("z" * length for length in lengths).encode()
    ids, _ = of_words.tokenize([text])
    [warning] = quality.vocabulary_warnings(of_words, [[text]], ids, True, is_given)
    assert len(f"--strict: {warning}") <= 300
    listed = sorted("z" * length for length in lengths)[:10]  # each is there once
    if statistics.median(map(len, listed)) > 200:
        assert "more than 200 characters" in warning
        assert warning.endswith("--tokenization=SentencePiece")
        assert ("no --vocab_file and" in warning) == is_given
    else:
        assert warning.endswith("drop --vocab_file to learn one" if is_given else "--vocab_size")


def test_strict_makes_a_warning_an_error():
    class Console:
        said = []

        def warn(self, text):
            self.said.append(text)

    quality.Warner(Console(), strict=False)(["one", "two"])
    assert Console.said == ["one", "two"]
    with pytest.raises(UserError, match="--strict: one"):
        quality.Warner(Console(), strict=True)(["one", "two"])
