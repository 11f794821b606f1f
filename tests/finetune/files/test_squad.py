"""SQuAD's JSON as it is distributed; each bad file is refused in one line."""

import copy
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.config import FinetuneConfig
from bert_gpu.finetune.files.squad import find_answer
from tests.finetune import evaluations


def question(name, text, *answers, **more):
    found = [dict(text=answer, answer_start=start) for answer, start in answers]
    return dict(id=name, question=text, answers=found) | more


OLD = dict(
    version="1.1",
    data=[
        dict(
            title="Cats",
            paragraphs=[
                dict(
                    context="The cat sat on the mat in 1895.",
                    qas=[
                        question("q1", "Who sat?", ("cat", 4), ("The cat", 0)),
                        question("q2", "When?", ("1895", 26)),
                    ],
                ),
                dict(context="A dog ran.", qas=[question("q3", "What did it?", ("ran", 6))]),
            ],
        ),
        dict(title="Empty", paragraphs=[]),
    ],
)
NEW = copy.deepcopy(OLD)
for one in NEW["data"][0]["paragraphs"][0]["qas"]:
    one["is_impossible"] = False
NEW["data"][0]["paragraphs"][1]["qas"] = [
    question("q3", "Who flew?", is_impossible=True, plausible_answers=[dict(text="A dog")])
]


def read(folder, phase="train", **settings):
    config = FinetuneConfig(data_dir=str(folder), task_name="squad", **settings)
    [found] = evaluations.read(config, phase)
    return found


@pytest.mark.parametrize(
    "name, content",
    [("train-v1.1.json", OLD), ("Train-V2.0.JSON", NEW), ("train.json", OLD)],
)
def test_files_read_back(tmp_path, name, content):
    (tmp_path / name).write_text("\ufeff" + json.dumps(content))
    found = read(tmp_path)
    assert len(found) == 3 and found.contexts == ["The cat sat on the mat in 1895.", "A dog ran."]
    assert [one.id for one in found.questions] == ["q1", "q2", "q3"]
    assert [one.context for one in found.questions] == [0, 0, 1]
    assert found.questions[0].answers == ("cat", "The cat") and found.questions[1].start == 26
    assert found.has_labels and found.has_pairs and found.has_impossible is (content is NEW)
    assert found.questions[2].answers == (() if content is NEW else ("ran",))
    assert found.describe() == f"{name} {found.digest[:12]}"


COUNTED = {  # bytes of a unit
    "utf-32-le": 4,
    "utf-16-le": 2,
    "utf-8": 1,
}
NULLS = st.sampled_from([{}, dict(is_impossible=None)])


@st.composite
def paragraphs(draw):
    """[(context, [(id, answer, its character, other keys of the question)])]; no word of a context
    is in it twice.
    """
    found, number = [], itertools.count()
    for _ in range(draw(st.integers(1, 4))):
        words = [
            draw(st.sampled_from(["w", "né", "\U0001f600", "\U0001d538\u0301"])) + f"{n:02}"
            for n in range(draw(st.integers(1, 8)))
        ]
        ends = [draw(st.sampled_from([" ", "\n", "\n\n"])) for _ in words]
        pieces = [word + end for word, end in zip(words, ends, strict=True)]
        asked = []
        for _ in range(draw(st.integers(1, 3))):
            first = draw(st.integers(0, len(words) - 1))
            last = draw(st.integers(first, len(words) - 1))
            answer = "".join(pieces[first : last + 1]).rstrip()
            asked.append((f"q{next(number)}", answer, len("".join(pieces[:first])), draw(NULLS)))
        found.append(("".join(pieces), asked))
    return found


