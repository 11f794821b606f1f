"""Sentences read back as they were written, from every form of file; each bad file is refused in
one line.
"""

import csv
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.config import FinetuneConfig
from bert_gpu.finetune.describe import warn_of_data
from bert_gpu.finetune.files.conll import NUMBERED
from bert_gpu.finetune.files.splits import EncodedFile
from bert_gpu.text.formats import conll
from tests.finetune import evaluations

WORDS = [["EU", "rejects", "German", "call"], ["Peter", "Blackburn"], ["\u200b", "n\u00e9e", "##x"]]
TAGS = [["B-ORG", "O", "B-MISC", "O"], ["B-PER", "I-PER"], ["O", "O", "O"]]


def read(folder, phase="train", **settings):
    """The examples of a phase's only file."""
    config = FinetuneConfig(data_dir=str(folder), task_name="ner", **settings)
    [found] = evaluations.read(config, phase)
    return found


def columns(separator, middle=("X",), end="\n"):
    return "".join(
        "".join(
            separator.join([word, *middle, tag]) + end for word, tag in zip(*sentence, strict=True)
        )
        + end
        for sentence in zip(WORDS, TAGS, strict=True)
    )


def objects(words="words", tags="tags"):
    pairs = zip(WORDS, TAGS, strict=True)
    return "\n".join(json.dumps({"id": "s", words: one, tags: two}) for one, two in pairs)


@pytest.mark.parametrize(
    "name, text, settings",
    [
        ("train.txt", columns(" "), {}),
        ("Train.CoNLL", columns("   ", ("X", "Y"), "\r\n") + "\n \n", {}),
        ("train.tsv", columns("\t", ()).rstrip(), {}),
        ("train.txt", "-DOCSTART- -X- O\n\n" + columns(" "), {}),
        ("train.bio", columns(" ").replace("\n\n", "\n-DOCSTART-\n"), {}),
        ("train.jsonl", objects(), {}),
        ("train.jsonl", objects("tokens", "ner_tags"), {}),
        ("train.jsonl", objects("w", "t"), dict(text_a="w", label="t")),
        ("train.txt", objects(), {}),  # known by its first line
        ("train.txt", columns(" "), dict(columns=("words", "pos", "tags"))),
        (
            "train.txt",
            columns(" ", ("X", "Y")).replace(" X ", " "),
            dict(columns=("w", "pos", "t"), text_a="w", label="t"),
        ),
    ],
)
def test_every_form_of_file_holds_the_same(tmp_path, name, text, settings):
    (tmp_path / name).write_bytes(text.encode())
    found = read(tmp_path, **settings)
    sentences = list(found.sentences())
    assert [one.words for one in sentences] == WORDS and [one.tags for one in sentences] == TAGS
    assert len(found) == 3 and found.num_words == 9 and found.has_labels and not found.has_pairs
    assert found.label_names == ("B-ORG", "O", "B-MISC", "B-PER", "I-PER")
    assert found.describe().startswith(f"{name} {found.digest[:12]}")


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("words")


WORD = st.text(st.sampled_from("ab \"',é#\n"), min_size=1, max_size=4)
TAG = st.sampled_from(["O", "B-geo", "I-geo"])
SENTENCE = st.lists(st.tuples(WORD, TAG), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sentences=st.lists(SENTENCE, min_size=1, max_size=4),
    kind=st.sampled_from(["csv", "tsv"]),
    repeats=st.booleans(),
    header=st.sampled_from(
        [("Sentence #", "Word", "POS", "Tag"), ("word", "pos", "tag", "sentence_id")]
    ),
)
def test_a_word_a_row_gives_the_sentences_that_its_column_tells(
    shared_folder, sentences, kind, repeats, header
):
    for path in shared_folder.iterdir():
        path.unlink()
    with open(shared_folder / f"train.{kind}", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=dict(csv=",", tsv="\t")[kind])
        writer.writerow(header)
        for number, sentence in enumerate(sentences):
            for place, (word, tag) in enumerate(sentence):
                name = "" if place and not repeats else f"Sentence: {number}"
                cells = dict(word=word, pos="X", tag=tag)
                writer.writerow([cells.get(title.lower(), name) for title in header])
    found = list(read(shared_folder).sentences())
    assert [list(zip(one.words, one.tags, strict=True)) for one in found] == sentences


