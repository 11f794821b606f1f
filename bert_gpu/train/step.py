"""One training step: accumulate -> all-reduce -> unscale, clip -> skip what is not finite -> apply.

A step's loss is exact, however its global batch is divided. The counts (masked tokens, sequences) of the whole global batch are known
before the backward pass, so every micro-batch backpropagates its sums divided by global counts, and gradients are only ever added.
Weights are ON_READ variables with the aggregation ONLY_FIRST_REPLICA: each replica owns a copy and applies the same update to it, so
forward, backward and update can be compiled by XLA, with the all-reduce between them outside.

Legend: R replicas, A micro-batches a step (accumulation), B rows of a micro-batch. The global batch has R * A * B rows.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from bert_gpu.optim import optimizers

LOSS_SCALE_START, LOSS_SCALE_MAX, LOSS_SCALE_WINDOW = 2.0**15, 2.0**24, 2000  # doubled after so many good steps, halved at overflow


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a model is trained for, as functions on (weights, batch).

    counts(batch) -> {name: float32 scalar}: what each loss is divided by; needs no forward pass.
    losses(weights, batch, dtype, seed) -> {name: float32 scalar}: sums, of the same names. `seed` is a (2,) int32 tensor for dropout.
    """

    counts: Callable
    losses: Callable


