"""Pretraining on two data sets by weight: what the log and the files show, and exact resumes."""

import contextlib
import io
import json
import shutil
import signal

import numpy as np
import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.data.config import InputConfig
from bert_gpu.data.dataset import Dataset
from tests.cli.pretraining import lines, same, start_and_hold, wait_until, weights
from tests.cli.pretraining import pretrain as pretrain_on

MIXED = ["--input_weights=3,1", "--input_weights_from=.5:1,3", "--save_checkpoints_steps=4"]


@pytest.fixture(scope="module")
def books(data, tmp_path_factory):
    """A second data set with the vocabulary of `data`, and other documents."""
    folder = tmp_path_factory.mktemp("books")
    words = ["the old man went home .", "she was there again .", "it is a small house ."]
    text = "\n\n".join("\n".join(words[i % 3 :] + words) for i in range(60))
    (folder / "books.txt").write_text(text)
    flags = [
        f"--input_file={folder}/books.txt",
        f"--output_file={folder}/x.tfrecord",
        f"--vocab_file={data}/vocab.txt",
        "--dupe_factor=3",
    ]
    assert command(["bert-gpu", "data", *flags, "--max_seq_length=32", "--quiet"]) == 0
    return folder


def pretrain(data, books, output, *flags, steps=12):
    both = f"--input_file={data},{books}"
    return pretrain_on(data, output, both, *flags, steps=steps)


def changed_record(output):
    return json.loads((output / "run.json").read_text()).get("weights_changed")


@pytest.fixture(scope="module")
def mixed(data, books, tmp_path_factory):
    """A finished run; log.txt beside its folder has what it printed."""
    output = tmp_path_factory.mktemp("mixed") / "run"
    with contextlib.redirect_stdout(io.StringIO()) as log:
        assert pretrain(data, books, output, *MIXED, "--noquiet") == 0
    (output.parent / "log.txt").write_text(log.getvalue())
    return output


def test_the_loss_of_each_set_and_their_mean(data, books, mixed):
    last = [line for line in lines(mixed) if "eval_loss" in line][-1]
    names = [f"eval_data_{folder.name}_loss" for folder in (data, books)]
    assert [name for name in last if name.startswith("eval_data_")] == names
    sizes = [
        json.loads((folder / "dataset.json").read_text())["num_validation_instances"]
        for folder in (data, books)
    ]
    # a mean over sentences and predictions, whose numbers differ a little between records
    assert last["eval_loss"] == pytest.approx(
        np.average([last[name] for name in names], weights=sizes), abs=0.01
    )
    assert min(last[name] for name in names) < last["eval_loss"] < max(last[n] for n in names)


def test_run_json_and_the_card_give_epochs_of_each_set(data, books, mixed):
    assert changed_record(mixed) == 6 * 8
    run = json.loads((mixed / "run.json").read_text())
    sets = run["settings"]["training_data"]["sets"]
    assert [one["name"] for one in sets] == [data.name, books.name]
    assert [one["weights"] for one in sets] == [[0.75, 0.25], [0.25, 0.75]]
    counts = np.zeros(2)
    for phase in (0, 1):
        rates = [one["weights"][phase] / one["tokens_per_record"] for one in sets]
        counts += 48 * np.array(rates) / sum(rates)
    card = (mixed / "model" / "README.md").read_text()
    for number, (count, one) in enumerate(zip(counts, sets, strict=True), 1):
        row = next(line for line in card.splitlines() if line.startswith(f"| data set {number} |"))
        epochs = count / one["num_records"]
        passes = epochs * one["dupe_factor"]
        assert f"; {epochs:.2f} epochs = {passes:.2f} passes over its text" in row
        assert f" {one['name']}: 0." in row
    num_documents = json.loads((data / "dataset.json").read_text())["num_documents"]
    assert f"| text of the first data set | 1 file(s): {num_documents:,} documents" in card


def test_the_mean_tokens_are_dataset_jsons_or_measured(data, books, tmp_path, monkeypatch):
    """Records of other tools have no dataset.json."""
    mean = json.loads((books / "dataset.json").read_text())["tokens_per_record"]
    for folder in (data, books):
        ignore = shutil.ignore_patterns("*validation*", "dataset.json")
        shutil.copytree(folder, tmp_path / folder.name, ignore=ignore)

    def means(parent):
        files = ",".join(f"{parent}/{folder.name}/*.tfrecord" for folder in (data, books))
        config = InputConfig(input_file=files, input_weights="1,1")
        return [one.tokens_per_record for one in Dataset(config).mixture.sets]

    assert means(tmp_path)[1] == mean
    monkeypatch.setattr(Dataset, "_mean_tokens", lambda self, rows: 7.0)
    assert means(data.parent)[1] == mean and means(tmp_path) == [7.0, 7.0]


def test_the_log_gives_the_sets_and_the_change(books, mixed):
    log = (mixed.parent / "log.txt").read_text()
    assert f"data set 2:     {books.name}: 0.25, then 0.75 of the tokens; " in log
    assert "the weights of the data sets change at record 48\n" in log
    assert "--dupe_factor" not in log  # of the first set only


def test_other_weights_do_not_resume_a_run(data, books, mixed, capsys):
    assert pretrain(data, books, mixed, *MIXED, "--input_weights=1,1") == 2
    assert "(--input_weights: 3,1 -> 1,1" in capsys.readouterr().err


def test_wrong_sets_are_one_line(data, books, tmp_path, capsys):
    for text, complaint in (
        ("1", "--input_weights=1: must be finite numbers above 0, one for each data set"),
        ("1,x", "--input_weights=1,x: must be"),
    ):
        assert pretrain(data, books, tmp_path / "run", f"--input_weights={text}") == 2
        error = capsys.readouterr().err.strip()
        assert error.startswith(complaint) and "\n" not in error
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_killed_and_resumed_is_never_killed(data, books, mixed, tmp_path):
    """Killed after the change with a checkpoint before it, and with one after it."""
    output = tmp_path / "run"
    flags = [*MIXED, f"--input_file={data},{books}"]
    for before_step, saved_step in ((7, 4), (9, 8)):
        with start_and_hold(data, output, *flags, before_step=before_step) as process:
            last = output / "checkpoints" / f"step-{saved_step:08}"
            wait_until(process, lambda last=last: last.exists() and changed_record(output) == 48)
            process.send_signal(signal.SIGKILL)
    assert pretrain(data, books, output, *MIXED) == 0
    assert changed_record(output) == changed_record(mixed) == 48
    assert same(weights(output), weights(mixed))