FORMS = [  # comments whatever the number of columns
    "# text = Rome fell .",
    "# sent_id = 1",
    "# s-type[en] = a",
    "# newdoc id = n01",
    "# newpar",
    "#begin document (bc/cctv/00/cctv_0000); part 000",
    "#end document",
    "-DOCSTART- -X- -X- O",
]
OTHERS = [
    "# id 5f2\tdomain=en",
    "#\thttp://news.example/1\t[2009-10-17]\ta\tb",
    "# Proceedings of the Nineteenth Congress , a text in part 12",
]
CELLS = st.sampled_from(["#", "#tag", "##x", "=", "Rome", "-", "newdoc", "document", "B-LOC", "O"])


@st.composite
def commented(draw):
    """(sentences of rows of cells, the text of a file with them and comments, number of these)."""
    width, separator = draw(st.integers(2, 4)), draw(st.sampled_from(" \t"))
    row = st.lists(CELLS, min_size=width, max_size=width)
    sentences = draw(st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=4))
    # "# = ..." is no comment, but "# - = O" and "# newdoc O" of columns between spaces are
    for cells in itertools.chain(*sentences):
        if conll.COMMENT.match(separator.join(cells)):
            cells[0] = "a"
    sentences[0][0][0] = "a" + sentences[0][0][0]
    # each tag of a "#" is that of another word, too
    tags = dict.fromkeys(cells[-1] for cells in itertools.chain(*sentences))
    sentences.append([[*["a"] * (width - 1), tag] for tag in tags])
    others = OTHERS[width == 2 and separator == "\t" :]  # that has a word's number of cells
    comments = st.lists(st.sampled_from(FORMS + others), max_size=3)
    lines, count = [], 0
    for rows in sentences:
        for cells in rows:
            extra = [one for one in draw(comments) if cells is rows[0] or one in FORMS[:-1]]
            count += len(extra)
            lines += [*extra, separator.join(cells)]
        lines.append("")
    return sentences, "\n".join(lines), count


@settings(max_examples=30)
@given(commented())
def test_comment_lines_are_skipped_and_counted(tmp_path_factory, drawn):
    sentences, text, count = drawn
    folder = tmp_path_factory.mktemp("comments")
    (folder / "train.txt").write_text(text)
    found = read(folder)
    assert [one.rows for one in found.sentences()] == sentences and found.num_comments == count
    for one in found.sentences():
        assert text.split("\n")[one.line - 1].split(found.separator) == one.rows[0]


REMARKS = ["doc16", "doc 16", "by hand", "Rome fell .", "2009-10-17", "http://a.example/b#c", "O2"]
OTHER_WORDS = ["#", "#tag", "#1", "##", "a", "Rome"]


@st.composite
def remarked(draw):
    """(sentences of rows, lines of a file with them and with remarks around them). No remark ends
    with a tag of a word, and its words may be as many as the columns.
    """
    width, separator = draw(st.integers(2, 4)), draw(st.sampled_from([" ", "  ", "\t"]))
    tags = draw(st.sampled_from([["O", "B-LOC"], ["NN", "SYM", "#"], ["O", "PER"]]))
    cells = [st.sampled_from(OTHER_WORDS), *[st.sampled_from(["-", "#", "X"])] * (width - 2)]
    row = st.tuples(*cells, st.sampled_from(tags))
    sentences = draw(st.lists(st.lists(row, min_size=1, max_size=3), min_size=1, max_size=4))
    sentences += [[(*["a"] * (width - 1), tag)] for tag in tags]  # so that # has no tag for itself
    lines = []
    for rows in sentences:
        for words in draw(st.lists(st.sampled_from(REMARKS).map(str.split), max_size=2)):
            between = draw(st.sampled_from([" ", separator]))
            lines += ["# " + between.join(words), *[""] * draw(st.integers(0, 1))]
        lines += map(separator.join, rows)
        ends = [[], [f"# end of {len(lines)}", f"# end{len(lines)}"]]
        lines += [*draw(st.sampled_from(ends)), ""]
    return sentences, draw(st.sampled_from(["\n", "\r\n"])).join(lines)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(remarked())
def test_a_hash_and_a_blank_begin_a_comment_unless_a_known_tag_ends_the_line(shared_folder, drawn):
    sentences, text = drawn
    for path in shared_folder.iterdir():
        path.unlink()
    (shared_folder / "train.txt").write_bytes(text.encode())
    found = list(read(shared_folder).sentences())
    assert [[tuple(cells) for cells in one.rows] for one in found] == sentences


