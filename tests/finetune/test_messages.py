"""Messages on users' files keep their remedy whole, however long the paths, columns, labels and
values are that they name.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.base.errors import LINE_CHARACTERS, UserError
from bert_gpu.finetune.config import FinetuneConfig
from bert_gpu.finetune.files.splits import read_splits
from tests.finetune.evaluations import task_of

SQUAD = "SQuAD's form is"


def squad(word, **question):
    asked = dict(id=word, question=word, answers=[dict(text=word, answer_start=9)]) | question
    return json.dumps(dict(data=[dict(paragraphs=[dict(context=word, qas=[asked])])]))


def table(*rows, delimiter="\t"):
    return "".join(delimiter.join(row) + "\n" for row in rows)


def row(*names, value="x"):
    return json.dumps(dict.fromkeys(names, value))


PAIR = ("text_a", "text_b", "label")
# (name of a file, its text with a word, settings where "w" is the word or the task, the remedy)
CASES = [
    ("train.tsv", lambda w: table(PAIR, (w, w)), {}, "as Python's csv module does"),
    ("train.csv", lambda w: table(PAIR, (w, w), delimiter=","), {}, "line break needs quotes"),
    ("train.csv", lambda w: table(PAIR, ('"' + w,), delimiter=","), {}, "check its quotes"),
    ("train.csv", lambda w: f"{w};{w}\n", {}, "sep=';').to_csv(new, index=False)"),
    ("train.csv", lambda w: f"{w}\t{w}\n", {}, "name it .tsv"),
    ("train.jsonl", lambda w: row(f"x{w}", f"y{w}"), {}, "name yours with --text_a"),
    ("train.tsv", lambda w: table((w, w, "label"), "abc"), dict(text_a="w"), "all but one"),
    ("train.tsv", lambda w: table((f"a{w}", "1"), (w, w)), {}, "--columns=text_a,label"),
    ("train.jsonl", lambda w: row("text", f"y{w}"), {}, "with --text_a and --text_b"),
    (
        "train.jsonl",
        lambda w: row(f"x{w}", f"y{w}", "text_a", value=1),
        dict(label="w"),
        "and give --task_kind=multilabel",
    ),
    ("train.jsonl", lambda w: f"{{{w}", {}, "with the keys of the first"),
    ("train.jsonl", lambda w: f'{{"{w}": 1}}\n{{"b": 1}}', {}, "with the keys of the first"),
    ("train.jsonl", lambda w: json.dumps(dict(words=w, tags=w)), "ner", '"tags": ["B-LOC", "O"]}'),
    ("train.csv", lambda w: f"words,tags\n{w},{w}\n", "ner", "a row is a single word"),
    ("train.txt", lambda w: f"{w.split()[0]} O\n{w.split()[0]} X O\n", "ner", "ends a sentence"),
    ("train.json", lambda w: f"{{{w}", "squad", SQUAD),
    ("train.json", lambda w: squad(w, question=1), "squad", SQUAD),
    (
        "train.json",
        lambda w: squad(w, answers=[dict(text=f"{w}x", answer_start=9)]),
        "squad",
        "answer_start counts characters from 0",
    ),
    ("train.json", lambda w: squad(" ", id=w), "squad", "leave other such questions out"),
]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    case=st.sampled_from(CASES),
    word=st.text(st.sampled_from("abé'- "), min_size=1, max_size=600).map(lambda w: f"w{w}w"),
    folders=st.lists(st.integers(1, 200), max_size=3),
)
def test_messages_keep_their_remedy_whole(tmp_path_factory, case, word, folders):
    name, text, options, remedy = case
    folder = tmp_path_factory.getbasetemp().joinpath("long", *("d" * size for size in folders))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text(word), encoding="utf-8")
    options = dict(task_name=options) if isinstance(options, str) else options
    options = {flag: word if value == "w" else value for flag, value in options.items()}
    config = FinetuneConfig(train_file=str(path), **options)
    with pytest.raises(UserError) as caught:
        read_splits(task_of(config), config, ["train"])
    message = str(caught.value)
    assert remedy in message and len(message) <= LINE_CHARACTERS, message
    assert message.endswith(remedy) or remedy == SQUAD and message.endswith("}]}]}"), message
    assert name in message
