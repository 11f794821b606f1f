"""The loss of a training on a task: that of its problem type, on the scores of its head."""

import tensorflow as tf

from bert_gpu.train.step import Objective


def task_objective(encoder, problem_type):
    """The Objective of a ProblemType on an Encoder: its losses, weighted by
    row_weights and by the problem type's own weights.
    """

    def losses(weights, batch, dtype, seed):
        logits = problem_type.head.logits(weights, batch, encoder, dtype, seed)
        losses = problem_type.losses(logits, batch[problem_type.target])
        return {"classifier": tf.reduce_sum(losses * batch["row_weights"])}

    def counts(batch):
        weights = problem_type.weights(batch[problem_type.target]) * batch["row_weights"]
        return {"classifier": tf.reduce_sum(weights)}

    return Objective(counts=counts, losses=losses)