@pytest.mark.parametrize(
    "text, line",
    [
        ("a O\n# SYM\nb O\n# SYM\n", 2),
        ("a O\n\n# B-SYM\nb O\n", 3),
        ("a PER\n\n# O\nb PER\n", 3),
        ("# I_x\na O\n", 1),
        ("a\tX\tO\n#\tX\tSYM\nb\tX\tO\n\n#\tX\tSYM\n", 2),
    ],
)
def test_a_line_that_may_be_a_comment_or_a_word_is_named(tmp_path, text, line):
    (tmp_path / "train.txt").write_text(text)
    with pytest.raises(UserError, match=f"train.txt: line {line} .* is a comment, or the word"):
        read(tmp_path)


def test_a_file_to_predict_may_have_comments_and_words_that_begin_with_a_hash(tmp_path):
    (tmp_path / "test.txt").write_text("# text = # 1 #x\n#\n1\n#x\n\n# a free remark\nRome\n")
    found = read(tmp_path, "predict")
    assert [one.words for one in found.sentences()] == [["#", "1", "#x"], ["Rome"]]
    assert found.num_comments == 2 and not found.has_labels
    (tmp_path / "test.txt").write_text("#a\n#b\n")
    assert [one.words for one in read(tmp_path, "predict").sentences()] == [["#a", "#b"]]


NUMBERS = [[3, 0, 5, 0], [1, 2], [0, 0, 0]]  # of TAGS in NAMES
NAMES = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-MISC"]
OF_CLASSES = dict(names=NAMES, _type="ClassLabel")


def write_parquet(path, feature=None, numbers=NUMBERS):
    """Sentences with numbered tags. feature: of the tags, as `datasets` notes it in the schema."""
    import pyarrow
    from pyarrow import parquet

    rows = [dict(tokens=words, ner_tags=tags) for words, tags in zip(WORDS, numbers, strict=True)]
    table = pyarrow.Table.from_pylist(rows)
    if feature is not None:
        noted = dict(info=dict(features=dict(tokens={}, ner_tags=feature)))
        table = table.replace_schema_metadata(dict(huggingface=json.dumps(noted)))
    parquet.write_table(table, path)


@pytest.mark.parametrize(
    "feature",
    [
        dict(feature=OF_CLASSES, length=-1, _type="Sequence"),
        dict(feature=OF_CLASSES, _type="List"),
        [OF_CLASSES],
    ],
)
def test_numbered_tags_have_the_names_of_the_schema(tmp_path, feature):
    write_parquet(tmp_path / "train.parquet", feature)
    found = read(tmp_path)
    assert [one.tags for one in found.sentences()] == TAGS and found.warnings == ()
    assert [one.rows for one in found.sentences()][1] == [
        ["Peter", "B-PER"],
        ["Blackburn", "I-PER"],
    ]
    write_parquet(tmp_path / "train.parquet", feature, [*NUMBERS[:2], [0, 6, 0]])
    with pytest.raises(UserError, match="line 3 has the tag 6, and its schema names the tags 0"):
        read(tmp_path)


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "large_binary"])
@pytest.mark.parametrize("null", ["none", "in words", "in tags", "words", "tags"])
def test_words_of_bytes_are_texts_and_a_null_is_named(tmp_path, kind, null):
    import pyarrow
    from pyarrow import parquet

    words, tags = [["EU", "caf\u00e9"], ["a"]], [["B-ORG", "O"], ["O"]]
    column = dict(words=words, tags=tags)
    if null in column:
        column[null][1] = None
    elif null != "none":
        column[null.removeprefix("in ")][1] = [None]
    lists = pyarrow.list_(getattr(pyarrow, kind)())
    table = {name: pyarrow.array(value, lists) for name, value in column.items()}
    parquet.write_table(pyarrow.table(table), tmp_path / "train.parquet")
    if null == "none":
        found = list(read(tmp_path).sentences())
        assert [one.words for one in found] == words and [one.tags for one in found] == tags
    else:
        with pytest.raises(UserError, match="train.parquet: row 2 has no value .*'(words|tags)'"):
            read(tmp_path)


@pytest.mark.parametrize("feature", [None, dict(feature=dict(dtype="int64")), 7])
def test_tags_that_stay_numbers_are_warned_of_once(tmp_path, feature):
    for name in ("train", "validation"):
        write_parquet(tmp_path / f"{name}.parquet", feature)
    shape = (2, len(WORDS), 1)  # of the hashes of texts, which are others in each file
    data = {}
    for number, phase in enumerate(("train", "eval")):
        rows = SimpleNamespace(text_hashes=np.full(shape, number), max_seq_length=8)
        data[phase] = [EncodedFile(read(tmp_path, phase), rows)]
    [first, *_] = data["eval"][0].examples.sentences()
    assert first.words == WORDS[0] and first.tags == ["3", "0", "5", "0"] and first.line == 1
    said = []
    console = SimpleNamespace(warn=said.append)
    warn_of_data(data, console)
    assert said == [f"{tmp_path / 'train.parquet'}: {NUMBERED}"]


