"""run_classifier.py --task_name=squad from a tiny model to its results: files that the official
evaluation takes, prediction alone, bad input.
"""

import json
import pathlib
import subprocess

import numpy as np
import pytest
from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

from bert_gpu.cli import classify, export, flags
from tests.cli.test_classify import FLAGS, WORDS, call, make_model
from tests.interop.test_huggingface import needs_oracle, oracle_environment, oracle_python

ORACLE = pathlib.Path(__file__).parent.parent / "interop" / "answers_oracle.py"


def write_split(path, count, seed, has_impossible):
    """Contexts of words, some too long for a row; the answer is the only colour, if there is one.
    Returns the data.
    """
    generator, paragraphs = np.random.default_rng(seed), []
    for number in range(count):
        words = generator.choice(WORDS[3:], generator.integers(5, 20)).tolist()
        colour = str(generator.choice(WORDS[:3])).capitalize()
        has_answer = not has_impossible or number % 2
        if has_answer:
            words[int(generator.integers(len(words)))] = colour
        context = " ".join(words) + "."
        found = [dict(text=colour, answer_start=context.index(colour))] if has_answer else []
        qas = [dict(id=f"{path.stem}-{number}", question="the a", answers=found)]
        if has_impossible:
            qas[0]["is_impossible"] = not found
        paragraphs.append(dict(context=context, qas=qas))
    data = [dict(title="", paragraphs=paragraphs)]
    path.write_text(json.dumps(dict(version="v2.0" if has_impossible else "1.1", data=data)))
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    make_model(folder)
    for kind in ("old", "new"):
        (folder / kind).mkdir()
        for split, count in dict(train=96, dev=20).items():
            name = f"{split}-v{1.1 if kind == 'old' else 2.0}.json"
            write_split(folder / kind / name, count, count, kind == "new")
    return folder


def asked(folder, kind, *more):
    settings = [flag for flag in FLAGS if "max_seq_length" not in flag]
    return [
        "--task_name=squad",
        f"--data_dir={folder / kind}",
        f"--init_checkpoint={folder / 'model'}",
        f"--output_dir={folder / kind / 'run'}",
        "--max_seq_length=16",
        "--max_query_length=8",
        "--doc_stride=4",
        *settings,
        *more,
    ]


@pytest.fixture(scope="module")
def run(folder):
    """A finished run on data of the form of SQuAD 2.0."""
    assert flags.exit_code(classify.main, ["classify", *asked(folder, "new")]) == 0
    return folder / "new" / "run"


def read(path):
    return json.loads(path.read_text())


def test_a_run_writes_what_the_official_evaluation_takes(folder, run):
    results = read(run / "eval_results.json")
    data = read(folder / "new" / "dev-v2.0.json")["data"]
    predictions, odds = read(run / "predictions_dev.json"), read(run / "null_odds_dev.json")
    assert list(predictions) == [f"dev-v2.0-{number}" for number in range(20)] == list(odds)
    theirs = squad_evaluate_v2_0.evaluate(data, predictions)
    assert results["exact_match"] == pytest.approx(theirs["exact"] / 100) and results["f1"] > 0.9
    assert results["f1"] == pytest.approx(theirs["f1"] / 100)
    assert results["NoAns_exact"] == pytest.approx(theirs["NoAns_exact"] / 100)
    assert 0.9 < squad_evaluate_v2_0.evaluate(data, predictions, odds)["final_f1"] / 100 <= 1
    entries = read(run / "nbest_predictions_dev.json")
    for name, best in entries.items():
        assert sum(one["probability"] for one in best) == pytest.approx(1)
        assert len({one["text"] for one in best}) == len(best) <= 21 and best[0]["start_logit"]
        assert predictions[name] in {one["text"] for one in best}
    config = read(run / "model" / "config.json")
    assert config["architectures"] == ["BertForQuestionAnswering"] and "id2label" not in config
    notes = read(run / "model" / "task.json")
    assert notes["task_name"] == "squad" and notes["version_2_with_negative"] is True
    assert (notes["doc_stride"], notes["max_query_length"]) == (4, 8)


def test_questions_alone_need_nothing_but_the_model(folder, run, capsys, tmp_path):
    data = write_split(tmp_path / "new.json", 6, 5, True)
    for paragraph in data[0]["paragraphs"]:
        for entry in paragraph["qas"]:
            del entry["answers"], entry["is_impossible"]
    (tmp_path / "new.json").write_text(json.dumps(dict(data=data)))
    alone = ["--do_predict", f"--init_checkpoint={run}", f"--output_dir={tmp_path / 'out'}"]
    alone.append(f"--test_file={tmp_path / 'new.json'}")
    code, out, err = call(capsys, *alone)
    assert " exact_match " in out  # a column apart from its neighbours
    assert code == 0 and str(tmp_path / "out" / "predictions.json") in out, err
    answers = read(tmp_path / "out" / "predictions.json")
    assert list(answers) == [f"new-{number}" for number in range(6)] and "" in answers.values()
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    written = ["nbest_predictions.json", "null_odds.json", "predictions.json"]
    assert names == ["eval_results.json", *written]
    assert read(tmp_path / "out" / "eval_results.json") == dict(files=written)
    code, _, err = call(capsys, *alone, "--null_score_diff_threshold=1e6")
    assert code == 0 and "" not in read(tmp_path / "out" / "predictions.json").values(), err
    code, _, err = call(capsys, *alone, "--noversion_2_with_negative", "--max_answer_length=1")
    assert code == 0, err
    words = [answer.split() for answer in read(tmp_path / "out" / "predictions.json").values()]
    assert max(map(len, words)) == 1


