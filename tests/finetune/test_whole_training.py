"""A whole fine-tuning is that of torch: the same weights, order, schedule, decay and clipping give
the same loss at each step and the same predictions at the end, with every padding.
"""

import csv
import dataclasses
import itertools
import json
import pathlib
import subprocess

import numpy as np

from bert_gpu.__main__ import main as command
from bert_gpu.finetune import run
from bert_gpu.finetune.files.encoded import make_batch, training_batches
from bert_gpu.interop import models
from tests.cli import test_classify
from tests.interop.test_huggingface import needs_oracle, oracle_environment, oracle_python

PADDINGS = ("fixed", "dynamic", "uniform")
STEPS, BATCH = 40, 16


def write_start(run, task, start, data, folder):
    """Write the model that a training starts from, its batches and the examples to predict."""
    notes = models.Notes([], [], task.architecture, task.labels)
    model = models.Model(start.model, start.weights, notes, start.tokenizer)
    models.write_own(model, str(folder / "start"))
    rows, seed = data["train"][0].rows, run.settings.run.seed
    batches = training_batches(rows, batch_size=BATCH, position=0, seed=seed)
    for step, batch in enumerate(itertools.islice(batches, STEPS)):
        np.savez(folder / f"batch-{step}.npz", **batch)
    tested = data["predict"][0].rows
    np.savez(folder / "test.npz", **make_batch(tested, np.arange(len(tested))))


@needs_oracle
def test_a_whole_training_is_that_of_torch(tmp_path, monkeypatch):
    wide = dataclasses.replace(test_classify.MODEL, initializer_range=0.1)
    monkeypatch.setattr(test_classify, "MODEL", wide)
    test_classify.make_model(tmp_path)
    for seed, (split, count) in enumerate(dict(train=128, dev=30, test=100).items()):
        test_classify.write_split(tmp_path, split, count, seed)
    train = run.train
    folders = [tmp_path / padding for padding in PADDINGS]
    for folder in folders:
        folder.mkdir()

        def written(run, task, start, data, *more, folder=folder):
            write_start(run, task, start, data, folder)
            return train(run, task, start, data, *more)

        flags = [f"--data_dir={tmp_path}", f"--init_checkpoint={tmp_path}/model"]
        flags += [f"--output_dir={folder}/run", f"--padding={folder.name}", "--max_seq_length=16"]
        flags += ["--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0", "--log_steps=1"]
        flags += [f"--num_train_steps={STEPS}", f"--train_batch_size={BATCH}"]
        with monkeypatch.context() as patch:
            patch.setattr(run, "train", written)
            assert command(["bert-gpu", "classify", "--learning_rate=1e-3", *flags]) == 0
        lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
        steps = [line for line in lines if "loss" in line]
        assert [line["step"] for line in steps] == [*range(1, STEPS + 1)]
        settings = dict(weight_decay=0.01, epsilon=1e-6, clip_norm=1.0, dropout=0.0, seed=0)
        settings |= dict(learning_rates=[line["learning_rate"] for line in steps])
        (folder / "settings.json").write_text(json.dumps(settings))
        np.save(folder / "ours.npy", [line["loss"] for line in steps])
    script = str(pathlib.Path(__file__).parent / "training_oracle.py")
    environment = oracle_environment(tmp_path)
    subprocess.run([oracle_python(), script, *folders], env=environment, check=True)
    for folder in folders:
        losses = np.load(folder / "losses.npy")
        np.testing.assert_allclose(np.load(folder / "ours.npy"), losses, rtol=3e-4)
        assert losses[-10:].mean() < 0.97 * losses[:10].mean()  # it learns
        with open(folder / "run" / "test_results.tsv", encoding="utf-8") as file:
            rows = list(csv.reader(file, delimiter="\t"))[1:]
        probabilities = np.array([row[2:] for row in rows], float)
        np.testing.assert_allclose(probabilities, np.load(folder / "probabilities.npy"), atol=2e-4)
