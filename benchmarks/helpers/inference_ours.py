"""Our embeddings and words behind [MASK] as a process for benchmarks: texts in, seconds out."""

import json
import pathlib
import time

import numpy as np
from serve import serve

WARM_UP = 2000  # texts


class Ours:
    """model: folder. texts: a JSON file of {task: list of texts}."""

    def __init__(self, model, texts, max_length=128):
        self.model, self.max_length = model, max_length
        self.texts = json.loads(pathlib.Path(texts).read_text())

    def open(self, task, batch):
        """Open a task. batch: tokens that are computed at once."""
        from bert_gpu.inference import opened
        from bert_gpu.inference.config import EmbedConfig, FillMaskConfig
        from bert_gpu.inference.embeddings import Embedder
        from bert_gpu.inference.masked_words import MaskFiller

        opened.BATCH_TOKENS = dict.fromkeys(opened.BATCH_TOKENS, batch)
        if task == "embed":
            self.call = Embedder(EmbedConfig(model=self.model, max_seq_length=self.max_length))
        else:
            self.call = MaskFiller(FillMaskConfig(model=self.model))
        self.call(self.texts[task][:WARM_UP])  # compiles for nearly all lengths
        return True

    def run(self, task, count, output=None):
        """Return the seconds for the first texts; output: file for their results."""
        texts = self.texts[task][:count]
        started = time.perf_counter()
        results = self.call(texts)
        seconds = time.perf_counter() - started
        if output:
            np.save(output, results if task == "embed" else [masks[0][0][0] for masks in results])
        return seconds


if __name__ == "__main__":
    serve(Ours)
