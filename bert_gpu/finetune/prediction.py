"""Encoded examples -> the outputs of a model for each, in their order.

Legend: N examples, B batch, C classes.
"""

import numpy as np
import tensorflow as tf

from bert_gpu.finetune.files.encoded import evaluation_batches, evaluation_order
from bert_gpu.train.evaluation import ForwardPass


class Predictor:
    """Callable (EncodedExamples, batch_size) -> the outputs of a ProblemType, such as float64
    (N, C), in the same order. batch_size is that of all replicas together. until_stopped: of
    loop.Loop, by default none.
    """

    def __init__(self, devices, state, encoder, problem_type):
        self.num_replicas, self.problem_type = devices.num_replicas, problem_type
        self.forward = ForwardPass(
            devices,
            state,
            lambda weights, batch, dtype: {
                "logits": tf.cast(
                    problem_type.head.logits(weights, batch, encoder, dtype), tf.float32
                )
            },
        )

    def __call__(self, examples, batch_size, until_stopped=iter):
        if batch_size % self.num_replicas:
            raise ValueError(
                f"a batch of {batch_size} rows does not divide among {self.num_replicas} replicas"
            )
        # a larger batch would only be padding
        everything = -(-len(examples) // self.num_replicas) * self.num_replicas
        found = []
        for batch in until_stopped(
            evaluation_batches(examples, batch_size=min(batch_size, everything))
        ):
            is_real = batch["row_weights"] > 0
            features = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
            outputs = np.concatenate([result["logits"] for result in self.forward(features)])
            batch = {name: value[is_real] for name, value in batch.items()}
            found += self.problem_type.kept(outputs[is_real], batch)
        ordered = np.argsort(evaluation_order(examples))
        return self.problem_type.joined([found[place] for place in ordered])
