"""Two texts are the same when the model cannot tell them apart: when their tokens are, after
normalisation and cutting. Copies in a training, right answers in an evaluation, and the warning of
an overlap follow this one definition.
"""

import collections
import functools
import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, normalizers, pre_tokenizers

from bert_gpu.finetune.config import TokenConfig
from bert_gpu.finetune.describe import describe_overlap
from bert_gpu.finetune.files.examples import Source
from bert_gpu.finetune.tasks.table import TASKS
from bert_gpu.text.tokenizers.open import open_tokenizer
from tests.finetune.evaluations import configured, form_of, task_of

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = [*SPECIALS, *"abcdeé:", "A", "É", "e\u0301", "fi", "query", "##b"]
LENGTH = 7
ANSWER = dict(text="a", answer_start=0)
LETTERS = ["a", "A", "b", "c", "é", "e\u0301", "E\u0301", "ﬁ", "fi", "\u00adab", "x", "y"]
WORDS = st.sampled_from(LETTERS)
TEXT = st.builds(lambda words, gap: gap.join(words), st.lists(WORDS, min_size=1, max_size=8),
                 st.sampled_from([" ", "  ", "\u00a0"]))  # fmt: skip
CHANGES = [
    str,
    str.upper,
    functools.partial(unicodedata.normalize, "NFD"),
    lambda text: text.replace("c", "d"),
    lambda text: f" {text}  c b a",
    lambda text: f"{text} a b a c",
]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """{name: tokenizer}: uncased and cased WordPiece, and one that normalises to NFKC."""
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "vocab.txt").write_text("\n".join(VOCAB))
    fast = FastTokenizer(
        models.WordPiece({one: n for n, one in enumerate(VOCAB)}, unk_token="[UNK]")
    )
    fast.normalizer = normalizers.NFKC()
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.add_special_tokens(SPECIALS)
    fast.save(str(folder / "tokenizer.json"))
    return dict(
        uncased=open_tokenizer(str(folder / "vocab.txt"), True),
        cased=open_tokenizer(str(folder / "vocab.txt"), False),
        nfkc=open_tokenizer(str(folder / "tokenizer.json"), None),
    )


def tokens_of(tokenizer, text, room):
    """The tokens that a model sees of a text, read alone and cut by hand."""
    return tuple(tokenizer.tokenize([text])[0].tolist()[:room])


def encoded(path, tokenizer, name, split="train", length=LENGTH, **tokens):
    """(task, examples, rows) of a file for the task of a name."""
    task = task_of(TASKS[name], ("x", "y"))
    examples = task.read(Source(split, str(path)), True)
    task = configured(task, examples, tokens=TokenConfig(**tokens))
    form = form_of(tokenizer, length, folder=str(path.parent))
    return task, examples, task.encode(examples, form)


