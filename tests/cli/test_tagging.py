"""run_classifier.py --task_name=ner from a tiny model to its results: files, prediction alone, a
killed run, bad input.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import seqeval.metrics

from bert_gpu.cli import classify, export, flags
from bert_gpu.runs.folder import RunFolder
from tests.cli.test_classify import FLAGS, WORDS, call, make_model
from tests.interop.test_huggingface import needs_oracle, oracle_environment, oracle_python

ORACLE = pathlib.Path(__file__).parent.parent / "interop" / "tagging_oracle.py"
LABELS = ("B-PET", "I-PET", "O")


def write_split(folder, name, count, seed):
    """Sentences in which colours begin a pet and animals go on with it."""
    generator, lines = np.random.default_rng(seed), ["-DOCSTART- -X- O", ""]
    for _ in range(count):
        for word in generator.choice(WORDS, generator.integers(1, 9)).tolist():
            place = WORDS.index(word)
            lines.append(f"{word} NN {'B-PET' if place < 3 else 'I-PET' if place < 6 else 'O'}")
        lines.append("")
    (folder / name).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with the files of ner, and model/."""
    folder = tmp_path_factory.mktemp("ner")
    make_model(folder)
    for seed, (name, count) in enumerate({"train.txt": 96, "valid.txt": 20, "test.txt": 9}.items()):
        write_split(folder, name, count, seed)
    return folder


def asked(data, output, *more):
    settings = [flag for flag in FLAGS if "max_seq_length" not in flag]
    return [
        "--task_name=NER",
        f"--data_dir={data}",
        f"--init_checkpoint={data / 'model'}",
        f"--output_dir={output}",
        "--max_seq_length=8",  # some sentences need several rows
        *settings,
        *more,
    ]


@pytest.fixture(scope="module")
def tagger(data):
    output = data / "run"
    assert flags.exit_code(classify.main, ["classify", *asked(data, output)]) == 0
    return output


def read_columns(path):
    """[[cells of a word's line]] of each sentence."""
    blocks = path.read_text().split("\n\n")
    found = [[line.split() for line in block.splitlines() if line] for block in blocks]
    return [block for block in found if block and block[0][0] != "-DOCSTART-"]


