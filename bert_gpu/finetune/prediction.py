"""Computes the outputs of a model for encoded examples, in the order of the examples.

Legend: N examples, B batch, C classes.
"""

import typing
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from bert_gpu.devices.devices import Devices
from bert_gpu.finetune.files.encoded import (
    EncodedExamples,
    evaluation_batches,
    evaluation_order,
)
from bert_gpu.finetune.tasks.interface import E, O, R, TaskType
from bert_gpu.model.encoders import Encoder
from bert_gpu.train.batching import ROWS, gather_windows
from bert_gpu.train.evaluation import ForwardPass
from bert_gpu.train.state import ModelState

Batch = dict[str, np.ndarray]
Stop = Callable[[Iterable[Batch]], Iterator[Batch]]


class Predictor(typing.Generic[R, O]):
    """Callable (examples, batch_size) -> the outputs that a task makes of the model's
    scores, such as probabilities, float64 (N, C), in the order of the examples.

    batch_size: number of rows in a batch, of all replicas together. until_stopped: function that
    passes the batches on and raises when a signal stops the run, as loop.Loop gives it to a
    validation; by default nothing stops the batches.
    """

    def __init__(
        self, devices: Devices, state: ModelState, encoder: Encoder, task: TaskType[E, R, O]
    ) -> None:
        self.num_replicas = devices.num_replicas
        self.task = task
        self.forward = ForwardPass(
            devices,
            state,
            lambda weights, batch, dtype: {
                "logits": tf.cast(task.logits(weights, batch, encoder, dtype), tf.float32)
            },
        )

    def __call__(
        self,
        examples: EncodedExamples,
        batch_size: int,
        until_stopped: Stop = iter,
    ) -> O:
        # a batch of more rows than there are examples would only add padding
        size = min(batch_size, -(-len(examples) // self.num_replicas) * self.num_replicas)
        rows: list[R] = []
        for batch in until_stopped(evaluation_batches(examples, batch_size=size)):
            is_real = batch["row_weights"] > 0
            (gathered,) = gather_windows([batch], size // self.num_replicas)
            names = gathered.keys() & {*ROWS, "window_texts", "num_windows"}
            results = self.forward({name: gathered[name] for name in names})
            outputs = np.concatenate([result["logits"] for result in results])
            batch = {name: value[is_real] for name, value in batch.items()}
            rows += self.task.row_outputs(outputs[is_real], batch)
        places = np.argsort(evaluation_order(examples))
        return self.task.join_rows([rows[place] for place in places])
