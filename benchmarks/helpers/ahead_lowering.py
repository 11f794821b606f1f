"""Lowers the training step to programs for XLA on a GPU, in TensorFlow without a GPU; a process of
serve.py's kind.
"""

import os
import pathlib
from unittest import mock

import numpy as np
from serve import VOCAB_SIZE, make_batch, serve


class Lowering:
    """shape: fields of ModelConfig. length: S. precision: of DeviceConfig. attention: "plain" or
    "cudnn". packed: rows of several sequences. recompute_every: k of encoder.encode. freeze: of
    MemoryConfig, "layers:HALF" for half of them. optimizer: of OptimizerConfig. micro_batches:
    number in a step.
    """

    def __init__(
        self, shape, length, precision="bfloat16", attention="plain", packed=False,
        recompute_every=0, freeze=(), optimizer="adamw", micro_batches=1,
    ):  # fmt: skip
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        import tensorflow as tf

        from bert_gpu.base import fused
        from bert_gpu.devices.config import DeviceConfig
        from bert_gpu.devices.devices import set_up
        from bert_gpu.model.config import ModelConfig
        from bert_gpu.model.encoder import BertEncoder
        from bert_gpu.model.weights import column_blocks
        from bert_gpu.optim.config import OptimizerConfig
        from bert_gpu.pretrain.objectives.joint import open_objective
        from bert_gpu.train.state import TrainState, frozen_names
        from bert_gpu.train.step import TrainStep

        self.tf = tf
        self.length = length
        self.packed = packed
        self.micro_batches = micro_batches
        self.optimizer = OptimizerConfig(optimizer=optimizer)
        device = dict(num_gpus=0, precision=precision, xla="on", deterministic=False)
        self.devices = set_up(DeviceConfig(**device))
        with mock.patch.object(tf.config, "list_logical_devices", lambda kind=None: ["a GPU"]):
            fused.has_gpu.cache_clear()
            assert fused.has_gpu()  # cached here, so that what depends on it is lowered for a GPU
        config = ModelConfig(**dict(vocab_size=VOCAB_SIZE) | shape)
        sizes = dict(recompute_every=recompute_every, attention=attention, xla=True)
        self.objectives = ("mlm",) if packed else ("mlm", "nsp")
        objective = open_objective(self.objectives, BertEncoder(config, **sizes))
        specs = objective.weights()
        self.weights = {name: np.zeros(spec.shape, np.float32) for name, spec in specs.items()}
        self.column_blocks = column_blocks(specs)
        freeze = [part.replace("HALF", str(config.num_hidden_layers // 2)) for part in freeze]
        frozen = frozen_names(self.weights, freeze)
        state = TrainState(self.devices.strategy, self.weights, None, frozen)
        self.trained = {name: self.weights[name] for name in state.trained}
        self.step = TrainStep(
            self.devices,
            state,
            objective,
            self.optimizer,
            num_micro_batches=micro_batches,
            seed=1,
        )

    def gradients(self, rows, path):
        """Write the program of loss and gradients for micro-batches of `rows` rows."""
        from bert_gpu.train.step import PassInputs

        tf = self.tf
        batch = {
            name: tf.zeros((self.micro_batches, rows, *value.shape[1:]), value.dtype)
            for name, value in make_batch(8, self.length, self.packed).items()
        }
        counts = {name: tf.constant(1.0) for name in self.objectives}
        weights = {name: tf.constant(value) for name, value in self.weights.items()}
        scale, key = tf.constant(1.0), tf.constant([1, 2])
        number = tf.constant(self.micro_batches)
        inputs = PassInputs(weights, batch, number, counts, scale, key)
        return self.write(self.step.gradients, (inputs,), path)

    def update(self, path):
        """Write the program of the optimizer's update, which is skipped when the gradients are not
        finite. They have the type that `gradients` returns.
        """
        from bert_gpu.optim import optimizers

        tf = self.tf
        weights = {name: tf.constant(value) for name, value in self.trained.items()}
        dtype = self.devices.dtype if self.micro_batches == 1 else tf.float32
        gradients = {
            name: tf.zeros(value.shape, dtype if value.ndim > 1 else tf.float32)
            for name, value in self.trained.items()
        }
        slots = optimizers.initial_slots(self.trained, self.optimizer)
        slots = {name: tf.constant(value) for name, value in slots.items()}
        parts = optimizers.joint_parts(self.trained, self.optimizer, self.column_blocks)

        @tf.function(jit_compile=True, autograph=False)
        def update(weights, gradients, slots, learning_rate, num_updates):
            factor, norm = optimizers.clip_factor(gradients, self.optimizer.clip_norm, 1.0)
            return optimizers.update(
                weights,
                gradients,
                slots,
                learning_rate,
                num_updates,
                self.optimizer,
                factor,
                parts=parts,
                dtype=self.devices.dtype,
                only_if=tf.math.is_finite(norm),
            ), norm

        arguments = (weights, gradients, slots, tf.constant(1e-4), tf.constant(1))
        return self.write(update, arguments, path)

    def write(self, function, arguments, path):
        lower = function.experimental_get_compiler_ir(*arguments)
        program = lower(stage="hlo_serialized", platform_name="GPU")
        pathlib.Path(path).write_bytes(program)
        return dict(path=path, bytes=len(program))

    def sizes(self):
        """Return the bytes that a run holds outside the step: weights and the optimizer's state."""
        from bert_gpu.optim.optimizers import state_bytes

        num_bytes = sum(value.nbytes for value in self.weights.values())
        return dict(weights=num_bytes, optimizer=state_bytes(self.trained, self.optimizer))


if __name__ == "__main__":
    serve(Lowering)