def test_a_run_writes_its_files_and_learns(tagger, data):
    results = json.loads((tagger / "eval_results.json").read_text())
    assert {"f1", "precision", "recall", "accuracy", "loss", "dev", "test"} < set(results)
    assert results["f1"] > 0.95 and results["num_examples"] == 20 and results["test"]["f1"] > 0.9
    text = (tagger / "predictions.conll").read_text()
    lines = [line.rpartition(" ")[0] if " " in line else line for line in text.splitlines()]
    original = (data / "test.txt").read_text().splitlines()
    assert text.startswith("-DOCSTART- -X- O\n\n")
    assert lines[2:] == original[2:]  # the file, with a column more
    rows = read_columns(tagger / "predictions.conll")
    truth, predicted = ([[cells[place] for cells in one] for one in rows] for place in (-2, -1))
    assert results["test"]["f1"] == pytest.approx(seqeval.metrics.f1_score(truth, predicted))
    table = [line.split("\t") for line in (tagger / "test_results.tsv").read_text().splitlines()]
    assert table[0] == ["id", "prediction", "word", *(f"probability_{tag}" for tag in LABELS)]
    words = [(str(n), cells[-1], cells[0]) for n, one in enumerate(rows) for cells in one]
    assert [tuple(row[:3]) for row in table[1:]] == words
    for row in table[1:]:
        shares = [float(value) for value in row[3:]]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert row[1] == LABELS[int(np.argmax(shares))]
    config = json.loads((tagger / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert tuple(config["id2label"].values()) == LABELS and "problem_type" not in config
    task = json.loads((tagger / "model" / "task.json").read_text())
    assert task["task_name"] == "ner" and task["tag_scheme"] == "BIO as B-TYPE"


def test_the_same_command_again_says_finished(tagger, data, capsys):
    before = (tagger / "eval_results.json").read_text()
    code, out, _ = call(capsys, *asked(data, tagger))
    assert code == 0 and "finished" in out
    assert (tagger / "eval_results.json").read_text() == before
    code, _, err = call(capsys, *asked(data, tagger, "--doc_stride=2"))
    assert code == 2 and "doc_stride" in err and err.count("\n") == 1


@pytest.mark.long
def test_a_killed_run_goes_on_to_the_same_weights(tagger, data, capsys, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    save = RunFolder.save

    def save_and_die(self, *arguments):
        save(self, *arguments)
        raise Killed

    more = ["--save_checkpoints_steps=20", "--eval_steps=1000"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "save", save_and_die)
        call(capsys, *asked(data, tmp_path / "run", *more))
    code, out, err = call(capsys, *asked(data, tmp_path / "run", *more))
    assert code == 0 and "resuming from step 20" in out, err
    paths = [folder / "model" / "model.safetensors" for folder in (tagger, tmp_path / "run")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_words_without_tags_need_nothing_but_the_model(tagger, capsys, tmp_path):
    """From lines of words and from JSON; a word of control characters has a tag, too."""
    (tmp_path / "new.txt").write_text("the\nred\ncat\n\n\x01\nbird\n")
    alone = ["--do_predict", f"--init_checkpoint={tagger}", f"--output_dir={tmp_path / 'out'}"]
    code, _, err = call(capsys, *alone, f"--test_file={tmp_path / 'new.txt'}")
    assert code == 0, err
    lines = (tmp_path / "out" / "predictions.conll").read_text().splitlines()
    assert [line.split(" ")[0] for line in lines] == ["the", "red", "cat", "", "\x01", "bird", ""]
    assert lines[:3] == ["the O", "red B-PET", "cat I-PET"]
    rows = [dict(tokens=["the", "red", "cat"]), dict(tokens=["\x01", "bird"])]
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, _, err = call(capsys, *alone, f"--test_file={tmp_path / 'new.jsonl'}")
    again = (tmp_path / "out" / "predictions.conll").read_text()
    assert code == 0 and again.replace("\t", " ").splitlines() == lines, err


def test_tags_that_the_model_does_not_have_stop_nothing(tagger, data, capsys, tmp_path):
    rows = [("red", "B-PET"), ("cat", "I-CAR"), ("the", "O"), ("bird", "MISC")]
    (tmp_path / "new.txt").write_text("".join(f"{word} {tag}\n" for word, tag in rows))
    alone = [f"--init_checkpoint={tagger}", f"--output_dir={tmp_path / 'out'}"]
    files = [f"--dev_file={tmp_path / 'new.txt'}", f"--test_file={tmp_path / 'new.txt'}"]
    code, out, err = call(capsys, "--do_eval", "--do_predict", *alone, *files)
    assert code == 0 and err.count("warning:") == 1 and "BIO as B-TYPE" in out, err
    assert "line 2 has the tag 'I-CAR', one of 2" in err
    found = read_columns(tmp_path / "out" / "predictions.conll")[0]
    assert [tuple(cells[:2]) for cells in found] == rows
    right = np.mean([cells[1] == cells[2] for cells in found])
    results = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert results["accuracy"] == right <= 0.5 and results["loss"] is not None


@pytest.mark.long
def test_a_scheme_and_comments_of_ones_own_reach_the_exported_model(data, tmp_path):
    """Lower-case BMES behind the type, between tabs and comments; F1 is that of a direct count."""
    generator = np.random.default_rng(0)
    letters = ["s", "be", "bme", "bmme"]
    for name, count in (("train", 96), ("dev", 12)):
        lines = ["# sent_id = 1", "# free words about it all"]
        for _ in range(count):
            for size in generator.integers(0, 4, 3).tolist():
                words = ["red", *["cat"] * max(0, size - 1), "dog"][: size + 1]
                tags = [f"pet_{letter}" for letter in letters[size]]
                lines += [f"{w}\t{t}" for w, t in zip(words, tags, strict=True)] + ["the\to"]
            lines.append("")
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    run = tmp_path / "run"
    flags_of_run = asked(tmp_path, run, "--nodo_predict", "--num_train_epochs=4")
    flags_of_run[2] = f"--init_checkpoint={data / 'model'}"
    script = pathlib.Path(classify.__file__).parent.parent.parent / "run_classifier.py"
    done = subprocess.run([sys.executable, script, *flags_of_run], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tag scheme" in done.stdout and "BMES as TYPE_B" in done.stdout
    assert "2 comment lines skipped" in done.stdout
    argv = ["export", f"--from={run}", f"--to={tmp_path / 'out'}", "--format=huggingface"]
    assert flags.exit_code(export.main, argv) == 0
    assert (
        json.loads((tmp_path / "out" / "task.json").read_text())["tag_scheme"] == "BMES as TYPE_B"
    )
    alone = [f"--init_checkpoint={tmp_path / 'out'}", f"--output_dir={tmp_path / 'again'}"]
    alone += ["--do_predict", f"--test_file={tmp_path / 'dev.txt'}", "--do_eval"]
    alone += [f"--dev_file={tmp_path / 'dev.txt'}"]
    assert flags.exit_code(classify.main, ["classify", *alone]) == 0
    sets = [set(), set()]
    for number, rows in enumerate(read_columns(tmp_path / "again" / "predictions.conll")):
        for side, place in enumerate((-2, -1)):
            spelled = "".join(cells[place][-1] for cells in rows)
            sets[side] |= {(number, *one.span()) for one in re.finditer("s|bm*e", spelled)}
    results = json.loads((tmp_path / "again" / "eval_results.json").read_text())
    assert results["f1"] == pytest.approx(2 * len(sets[0] & sets[1]) / sum(map(len, sets)))
    assert (
        results["f1"] > 0.3
        and results["f1"] == json.loads((run / "eval_results.json").read_text())["f1"]
    )


@pytest.mark.long
def test_validation_chooses_and_trials_are_counted_by_f1(data, capsys, tmp_path):
    more = ["--num_train_steps=2", "--nodo_predict", "--num_trials=2", "--best_metric=f1"]
    more += ["--export_best", "--layer_lr_decay=0.9", "--padding=uniform"]
    code, out, err = call(capsys, *asked(data, tmp_path / "runs", *more))
    assert code == 0, err
    content = json.loads((tmp_path / "runs" / "scores.json").read_text())
    for row in content["trials"]:
        assert row["score"] == row["metrics"]["dev"]["f1"]


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--label_smoothing=0.1"], ["--label_smoothing=0.1", "tagging"]),
        (["--class_weights=balanced"], ["--class_weights=balanced", "tagging"]),
        (["--pooling=mean"], ["--pooling", "ner"]),
        (["--task_kind=regression"], ["--task_kind=regression", "--task_name=ner", "tagging"]),
        (["--task_name=pairs", "--task_kind=tagging"], ["--task_kind=tagging", "classification"]),
        (["--best_metric=auc"], ["--best_metric=auc", "f1, precision, recall, accuracy"]),
        (["--dev_file=one.txt", "--train_file=one.txt"], ["one.txt", "'O'", "two or more"]),
    ],
)
def test_what_makes_no_sense_is_one_line(data, capsys, tmp_path, monkeypatch, arguments, parts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("cat O\n\ndog O\n")
    code, _, err = call(capsys, *asked(data, tmp_path / "run", *arguments))
    assert code == 2 and err.count("\n") == 1 and all(part in err for part in parts), err
    assert not (tmp_path / "run").exists()


def test_a_model_of_another_task_is_refused(tagger, data, capsys, tmp_path):
    alone = ["--do_eval", f"--init_checkpoint={tagger}", f"--output_dir={tmp_path / 'out'}"]
    code, _, err = call(capsys, *alone, f"--data_dir={data}", "--task_name=pairs")
    assert code == 2 and err.count("\n") == 1 and "BertForTokenClassification" in err
    shutil.copytree(tagger / "model", tmp_path / "model")
    (tmp_path / "model" / "task.json").unlink()  # as one of Hugging Face's: its head tells the task
    alone[1] = f"--init_checkpoint={tmp_path / 'model'}"
    code, out, err = call(capsys, *alone, f"--data_dir={data}", "--max_seq_length=8")
    assert code == 0 and "BIOES or BILOU as B-TYPE" in out, err
    files = [folder / "eval_results.json" for folder in (tagger, tmp_path / "out")]
    assert len({json.loads(file.read_text())["f1"] for file in files}) == 1


def test_formats_without_the_head_say_so(tagger, capsys, tmp_path):
    found = {}
    for kind in ("savedmodel", "google"):
        argv = ["export", f"--from={tagger}", f"--to={tmp_path / kind}", f"--format={kind}"]
        code = flags.exit_code(export.main, argv)
        captured = capsys.readouterr()
        found[kind] = code, captured.out + captured.err
    assert found["savedmodel"][0] == 2 and not (tmp_path / "savedmodel").exists()
    assert "--format=savedmodel: has no signature for a BertForToken" in found["savedmodel"][1]
    assert found["google"][0] == 0 and "; left out: token_classifier" in found["google"][1]


@needs_oracle
def test_transformers_gives_the_same_probabilities(tagger, data, capsys, tmp_path):
    """Of the run's model and of its export."""
    exported = tmp_path / "exported"
    argv = ["export", f"--from={tagger}", f"--to={exported}", "--format=huggingface"]
    assert flags.exit_code(export.main, argv) == 0
    for folder in (tagger / "model", exported):
        script = [oracle_python(), ORACLE, folder, data / "test.txt", tmp_path / "theirs.npz"]
        done = subprocess.run(
            [*map(str, script)],
            env=oracle_environment(tmp_path),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        theirs = np.load(tmp_path / "theirs.npz")
        # whole sentences, as there
        alone = ["--do_predict", f"--init_checkpoint={folder}", "--max_seq_length=32"]
        alone += [f"--output_dir={tmp_path / 'out'}", f"--test_file={data / 'test.txt'}"]
        assert call(capsys, *alone)[0] == 0
        lines = (tmp_path / "out" / "test_results.tsv").read_text().splitlines()[1:]
        ours = np.array([[float(value) for value in line.split("\t")[3:]] for line in lines])
        assert tuple(theirs["labels"]) == LABELS and len(ours) > 20
        np.testing.assert_allclose(ours, theirs["probabilities"], rtol=0, atol=2e-5)