def test_files_have_the_names_that_users_give_them(tmp_path):
    for name in ("TRAIN.txt", "valid.conll", "Test.TXT"):
        (tmp_path / name).write_text(columns(" "))
    for phase in ("train", "eval", "predict"):
        assert len(read(tmp_path, phase)) == 3
    assert read(tmp_path, "eval").source.stem == "dev"
    (tmp_path / "dev.txt").write_text(columns(" "))
    with pytest.raises(UserError, match="both exist; delete one of them, or name .* --dev_file"):
        read(tmp_path, "eval")


def test_a_file_to_predict_needs_no_tags(tmp_path):
    (tmp_path / "test.txt").write_text("Rome\nfell\n\n.\n")
    found = read(tmp_path, "predict")
    assert [one.words for one in found.sentences()] == [["Rome", "fell"], ["."]]
    assert not found.has_labels and next(found.sentences()).tags is None
    (tmp_path / "test.txt").write_text("Rome NNP\nfell VBD\n")
    assert read(tmp_path, "predict").label_names == ("NNP", "VBD")
    assert not read(tmp_path, "predict", columns=("words", "pos")).has_labels


def test_shares_keep_equal_sentences_together(tmp_path):
    text = "".join(f"w{number % 100} O\nx B-X\n\n" for number in range(300))
    (tmp_path / "all.txt").write_text(text)
    shares = dict(train_file=str(tmp_path / "all.txt"), dev_share=0.3)
    parts = [
        {one.words[0] for one in read(tmp_path, phase, **shares).sentences()}
        for phase in ("train", "eval")
    ]
    assert parts[0].isdisjoint(parts[1]) and len(parts[0] | parts[1]) == 100 and len(parts[1]) > 10


@pytest.mark.parametrize(
    "name, text, parts",
    [
        ("train.txt", "", ["has no sentence"]),
        ("train.txt", "\n\n-DOCSTART- O\n\n", ["has no sentence"]),
        ("train.txt", "EU\nrejects\n", ["one column", "a word and its tag"]),
        ("train.txt", "EU X O\nrejects O\n", ["line 2 has 2 columns, line 1 has 3"]),
        ("train.tsv", "EU\tO\nnot\t\n", ["line 2 has an empty tag"]),
        ("train.txt", "EU O\ncaf\xe9 O\n", ["line 2 is not UTF-8"]),
        ("train.jsonl", '{"words": ["a", "b"], "tags": ["O"]}', ["line 1 has 2 words and 1 tags"]),
        ("train.jsonl", '{"words": "a b", "tags": ["O"]}', ["line 1", "no list", "'words'"]),
        ("train.jsonl", '{"words": ["a"]}', ["no column 'tags'", "--label"]),
        ("train.jsonl", '{"text": ["a"], "tags": ["O"]}', ["no column 'words'", "--text_a"]),
        ("train.jsonl", '{"words": [], "tags": []}', ["has no examples"]),
        ("train.csv", "word,tag\na,O\n\nb,O\n", ["line 2 has no list", "'Sentence #'"]),
        ("train.csv", "sent_id,Word,Tag\n1,a,\n", ["line 2 has 1 words and 0 tags"]),
        ("train.csv", "sent_id;Word;Tag\n1;a;O\n", ["line 1 has ';'", "convert it"]),
    ],
)
def test_bad_files_are_refused(tmp_path, name, text, parts):
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert "\n" not in message and len(message) <= 300
    assert all(part in message for part in [str(tmp_path / name), *parts]), message


@pytest.mark.parametrize(
    "settings, parts",
    [
        (dict(columns=("a", "b", "c")), ["no column 'words'", "a, b, c", "--text_a"]),
        (dict(columns=("words", "tags")), ["line 1 has 3 columns, --columns names 2"]),
        (dict(label="gold", columns=("words", "pos", "tags")), ["no column 'gold'"]),
    ],
)
def test_columns_that_are_none_are_refused(tmp_path, settings, parts):
    (tmp_path / "train.txt").write_text(columns(" "))
    with pytest.raises(UserError) as caught:
        read(tmp_path, **settings)
    assert all(part in str(caught.value) for part in parts), caught.value
