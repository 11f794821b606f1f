"""Hugging Face's embeddings and words behind [MASK] on PyTorch as a process for benchmarks: the
usual loop over batches of lines, padded to the longest, in the file's order or sorted by length.
"""

import json
import pathlib
import time

import numpy as np
import torch
import transformers
from serve import serve


class HuggingFace:
    """model: folder. texts: a JSON file of {task: list of texts}. is_sorted: by length."""

    def __init__(self, model, texts, max_length=128, is_sorted=False):
        self.folder, self.max_length, self.is_sorted = model, max_length, is_sorted
        self.texts = json.loads(pathlib.Path(texts).read_text())
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    def open(self, task, batch):
        """Open a task. batch: lines that are computed at once."""
        kinds = dict(embed=transformers.AutoModel, fill_mask=transformers.AutoModelForMaskedLM)
        self.model = kinds[task].from_pretrained(self.folder).eval()
        self.batch = batch
        self.compute(task, self.texts[task][: 4 * batch])
        return True

    def compute(self, task, texts):
        order = np.arange(len(texts))
        if self.is_sorted:
            order = np.argsort([-len(text) for text in texts], kind="stable")
        results = np.zeros(
            (len(texts), self.model.config.hidden_size) if task == "embed" else len(texts),
            np.float32,
        )
        with torch.inference_mode():
            for first in range(0, len(texts), self.batch):
                rows = order[first : first + self.batch]
                inputs = self.tokenizer(
                    [texts[row] for row in rows],
                    padding=True,
                    truncation=True,
                    max_length=self.max_length,
                    return_tensors="pt",
                )
                outputs = self.model(**inputs)
                if task == "embed":
                    results[rows] = outputs.last_hidden_state[:, 0].numpy()
                    continue
                is_mask = inputs["input_ids"] == self.tokenizer.mask_token_id
                best = outputs.logits[is_mask].softmax(-1).topk(5)
                words = self.tokenizer.convert_ids_to_tokens(best.indices.flatten().tolist())
                assert len(words) == 5 * len(rows)
                results[rows] = best.values[:, 0].numpy()
        return results

    def run(self, task, count, output=None):
        """Return the seconds for the first texts; output: file for their results."""
        started = time.perf_counter()
        results = self.compute(task, self.texts[task][:count])
        seconds = time.perf_counter() - started
        if output:
            np.save(output, results)
        return seconds


if __name__ == "__main__":
    serve(HuggingFace)
