"""The loss of a fine-tuning, which the task computes from the scores of its head."""

import functools
from collections.abc import Mapping

import tensorflow as tf

from bert_gpu.finetune.contrastive import contrastive_objective
from bert_gpu.finetune.tasks.interface import TaskType
from bert_gpu.model.encoders import Encoder
from bert_gpu.train.step import Objective


def task_objective(encoder: Encoder, task: TaskType) -> Objective:
    """Return the objective that trains an encoder and a task's head: sums of losses, and the counts
    to divide them by, both weighted by row_weights and by the task.
    """
    if task.temperature is not None:
        vectors = functools.partial(task.logits, encoder=encoder)
        return contrastive_objective(vectors, task.temperature)

    def losses(
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
        seed: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        logits = task.logits(weights, batch, encoder, dtype, seed)
        losses = task.losses(logits, batch[task.target])
        return {"classifier": tf.reduce_sum(losses * batch["row_weights"])}

    def counts(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        weights = task.weights(batch[task.target]) * batch["row_weights"]
        return {"classifier": tf.reduce_sum(weights)}

    return Objective(counts=counts, losses=losses)
