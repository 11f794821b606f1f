"""run_classifier.py --long_texts, with a text of 20,000 words beside short ones."""

import json

import numpy as np
import pytest

from bert_gpu.__main__ import main
from bert_gpu.cli import classify, flags
from bert_gpu.interop import models
from bert_gpu.runs.folder import RunFolder
from tests.cli.test_classify import WORDS, call, make_model

LENGTH, MOST = 16, 4


def write_texts(path, count, seed):
    """The label is which word ends a text, 30 times; the first tokens do not show it."""
    generator = np.random.default_rng(seed)
    lines = ["text\tlabel"]
    for number in range(count):
        length = 20000 if number == 1 else LENGTH
        words = [*generator.choice(WORDS[2:], length), *["red" if number % 2 else "green"] * 30]
        lines.append(f"{' '.join(words)}\t{'yes' if number % 2 else 'no'}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long_texts")
    make_model(folder)
    (folder / "data").mkdir()
    write_texts(folder / "data" / "train.tsv", 96, 1)
    write_texts(folder / "data" / "dev.tsv", 32, 2)
    return folder


def inputs(workplace, output, *more):
    return [
        "--task_name=single",
        f"--data_dir={workplace / 'data'}",
        f"--init_checkpoint={workplace / 'model'}",
        f"--output_dir={output}",
        f"--max_seq_length={LENGTH}",
        "--learning_rate=3e-3",
        "--num_train_epochs=10",
        "--train_batch_size=16",
        "--save_checkpoints_steps=20",
        "--eval_steps=1000",
        *more,
    ]


WINDOWS = ["--long_texts=windows", f"--max_windows={MOST}", "--doc_stride=10"]


@pytest.fixture(scope="module")
def trained(workplace):
    """A run that was killed after step 20, and has gone on."""
    output = workplace / "trained"
    save = RunFolder.save

    class Killed(BaseException):
        pass

    def save_and_die(self, *arguments):
        save(self, *arguments)
        raise Killed

    command = ["classify", *inputs(workplace, output, *WINDOWS)]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "save", save_and_die)
        flags.exit_code(classify.main, command)
    assert flags.exit_code(classify.main, command) == 0
    return output


def test_a_resumed_run_has_the_same_weights_and_learns_what_stands_last(
    workplace, trained, tmp_path, capsys
):
    code, out, err = call(capsys, *inputs(workplace, tmp_path / "run", *WINDOWS))
    assert code == 0, err
    assert f"; 96 in 2 to {MOST} rows; 1 cut to {LENGTH} tokens" in " ".join(out.split())
    weights = [
        (folder / "model" / "model.safetensors").read_bytes()
        for folder in (trained, tmp_path / "run")
    ]
    assert weights[0] == weights[1]
    results = json.loads((trained / "eval_results.json").read_text())
    assert results["accuracy"] > 0.8


def test_the_model_knows_how_it_reads(workplace, trained, tmp_path, capsys):
    notes = json.loads((trained / "model" / "task.json").read_text())
    assert [notes[name] for name in ("long_texts", "doc_stride", "max_windows")] == [
        "windows", 10, MOST
    ]  # fmt: skip
    test_file = f"--test_file={workplace / 'data' / 'dev.tsv'}"
    model = f"--init_checkpoint={trained / 'model'}"
    asked = ["--do_predict", test_file, model, f"--output_dir={tmp_path / 'new'}"]
    code, _, err = call(capsys, *asked)
    assert code == 0, err
    lines = (tmp_path / "new" / "predictions.tsv").read_text().splitlines()
    header, *rows = (line.split("\t") for line in lines)
    are_right = [row[header.index("prediction")] == row[header.index("label")] for row in rows]
    results = json.loads((trained / "eval_results.json").read_text())
    assert np.mean(are_right) == results["accuracy"]
    read = models.read_model(str(trained / "model"))
    assert read.notes.long_texts == ("windows", 10, MOST)
    card = (trained / "model" / "README.md").read_text()
    rule = f"up to {MOST} rows of {LENGTH} tokens each, whose scores are averaged"
    assert rule in card and "transformers' pipelines do, cut them" in card
    asked = ["bert-gpu", "export", f"--from={trained / 'model'}", f"--to={tmp_path / 'hf'}"]
    assert main(asked) == 0 and rule in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "flags_given, message",
    [
        (
            ["--max_windows=3"],
            "--max_windows=3: is for --long_texts=windows, and long texts are cut",
        ),
        (["--long_texts=windows", "--task_name=ner"], "applies to text classification only"),
        (
            ["--long_texts=head_tail", "--doc_stride=3"],
            "--doc_stride=3: is for --long_texts=windows",
        ),
        (["--long_texts=middle"], "cut, windows, head_tail"),
    ],
)
def test_what_does_not_go_together(workplace, tmp_path, capsys, flags_given, message):
    code, _, err = call(capsys, *inputs(workplace, tmp_path / "run", *flags_given))
    assert code == 2 and message in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_keeps_the_rule(workplace, trained, capsys):
    code, _, err = call(capsys, *inputs(workplace, trained, "--long_texts=head_tail"))
    assert code == 2 and "long_texts" in err and err.count("\n") == 1