@pytest.mark.long
def test_questions_that_all_have_answers(folder, capsys):
    """The form of SQuAD 1.1, in uniform batches on two replicas; the best by F1; resumed with more
    steps.
    """
    more = ["--padding=uniform", "--export_best", "--virtual_replicas=2", "--curve=constant"]
    more += ["--lr_scaling=none", "--train_batch_size=8", "--eval_steps=12", "--freeze=embeddings"]
    for steps, said in ((12, "validation at step 12"), (24, "resuming from step 12 of 24")):
        code, out, err = call(capsys, *asked(folder, "old", *more, f"--num_train_steps={steps}"))
        assert code == 0 and said in out and "which has the best validation f1" in out, (out, err)
    results = read(folder / "old" / "run" / "eval_results.json")
    data = read(folder / "old" / "dev-v1.1.json")["data"]
    theirs = squad_evaluate_v1_1.evaluate(
        data, read(folder / "old" / "run" / "predictions_dev.json")
    )
    assert results["f1"] == pytest.approx(theirs["final_f1"])
    assert results["exact_match"] == pytest.approx(theirs["exact_match"])
    assert not (folder / "old" / "run" / "null_odds_dev.json").exists()


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--label_smoothing=0.1"], ["--label_smoothing=0.1", "answers"]),
        (["--pooler_size=8"], ["--pooler_size", "squad"]),
        (["--best_metric=accuracy"], ["--best_metric=accuracy", "f1, exact_match"]),
        (["--max_query_length=13"], ["--max_seq_length=16", "--max_query_length=13"]),
        (["--train_file=lost.json"], ["lost.json", "'cow'", "answer_start=2"]),
        (["--dev_file=text.txt"], ["text.txt", "not valid JSON"]),
        (["--data_dir=."], ["has no train.json"]),
    ],
)
def test_what_makes_no_sense_is_one_line(folder, capsys, tmp_path, monkeypatch, arguments, parts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("Who?\n")
    qas = [dict(id="1", question="Who?", answers=[dict(text="cow", answer_start=2)])]
    lost = dict(data=[dict(paragraphs=[dict(context="A cat.", qas=qas)])])
    (tmp_path / "lost.json").write_text(json.dumps(lost))
    output = f"--output_dir={tmp_path / 'run'}"
    code, _, err = call(capsys, *asked(folder, "new"), output, *arguments)
    assert code == 2 and err.count("\n") == 1 and all(part in err for part in parts), err
    assert not (tmp_path / "run").exists()


@needs_oracle
def test_transformers_gives_the_same_scores(folder, run, capsys, tmp_path):
    """Of the run's model and of its export: the scores of the best answers."""
    exported = tmp_path / "exported"
    argv = ["export", f"--from={run}", f"--to={exported}", "--format=huggingface"]
    assert flags.exit_code(export.main, argv) == 0
    file = tmp_path / "short.json"
    data = write_split(file, 12, 7, False)
    for entry in data[0]["paragraphs"]:
        entry["qas"][0]["answers"] = []
    file.write_text(json.dumps(dict(data=data)))
    for model in (run / "model", exported):
        alone = ["--do_predict", f"--init_checkpoint={model}", f"--test_file={file}"]
        alone += [f"--output_dir={tmp_path / 'out'}", "--max_seq_length=32"]  # whole contexts
        alone += ["--max_query_length=8", "--task_name=squad", "--version_2_with_negative"]
        code, _, err = call(capsys, *alone)
        assert code == 0, err
        script = [oracle_python(), ORACLE, model, file, tmp_path / "theirs.npz"]
        done = subprocess.run(
            [*map(str, script)],
            env=oracle_environment(tmp_path),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        theirs = np.load(tmp_path / "theirs.npz")
        for name, entries in read(tmp_path / "out" / "nbest_predictions.json").items():
            null = [one for one in entries if not one["text"]][0]
            best = [one for one in entries if one["text"]][0]
            starts, ends = theirs[name]
            found = [null["start_logit"], null["end_logit"]]
            np.testing.assert_allclose(found, [starts[0], ends[0]], atol=2e-4)
            assert best["start_logit"] == pytest.approx(starts[4:].max(), abs=2e-4)
