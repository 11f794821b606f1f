"""The first outputs of a head that a fine-tuning adds differ between examples by a set amount, for
every kind of task, however the training is divided and wherever it resumes; the default rate and
epochs are those for the model's width and the number of examples.
"""

import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.__main__ import main as command
from bert_gpu.finetune import config, first_weights, run
from bert_gpu.finetune.files.encoded import make_batch
from bert_gpu.interop import models
from bert_gpu.runs.folder import RunFolder
from bert_gpu.train.batching import gather_windows
from tests.cli import test_classify, test_families

HEADS = dict(
    pairs="classifier",
    regression="classifier",
    multilabel="classifier",
    ner="token_classifier",
    squad="span",
)


class Stopped(BaseException):
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with model/, whose outputs differ between examples."""
    folder = tmp_path_factory.mktemp("first_weights")
    (folder / "model").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        wide = dataclasses.replace(test_classify.MODEL, initializer_range=0.3)
        patch.setattr(test_classify, "MODEL", wide)
        test_classify.make_model(folder / "model")
    return folder


def flags_of(folder, kind, output, model="model"):
    task = folder / kind
    task.mkdir(exist_ok=True)
    flags = test_families.write_task(kind, task)
    return [*flags, f"--output_dir={output}", f"--init_checkpoint={folder / model}/model"]


def start_of(folder, kind, output, *more, model="model"):
    """Return (run, task, start, data, devices) of a training, stopped before its first step."""
    return stopped([*flags_of(folder, kind, output, model), "--max_seq_length=24", *more])


def stopped(flags):
    every = []

    def stop(run, task, start, data, devices, *others):
        every.extend((run, task, start, data, devices))
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "train", stop)
        with pytest.raises(Stopped):
            command(["bert-gpu", "classify", *flags])
    return every


def kernel_of(start, task):
    return start.weights[f"{task.head}/kernel"]


def first_outputs(task, start, rows):
    """The outputs (N, C) of examples, or of their words, of one example at a time."""
    outputs = []
    count = min(first_weights.NUM_EXAMPLES, len(rows))
    for index in np.linspace(0, len(rows) - 1, count).astype(int):
        [batch] = gather_windows([make_batch(rows, np.array([index]))], 1)
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        scores = task.logits(start.weights, tensors, start.encoder, tf.float32).numpy()
        if "token_labels" in batch:
            scores = scores[batch["token_labels"] >= 0]
        elif scores.ndim == 3:
            scores = scores[:, : batch["input_mask"].sum()].reshape(-1, 2)
        outputs.append(scores)
    return np.concatenate(outputs).astype(np.float64)


@pytest.mark.parametrize(
    "kind, flags",
    [
        *((kind, ()) for kind in HEADS),
        ("pairs", ("--pooling=mean",)),
        ("pairs", ("--text_b=", "--long_texts=windows", "--max_seq_length=8")),
    ],
)
def test_first_outputs_differ_between_examples_by_the_spread(
    folder, tmp_path, capsys, monkeypatch, kind, flags
):
    monkeypatch.setattr(first_weights, "LEAST_SHARE", 0.0)  # some texts differ by one word
    _, task, start, data, _ = start_of(folder, kind, tmp_path, *flags)
    assert f"first weights: {HEADS[kind]}/kernel x " in capsys.readouterr().out
    outputs = first_outputs(task, start, data["train"][0].rows)
    # the mean square of the difference of two examples is twice that of one from the mean
    pairs = (outputs[:, None] - outputs[None]) ** 2
    assert np.sqrt(pairs.mean() / 2) == pytest.approx(first_weights.SPREAD, rel=1e-4)


def test_outputs_that_are_nearly_the_same_are_not_magnified(folder, tmp_path, capsys):
    run, task, start, data, _ = start_of(folder, "pairs", tmp_path)
    rows = data["train"][0].rows
    largest = np.abs(first_outputs(task, start, rows)).max()
    for common, is_scaled in ((0.0, True), (20 * largest, False)):
        far = start.weights | {"classifier/bias": np.float32([common, common])}
        moved = dataclasses.replace(start, weights=far)
        same = first_weights.with_scaled_head(moved, rows, task, run) is moved
        assert same != is_scaled


def test_the_examples_are_of_the_whole_file(folder, tmp_path):
    """A file in order of its labels has the factor of the same file in another order."""
    names = ("sorted", "mixed")
    for name in names:
        (tmp_path / name).mkdir()
        test_classify.write_split(tmp_path / name, "train", 2000, 1)
    path = tmp_path / "sorted" / "train.tsv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *sorted(rows, key=lambda row: row[-1])]) + "\n")
    few = ["--max_seq_length=24", f"--init_checkpoint={folder}/model/model", "--do_train"]
    kernels = [
        np.abs(kernel_of(start, task)).max()
        for name in names
        for flags in [[f"--data_dir={tmp_path / name}", f"--output_dir={tmp_path / name}/run"]]
        for _, task, start, *_ in [stopped([*flags, *few])]
    ]
    assert kernels[0] == pytest.approx(kernels[1], rel=0.2)


def test_replicas_share_first_weights_and_a_run_continues_with_its_own(
    folder, tmp_path, capsys, monkeypatch
):
    """A run whose checkpoints are lost starts again with the same weights."""
    save, newest = RunFolder.save, []

    def save_and_die(self, progress, values, keep):
        save(self, progress, values, keep)
        newest.append(values)
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(RunFolder, "save", save_and_die)
        few = ["--max_seq_length=24", "--save_checkpoints_steps=1"]
        command(["bert-gpu", "classify", *flags_of(folder, "ner", tmp_path / "run"), *few])
    assert "first weights" in capsys.readouterr().out and len(newest) == 1
    _, task, resumed, *_ = start_of(folder, "ner", tmp_path / "run")
    assert "first weights" not in capsys.readouterr().out
    start_of(folder, "ner", tmp_path / "run", "--overwrite")
    assert "first weights" in capsys.readouterr().out
    for path in (tmp_path / "run").glob("checkpoints/*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _, _, again, *_ = start_of(folder, "ner", tmp_path / "run")
    _, _, divided, _, devices = start_of(folder, "ner", tmp_path / "two", "--virtual_replicas=2")
    assert devices.num_replicas == 2
    np.testing.assert_array_equal(kernel_of(again, task), kernel_of(divided, task))
    assert np.any(kernel_of(resumed, task) != kernel_of(again, task))


def test_only_a_fresh_kernel_whose_outputs_differ_is_scaled(folder, tmp_path, capsys):
    run, task, start, data, _ = start_of(folder, "pairs", tmp_path / "run")
    rows = data["train"][0].rows
    for factor in (0.0, np.nan, np.inf):
        for name in ("pooler/kernel", "embeddings/norm/scale"):
            with np.errstate(invalid="ignore"):
                weights = start.weights | {name: start.weights[name] * np.float32(factor)}
            damaged = dataclasses.replace(start, weights=weights)
            assert first_weights.with_scaled_head(damaged, rows, task, run) is damaged, factor
    capsys.readouterr()
    shape = f"--bert_config_file={folder}/model/model/config.json"
    fresh = ("--init_checkpoint=none", shape, f"--vocab_file={folder}/model/vocab.txt")
    start_of(folder, "pairs", tmp_path / "random", *fresh)
    assert "first weights" not in capsys.readouterr().out
    notes = models.Notes([], [], task.architecture, task.labels)
    path = folder / "classifier" / "model"
    models.write_own(models.Model(start.model, start.weights, notes, start.tokenizer), str(path))
    _, _, own, *_ = start_of(folder, "pairs", tmp_path / "own", model="classifier")
    assert "first weights" not in capsys.readouterr().out
    np.testing.assert_array_equal(kernel_of(own, task), kernel_of(start, task))


@pytest.mark.parametrize(
    "set_by_user, rate, epochs",
    [
        ([], 1e-3, 9600 / 128),
        (["--learning_rate=5e-5"], 5e-5, 75),
        (["--num_train_epochs=3", "--learning_rate=3e-5"], 3e-5, 3),
        (["--recipe=bert"], 5e-5, 3),
    ],
)
def test_rate_and_epochs_follow_width_and_examples_unless_they_are_set(
    folder, tmp_path, set_by_user, rate, epochs
):
    flags = flags_of(folder, "pairs", tmp_path)
    flags.remove("--num_train_epochs=6")
    settings = stopped([*flags, "--max_seq_length=24", *set_by_user])[0].settings
    assert settings.optimizer.learning_rate == pytest.approx(rate, rel=0.02)
    assert settings.cadence.num_train_epochs == epochs


@pytest.mark.parametrize("width, rate", [(768, 5e-5), (1024, 2.8e-5), (384, 2e-4), (64, 1e-3)])
def test_base_and_many_examples_have_the_defaults_of_google(width, rate):
    settings = config.FinetuneSettings(unset=("learning_rate", "num_train_epochs"))
    model = dataclasses.replace(test_classify.MODEL, hidden_size=width)
    settings = config.fitted(settings, model, 3200)
    assert settings.cadence.num_train_epochs == 3 and settings.optimizer.learning_rate == rate