def written(form, content, place):
    """A file's text. place: function of a context and a character to the place to write."""
    rows = [
        (context, question(name, "Who?", (answer, place(context, start))) | more)
        for context, asked in content
        for name, answer, start, more in asked
    ]
    if form == "nested":
        groups = itertools.groupby(rows, lambda row: row[0])
        articles = [
            dict(paragraphs=[dict(context=context, qas=[one for _, one in group])])
            for context, group in groups
        ]
        return json.dumps(dict(data=articles), indent=1)
    flat = [dict(one, context=context) for context, one in rows]
    for one in flat if form != "lists" else ():
        names = ("text", "answer_start")
        one["answers"] = {name: [answer[name] for answer in one["answers"]] for name in names}
    if form == "lines":
        return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in flat)
    return json.dumps(flat if form == "array" else dict(version="1", data=flat))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("squad")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    content=paragraphs(),
    form=st.sampled_from(["nested", "flat", "lists", "array", "lines"]),
    encoding=st.sampled_from(list(COUNTED)),
    line_breaks=st.sampled_from(list(itertools.product(["\n", "\r\n"], repeat=2))),
)
def test_every_form_and_unit_of_a_file_gives_the_same(folder, content, form, encoding, line_breaks):
    own, counted = line_breaks

    def place(context, start):
        before = context[:start].replace(own, counted)
        return len(before.encode(encoding)) // COUNTED[encoding]

    expected = [
        (
            context.replace("\n", own),
            [
                (name, answer.replace("\n", own), len(context[:start].replace("\n", own)), more)
                for name, answer, start, more in asked
            ],
        )
        for context, asked in content
    ]
    for other in folder.iterdir():
        other.unlink()
    path = folder / f"train.{'jsonl' if form == 'lines' else 'json'}"
    path.write_bytes(written(form, expected, place).encode())
    found = read(folder)
    assert [
        (found.contexts[one.context], one.id, one.answers, one.start) for one in found.questions
    ] == [
        (context, name, (answer,), start)
        for context, asked in expected
        for name, answer, start, _ in asked
    ]
    assert found.contexts == [context for context, _ in itertools.groupby(expected, lambda x: x[0])]
    differs = any(place(c, start) != start for c, asked in expected for _, _, start, _ in asked)
    assert len(found.warnings) == differs and not found.num_skipped


@st.composite
def repeated(draw):
    """[(context, answer, its character, the file's number)]: short words that come again and again,
    lines that end with CR LF, which the tool of some paragraphs counts as one character. Only one
    way to count finds the answer.
    """
    found = []
    for _ in range(draw(st.integers(2, 6))):
        counts_one = draw(st.booleans())
        words = draw(st.lists(st.sampled_from(["ba", "bo", "b", "né"]), min_size=4, max_size=20))
        ends = draw(st.lists(st.sampled_from([" ", "\r\n"]), min_size=20, max_size=20))
        context = "".join(word + end for word, end in zip(words, ends[: len(words)], strict=True))
        number = draw(st.integers(0, len(words) - 1))
        start = sum(len(word + end) for word, end in zip(words[:number], ends, strict=False))
        plain = context.replace("\r\n", "\n")
        as_one = len(context[:start].replace("\r\n", "\n"))
        place = as_one if counts_one else start
        has_own = context.startswith(words[number], place)
        has_one = plain.startswith(words[number], place)
        if as_one == start or has_own != has_one:
            found.append((context, words[number], start, place))
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(content=repeated().filter(len))
def test_a_line_end_that_a_tool_counts_as_one_does_not_move_an_answer(folder, content):
    for other in folder.iterdir():
        other.unlink()
    rows = [
        dict(question(str(index), "Where?", (answer, place)), context=context)
        for index, (context, answer, _, place) in enumerate(content)
    ]
    (folder / "train.json").write_bytes(json.dumps(dict(data=rows)).encode())
    places = {one.id: one.start for one in read(folder).questions}
    assert places == {str(index): start for index, (_, _, start, _) in enumerate(content)}


