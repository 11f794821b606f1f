"""The task type in CONTRIBUTING.md runs as it stands there, in the two files that it names."""

import io
import re
import sys
import types

import numpy as np
import tensorflow as tf

from bert_gpu.base.console import Console
from bert_gpu.devices.config import DeviceConfig
from bert_gpu.finetune.config import FinetuneConfig, FinetuneSettings, StartConfig
from bert_gpu.finetune.run import finetune
from bert_gpu.finetune.tasks import table
from bert_gpu.train.config import CadenceConfig
from tests.documents import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
CODE = re.search(r"(?s)```python\n(.*?)```", TEXT)[1]


def test_the_task_type_of_the_guide_runs(tmp_path, monkeypatch):
    assert len(CODE.splitlines()) <= 36
    module = types.ModuleType("bert_gpu.finetune.tasks.ordinal")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(CODE, module.__dict__)
    kinds = re.search(r"KINDS: (.*)", TEXT)[1]
    row = re.search(r"TASKS: (.*)", TEXT)[1]
    for kind, name in eval(f"dict({kinds})", vars(table)).items():
        monkeypatch.setitem(table.KINDS, kind, name)
    spec = eval(row, vars(table))
    monkeypatch.setitem(table.TASKS, spec.name, spec)
    words = ["bad", "poor", "fair", "good", "great"]
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    )
    for split, count in (("train", 40), ("dev", 10)):
        lines = [f"{words[index % 5]}\t{index % 5 + 1}" for index in range(count)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    settings = FinetuneSettings(
        run=FinetuneConfig(
            task_name="stars",
            data_dir=str(tmp_path),
            output_dir=str(tmp_path / "run"),
            max_seq_length=8,
        ),
        start=StartConfig(
            init_checkpoint="none", model="tiny", vocab_file=str(tmp_path / "vocab.txt")
        ),
        devices=DeviceConfig(num_gpus=0),
        cadence=CadenceConfig(num_train_steps=2),
    )
    result = finetune(settings, Console(stream=io.StringIO()))
    assert set(result.metrics["dev"]) == {"accuracy", "f1", "loss"}
    task = module.Ordinal(spec=spec, labels=("1", "2", "3", "4", "5"))
    near, far = task.losses(tf.constant([[0.0, 9, 0, 0, 0], [0.0, 0, 0, 0, 9]]), np.array([0, 0]))
    assert near < far  # a class beside the right one is less wrong than the last
