"""run_classifier.py from a tiny model to its results: files, a second call, single phases, a
resume, bad input.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from bert_gpu.base.files import CHECKSUM, json_checksum
from bert_gpu.cli import classify, flags
from bert_gpu.finetune.tasks.interface import open_task_type
from bert_gpu.interop import huggingface
from bert_gpu.interop.models import tokenizer_files
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.config_json import labels_of
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import initialize
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from bert_gpu.train import run as engine
from bert_gpu.train.evaluation import ForwardPass
from bert_gpu.train.step import TrainStep
from bert_gpu.watch.run_data import read_run
from bert_gpu.watch.sections import summary
from tests import pretraining
from tests.interop.test_huggingface import needs_oracle, oracle_python

ROOT = pathlib.Path(__file__).parent.parent.parent
ORACLE = pathlib.Path(__file__).parent.parent / "interop" / "classifier_oracle.py"
ABOUT = (
    "num_examples",
    "checkpoint",
    "step",
    "data",
    "files",
)  # what eval_results.json says of metrics
WORDS = "red green blue cat dog bird runs sits the a".split()
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
MODEL = ModelConfig(
    vocab_size=len(VOCAB),
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
)
FLAGS = [
    "--max_seq_length=16",
    "--learning_rate=2e-3",
    "--num_train_epochs=6",
    "--train_batch_size=16",
    "--log_steps=5",
]


def labels_in(folder):
    path = folder / "model" / "config.json"
    return labels_of(str(path), json.loads(path.read_text()))


def write_split(folder, split, count, seed, has_labels=True):
    """Pairs whose label is whether the second text has the word "red"."""
    generator = np.random.default_rng(seed)
    lines = ["id\ttext_a\ttext_b" + "\tlabel" * has_labels]
    for number in range(count):
        a, b = (" ".join(generator.choice(WORDS[1:], 4)) for _ in "ab")
        is_red = number % 2
        lines.append(
            f"{split}-{number}\t{a}\t{b}{' red' if is_red else ''}"
            + f"\t{'yes' if is_red else 'no'}" * has_labels
        )
    (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def make_model(folder):
    """Writes model/ (pretrained, in name) and its vocab.txt into a folder."""
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    weights = initialize(pretraining.weights(BertEncoder(MODEL)), 1)
    vocab = WordPieceTokenizer(str(folder / "vocab.txt"))
    huggingface.write_model(
        str(folder / "model"),
        MODEL,
        weights,
        "BertForPreTraining",
        files=tokenizer_files(vocab, MODEL),
    )


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with model/ and data/ (train, dev, test)."""
    folder = tmp_path_factory.mktemp("classify")
    make_model(folder)
    (folder / "data").mkdir()
    for seed, (split, count) in enumerate(dict(train=128, dev=30, test=21).items()):
        write_split(folder / "data", split, count, seed)
    return folder


