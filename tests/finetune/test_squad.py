"""SQuAD's JSON as it is distributed; each bad file is refused in one line."""

import copy
import json

import pytest

from bert_gpu.finetune.config import FinetuneConfig, resolve_task
from bert_gpu.finetune.splits import read_splits
from bert_gpu.finetune.squad import find_answer
from bert_gpu.settings import UserError


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
    [found] = read_splits(resolve_task(config), config, [phase])[phase]
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
        ("[]", ["has no list 'data'"]),
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
