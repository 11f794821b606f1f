"""The loss of a fine-tuning, which the task's problem type computes from the scores of its head."""

from collections.abc import Mapping

import tensorflow as tf

from bert_gpu.finetune.contrastive import contrastive_objective
from bert_gpu.finetune.tasks.problem_types import ProblemType
from bert_gpu.model.encoders import Encoder
from bert_gpu.train.step import Objective


def task_objective(encoder: Encoder, problem_type: ProblemType) -> Objective:
    """Return the objective that trains an encoder and a problem type's head: sums of losses, and
    the counts to divide them by, both weighted by row_weights and by the problem type.
    """
    if problem_type.temperature is not None:
        return contrastive_objective(encoder, problem_type.head, problem_type.temperature)

    def losses(
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
        seed: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        logits = problem_type.head.logits(weights, batch, encoder, dtype, seed)
        losses = problem_type.losses(logits, batch[problem_type.target])
        return {"classifier": tf.reduce_sum(losses * batch["row_weights"])}

    def counts(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        weights = problem_type.weights(batch[problem_type.target]) * batch["row_weights"]
        return {"classifier": tf.reduce_sum(weights)}

    return Objective(counts=counts, losses=losses)