def call(capsys, *arguments):
    """(exit code, stdout, stderr) of a call."""
    code = flags.exit_code(classify.main, ["classify", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def inputs(workplace, output, *more):
    return [
        f"--data_dir={workplace / 'data'}",
        f"--init_checkpoint={workplace / 'model'}",
        f"--output_dir={output}",
        *FLAGS,
        *more,
    ]


@pytest.fixture(scope="module")
def trained(workplace):
    """A finished run."""
    output = workplace / "trained"
    assert flags.exit_code(classify.main, ["classify", *inputs(workplace, output)]) == 0
    return output


def test_without_a_length_rows_are_as_long_as_the_model_takes(workplace, tmp_path, capsys):
    """The default is 128, and this model has 32 positions; a repeated command finds its run."""
    given = [flag for flag in inputs(workplace, tmp_path / "run") if "seq_length" not in flag]
    for _ in range(2):
        code, _, err = call(capsys, *given, "--num_train_steps=3")
        assert code == 0, err
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["settings"]["max_seq_length"] == 32


def test_longer_rows_get_positions_from_the_learned_ones(workplace, trained, tmp_path, capsys):
    """A command that is repeated finds its run. A model that is only evaluated stays as it is."""
    given = [flag for flag in inputs(workplace, tmp_path / "run") if "seq_length" not in flag]
    longer = ["--max_seq_length=40", "--num_train_steps=1"]
    code, out, err = call(capsys, *given, *longer)
    assert code == 0, err
    assert "positions:       embeddings/position: 32 rows interpolated to 40\n" in out
    code, out, err = call(capsys, *given, *longer)
    assert code == 0 and "this run is finished" in out, err
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["max_position_embeddings"] == 40
    evaluate = ["--do_eval", f"--init_checkpoint={trained}", "--max_seq_length=40"]
    code, _, err = call(capsys, *inputs(workplace, tmp_path / "eval"), *evaluate)
    assert code == 2 and "--max_seq_length=40: the model" in err and "32 positions" in err


def predictions(output):
    lines = [line.split("\t") for line in (output / "test_results.tsv").read_text().splitlines()]
    assert lines[0] == ["id", "prediction", "probability_no", "probability_yes"]
    return lines[1:]


def test_a_run_writes_its_files_and_learns(trained):
    results = json.loads((trained / "eval_results.json").read_text())
    assert set(results) == {
        "accuracy",
        "f1",
        "auc",
        "loss",
        "positive_label",
        "dev",
        "test",
        *ABOUT,
    }
    assert results["positive_label"] == "yes"
    assert results["dev"]["num_examples"] == 30 and results["step"] == 48
    assert set(results["data"]) == {"dev", "test"}
    assert results["files"] == ["eval_results.txt", "predictions.tsv", "test_results.tsv"]
    assert (
        results["num_examples"] == 30
        and results["accuracy"] > 0.95
        and results["checkpoint"] == str(trained / "model")
    )
    rows = predictions(trained)
    assert [row[0] for row in rows] == [f"test-{number}" for number in range(21)]
    right = [row[1] == ("yes" if number % 2 else "no") for number, row in enumerate(rows)]
    assert np.mean(right) > 0.9
    for _, label, no, yes in rows:
        assert float(no) + float(yes) == pytest.approx(1, abs=1e-5) and (label == "yes") == (
            float(yes) > float(no)
        )
    assert labels_in(trained) == ("no", "yes")
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["step"] == 0 and lines[0]["eval_auc"] < lines[-1]["eval_auc"]
    assert (
        (trained / "run.json").exists()
        and os.listdir(trained / "tensorboard")
        and os.listdir(trained / "checkpoints")
    )
    assert (trained / "model" / "vocab.txt").read_text().split() == VOCAB


@needs_oracle
def test_transformers_gives_the_same_probabilities(trained, workplace, tmp_path):
    script = [oracle_python(), ORACLE, trained / "model", workplace / "data" / "test.tsv"]
    environment = dict(os.environ, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    environment.pop("PYTHONPATH", None)  # the oracle's packages are its own
    done = subprocess.run(
        [*map(str, script), str(tmp_path / "theirs.npz")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = np.load(tmp_path / "theirs.npz")
    ours = np.array([[float(value) for value in row[2:]] for row in predictions(trained)])
    assert theirs["labels"].tolist() == ["no", "yes"] and ours.shape == (21, 2)
    np.testing.assert_allclose(ours, theirs["probabilities"], rtol=0, atol=2e-5)


def test_the_same_command_again_says_finished_and_gives_the_same_results(
    trained, workplace, capsys
):
    before = (
        (trained / "eval_results.json").read_text(),
        predictions(trained),
        os.stat(trained / "model" / "model.safetensors").st_mtime,
    )
    code, out, _ = call(capsys, *inputs(workplace, trained))
    assert code == 0 and "finished" in out and "dev" in out
    after = (
        (trained / "eval_results.json").read_text(),
        predictions(trained),
        os.stat(trained / "model" / "model.safetensors").st_mtime,
    )
    assert before == after


def test_other_settings_other_data_and_another_start_are_refused(
    trained, workplace, capsys, tmp_path
):
    code, _, err = call(capsys, *inputs(workplace, trained), "--learning_rate=1e-3")
    assert code == 2 and err.count("\n") == 1 and "learning_rate: 0.002 -> 0.001" in err
    shutil.copytree(workplace / "data", tmp_path / "data")
    write_split(tmp_path / "data", "train", 64, 9)
    code, _, err = call(capsys, *inputs(workplace, trained), f"--data_dir={tmp_path / 'data'}")
    assert code == 2 and "training_data" in err
    shutil.copytree(workplace / "model", tmp_path / "model")
    huggingface.write_model(
        str(tmp_path / "model"),
        MODEL,
        initialize(pretraining.weights(BertEncoder(MODEL)), 2),
        "BertForPreTraining",
        files=tokenizer_files(WordPieceTokenizer(str(workplace / "vocab.txt")), MODEL),
    )
    code, _, err = call(
        capsys, *inputs(workplace, trained), f"--init_checkpoint={tmp_path / 'model'}"
    )
    assert code == 2 and "--init_checkpoint: " in err


def test_predicting_alone_takes_the_fine_tuned_model(trained, workplace, capsys, tmp_path):
    write_split(tmp_path, "test", 21, 2, has_labels=False)  # the same texts, without labels
    before = predictions(trained)
    code, out, _ = call(
        capsys,
        "--do_predict",
        f"--data_dir={tmp_path}",
        f"--output_dir={trained}",
        "--eval_batch_size=5",
    )
    assert code == 0 and str(trained / "model") in out
    for row, other in zip(predictions(trained), before, strict=True):
        assert row[:2] == other[:2] and float(row[2]) == pytest.approx(
            float(other[2]), rel=1e-3, abs=1e-6
        )
    output = tmp_path / "elsewhere"
    code, _, _ = call(
        capsys,
        "--do_eval",
        f"--data_dir={workplace / 'data'}",
        f"--init_checkpoint={trained}",
        f"--output_dir={output}",
        FLAGS[0],
    )
    assert code == 0 and sorted(os.listdir(output)) == ["eval_results.json", "eval_results.txt"]
    values = json.loads((output / "eval_results.json").read_text())
    lines = (output / "eval_results.txt").read_text().splitlines()
    names = ("accuracy", "auc", "f1", "loss", "positive_label")
    assert lines == sorted(f"{name} = {values[name]}" for name in names)
    first, second = (
        json.loads((folder / "eval_results.json").read_text()) for folder in (trained, output)
    )
    for name in ("accuracy", "auc", "f1", "loss", "num_examples", "checkpoint"):
        assert first[name] == second[name]


def test_a_killed_run_goes_on_to_the_same_weights(
    trained, workplace, capsys, tmp_path, monkeypatch
):
    """Ends a run after a checkpoint as kill -9 would (nothing after it happens), goes on, and
    compares with the run never ended.
    """

    class Killed(BaseException):
        pass

    from bert_gpu.runs.folder import RunFolder

    save = RunFolder.save

    def save_and_die(self, *arguments):
        save(self, *arguments)
        raise Killed

    more = ["--save_checkpoints_steps=20", "--eval_steps=1000"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "save", save_and_die)
        call(capsys, *inputs(workplace, tmp_path / "run", *more))
    assert not (tmp_path / "run" / "model").exists()
    code, out, _ = call(capsys, *inputs(workplace, tmp_path / "run", *more))
    assert code == 0 and "resuming from step 20 of 48" in out
    weights = [
        (folder / "model" / "model.safetensors").read_bytes()
        for folder in (trained, tmp_path / "run")
    ]
    assert weights[0] == weights[1]


@pytest.mark.long
def test_a_validation_that_is_interrupted_is_made_when_the_run_resumes(
    trained, workplace, capsys, tmp_path, monkeypatch
):
    """Before the first step, and behind the last one."""
    forward, trains = ForwardPass.on_own_replicas, TrainStep.__call__
    steps, is_interrupted = [], []

    def train(self, *arguments):
        steps.append(arguments)
        return trains(self, *arguments)

    def interrupted(self, batch):
        if len(steps) == num_steps and not is_interrupted:
            is_interrupted.append(True)
            signal.raise_signal(signal.SIGINT)
        return forward(self, batch)

    monkeypatch.setattr(ForwardPass, "on_own_replicas", interrupted)
    monkeypatch.setattr(TrainStep, "__call__", train)
    for num_steps, code in ((0, 130), (48, 130), (None, 0)):
        is_interrupted.clear()
        found = call(capsys, *inputs(workplace, tmp_path / "run", "--eval_batch_size=8"))
        assert found[0] == code and (tmp_path / "run" / "model").exists() == (code == 0)
        assert not code or f"stopped by SIGINT after step {num_steps}" in found[2]
    weights, results = (
        [(path / name).read_bytes() for path in (tmp_path / "run", trained)]
        for name in ("model/model.safetensors", "eval_results.json")
    )
    assert weights[0] == weights[1]
    losses, metrics = zip(
        *((each.pop("loss"), each) for each in (json.loads(text)["dev"] for text in results)),
        strict=True,
    )
    assert metrics[0] == metrics[1]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)  # batches of another size round anew


def test_the_flags_of_a_training_from_a_fine_tuned_model_evaluate_what_it_has_trained(
    trained, workplace, capsys, tmp_path
):
    """Also where both have the same labels; another --init_checkpoint is another model."""
    output = tmp_path / "run"
    asked = inputs(workplace, output, f"--init_checkpoint={trained}", "--num_train_steps=2")
    assert call(capsys, *asked)[0] == 0
    for more in ("--do_predict", "--do_eval"):
        code, out, err = call(capsys, *asked, more)
        assert code == 0 and f"model: {output / 'model'}" in out, err
    shutil.copytree(trained / "model", tmp_path / "other")
    path = tmp_path / "other" / "model.safetensors"
    tensors = safetensors.numpy.load(path.read_bytes())
    tensors["classifier.bias"] += 1
    path.write_bytes(safetensors.numpy.save(tensors))
    code, out, err = call(capsys, *asked, f"--init_checkpoint={tmp_path / 'other'}", "--do_eval")
    assert code == 0 and f"model: {tmp_path / 'other'}" in out, err


def test_a_file_of_any_name_needs_nothing_but_the_model(trained, capsys, tmp_path):
    """Columns, labels and length are the model's; further columns are repeated."""
    file = tmp_path / "asked today.csv"
    file.write_text(
        "note,text_b,text_a\nfirst,the cat sits a red,a dog runs the\n"
        '"a ""b"" c",a cat sits the,the dog a bird\n'
    )
    output = tmp_path / "out"
    asked = [f"--init_checkpoint={trained}", f"--output_dir={output}", "--do_predict"]
    code, out, err = call(capsys, *asked, f"--predict_file={file}")  # Google's name of --test_file
    assert code == 0 and str(output / "predictions.tsv") in out, err
    table = [line.split("\t") for line in (output / "predictions.tsv").read_text().splitlines()]
    assert table == [
        ["id", "note", "text_b", "text_a", "prediction"],
        ["0", "first", "the cat sits a red", "a dog runs the", "yes"],
        ["1", 'a "b" c', "a cat sits the", "the dog a bird", "no"],
    ]


def test_fresh_weights_that_are_frozen_are_warned_of(workplace, tmp_path, capsys):
    for frozen, is_warned in (("classifier", True), ("layers:1", False)):
        flags = ["--do_train", "--num_train_epochs=0.1", f"--freeze={frozen}"]
        code, _, err = call(capsys, *inputs(workplace, tmp_path / frozen[:6], *flags))
        assert code == 0, err
        warned = [
            line for line in err.splitlines() if line.startswith(f"warning: --freeze={frozen}")
        ]
        assert len(warned) == is_warned
        for told in warned:
            assert "these weights are fresh, such as classifier/" in told and len(told) <= 300


def test_a_model_without_notes_still_predicts(trained, workplace, capsys, tmp_path):
    """As one of Hugging Face's."""
    shutil.copytree(trained / "model", tmp_path / "model")
    (tmp_path / "model" / "task.json").unlink()
    asked = results_alone(workplace, tmp_path / "model", tmp_path / "out")
    assert call(capsys, *asked)[0] == 0
    assert predictions(tmp_path / "out") == predictions(trained)


@pytest.mark.parametrize(
    "kind, cells, metrics, flags",
    [
        ("regression", ["{:.2f}", "-{:.2f}"], {"pearson", "spearman", "loss"}, []),
        (
            "multilabel",
            ["red,warm", "none"],
            {"f1_micro", "f1_macro", "exact_match", "loss"},
            [],
        ),
        (
            "classification",
            ["red", "none"],
            {"accuracy", "f1", "auc", "loss", "positive_label"},
            [
                "--best_metric=f1",
                "--export_best",
                "--class_weights=balanced",
                "--label_smoothing=0.1",
            ],
        ),
    ],
)
def test_kinds_of_tasks(workplace, capsys, tmp_path, kind, cells, metrics, flags):
    """Each trains, evaluates and predicts; the model knows its kind."""
    generator = np.random.default_rng(3)
    lines = ["text_a\tlabel"]
    for number in range(200):
        text = " ".join(generator.choice(WORDS[1:], 4)) + " red" * (number % 2 == 0)
        lines.append(f"{text}\t{cells[number % 2].format(generator.uniform(1, 1.5))}")
    (tmp_path / "all.tsv").write_text("\n".join(lines) + "\n")
    asked = [
        f"--train_file={tmp_path / 'all.tsv'}",
        "--dev_share=.2",
        "--test_share=.2",
        f"--task_kind={kind}",
        f"--init_checkpoint={workplace / 'model'}",
        f"--output_dir={tmp_path / 'run'}",
        *FLAGS,
        *flags,
    ]
    code, out, err = call(capsys, *asked)
    assert code == 0, err
    values = json.loads((tmp_path / "run" / "eval_results.json").read_text())
    exported = re.search(r"model/ holds the weights of step (\d+)", out)
    assert ("--export_best" in flags) == bool(exported)
    run_of = json.loads((tmp_path / "run" / "run.json").read_text())
    assert values["step"] == (int(exported[1]) if exported else run_of["exported_step"])
    assert set(values) == metrics | {"dev", "test", *ABOUT} and values["num_examples"] > 9
    assert min(values[name] for name in metrics - {"loss", "spearman", "positive_label"}) > 0.9
    if kind == "classification":  # red, because the other class is "none"
        assert values["positive_label"] == "red" and "f1 is that of 'red'" in out
        assert re.search(r"class weights: +none [0-9.]+, red [0-9.]+\n", out)
    said = json.loads((tmp_path / "run" / "model" / "config.json").read_text())["problem_type"]
    assert said == open_task_type(kind).config_name
    (tmp_path / "run" / "model" / "task.json").unlink()  # config.json tells the kind, too
    alone = ["--do_predict", f"--init_checkpoint={tmp_path / 'run'}", FLAGS[0]]
    alone += [f"--output_dir={tmp_path / 'alone'}", f"--test_file={tmp_path / 'all.tsv'}"]
    code, _, err = call(capsys, *alone)
    table = (tmp_path / "alone" / "predictions.tsv").read_text().splitlines()[1:]
    assert code == 0 and len(table) == 200, err
    answers = [row.split("\t")[-1] for row in table]
    if kind == "regression":
        answers = [cells[float(answer) < 0] for answer in answers]
    assert np.mean([cells[i % 2] == answer for i, answer in enumerate(answers)]) > 0.9
    if kind == "classification":  # a resumed run keeps its loss
        code, _, err = call(capsys, *asked[:-1])
        assert code == 2 and "label_smoothing: 0.1 -> 0.0" in err


def test_two_dev_files_and_two_test_files(workplace, capsys, tmp_path):
    """MNLI: the matched file counts in validation, both are reported."""
    labels = ("contradiction", "entailment", "neutral")
    for stem, count in dict(
        train=24, dev_matched=9, dev_mismatched=6, test_matched=4, test_mismatched=5
    ).items():
        named = "test" not in stem
        rows = ["index\tsentence1\tsentence2" + "\tgold_label" * named]
        for number in range(count):
            word = WORDS[number % 3]
            rows.append(f"{number}\ta cat\tthe {word}" + f"\t{labels[number % 3]}" * named)
        (tmp_path / f"{stem}.tsv").write_text("\n".join(rows) + "\n")
    asked = inputs(workplace, tmp_path / "run", f"--data_dir={tmp_path}", "--task_name=MNLI")[1:]
    asked.append("--num_train_steps=2")
    code, out, err = call(capsys, *asked)
    assert code == 0 and "mismatched_accuracy" in out, err
    values = json.loads((tmp_path / "run" / "eval_results.json").read_text())
    assert values["num_examples"] == 15 and values["accuracy"] == values["dev_matched"]["accuracy"]
    assert values["dev_mismatched"]["num_examples"] == 6
    text = (tmp_path / "run" / "eval_results.txt").read_text()
    assert f"dev_mismatched_loss = {values['dev_mismatched']['loss']}\n" in text
    for name, count in {"matched": 4, "mismatched": 5}.items():
        lines = (tmp_path / "run" / f"test_results_{name}.tsv").read_text().splitlines()
        assert len(lines) == count + 1 and all(line.split("\t")[1] in labels for line in lines[1:])
    code, _, err = call(capsys, *asked, "--overwrite", "--do_train")
    left = os.listdir(tmp_path / "run")
    assert code == 0 and not any("results" in name for name in left), err


def test_trials_of_a_grid_resume_trial_by_trial(workplace, capsys, tmp_path, monkeypatch):
    """Stopped after two of four trials, the same command trains the others and no more."""
    asked = inputs(workplace, tmp_path / "out", "--grid=learning_rate=1e-3,2e-3", "--num_trials=2")
    asked += ["--num_train_steps=2", "--nodo_predict"]
    trained = []
    real = engine.Run.result

    def result(self):
        found = real(self)
        trained.append(os.path.relpath(self.folder.path, tmp_path / "out"))
        if len(trained) == 2 and not (tmp_path / "out" / "scores.json").exists():
            return found._replace(signal=15)
        return found

    monkeypatch.setattr(engine.Run, "result", result)
    assert call(capsys, *asked)[0] == 128 + 15
    rates = ("learning_rate=1e-3", "learning_rate=2e-3")
    folders = [f"{rate}/trial-{number}" for rate in rates for number in (1, 2)]
    assert trained == folders[:2]
    code, out, err = call(capsys, *asked)
    assert code == 0 and trained[2:] == folders, err
    assert out.count("this run is finished") == 2 and out.count("validation at step 2") == 2
    content = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert [(row["cell"], row["trial"]) for row in content["trials"]] == [
        (rate, number) for rate in rates for number in (1, 2)
    ]
    for row, folder in zip(content["trials"], folders, strict=True):
        own = json.loads((tmp_path / "out" / folder / "eval_results.json").read_text())
        assert row["score"] == own["accuracy"] and row["metrics"]["dev"]["loss"] == own["loss"]
    seeds = [row["seed"] for row in content["trials"]]
    assert (
        seeds[0] == seeds[2] == seeds[1] - 1
        and len({row["metrics"]["dev"]["loss"] for row in content["trials"]}) == 4
    )


def test_random_weights_single_sentences_three_labels_and_no_test_file(workplace, capsys, tmp_path):
    for split in ("train", "dev"):
        rows = [
            f"{word} {other},{label}"
            for label, word in enumerate(["cat", "dog", "bird"])
            for other in WORDS
        ]
        (tmp_path / f"{split}.csv").write_text("sentence,class\n" + "\n".join(rows) + "\n")
    config = tmp_path / "bert_config.json"
    config.write_text(json.dumps(MODEL.to_dict()))
    columns = [
        f"--data_dir={tmp_path}",
        "--text_a=sentence",
        "--label=class",
        f"--output_dir={tmp_path / 'run'}",
    ]
    start = [
        "--init_checkpoint=none",
        f"--bert_config_file={config}",
        f"--vocab_file={workplace / 'vocab.txt'}",
    ]
    code, out, err = call(capsys, *columns, *start, *FLAGS, "--num_train_steps=3")
    assert code == 0 and "fresh weights:  all" in out and "auc" in out, err
    results = json.loads((tmp_path / "run" / "eval_results.json").read_text())
    assert 0 <= results["auc"] <= 1 and results["num_examples"] == 30
    assert not (tmp_path / "run" / "test_results.tsv").exists()


def test_what_the_checkpoint_lacks_is_named(workplace, capsys, tmp_path):
    code, out, _ = call(
        capsys, *inputs(workplace, tmp_path / "run", "--num_train_steps=1", "--do_train")
    )
    assert code == 0 and "fresh weights:   classifier/bias, classifier/kernel" in out
    assert sorted(os.listdir(tmp_path / "run")) == [
        ".run.lock",
        "checkpoints",
        "metrics.jsonl",
        "model",
        "run.json",
        "tensorboard",
    ]


def test_a_head_of_its_own_and_dropout_are_stored_and_fixed(workplace, capsys, tmp_path):
    short = ["--num_train_steps=1", "--do_train"]
    head = [
        "--pooling=mean",
        "--pooler_size=24",
        "--hidden_dropout_prob=0.2",
        "--attention_probs_dropout_prob=0.3",
    ]
    code, out, _ = call(capsys, *inputs(workplace, tmp_path / "mean", *head, *short))
    assert (
        code == 0
        and "fresh weights:   classifier/bias, classifier/kernel, pooler/bias, pooler/kernel" in out
    )
    config = json.loads((tmp_path / "mean" / "model" / "config.json").read_text())
    stored = [
        config[name]
        for name in (
            "pooling",
            "pooler_size",
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "model_type",
        )
    ]
    assert stored == ["mean", 24, 0.2, 0.3, "bert_gpu"]
    for other, change in [
        ("--pooler_size=32", "pooler_size: 24 -> 32"),
        ("--hidden_dropout_prob=0", "hidden_dropout_prob: 0.2 -> 0.0"),
    ]:
        code, _, err = call(capsys, *inputs(workplace, tmp_path / "mean", *head, other, *short))
        assert code == 2 and err.count("\n") == 1 and change in err, err
    code, _, err = call(capsys, *results_alone(workplace, tmp_path / "mean", tmp_path / "results"))
    assert code == 0, err


def test_pairs_need_segments_only_where_there_are_some(workplace, capsys, tmp_path):
    vocab = tokenizer_files(WordPieceTokenizer(str(workplace / "vocab.txt")), MODEL)
    for num_types in (0, 1):
        model = ModelConfig(**MODEL.to_dict() | dict(type_vocab_size=num_types))
        huggingface.write_model(
            str(tmp_path / str(num_types)),
            model,
            initialize(pretraining.weights(BertEncoder(model)), 1),
            files=vocab,
        )
    start = ["--num_train_steps=1", "--do_train"]
    code, _, err = call(
        capsys, *inputs(workplace, tmp_path / "run", *start), f"--init_checkpoint={tmp_path / '0'}"
    )
    assert code == 0, err
    code, _, err = call(
        capsys, *inputs(workplace, tmp_path / "none", *start), f"--init_checkpoint={tmp_path / '1'}"
    )
    assert (
        code == 2
        and err.count("\n") == 1
        and "type_vocab_size=1" in err
        and not (tmp_path / "none").exists()
    )


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--pooling=last"], ["--pooling=last", "cls, mean"]),
        (["--pooler_size=0"], ["--pooler_size=0", "at least 1"]),
        (["--hidden_dropout_prob=1"], ["--hidden_dropout_prob=1", "below"]),
        (["--data_dir=nowhere"], ["--data_dir=nowhere", "no such folder"]),
        (["--data_dir=short.txt"], ["--data_dir=short.txt", "is a file, not a folder"]),
        (["--init_checkpoint=nowhere"], ["--init_checkpoint=nowhere", "no such folder"]),
        (["--max_seq_length=4"], ["--max_seq_length=4", "at least 8"]),
        (["--text_a=question1"], ["question1", "--text_a"]),
        (["--text_b=question2"], ["question2", "--text_b"]),
        (["--label=gold"], ["gold", "--label"]),
        (["--vocab_file=short.txt"], ["short.txt", "6 pieces", "15"]),
        (["--model=tiny"], ["--model=tiny", "--init_checkpoint=none"]),
        (["--bert_config_file=other.json"], ["--bert_config_file=other.json", "hidden_size"]),
        (["--bert_config_file=."], [".: is a folder"]),
        (["--init_checkpoint=none"], ["--init_checkpoint=none", "--model"]),
        (["--init_checkpoint=none", "--model=tiny"], ["--vocab_file"]),
        (["--nodo_train", "--nodo_eval", "--nodo_predict"], ["nothing to do"]),
        (["--do_eval"], ["--init_checkpoint", "no fine-tuned classifier"]),
        (["--task_name=mnist"], ["--task_name=mnist", "pairs"]),
        (["--unknown=1"], ["unknown"]),
        (["stray"], ["stray"]),
        (["--global_batch_size=15"], ["--global_batch_size=15", "16"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_leaves_nothing(
    workplace, capsys, tmp_path, monkeypatch, arguments, parts
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("\n".join([*VOCAB[:5], "red"]) + "\n")
    (tmp_path / "other.json").write_text(json.dumps(MODEL.to_dict() | dict(hidden_size=64)))
    before = sorted(os.listdir(tmp_path))
    code, _, err = call(capsys, *inputs(workplace, tmp_path / "run"), *arguments)
    assert (
        code == 2
        and err.count("\n") == 1
        and len(err) <= 301
        and all(part in err for part in parts)
    ), err
    assert sorted(os.listdir(tmp_path)) == before


def test_the_scaling_of_the_rate_is_fixed(trained, workplace, capsys):
    code, _, err = call(capsys, *inputs(workplace, trained), "--lr_scaling=none")
    assert code == 2 and err.count("\n") == 1 and "--lr_scaling" in err


def results_alone(workplace, trained, output):
    return [
        "--do_eval",
        "--do_predict",
        f"--data_dir={workplace / 'data'}",
        f"--init_checkpoint={trained}",
        f"--output_dir={output}",
        FLAGS[0],
    ]


def test_results_alone_go_again_into_their_own_folder(trained, workplace, capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    for output in (tmp_path / "empty", tmp_path / "new"):
        for _ in range(2):
            (output / ".eval_results.json.7.partial").write_text("") if output.exists() else None
            code, _, err = call(capsys, *results_alone(workplace, trained, output))
            assert code == 0, err
        assert {"eval_results.json", "test_results.tsv"} <= set(os.listdir(output))


@pytest.mark.parametrize(
    "name, text",
    [
        ("eval_results.json", '{"eval_loss": 1}'),
        ("test_results.tsv", "id\tlabel\n"),
        ("notes.txt", ""),
    ],
)
@pytest.mark.parametrize("flag", ["--nooverwrite", "--overwrite"])
def test_results_alone_do_not_touch_a_users_folder(
    trained, workplace, capsys, tmp_path, name, text, flag
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text(text)
    code, _, err = call(capsys, *results_alone(workplace, trained, tmp_path / "mine"), flag)
    assert code == 2 and err.count("\n") == 1 and "mine" in err and name in err
    assert (
        os.listdir(tmp_path / "mine") == [name] and (tmp_path / "mine" / name).read_text() == text
    )


def test_overwrite_without_a_training_is_refused(trained, workplace, capsys, tmp_path):
    """Rather than ignored: there is nothing that could start anew."""
    arguments = results_alone(workplace, trained, tmp_path / "results")
    code, _, err = call(capsys, *arguments, "--overwrite")
    assert code == 2 and err.startswith("--overwrite: ") and not (tmp_path / "results").exists()


def test_results_alone_do_not_enter_a_run_of_pretraining(trained, workplace, capsys, tmp_path):
    content = json.loads((trained / "run.json").read_text())
    del content["crc32c"]
    (tmp_path / "run.json").write_text(json.dumps(content | dict(settings=dict(seed=1))))
    code, _, err = call(capsys, *results_alone(workplace, trained, tmp_path))
    assert code == 2 and "not a classifier's" in err and os.listdir(tmp_path) == ["run.json"]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "5",
        "{",
        '{"settings": 5, "global_batch_size": 8, "learning_rate": 0.1}',
        '{"settings": {}, "global_batch_size": "8", "learning_rate": 0.1}',
        '{"settings": {}, "global_batch_size": 0, "learning_rate": 0.1}',
    ],
)
def test_a_run_json_that_is_none_is_named(trained, workplace, capsys, tmp_path, text):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(text)
    for more in ([], ["--do_eval"]):
        code, _, err = call(capsys, *inputs(workplace, tmp_path / "run"), *more)
        assert code == 2 and err.count("\n") == 1 and str(tmp_path / "run" / "run.json") in err


def test_a_length_that_is_none_in_run_json_is_named(trained, workplace, capsys, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    for length in ("16", None, -3, True):
        run["settings"]["max_seq_length"] = length
        (tmp_path / "run" / "run.json").write_text(json.dumps(run))
        code, _, err = call(
            capsys,
            "--do_eval",
            f"--data_dir={workplace / 'data'}",
            f"--output_dir={tmp_path / 'run'}",
        )
        assert code == 2 and err.count("\n") == 1 and "run.json" in err and "max_seq_length" in err


@pytest.mark.parametrize("more", [[], ["--overwrite"], ["--do_eval"]])
def test_an_output_folder_that_cannot_be_one_is_refused(trained, workplace, capsys, tmp_path, more):
    (tmp_path / "file").write_text("mine")
    for output in (tmp_path / "file", tmp_path / "file" / "run"):
        code, _, err = call(
            capsys, *inputs(workplace, output), f"--init_checkpoint={trained}", *more
        )
        assert code == 2 and err.count("\n") == 1 and str(output) in err
    assert (tmp_path / "file").read_text() == "mine" and os.listdir(tmp_path) == ["file"]


def test_a_folder_without_the_encoder_is_no_start(workplace, capsys, tmp_path):
    shutil.copytree(workplace / "model", tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = safetensors.numpy.load(path.read_bytes())
    del tensors["bert.encoder.layer.0.output.dense.weight"]
    path.write_bytes(safetensors.numpy.save(tensors))
    code, _, err = call(
        capsys, *inputs(workplace, tmp_path / "run"), f"--init_checkpoint={tmp_path / 'model'}"
    )
    assert (
        code == 2
        and "layer_0/feed_forward/output/kernel" in err
        and not (tmp_path / "run").exists()
    )


def test_empty_texts_and_enormous_ones_are_classified(trained, capsys, tmp_path):
    """Also in batches far larger than the file."""
    texts = [("  ", " "), ("", ""), ("red " * 100_000, "x" * 100_000)]
    (tmp_path / "test.tsv").write_text(
        "text_a\ttext_b\n" + "".join(f"{a}\t{b}\n" for a, b in texts)
    )
    output = tmp_path / "results"
    start = [
        f"--init_checkpoint={trained}",
        f"--data_dir={tmp_path}",
        f"--output_dir={output}",
        FLAGS[0],
    ]
    code, _, err = call(capsys, "--do_predict", *start, "--eval_batch_size=1000000000000")
    assert code == 0 and len(predictions(output)) == 3, err


def test_a_label_that_only_the_dev_file_has_counts_as_wrong(workplace, trained, capsys, tmp_path):
    rows = (workplace / "data" / "dev.tsv").read_text()
    (tmp_path / "dev.tsv").write_text(rows + "x\ta\tb\tmaybe\n" + "y\ta\tb\t-\n")
    start = [f"--init_checkpoint={trained}", f"--dev_file={tmp_path / 'dev.tsv'}", "--do_eval"]
    code, _, err = call(capsys, *start, f"--output_dir={tmp_path / 'results'}", FLAGS[0])
    assert code == 0 and "lacks count as wrong, and not in loss and AUC: maybe (1)" in err, err
    assert "dev.tsv: 1 of the dev examples have no label ('label' is '-') and are left out" in err
    found, known = (
        json.loads((folder / "eval_results.json").read_text())
        for folder in (tmp_path / "results", trained)
    )
    assert found["num_examples"] == known["num_examples"] + 1 == 31
    assert found["accuracy"] == pytest.approx(known["accuracy"] * 30 / 31)
    assert found["loss"] == pytest.approx(known["loss"], rel=1e-4)


@pytest.mark.long
def test_rows_without_a_label_in_one_process(workplace, tmp_path):
    """A training, an evaluation and a prediction; the prediction has a line for each row."""
    data, output = tmp_path / "data", tmp_path / "run"
    shutil.copytree(workplace / "data", data)
    for split in ("train", "dev", "test"):
        blank = [
            f"{split}-{row}\tthe cat\ta dog\t{cell}" for row, cell in enumerate(["-", "NaN", ""])
        ]
        with open(data / f"{split}.tsv", "a") as file:
            file.write("\n".join(blank) + "\n")
    flags = [f"--init_checkpoint={workplace / 'model'}", "--train_batch_size=4"]
    flags += ["--max_seq_length=16", "--num_train_steps=2", f"--data_dir={data}"]
    command = [sys.executable, "run_classifier.py", *flags, f"--output_dir={output}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert labels_in(output) == ("no", "yes")
    assert json.loads((output / "eval_results.json").read_text())["num_examples"] == 30
    assert len((output / "predictions.tsv").read_text().splitlines()) == 1 + 21 + 3
    for split, outcome in (("train", "are left"), ("dev", "are left"), ("test", "count in no")):
        assert f"3 of the {split} examples have no label" in done.stderr and outcome in done.stderr


def test_the_class_of_f1_is_remembered_chosen_and_fixed(trained, workplace, capsys, tmp_path):
    """--positive_label goes before the model's own, which task.json has; a resumed run keeps it."""
    shutil.copytree(trained / "model", tmp_path / "model")
    notes = json.loads((tmp_path / "model" / "task.json").read_text())
    assert notes["positive_label"] == "yes"
    card, run = (trained / "model" / "README.md").read_text(), read_run(str(trained), "run")
    assert "| positive_label | yes |" in card and summary(run)["F1 is of"] == "yes"
    notes |= dict(positive_label="no")
    notes[CHECKSUM] = json_checksum({k: v for k, v in notes.items() if k != CHECKSUM})
    (tmp_path / "model" / "task.json").write_text(json.dumps(notes))
    asked = ["--do_eval", f"--data_dir={workplace / 'data'}", FLAGS[0]]
    asked += [f"--init_checkpoint={tmp_path / 'model'}", f"--output_dir={tmp_path / 'out'}"]
    for more, label in ([], "no"), (["--positive_label=yes"], "yes"):
        code, out, err = call(capsys, *asked, *more)
        assert code == 0 and f"f1 is that of '{label}'" in out, err
        values = json.loads((tmp_path / "out" / "eval_results.json").read_text())
        assert values["positive_label"] == label
    code, _, err = call(capsys, *inputs(workplace, trained), "--positive_label=no")
    assert code == 2 and "positive_label: yes -> no" in err
    code, _, err = call(capsys, *asked, "--positive_label=maybe")
    assert code == 2 and "--positive_label=maybe: must be one of two classes" in err


@pytest.mark.long
def test_the_separator_of_the_training_reads_and_writes_other_files(workplace, capsys, tmp_path):
    """Of labels with commas, which ; separates: predictions, and an evaluation without training."""
    labels, generator = ("red, warm", "cat"), np.random.default_rng(4)
    rows = ["text\tlabels"]
    for number in range(120):
        own = [label for bit, label in enumerate(labels) if number >> bit & 1]
        words = [*generator.choice(["the", "a"], 2), *(label.split(",")[0] for label in own)]
        rows.append(" ".join(words) + "\t" + ";".join(own))
    (tmp_path / "all.tsv").write_text("\n".join(rows) + "\n")
    asked = [f"--init_checkpoint={workplace / 'model'}", "--task_kind=multilabel", FLAGS[0]]
    asked += ["--task_name=single", "--label=labels", f"--train_file={tmp_path / 'all.tsv'}"]
    asked += ["--num_train_steps=1", f"--output_dir={tmp_path / 'run'}", "--nodo_eval"]
    command = [sys.executable, "run_classifier.py", *asked]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0 and "labels such as 'red, warm' contain" in done.stderr, done.stderr
    assert re.search(r"separator: +;\n", done.stdout)
    notes = json.loads((tmp_path / "run" / "model" / "task.json").read_text())
    assert notes["separator"] == ";"
    path = tmp_path / "one.tsv"
    path.write_text("text\tlabels\nred cat\tred, warm\nred cat\tcat\n")
    asked = ["--do_eval", "--do_predict", f"--dev_file={path}", f"--test_file={path}"]
    code, _, err = call(capsys, *asked, f"--output_dir={tmp_path / 'run'}")
    assert code == 0 and "lacks" not in err, err  # one label, of which a part is none
    predictions = (tmp_path / "run" / "predictions.tsv").read_text().splitlines()[1:]
    known = {"", *labels, "cat;red, warm"}
    assert len(predictions) == 2 and {row.split("\t")[-1] for row in predictions} <= known


def test_a_best_metric_that_there_is_not_is_refused_before_anything_is_written(
    workplace, capsys, tmp_path
):
    code, _, err = call(capsys, *inputs(workplace, tmp_path / "run", "--best_metric=bleu"))
    assert code == 2 and "--best_metric=bleu: the validation reports accuracy, f1" in err
    assert not (tmp_path / "run").exists()


def test_help_shows_the_true_defaults(capsys):
    with pytest.raises(SystemExit) as caught:
        classify.main(["classify", "--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0
    for line in (
        "--learning_rate=FLOAT (default: 5e-05)",
        "--num_train_epochs=FLOAT (default: 3.0)",
    ):
        assert line in out
    code, out, _ = call(capsys, "--show_config", "--max_seq_length=64")
    assert (
        code == 0
        and "--learning_rate=5e-05  # default" in out
        and "--max_seq_length=64  # command line" in out
    )


def test_the_length_of_the_training_goes_before_a_recipes(workplace, trained, capsys):
    folders = [f"--data_dir={workplace / 'data'}", f"--output_dir={trained}"]
    said = []
    for more in ([], ["--recipe=bert"]):
        code, out, _ = call(capsys, *folders, "--do_eval", *more)
        assert code == 0
        said.append([line for line in out.splitlines() if line.startswith("data:")])
    assert said[0] == said[1] and len(said[0]) == 1


@pytest.mark.parametrize(
    "files, folder, predicts",
    [
        ([], "examples/pairs", True),
        (["train"], "None", False),
        (["train", "test"], "None", True),
        (["dev"], "None", False),
    ],
)
def test_the_bundled_folder_is_not_mixed_with_named_files(
    workplace, capsys, files, folder, predicts
):
    named = [f"--{split}_file={workplace / 'data' / split}.tsv" for split in files]
    code, out, _ = call(capsys, "--show_config", *named)
    assert code == 0 and f"--data_dir={folder} " in out and f"--do_predict={predicts} " in out
    given = f"--data_dir={workplace / 'data'}"
    assert given in call(capsys, "--show_config", given, *named)[1]


def test_show_config_resolves_defaults(workplace, capsys):
    code, out, _ = call(capsys, "--show_config", f"--data_dir={workplace / 'data'}")
    assert (
        code == 0
        and "--max_seq_length=128  # derived" in out
        and "--init_checkpoint=runs/pretrain/model  # derived" in out
    )


def test_an_empty_init_checkpoint_is_no_default(workplace, tmp_path, capsys):
    code, _, err = call(capsys, *inputs(workplace, tmp_path / "run"), "--init_checkpoint=")
    assert code == 2 and "--init_checkpoint=: is empty" in err


def test_without_training_the_data_are_those_of_the_models_run(
    trained, workplace, tmp_path, capsys
):
    """Not the bundled ones: their results would replace the run's own."""
    shutil.copytree(trained, tmp_path / "run")
    results = tmp_path / "run" / "eval_results.json"
    digest = json.loads(results.read_text())["data"]["dev"]
    own = f"--output_dir={tmp_path / 'run'}"
    code, out, err = call(capsys, own, "--do_eval")
    assert code == 0 and f"{workplace / 'data' / 'dev.tsv'}: 30 pairs" in out, err
    assert json.loads(results.read_text())["data"] == {"dev": digest}
    apart = [f"--init_checkpoint={trained}", f"--output_dir={tmp_path / 'apart'}"]
    code, out, err = call(capsys, *apart, "--nodo_train")
    assert code == 0 and "dev.tsv: 30 pairs" in out and "test.tsv: 21 pairs" in out, err
    # a file of the user's own is all there is
    named = f"--dev_file={workplace / 'data' / 'train.tsv'}"
    code, out, err = call(capsys, *apart, "--do_eval", named)
    assert code == 0 and "train.tsv: 128 pairs" in out, err


@pytest.mark.parametrize("phase", ["--do_eval", "--do_predict", "--nodo_train"])
def test_data_that_are_unknown_or_gone_are_asked_for(trained, tmp_path, capsys, phase):
    output = tmp_path / "run"
    shutil.copytree(trained, output)
    content = json.loads((output / "run.json").read_text())
    content.pop(CHECKSUM)
    content["free"]["data_dir"] = "p8"
    (output / "run.json").write_text(json.dumps(content))
    before = (output / "eval_results.json").read_bytes()
    code, _, err = call(capsys, f"--output_dir={output}", phase)
    assert code == 2 and err.count("\n") == 1 and len(err) <= 301, err
    assert "--data_dir is needed: " in err and "was trained with --data_dir=p8, which is not" in err
    apart = [f"--init_checkpoint={tmp_path / 'alone'}", f"--output_dir={tmp_path / 'apart'}"]
    shutil.copytree(trained / "model", tmp_path / "alone")
    code, _, err = call(capsys, *apart, phase)
    assert code == 2 and err.count("\n") == 1 and "there is no file to " in err, err
    assert (output / "eval_results.json").read_bytes() == before
    assert not (tmp_path / "apart").exists()
    # what needs no data does not ask for them
    (tmp_path / "new.tsv").write_text("text_a\ttext_b\na cat\ta dog\n")
    new = f"--test_file={tmp_path / 'new.tsv'}"
    assert call(capsys, f"--output_dir={output}", "--do_predict", new)[0] == 0


def test_results_may_go_where_only_a_lock_lies(workplace, trained, tmp_path, capsys):
    (tmp_path / ".run.lock").write_text("")
    code, out, _ = call(
        capsys,
        f"--data_dir={workplace / 'data'}",
        f"--init_checkpoint={trained}",
        f"--output_dir={tmp_path}",
        "--do_eval",
        FLAGS[0],
    )
    assert code == 0 and (tmp_path / "eval_results.json").exists()