def test_an_empty_answer_is_left_out_or_refused_with_what_to_do(tmp_path):
    content = copy.deepcopy(OLD)
    qas = content["data"][0]["paragraphs"][0]["qas"]
    qas += [question(f"more-{n}", "Who?", (" ", 0), ("cat", 4)) for n in range(200)]
    qas.append(question("empty", "Who?", ("", 0)))
    (tmp_path / "train.json").write_text(json.dumps(content))
    found = read(tmp_path)
    assert len(found) == 203 and found.num_skipped == 1 and "empty" in found.why_skipped
    assert found.questions[2].answers == ("cat",) and found.questions[2].start == 4
    del qas[2:-1]
    (tmp_path / "train.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"'empty', is empty; set .is_impossible.: true"):
        read(tmp_path)
    qas[-1]["is_impossible"] = True
    (tmp_path / "train.json").write_text(json.dumps(content))
    assert read(tmp_path).questions[2].answers == ()


def test_a_file_to_predict_needs_no_answers(tmp_path):
    content = copy.deepcopy(OLD)
    for paragraph in content["data"][0]["paragraphs"]:
        for one in paragraph["qas"]:
            del one["answers"]
    (tmp_path / "test.json").write_text(json.dumps(content))
    found = read(tmp_path, "predict")
    assert not found.has_labels and found.questions[0].answers is None
    assert not found.has_impossible


@pytest.mark.parametrize("phase", ["eval", "predict"])
def test_places_of_answers_are_read_in_training_alone(tmp_path, phase):
    stem = dict(eval="dev", predict="test")[phase]
    (tmp_path / f"{stem}.json").write_text(changed(f"{QA}/answers/0/answer_start", "26"))
    found = read(tmp_path, phase)
    assert found.questions[1].answers == ("1895",)
    assert [one.start for one in found.questions] == [None] * 3


def test_shares_keep_a_context_together(tmp_path):
    paragraphs = [
        dict(context=f"Word {n}.", qas=[question(f"{n}-{q}", "?", ("Word", 0)) for q in "ab"])
        for n in range(60)
    ]
    path = tmp_path / "all.json"
    path.write_text(json.dumps(dict(data=[dict(paragraphs=paragraphs)])))
    parts = [
        {one.id for one in read(tmp_path, phase, train_file=str(path), dev_share=0.3).questions}
        for phase in ("train", "eval")
    ]
    contexts = [{name.split("-")[0] for name in part} for part in parts]
    assert contexts[0].isdisjoint(contexts[1]) and sum(map(len, parts)) == 120 and parts[1]


def test_answers_are_found_where_they_are_or_nearly():
    assert find_answer("a cat", "cat", 2) == 2 and find_answer("a cat", "cat", 1) == 2
    assert find_answer("cat cat", "cat", 4) == 4 and find_answer("a cat", "cat", 0) == 2
    assert find_answer("a cat sat", "sat", 3) is None and find_answer("a  b", " ", 1) is None


def test_a_few_lost_answers_are_left_out_and_many_refused(tmp_path):
    content = copy.deepcopy(OLD)
    qas = content["data"][0]["paragraphs"][0]["qas"]
    qas += [question(f"more-{n}", "Who?", ("cat", 4)) for n in range(200)]
    qas.append(question("lost", "Who?", ("cow", 4)))
    (tmp_path / "train.json").write_text(json.dumps(content))
    found = read(tmp_path)
    assert len(found) == 203 and found.num_skipped == 1 and "(first: lost)" in found.why_skipped
    (tmp_path / "dev.json").write_text(json.dumps(content))  # where only texts count
    assert len(read(tmp_path, "eval")) == 204
    del qas[2:-1]
    (tmp_path / "train.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"'cow', the answer of question 'lost', is not in its con"):
        read(tmp_path)


def changed(path, value):
    """OLD with another value at a path such as data/0/title; ... deletes it."""
    content = copy.deepcopy(OLD)
    *holders, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    target = content
    for part in holders:
        target = target[part]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return json.dumps(content)


QA = "data/0/paragraphs/0/qas/1"


@pytest.mark.parametrize(
    "text, parts",
    [
        ("", ["not valid JSON", '"qas"']),
        ("{", ["not valid JSON"]),
        ("[]", ["has no examples"]),
        ("1", ["has no list 'data'"]),
        ('{"context": ""}\n\n{"id": 1]', ["not valid JSON", "line 2 column 9"]),
        ('{"data": {}}', ["has no list 'data'"]),
        ('{"data": []}', ["has no examples"]),
        ('{"data": [1]}', ["data[0] is not an object"]),
        (changed("data/0/paragraphs", ...), ["data[0] has no list 'paragraphs'"]),
        (
            changed("data/0/paragraphs/1/context", 5),
            ["data[0].paragraphs[1] has no text 'context'"],
        ),
        (changed(f"{QA}/id", ...), ["data[0].paragraphs[0].qas[1] has no 'id'"]),
        (changed(f"{QA}/id", "q1"), ["two questions have the id 'q1'"]),
        (changed(f"{QA}/question", None), ["qas[1] has no text 'question'"]),
        (changed(f"{QA}/answers", ...), ["qas[1] has no 'answers'"]),
        (changed(f"{QA}/answers", "cat"), ["qas[1] has no list 'answers'"]),
        (changed(f"{QA}/answers/0/text", ...), ["answers[0] has no text 'text'"]),
        (changed(f"{QA}/answers/0/answer_start", ...), ["has no 'answer_start'"]),
        (changed(f"{QA}/answers/0/answer_start", "26"), ["has no 'answer_start'"]),
        (changed(f"{QA}/answers/0/answer_start", 7), ["'1895'", "'q2'", "answer_start=7"]),
        (changed(f"{QA}/is_impossible", True).replace("true", '"no"'), ["'is_impossible'"]),
        ("\xff{}", ["not UTF-8"]),
    ],
)
def test_bad_files_are_refused(tmp_path, text, parts):
    (tmp_path / "train.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert "\n" not in message and len(message) <= 300
    assert all(part in message for part in [str(tmp_path / "train.json"), *parts]), message
