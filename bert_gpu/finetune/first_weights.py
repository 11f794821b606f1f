"""Scales the fresh kernel of a head, so that its first outputs differ between examples by the same
amount, whatever the size of the hidden states that they are made from.

Legend: B batch, S sequence, C outputs of a row or a token.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_gpu.finetune.config import FinetuneConfig
from bert_gpu.finetune.evaluate import Run
from bert_gpu.finetune.files.encoded import EncodedExamples, make_batch
from bert_gpu.finetune.start import Start
from bert_gpu.finetune.tasks.interface import TaskType
from bert_gpu.train.batching import gather_windows

# outputs that differ by less, as a share of the largest, say little about the examples
SPREAD, LEAST_SHARE = 0.2, 0.05
NUM_EXAMPLES = 128  # of the training file, from its beginning to its end


def with_scaled_head(start: Start, examples: EncodedExamples, task: TaskType, run: Run) -> Start:
    """Return the start of a training on the examples, with the fresh kernel of its head times
    SPREAD / `spread_of`; unchanged for a head without a fresh kernel, on an encoder with fresh
    weights or without a spread, and for a run with a checkpoint, from which it takes all weights.
    """
    name = f"{task.head}/kernel"
    resumes = run.run_json is not None and run.folder.newest_progress() is not None
    spread = (
        name in start.fresh
        and not resumes
        and start.encoder.weights().keys().isdisjoint(start.fresh)
        and run.workers.from_chief(spread_of, start, examples, task, run.settings.run)
    )
    if not spread:
        return start
    run.console.say(
        f"first weights: {name} x {SPREAD / spread:.4g}, so that the first outputs differ between "
        f"examples by {SPREAD:g}"
    )
    kernel = start.weights[name] * np.float32(SPREAD / spread)
    return dataclasses.replace(start, weights=start.weights | {name: kernel})


def spread_of(
    start: Start, examples: EncodedExamples, task: TaskType, config: FinetuneConfig
) -> float:
    """Return the root mean square, over NUM_EXAMPLES and all C outputs, of an output's difference
    from its mean over these examples, without dropout, in float32; 0 where it is below LEAST_SHARE
    of the largest output, or outputs are not finite. Outputs of tokens count as examples: those of
    words with a tag, or for answers those of all tokens but padding.
    """
    weights = {name: tf.constant(value) for name, value in start.weights.items()}
    logits_of = tf.function(
        lambda batch: task.logits(weights, batch, start.encoder, tf.float32),
        autograph=False,
        reduce_retracing=True,
    )
    parts = []
    order = np.linspace(0, len(examples) - 1, min(NUM_EXAMPLES, len(examples))).astype(np.int64)
    # not divided among replicas, for the same results
    for indices in np.split(
        order, range(config.eval_batch_size, len(order), config.eval_batch_size)
    ):
        batch = make_batch(examples, indices)
        [batch] = gather_windows([batch], len(batch["row_weights"]))
        outputs = logits_of({key: tf.constant(value) for key, value in batch.items()}).numpy()
        counts = batch.get("token_labels", batch["input_mask"] - 1) >= 0
        if outputs.shape[:-1] == counts.shape:  # (B, S, C)
            outputs = outputs[counts]
        parts.append(outputs.reshape(-1, outputs.shape[-1]).astype(np.float64))
    outputs = np.concatenate(parts)
    spread = float(np.sqrt(np.var(outputs, 0).mean()))
    return spread if spread > LEAST_SHARE * np.abs(outputs).max() else 0.0
