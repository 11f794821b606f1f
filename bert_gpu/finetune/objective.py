"""The loss of a fine-tuning, which the task computes from the scores of its head."""

import dataclasses
from collections.abc import Mapping

import tensorflow as tf

from bert_gpu.finetune.contrastive import ContrastiveObjective
from bert_gpu.finetune.tasks.interface import TaskType
from bert_gpu.model.encoders import Encoder
from bert_gpu.train.step import Objective

LOSS = "classifier"


def task_objective(encoder: Encoder, task: TaskType) -> Objective:
    """Return the objective that trains an encoder and a task's head."""
    if task.temperature is not None:
        return ContrastiveObjective(encoder, task.logits, task.temperature)
    return TaskObjective(encoder, task)


@dataclasses.dataclass(frozen=True)
class TaskObjective(Objective):
    """The loss of a task, whose sums and counts are weighted by row_weights and by the task."""

    encoder: Encoder
    task: TaskType
    losses = (LOSS,)

    def counts(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        weights = self.task.weights(batch[self.task.target]) * batch["row_weights"]
        return {LOSS: tf.reduce_sum(weights)}

    def sums(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
        seed: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        logits = self.task.logits(weights, batch, self.encoder, dtype, seed)
        losses = self.task.losses(logits, batch[self.task.target])
        return {LOSS: tf.reduce_sum(losses * batch["row_weights"])}
