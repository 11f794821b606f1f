"""Our fine-tuning on pairs as a process for benchmarks: the run that run_classifier.py starts, and
the Predictor that it predicts with.
"""

import dataclasses
import json
import pathlib
import tempfile
import time

import numpy as np
from serve import serve


class Ours:
    """model: folder of a classifier. pairs: folder. padding: as --padding. precision: of
    DeviceConfig. batch: pairs. max_length: tokens of a pair.
    """

    def __init__(self, model, pairs, padding, precision, batch, max_length=128):
        from bert_gpu.devices.config import DeviceConfig
        from bert_gpu.finetune.config import FinetuneConfig, FinetuneSettings, StartConfig

        self.batch = batch
        self.settings = FinetuneSettings(
            run=FinetuneConfig(
                data_dir=pairs,
                padding=padding,
                max_seq_length=max_length,
                eval_batch_size=batch,
                do_train=True,
                do_eval=False,
                do_predict=False,
            ),
            start=StartConfig(init_checkpoint=model),
            devices=DeviceConfig(num_gpus=0, precision=precision),
        )
        self.predictor = None

    def train(self, num_steps):
        """Train from the model. Returns {"tokens_per_second": real tokens in the second half of the
        steps, "loss": mean of all steps}.
        """
        from bert_gpu.base.console import Console
        from bert_gpu.finetune.run import finetune
        from bert_gpu.train.config import BatchConfig, CadenceConfig

        with tempfile.TemporaryDirectory() as folder:
            settings = dataclasses.replace(
                self.settings,
                run=dataclasses.replace(self.settings.run, output_dir=f"{folder}/run"),
                batch=BatchConfig(train_batch_size=self.batch),
                cadence=CadenceConfig(num_train_steps=num_steps, log_steps=num_steps // 2),
            )
            finetune(settings, Console(quiet=True))
            lines = (pathlib.Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
        first, second = [json.loads(line) for line in lines if '"tokens_per_second"' in line]
        loss = (first["loss"] + second["loss"]) / 2
        return dict(tokens_per_second=second["tokens_per_second"], loss=loss)

    def open_predictor(self):
        from bert_gpu.devices.devices import set_up
        from bert_gpu.finetune.files.splits import read_splits
        from bert_gpu.finetune.prediction import Predictor
        from bert_gpu.finetune.start import find_trained
        from bert_gpu.finetune.tasks.interface import RowFormat
        from bert_gpu.finetune.tasks.opening import open_task
        from bert_gpu.train.state import ModelState

        run, devices = self.settings.run, set_up(self.settings.devices)
        trained = find_trained(self.settings.start, ".")
        start, task = trained.start, open_task(self.settings, trained.notes)
        task, files = read_splits(dataclasses.replace(task, labels=trained.labels), run, ["eval"])
        (examples,) = files["eval"]
        folder = tempfile.gettempdir()
        form = RowFormat(start.tokenizer, run.max_seq_length, run.padding, folder, run.seed)
        self.encoded = task.encode(examples, form)
        state = ModelState(devices.strategy, start.weights)
        self.predictor = Predictor(devices, state, start.encoder, task)
        self.predict()  # compiles

    def predict(self, output=None):
        """Predict the dev file. Returns {"tokens_per_second": real tokens}; output: file for the
        probabilities.
        """
        if self.predictor is None:
            self.open_predictor()
        started = time.perf_counter()
        probabilities = self.predictor(self.encoded, self.batch)
        seconds = time.perf_counter() - started
        if output:
            np.save(output, probabilities)
        return dict(tokens_per_second=len(self.encoded.ids) / seconds)


if __name__ == "__main__":
    serve(Ours)
