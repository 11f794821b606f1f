"""Hugging Face's BertForPreTraining on PyTorch as a process for benchmarks, with the settings of
its Trainer: fused AdamW without decay of biases and norms, gradients clipped to 1, autocast.

BertForPreTraining computes the scores of masked words at all S positions. By default this peer is
faster: it gathers the masked positions before its own head (`cls`), as our step and Model Garden's
do. The batch stays on the device, so input takes no time.
"""

import contextlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from kernels import shares
from serve import VOCAB_SIZE, Trainer, make_batch, serve

DTYPES = dict(float32=torch.float32, bfloat16=torch.bfloat16, float16=torch.float16)


class HuggingFace(Trainer):
    """shape: fields of BertConfig. length: S. precision: of autocast. compiled: torch.compile.
    attention: sdpa or eager.

    gathered: whether scores are computed only at masked positions; otherwise by
    BertForPreTraining's own forward and loss.
    """

    OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)

    def __init__(
        self, shape, length, precision="float32", compiled=False, gpu=False, attention="sdpa",
        gathered=True,
    ):  # fmt: skip
        import transformers

        # TensorFloat-32 on GPUs, which TensorFlow uses by default too
        torch.set_float32_matmul_precision("high")
        self.device = "cuda" if gpu else "cpu"
        self.length, self.precision, self.gathered = length, precision, gathered
        torch.manual_seed(0)
        settings = dict(vocab_size=VOCAB_SIZE, attn_implementation=attention) | shape
        kind = transformers.BertForPreTraining
        if "relative_attention" in settings:
            kind = transformers.DebertaV2ForMaskedLM
            settings["attn_implementation"] = "eager"
        self.model = kind(kind.config_class(**settings)).to(self.device).train()
        decayed = [weight for weight in self.model.parameters() if weight.ndim > 1]
        others = [weight for weight in self.model.parameters() if weight.ndim <= 1]
        groups = [dict(params=decayed, weight_decay=0.01), dict(params=others, weight_decay=0.0)]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, eps=1e-6, fused=True)
        self.scaler = torch.amp.GradScaler(self.device, enabled=precision == "float16")
        self.loss = self.compute_loss
        if compiled:
            self.loss = torch.compile(self.loss, dynamic=False)

    def compute_loss(self, batch):
        inputs = dict(
            input_ids=batch["input_ids"],
            attention_mask=batch["input_mask"],
            token_type_ids=batch["segment_ids"],
        )
        if not self.gathered:
            labels, sentences = batch["labels"], batch["next_sentence_labels"]
            return self.model(**inputs, labels=labels, next_sentence_label=sentences).loss
        outputs = self.model.base_model(**inputs, return_dict=True)
        hidden = outputs.last_hidden_state.flatten(0, 1).index_select(0, batch["positions"])
        if "pooler_output" not in outputs:  # DeBERTa's
            scores = self.model.cls(hidden).float()
            return F.cross_entropy(scores, batch["targets"], ignore_index=-100)
        scores, relation = self.model.cls(hidden, outputs.pooler_output)
        words = F.cross_entropy(scores.float(), batch["targets"], ignore_index=-100)
        return words + F.cross_entropy(relation.float(), batch["next_sentence_labels"])

    def build(self, rows):
        arrays = make_batch(rows, self.length)
        positions = np.arange(rows)[:, None] * self.length + arrays["masked_lm_positions"]
        is_masked = arrays.pop("masked_lm_weights") > 0
        targets = np.where(is_masked, arrays["masked_lm_ids"], -100)
        labels = np.full(rows * self.length, -100)
        labels[positions[is_masked]] = targets[is_masked]
        arrays |= dict(positions=positions.reshape(-1), targets=targets.reshape(-1))
        arrays |= dict(labels=labels.reshape(rows, self.length))
        self.batch = {
            name: torch.tensor(value.astype(np.int64)).to(self.device)
            for name, value in arrays.items()
        }
        if self.device == "cuda":
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def run(self, num_steps):
        is_mixed = self.precision != "float32"
        for _ in range(num_steps):
            with (
                torch.autocast(self.device, DTYPES[self.precision])
                if is_mixed
                else contextlib.nullcontext()
            ):
                loss = self.loss(self.batch)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        return float(loss)

    def peak_bytes(self):
        return torch.cuda.max_memory_allocated() if self.device == "cuda" else super().peak_bytes()

    def matrix_rate(self, precision, seconds=2.0):
        """Return the FLOP/s of a large product, as ours.py measures TensorFlow's."""
        size, num_products = (1024, 4) if self.device == "cpu" else (8192, 4)
        matrix = torch.randn(size, size, device=self.device, dtype=DTYPES[precision]) / size**0.5
        best, end = float("inf"), time.perf_counter() + seconds
        with torch.no_grad():
            while best == float("inf") or time.perf_counter() < end:
                started, x = time.perf_counter(), matrix
                for _ in range(num_products):
                    x = matrix @ x
                float(x[0, 0])
                best = min(best, time.perf_counter() - started)
        return 2.0 * size**3 * num_products / best

    def versions(self):
        import transformers

        versions = dict(torch=torch.__version__, transformers=transformers.__version__)
        return versions | dict(threads=torch.get_num_threads())

    def outside_products(self, num_steps=4):
        """Return `kernels.shares` of a few steps; None where the profiler sees no GPU."""
        if self.device != "cuda":
            return None
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            started = time.perf_counter()
            self.run(num_steps)
            seconds = time.perf_counter() - started
        kernels = [
            (event.name, 1e-6 * event.time_range.start, 1e-6 * event.time_range.end)
            for event in profile.events()
            if event.device_type == torch.autograd.DeviceType.CUDA
        ]
        return shares(kernels, seconds)


if __name__ == "__main__":
    serve(HuggingFace)