def write(path, names, rows):
    path.write_text("\n".join("\t".join(row) for row in [names, *rows]) + "\n")
    return path


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["uncased", "cased", "nfkc"]),
    prefixes=st.sampled_from([("", ""), ("query: ", ""), ("query: ", "a: "), ("a: ", "a: ")]),
    rows=st.lists(st.tuples(TEXT, TEXT, st.just("") | TEXT), min_size=1, max_size=5),
)
def test_texts_of_a_similarity_have_one_number_if_their_tokens_are_the_same(
    tmp_path_factory, tokenizers, kind, prefixes, rows
):
    tokenizer = tokenizers[kind]
    path = write(tmp_path_factory.getbasetemp() / "s.tsv", ("text_a", "text_b", "negative"), rows)
    names = dict(zip(("query_prefix", "passage_prefix"), prefixes, strict=True))
    task, examples, found = encoded(path, tokenizer, "similarity", **names, temperature=0.05)
    rooms = [LENGTH - 2 - len(tokens_of(tokenizer, one, None)) for one in (*prefixes, prefixes[1])]
    seen, wanted, whole = {}, [], collections.defaultdict(set)
    for row in rows:
        for text, room in zip(row, rooms, strict=True):
            tokens = tokens_of(tokenizer, text, room)
            number = seen.setdefault(tokens, len(seen))
            wanted.append(number if text else -1)
            whole[tokens].add(tokens_of(tokenizer, text, None))
    numbers = found.text_ids.ravel().tolist()
    assert [one == -1 for one in numbers] == [one == -1 for one in wanted]
    assert numbers == wanted
    assert found.num_alike == sum(len(one) for one in whole.values() if len(one) > 1)
    said = f"{found.num_alike} texts the same as others only because they were cut"
    assert (said in task.describe(examples, found)) == (found.num_alike > 0)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["uncased", "cased", "nfkc"]),
    is_pair=st.booleans(),
    train=st.lists(st.tuples(TEXT, TEXT, st.sampled_from("xy")), min_size=1, max_size=6),
    changes=st.lists(
        st.tuples(st.integers(0, 7), *2 * [st.sampled_from(CHANGES)], st.sampled_from("xy")),
        min_size=1,
        max_size=6,
    ),
)
def test_an_overlap_counts_examples_whose_tokens_are_those_of_the_training(
    tmp_path_factory, tokenizers, kind, is_pair, train, changes
):
    """The dev examples are changed ones of the training, and pairs have changed places."""
    tokenizer, folder = tokenizers[kind], tmp_path_factory.getbasetemp()
    train = [*train, ("a", "a", "x"), ("b", "b", "y")]
    dev = [
        (change_b(train[row % len(train)][1]), change_a(train[row % len(train)][0]), label)
        for row, change_a, change_b, label in changes
    ]
    dev = dev if is_pair else [(b, a, label) for a, b, label in dev]
    task, names = (
        ("pairs", ("text_a", "text_b", "label")) if is_pair else ("single", ("text", "label"))
    )
    parts = [
        encoded(
            write(folder / f"{split}.tsv", names, [row if is_pair else row[1:] for row in rows]),
            tokenizer, task, split,
        )
        for split, rows in (("train", train), ("dev", dev))
    ]  # fmt: skip

    def of_model(row, length=LENGTH):
        texts = [tokens_of(tokenizer, text, None) for text in row[not is_pair : 2]]
        room = length - 2 - is_pair * bool(len(texts) > 1 and texts[1])
        while sum(map(len, texts)) > room:  # as Google's run_classifier cuts a pair
            longest = max(range(len(texts)), key=lambda place: (len(texts[place]), place))
            texts[longest] = texts[longest][:-1]
        return tuple(sorted(texts))

    known = {of_model(row) for row in train}
    labels = {(of_model(row), row[2]) for row in train}
    same = [row for row in dev if of_model(row) in known]
    others = [row for row in same if (of_model(row), row[2]) not in labels]
    whole = functools.partial(of_model, length=99)
    cut = [row for row in same if whole(row) not in set(map(whole, train))]
    (_, *known_part), (_, *part) = parts
    warnings = describe_overlap(*known_part, *part)
    if not same:
        assert warnings == ()
        return
    of_cut = f", {len(cut)} only because they are cut to {LENGTH} tokens" if cut else ""
    assert warnings[0].startswith(
        f"{len(same)} of the {len(dev)} dev examples ({len(same) / len(dev):.1%}) have the same "
        f"texts as training examples{of_cut}, {len(others)} of them with another label;"
    )


@pytest.mark.parametrize("kind, number", [("uncased", 3), ("cased", 1)])
def test_questions_overlap_where_question_and_context_have_the_same_tokens(
    tmp_path, tokenizers, kind, number
):
    parts = []
    for split, cases in dict(train="aaaa", dev="aAbA").items():
        texts = [
            (f"a {case} b c d e", f"x {one} y") for case, one in zip(cases, "abcd", strict=True)
        ]
        entries = [
            dict(context=context, question=question, id=str(row), answers=[ANSWER])
            for row, (context, question) in enumerate(texts)
        ]
        (tmp_path / f"{split}.json").write_text(json.dumps(dict(data=entries)))
        path = tmp_path / f"{split}.json"
        windows = dict(doc_stride=2, max_query_length=3, max_answer_length=9)
        parts += encoded(path, tokenizers[kind], "squad", split, 9, **windows)[1:]
    [warning] = describe_overlap(*parts)
    assert warning.startswith(f"{number} of the 4 dev examples")