class TrainState:
    """The variables of a run: weights, optimizer slots, the number of updates, the loss scale. One copy on each replica."""

    def __init__(self, strategy, weights):
        def variable(value, name):
            return tf.Variable(
                value,
                trainable=False,
                name=name.replace("/", "_"),
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

        self.strategy = strategy
        with strategy.scope():
            self.weights = {name: variable(tf.constant(value, tf.float32), name) for name, value in weights.items()}
            slots = [(slot, slot.split("/", 1)[1]) for slot in optimizers.slot_names(weights)]
            self.slots = {slot: variable(tf.zeros(weights[name].shape), slot) for slot, name in slots}
            self.num_updates = variable(tf.constant(0, tf.int32), "num_updates")
            self.num_skipped = variable(tf.constant(0, tf.int32), "num_skipped")
            self.loss_scale = variable(tf.constant(LOSS_SCALE_START), "loss_scale")
            self.num_good = variable(tf.constant(0, tf.int32), "num_good")

    def variables(self):
        """Everything that a checkpoint holds, as {name: variable}."""
        named = {f"weights/{name}": v for name, v in self.weights.items()} | {f"slots/{name}": v for name, v in self.slots.items()}
        counters = dict(num_updates=self.num_updates, num_skipped=self.num_skipped, loss_scale=self.loss_scale, num_good=self.num_good)
        return named | counters

    def read(self):
        """All values as {name: NumPy array}."""
        return {name: first_copy(variable).numpy() for name, variable in self.variables().items()}

    def read_weights(self):
        return {name: first_copy(variable).numpy() for name, variable in self.weights.items()}

    def assign(self, values):
        """Sets all values on all replicas; KeyError when one is missing."""
        for name, variable in self.variables().items():
            for copy in copies(variable):
                copy.assign(values[name])


def copies(variable):
    return variable.values if hasattr(variable, "values") else [variable]


def first_copy(variable):
    return copies(variable)[0]


def fold_seed(seed, *parts):
    """A (2,) int32 seed derived from another and integers (Python or tensors)."""
    for part in parts:
        seed = tf.random.experimental.stateless_fold_in(seed, part)
    return seed


def cast_weights(weights, dtype):
    """Matrices in the compute type; vectors (biases, normalisation) stay float32."""
    return {name: tf.cast(weight, dtype) if weight.shape.rank >= 2 else weight for name, weight in weights.items()}


def divide_batch(batch, num_replicas, num_micro_batches):
    """A global batch of arrays (R * A * B, ...) -> for each replica a dict of (A, B, ...)."""
    parts = {}
    for name, value in batch.items():
        value = np.asarray(value)
        parts[name] = value.reshape(num_replicas, num_micro_batches, -1, *value.shape[1:])
    return [{name: value[replica] for name, value in parts.items()} for replica in range(num_replicas)]


class TrainStep:
    """Callable (batch, rate, step) -> {name: float32 tensor}, the metrics of one step on the global batch.

    Metrics: "loss" and one mean for each loss, "gradient_norm", "skipped" (1.0 when the step was not finite), "loss_scale".
    """

    def __init__(self, devices, state, objective, optimizer, *, num_micro_batches, seed):
        self.devices, self.state, self.objective, self.optimizer = devices, state, objective, optimizer
        self.num_micro_batches, self.seed = num_micro_batches, seed
        self.gradients = tf.function(self._gradients, jit_compile=devices.xla, reduce_retracing=not devices.xla)
        self.update = tf.function(self._update, jit_compile=devices.xla)
        self.run = tf.function(self._run, reduce_retracing=True)

    def __call__(self, batch, rate, step):
        parts = divide_batch(batch, self.devices.num_replicas, self.num_micro_batches)
        put = self.devices.strategy.experimental_distribute_values_from_function
        distributed = put(lambda context: {k: tf.constant(v) for k, v in parts[context.replica_id_in_sync_group].items()})
        return self.run(distributed, tf.constant(rate, tf.float32), tf.constant(step, tf.int32))

    def _run(self, batch, rate, step):
        metrics = self.devices.strategy.run(self._replica_step, args=(batch, rate, step))
        return {name: self.devices.strategy.experimental_local_results(value)[0] for name, value in metrics.items()}

    def _replica_step(self, batch, rate, step):
        context = tf.distribute.get_replica_context()
        total = tf.distribute.ReduceOp.SUM
        counts = context.all_reduce(total, self._counts(batch))
        seed = fold_seed(tf.constant([self.seed & 0x7FFFFFFF, self.seed >> 31 & 0x7FFFFFFF], tf.int32), step)
        seed = fold_seed(seed, context.replica_id_in_sync_group)
        weights = {name: tf.convert_to_tensor(variable) for name, variable in self.state.weights.items()}
        scale = tf.convert_to_tensor(self.state.loss_scale) if self.devices.precision == "float16" else tf.constant(1.0)
        gradients, losses = self.gradients(weights, batch, counts, scale, seed)
        gradients, losses = context.all_reduce(total, (gradients, losses))
        norm, skipped = self.update(gradients, scale, rate)
        metrics = dict(losses, loss=tf.add_n(list(losses.values())), gradient_norm=norm, skipped=skipped, loss_scale=scale)
        return metrics

    def _counts(self, batch):
        """Counts of all micro-batches of this replica, from (A, B, ...) at once."""
        return self.objective.counts({name: tf.reshape(v, tf.concat([[-1], tf.shape(v)[2:]], 0)) for name, v in batch.items()})

    def _gradients(self, weights, batch, counts, scale, seed):
        """Sums over the micro-batches of gradients (float32) and of losses, both of sum / global count."""
        cast = cast_weights(weights, self.devices.dtype)

        def micro_batch(number):
            rows = {name: value[number] for name, value in batch.items()}
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(cast)
                sums = self.objective.losses(cast, rows, self.devices.dtype, fold_seed(seed, number))
                losses = {name: value / tf.maximum(counts[name], 1.0) for name, value in sums.items()}
                target = scale * tf.add_n(list(losses.values()))
            gradients = tape.gradient(target, cast, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return {name: tf.cast(tf.convert_to_tensor(g), tf.float32) for name, g in gradients.items()}, losses

        if self.num_micro_batches == 1:
            return micro_batch(0)

        def accumulate(number, gradients, losses):
            more_gradients, more_losses = micro_batch(number)
            gradients = {name: value + more_gradients[name] for name, value in gradients.items()}
            return number + 1, gradients, {name: value + more_losses[name] for name, value in losses.items()}

        zeros = {name: tf.zeros(weight.shape) for name, weight in weights.items()}
        start = (tf.constant(0), zeros, {name: tf.constant(0.0) for name in counts})
        _, gradients, losses = tf.while_loop(lambda number, *_: number < self.num_micro_batches, accumulate, start, parallel_iterations=1)
        return gradients, losses

    def _update(self, gradients, scale, rate):
        """Applies the optimizer to this replica's copy, or skips; returns (gradient norm, skipped)."""
        state = self.state
        gradients, norm = optimizers.clip({name: g / scale for name, g in gradients.items()}, self.optimizer.clip_norm)
        is_finite = tf.math.is_finite(norm)

        def apply():
            num_updates = tf.convert_to_tensor(state.num_updates) + 1
            weights = {name: tf.convert_to_tensor(variable) for name, variable in state.weights.items()}
            slots = {name: tf.convert_to_tensor(variable) for name, variable in state.slots.items()}
            weights, slots = optimizers.adamw(weights, gradients, slots, rate, num_updates, self.optimizer)
            for name, value in weights.items():
                state.weights[name].assign(value)
            for name, value in slots.items():
                state.slots[name].assign(value)
            state.num_updates.assign(num_updates)
            return tf.constant(0.0)

        def skip():
            state.num_skipped.assign_add(1)
            return tf.constant(1.0)

        skipped = tf.cond(is_finite, apply, skip)
        if self.devices.precision == "float16":
            good = tf.where(is_finite, tf.convert_to_tensor(state.num_good) + 1, 0)
            grown = tf.where(good >= LOSS_SCALE_WINDOW, tf.minimum(scale * 2.0, LOSS_SCALE_MAX), scale)
            state.loss_scale.assign(tf.where(is_finite, grown, tf.maximum(scale / 2.0, 1.0)))
            state.num_good.assign(tf.where(good >= LOSS_SCALE_WINDOW, 0, good))
        return norm, skipped
