"""Hugging Face's Trainer on pairs as a process for benchmarks: BertForSequenceClassification with
the Trainer's defaults (fused AdamW, gradients clipped to 1), and its ways to pad.
"""

import csv
import pathlib
import tempfile
import time

import numpy as np
import torch
import transformers
from serve import serve

STRATEGIES = {"uniform": "group_by_length"}  # of sampling, by padding


class Clock(transformers.TrainerCallback):
    """Real tokens and seconds of the second half of the steps."""

    def on_step_end(self, args, state, control, **_):
        now = time.perf_counter(), int(state.num_input_tokens_seen)
        if state.global_step == args.max_steps // 2:
            self.first = now
        self.last = now

    def tokens_per_second(self):
        (started, before), (ended, after) = self.first, self.last
        return (after - before) / (ended - started)


class HuggingFace:
    """model: folder of a classifier. pairs: folder. padding: fixed = to max_length; dynamic = to
    the longest pair of a batch; uniform = dynamic, trained in groups of like length and predicted
    in the order of length. precision: of autocast. batch: pairs. compiled: torch.compile.
    """

    def __init__(self, model, pairs, padding, precision, batch, max_length=128, compiled=False):
        torch.manual_seed(1)
        transformers.utils.logging.set_verbosity_error()
        self.folder, self.padding, self.batch, self.compiled = model, padding, batch, compiled
        self.precision, self.max_length = precision, max_length
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        self.splits = {name: self.read(f"{pairs}/{name}.tsv") for name in ("train", "dev")}
        self.predictor = None

    def read(self, path):
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        texts = ([row[name] for row in rows] for name in ("text_a", "text_b"))
        encoded = self.tokenizer(*texts, truncation=True, max_length=self.max_length)
        return [
            {name: values[index] for name, values in encoded.items()}
            | dict(label=int(row["label"]))
            for index, row in enumerate(rows)
        ]

    def trainer(self, folder, num_steps=1):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(self.folder)
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=num_steps,
            per_device_train_batch_size=self.batch,
            per_device_eval_batch_size=self.batch,
            train_sampling_strategy=STRATEGIES.get(self.padding, "random"),
            bf16=self.precision == "bfloat16",
            use_cpu=True,
            torch_compile=self.compiled,
            include_num_input_tokens_seen="non_padding",
            learning_rate=5e-5,
            weight_decay=0.01,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        fixed = dict(padding="max_length", max_length=self.max_length)
        options = fixed if self.padding == "fixed" else dict(padding=True, pad_to_multiple_of=8)
        self.clock = Clock()
        return transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=self.splits["train"],
            data_collator=transformers.DataCollatorWithPadding(self.tokenizer, **options),
            callbacks=[self.clock],
        )

    def train(self, num_steps):
        """Train from the model. Returns {"tokens_per_second": real tokens in the second half of the
        steps, "loss": mean of all steps}.
        """
        with tempfile.TemporaryDirectory() as folder:
            result = self.trainer(folder, num_steps).train()
        return dict(tokens_per_second=self.clock.tokens_per_second(), loss=result.training_loss)

    def predict(self, output=None):
        """Predict the dev file. Returns {"tokens_per_second": real tokens}; output: file for the
        probabilities.
        """
        rows = self.splits["dev"]
        order = np.arange(len(rows))
        if self.padding == "uniform":
            order = np.argsort([-len(row["input_ids"]) for row in rows], kind="stable")
        if self.predictor is None:
            self.predictor = self.trainer(str(pathlib.Path(tempfile.gettempdir()) / "trainer"))
            self.predictor.args.train_sampling_strategy = "random"  # would lose the order
            self.predictor.predict([rows[index] for index in order[: 2 * self.batch]])
        started = time.perf_counter()
        logits = self.predictor.predict([rows[index] for index in order]).predictions
        seconds = time.perf_counter() - started
        if output:
            probabilities = np.empty_like(logits, dtype=np.float64)
            probabilities[order] = torch.tensor(logits).double().softmax(-1).numpy()
            np.save(output, probabilities)
        return dict(tokens_per_second=sum(len(row["input_ids"]) for row in rows) / seconds)


if __name__ == "__main__":
    serve(HuggingFace)
