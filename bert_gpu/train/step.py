"""One training step: accumulate -> all-reduce -> unscale, clip -> skip if not finite -> apply.

A step's loss does not depend on how its global batch is divided. The counts (masked tokens,
sequences) of the whole global batch are computed before the backward pass, so every micro-batch
backpropagates its sums divided by global counts, and gradients are only added, never averaged. Each
replica owns a copy of the weights (state.py) and applies the same update to it, so XLA can compile
the forward and backward passes and the update, with the all-reduce between them outside. One call
into TensorFlow runs several steps; nothing in the call waits for the host.

Legend: K steps of a call, R replicas, A micro-batches a step (accumulation), B examples of a
micro-batch, M metrics. A global batch has R * A * B examples.
"""

import abc
import functools
import typing
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.data.pipeline import LengthAxis
from bert_gpu.devices.devices import Devices, narrowed
from bert_gpu.optim import optimizers
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.train import shared_update
from bert_gpu.train.state import LOSS_SCALE_GROWTH_STEPS, LOSS_SCALE_MAX, TrainState

# the metrics of each step beside the losses and measures
STEP_METRICS = ("loss", "gradient_norm", "skipped", "loss_scale")


class PassInputs(typing.NamedTuple):
    """The inputs of a replica's forward and backward passes in a step. weights: float32. batch:
    {feature: (A, B, ...)}. num_micro_batches: those of the A that are computed. counts: {loss: the
    number by which its sum is divided}, of the global batch. scale: of the loss. seed: of dropout,
    (2,).
    """

    weights: Mapping[str, tf.Tensor]
    batch: Mapping[str, tf.Tensor]
    num_micro_batches: tf.Tensor
    counts: Mapping[str, tf.Tensor]
    scale: tf.Tensor
    seed: tf.Tensor


# {weight: gradient} and {name: loss or measure}, both summed over the micro-batches of a replica
# and divided by the counts of the global batch
Gradients = tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]


class Objective(abc.ABC):
    """The losses that training minimises. losses: their names."""

    losses: tuple[str, ...]

    @property
    def measures(self) -> Mapping[str, str]:
        """{measure: the loss whose count divides it}; measures are reported and not minimised."""
        return {}

    @abc.abstractmethod
    def counts(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return {loss: float32 scalar}, the number by which the sum of this loss over a batch is
        divided; needs no forward pass.
        """

    @abc.abstractmethod
    def sums(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
        seed: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Return {loss or measure: float32 scalar}, sums over a batch. seed: int32 (2,), of
        dropout.
        """

    def replica_gradients(self, step: "TrainStep") -> Callable[[PassInputs], Gradients]:
        """Return the function that computes the gradients of a replica. It is called once, before
        anything is traced. Default: that of losses that each example has for itself.
        """
        return step.gradients

    def total(self, values: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return the sum of the losses among {name: loss or measure}."""
        return tf.add_n([values[name] for name in self.losses])

    def divided(
        self, sums: Mapping[str, tf.Tensor], counts: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Return the sums of losses and measures, each divided by its count."""
        return {
            name: value / tf.maximum(counts[self.measures.get(name, name)], 1.0)
            for name, value in sums.items()
        }


def gradients_of(
    tape: tf.GradientTape,
    target: tf.Tensor,
    weights: Mapping[str, tf.Tensor],
    upstream: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Return {weight: gradient of the target}, dense; upstream: the gradient at the target, None =
    1.
    """
    gradients = tape.gradient(
        target, weights, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return {name: tf.convert_to_tensor(gradient) for name, gradient in gradients.items()}


def fold_seed(seed: tf.Tensor, *parts: int | tf.Tensor) -> tf.Tensor:
    """Return a (2,) int32 seed derived from `seed` and the integers in `parts`."""
    for part in parts:
        seed = tf.random.experimental.stateless_fold_in(seed, part)
    return seed


def cast_weights(weights: Mapping[str, tf.Tensor], dtype: tf.DType) -> dict[str, tf.Tensor]:
    """Return the weights with matrices cast to `dtype`, the compute dtype; vectors (biases,
    normalisation) stay float32.
    """
    return {
        name: tf.cast(weight, dtype) if weight.shape.rank >= 2 else weight
        for name, weight in weights.items()
    }


def divide_batch(
    batch: Mapping[str, np.ndarray], num_replicas: int, num_micro_batches: int
) -> list[dict[str, np.ndarray]]:
    """Divide a global batch {feature: (R * A * B, ...)} among R replicas: return for each replica
    {feature: (A, B, ...)}, A micro-batches of B examples.
    """
    parts = {}
    for name, value in batch.items():
        value = np.asarray(value)
        parts[name] = value.reshape(num_replicas, num_micro_batches, -1, *value.shape[1:])
    return [
        {name: value[replica] for name, value in parts.items()} for replica in range(num_replicas)
    ]


class Metrics(typing.NamedTuple):
    """The M metrics, named `names`, of K steps: values is a (K, M) float32 tensor that the devices
    may still be computing; `read` waits for it.
    """

    names: list[str]
    values: tf.Tensor

    def read(self) -> dict[str, np.ndarray]:
        """Return {metric: (K,) array, one value for each step}."""
        return dict(zip(self.names, self.values.numpy().T, strict=True))


class CallInputs(typing.NamedTuple):
    """What the K steps of a call need beside their batches, on the device of one replica:
    num_micro_batches, int64 (K,); learning_rates, float32 (K,), None = known only when the call
    begins; seeds of dropout, int64 (K, 2); replica, its number, int64.
    """

    num_micro_batches: tf.Tensor
    learning_rates: typing.Any
    seeds: tf.Tensor
    replica: tf.Tensor


class DeviceBatches(typing.NamedTuple):
    """The batches of a call of K steps, on their devices: parts holds {feature: (K, A, B, ...)} for
    each replica, A micro-batches of B examples a step, and inputs its CallInputs;
    num_micro_batches, (K,), says how many of the A each step uses; num_steps is K.
    """

    parts: object
    inputs: CallInputs
    num_micro_batches: tf.Tensor
    num_steps: int


def inputs_of_step(
    index: tf.Tensor, batches: object, num_micro_batches: tf.Tensor, inputs: object
) -> tuple:
    """Return the arguments of `TrainStep._replica_step` for step number `index` of a call. The
    other arguments are those of the whole call; inputs: CallInputs for each replica.
    """
    return batches, index, num_micro_batches[index], inputs


class TrainStep:
    """A callable (batches, learning_rates, step) that runs K steps and returns their Metrics.

    Metrics are "loss" and one mean for each loss and measure, "gradient_norm", "skipped" (1.0 when
    the step was not finite) and "loss_scale".

    Args of the constructor:
      num_micro_batches: A, the micro-batches that a replica accumulates in a step. seed: of
        dropout.
      is_ramped: whether steps may have fewer than A micro-batches. The compiled program then takes
        num_micro_batches as an argument, and batches are padded to A with rows that are not
        computed.
      length_axes: as in batching.TrainingData; None = all rows have one length. Without XLA, one
        program serves all lengths.
    """

    def __init__(
        self,
        devices: Devices,
        state: TrainState,
        objective: Objective,
        optimizer: OptimizerConfig,
        *,
        num_micro_batches: int,
        seed: int,
        is_ramped: bool = False,
        length_axes: Mapping[str, LengthAxis] | None = None,
    ) -> None:
        self.devices = devices
        self.state = state
        self.objective = objective
        self.optimizer = optimizer
        self.num_micro_batches = num_micro_batches
        self.seed = seed
        self.is_ramped = is_ramped
        self.hidden_axes = {} if devices.xla else length_axes or {}
        self.metric_names = [*objective.losses, *objective.measures, *STEP_METRICS]
        self.gradients = self.compiled(self._gradients)
        self.replica_gradients = objective.replica_gradients(self)
        self.update = tf.function(self._update, autograph=False, jit_compile=devices.xla)
        self.is_shared = shared_update.is_shared(devices, state.joint_parts)
        self.seeds = tf.function(self._seeds, autograph=False)
        self.joint_share = tf.function(self._joint_share, autograph=False, jit_compile=devices.xla)
        self.programs: dict[int, Callable[..., tf.Tensor]] = {}  # {K steps: compiled program}

    def compiled(self, function: Callable) -> Callable:
        """Return a function of tensors as a function of TensorFlow, compiled by XLA where the
        devices use it.
        """
        return tf.function(
            function,
            autograph=False,
            jit_compile=self.devices.xla,
            reduce_retracing=not self.devices.xla,
        )

    def __call__(
        self,
        batches: Sequence[Mapping[str, np.ndarray]] | DeviceBatches,
        learning_rates: Sequence[float],
        step: int,
        num_micro_batches: Sequence[int] | None = None,
    ) -> Metrics:
        """Run K steps and return their Metrics.

        Args:
          batches: K global batches of equal shapes, with arrays (R * A * B, ...): R replicas, A
            micro-batches, B examples; or the result of `put_on_devices`.
          learning_rates: one for each step; not read if they are on the devices already. step:
            index of the first step, from 0.
          num_micro_batches: with `is_ramped`, the number in each batch, at most A. Default: A.
        """
        on_devices = (
            batches
            if isinstance(batches, DeviceBatches)
            else self.put_on_devices(batches, step, num_micro_batches)
        )
        inputs = on_devices.inputs
        if inputs.learning_rates is None:
            inputs = inputs._replace(learning_rates=self._copied(learning_rates))
        if on_devices.num_steps not in self.programs:
            program = functools.partial(self._run, on_devices.num_steps)
            self.programs[on_devices.num_steps] = tf.function(
                program, autograph=False, reduce_retracing=bool(self.hidden_axes)
            )
        values = self.programs[on_devices.num_steps](
            on_devices.parts, on_devices.num_micro_batches, inputs
        )
        return Metrics(self.metric_names, values)

    def put_on_devices(
        self,
        batches: Sequence[Mapping[str, np.ndarray]],
        step: int,
        num_micro_batches: Sequence[int] | None = None,
        learning_rates: Sequence[float] | None = None,
    ) -> DeviceBatches:
        """Copy all that a call needs to the devices of the replicas; may run in another thread, so
        that no copy, which waits for all steps before it, stands between two calls. Arguments as
        for `__call__`; learning_rates: None = known only when the call begins.
        """
        if num_micro_batches is None:
            num_micro_batches = [self.num_micro_batches] * len(batches)
        divided = [
            divide_batch(batch, self.devices.num_replicas, count)
            for batch, count in zip(batches, num_micro_batches, strict=True)
        ]
        parts, counts, seeds, replicas = self._distributed(
            functools.partial(self._parts_of, divided, num_micro_batches, step)
        )
        rates = None if learning_rates is None else self._copied(learning_rates)
        return DeviceBatches(
            parts,
            CallInputs(counts, rates, seeds, replicas),
            tf.constant(num_micro_batches, tf.int32),
            len(batches),
        )

    def _parts_of(
        self,
        divided: Sequence[Sequence[Mapping[str, np.ndarray]]],
        num_micro_batches: Sequence[int],
        step: int,
        replica: int,
    ) -> tuple:
        """Return the batches of a replica, {feature: (K, A, B, ...)}, and the fields of CallInputs
        but its learning rates. divided: for each step, the result of `divide_batch`.
        """
        parts = [steps[replica] for steps in divided]
        features = {
            name: tf.constant(np.stack([self._fill(part[name]) for part in parts]))
            for name in list(parts[0])
        }
        seeds = self.seeds(len(parts), tf.constant(step), tf.constant(replica))
        return (
            features,
            tf.constant(num_micro_batches, tf.int64),
            tf.identity(seeds),
            tf.constant(replica, tf.int64),
        )

    def _distributed(self, value_of: Callable[[int], typing.Any]) -> typing.Any:
        """Return value_of(replica), made on the device of each replica of this process."""
        local_devices = self.devices.local_devices

        def on_device(context: tf.distribute.ReplicaContext) -> object:
            replica = context.replica_id_in_sync_group
            with tf.device(local_devices[replica % len(local_devices)]):
                return value_of(replica)

        return self.devices.strategy.experimental_distribute_values_from_function(on_device)

    def _copied(self, learning_rates: Sequence[float]) -> object:
        """Return learning rates, float32 (K,), on the device of each replica."""
        values = np.asarray(learning_rates, np.float32)
        return self._distributed(lambda replica: tf.constant(values))

    def _seeds(self, num_steps: int, first: tf.Tensor, replica: tf.Tensor) -> tf.Tensor:
        """Return the seeds of dropout of a replica, int64 (K, 2), for K = num_steps steps from
        number `first` of the run on.
        """
        with tf.device("CPU:0"):
            own = tf.constant([self.seed & 0x7FFFFFFF, self.seed >> 31 & 0x7FFFFFFF], tf.int32)
            seeds = [fold_seed(own, first + index, replica) for index in range(num_steps)]
            return tf.cast(tf.stack(seeds), tf.int64)

    def _fill(self, value: np.ndarray) -> np.ndarray:
        """Return a replica's array (a, B, ...) of a step, padded with zeros from a micro-batches to
        (A, B, ...), the A micro-batches of a full step; int32 as int64, see `narrowed`.
        """
        value = value.astype(np.int64) if value.dtype == np.int32 else value
        missing = self.num_micro_batches - len(value)
        return np.pad(value, [(0, missing)] + [(0, 0)] * (value.ndim - 1)) if missing else value

    def _run(
        self,
        num_steps: int,
        batches: object,
        num_micro_batches: tf.Tensor,
        inputs: CallInputs,
    ) -> tf.Tensor:
        """Run K steps and return their M metrics, (K, M). batches: for each replica {feature: (K,
        A, B, ...)}, A micro-batches of B examples a step. num_micro_batches: (K,). inputs: of each
        replica.
        """
        strategy = self.devices.strategy
        of_call = (batches, num_micro_batches, inputs)
        if num_steps == 1:
            args = inputs_of_step(tf.constant(0), *of_call)
            metrics = strategy.run(self._replica_step, args=args)
            return strategy.experimental_local_results(metrics)[0][None]

        def body(index: tf.Tensor, rows: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            strategy = self.devices.strategy
            metrics = strategy.run(self._replica_step, args=inputs_of_step(index, *of_call))
            return index + 1, rows.write(index, strategy.experimental_local_results(metrics)[0])

        rows = tf.TensorArray(tf.float32, num_steps)
        _, rows = tf.while_loop(
            lambda index, _: index < num_steps, body, (tf.constant(0), rows), parallel_iterations=1
        )
        return rows.stack()

    def _replica_step(
        self,
        batches: Mapping[str, tf.Tensor],
        index: tf.Tensor,
        num_micro_batches: tf.Tensor,
        inputs: CallInputs,
    ) -> tf.Tensor:
        """Run one step on one replica and return its M metrics, (M,). batches: {feature: (K, A, B,
        ...)} of the K steps of a call, of which this step takes entry `index`. num_micro_batches:
        of this step, for slices, whose bounds TensorFlow reads on the host.
        """
        context = tf.distribute.get_replica_context()
        # {feature: (A micro-batches, B examples, ...)}
        batch = {name: self._hide_length(name, value[index]) for name, value in batches.items()}
        counts = context.all_reduce(
            tf.distribute.ReduceOp.SUM, self._counts(batch, num_micro_batches)
        )
        weights = {
            name: tf.convert_to_tensor(variable) for name, variable in self.state.weights.items()
        }
        scale = (
            tf.convert_to_tensor(self.state.loss_scale)
            if self.devices.precision == "float16"
            else tf.constant(1.0)
        )
        num_computed = inputs.num_micro_batches[index]
        passes = PassInputs(weights, batch, num_computed, counts, scale, inputs.seeds[index])
        gradients, losses = self.replica_gradients(passes)
        gradients, losses = self._all_reduce(context, gradients, losses)
        clip = joint_results = None
        if self.is_shared:
            share, clip = self.joint_share(gradients, scale, inputs.replica)
            joint_results = shared_update.gather(context, share, self.devices.communication)
        norm, skipped = self.update(
            gradients, scale, inputs.learning_rates[index], clip, joint_results
        )
        metrics = dict(
            losses,
            loss=self.objective.total(losses),
            gradient_norm=norm,
            skipped=skipped,
            loss_scale=scale,
        )
        return tf.stack([metrics[name] for name in self.metric_names])

    def _hide_length(self, name: str, value: tf.Tensor) -> tf.Tensor:
        """Return `value`, the feature `name` of A micro-batches of B examples, (A, B, ...), with
        its row length unknown to the compiled program, so that one program serves all lengths.
        """
        if name not in self.hidden_axes:
            return value
        shape = value.shape.as_list()
        shape[self.hidden_axes[name].axis] = None
        return tf.raw_ops.PlaceholderWithDefault(input=value, shape=shape)

    def _all_reduce(
        self,
        context: tf.distribute.ReplicaContext,
        gradients: dict[str, tf.Tensor],
        losses: dict[str, tf.Tensor],
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Return gradients and losses, each summed over the replicas; gradients are summed in the
        dtype that --all_reduce_dtype sets.
        """
        total = tf.distribute.ReduceOp.SUM
        dtype = self.devices.all_reduce_dtype
        options = self.devices.communication
        if self.devices.num_replicas == 1:
            return gradients, losses
        if dtype == tf.float32:
            return context.all_reduce(total, (gradients, losses), options)
        rounded = context.all_reduce(
            total, {name: tf.cast(gradient, dtype) for name, gradient in gradients.items()}, options
        )
        return {
            name: tf.cast(gradient, tf.float32) for name, gradient in rounded.items()
        }, context.all_reduce(total, losses)

    def _counts(
        self, batch: Mapping[str, tf.Tensor], num_micro_batches: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return {loss: the number by which its sum is divided} for all micro-batches of this
        replica together. batch: {feature: (A micro-batches, B examples, ...)}.
        """
        if self.is_ramped:
            batch = {name: value[:num_micro_batches] for name, value in batch.items()}
        return self.objective.counts(
            {
                name: tf.reshape(v, tf.concat([[-1], tf.shape(v)[2:]], 0))
                for name, v in batch.items()
            }
        )

    def _gradients(self, inputs: PassInputs) -> Gradients:
        """Return the gradients and losses of a replica; gradients that are added up are float32."""
        inputs = self.prepared(inputs)
        micro_batch = functools.partial(self._micro_batch, inputs)
        if self.num_micro_batches == 1:
            return micro_batch(0)
        zeros = {name: tf.zeros(inputs.weights[name].shape) for name in self.state.trained}
        sums = {name: tf.constant(0.0) for name in [*inputs.counts, *self.objective.measures]}
        return self.over_micro_batches(
            inputs,
            lambda index, sums: tf.nest.map_structure(tf.add, sums, micro_batch(index)),
            (zeros, sums),
        )

    def prepared(self, inputs: PassInputs) -> PassInputs:
        """Return the inputs with weights in the compute dtype and without int64; see `narrowed`."""
        batch, num_micro_batches, seed = narrowed(
            (dict(inputs.batch), inputs.num_micro_batches, inputs.seed)
        )
        return inputs._replace(
            weights=cast_weights(inputs.weights, self.devices.dtype),
            batch=batch,
            num_micro_batches=num_micro_batches,
            seed=seed,
        )

    def over_micro_batches(
        self, inputs: PassInputs, body: Callable[..., typing.Any], start: typing.Any
    ) -> typing.Any:
        """Return the last value of body(index of the micro-batch, value) -> value, which begins
        with `start`. inputs: from `prepared`.
        """
        end = inputs.num_micro_batches if self.is_ramped else self.num_micro_batches
        _, last = tf.while_loop(
            lambda index, _: index < end,
            lambda index, value: (index + 1, body(index, value)),
            (tf.constant(0), start),
            parallel_iterations=1,
        )
        return last

    def _micro_batch(self, inputs: PassInputs, index: int | tf.Tensor) -> Gradients:
        """Return the gradients and losses of micro-batch number `index`. inputs: from
        `prepared`.
        """
        trained = {name: inputs.weights[name] for name in self.state.trained}
        rows = {name: value[index] for name, value in inputs.batch.items()}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained)
            seed = fold_seed(inputs.seed, index)
            sums = self.objective.sums(inputs.weights, rows, self.devices.dtype, seed)
            losses = self.objective.divided(sums, inputs.counts)
            target = inputs.scale * self.objective.total(losses)
        gradients = gradients_of(tape, target, trained)
        if not self.num_micro_batches == self.devices.num_replicas == 1:
            # gradients of several micro-batches or replicas are added up in float32; those of a
            # single one are cast by the update
            gradients = {name: tf.cast(value, tf.float32) for name, value in gradients.items()}
        return gradients, losses

    def _joint_share(
        self, gradients: dict[str, tf.Tensor], scale: tf.Tensor, replica: tf.Tensor
    ) -> tuple[dict[tuple, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        """Do this replica's share of the optimizer's joint work. Return the results of the share,
        {shape: (inputs in the share, ...)}, and (clip factor, gradient norm) from
        `optimizers.clip_factor`.
        """
        state = self.state
        clip = optimizers.clip_factor(gradients, self.optimizer.clip_norm, scale)
        inputs = optimizers.joint_inputs(
            state.joint_parts,
            gradients,
            {name: tf.convert_to_tensor(variable) for name, variable in state.slots.items()},
            self.optimizer,
            clip[0],
            self.devices.dtype,
        )
        share = shared_update.own_share(inputs, narrowed(replica), self.devices.num_replicas)
        work = self.optimizer.module.joint_work
        return {shape: work(value) for shape, value in share.items()}, clip

    def _update(
        self,
        gradients: dict[str, tf.Tensor],
        scale: tf.Tensor,
        learning_rate: tf.Tensor,
        clip: tuple[tf.Tensor, tf.Tensor] | None,
        joint_results: dict[tuple, tf.Tensor] | None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Apply the optimizer to this replica's copy of the weights unless the gradient norm is not
        finite; return the norm, and 1.0 for a skipped step, else 0.0.

        clip: (factor, norm) from `_joint_share`, None = computed here. joint_results: {shape:
        results} of all replicas, None = computed here.
        """
        state = self.state
        factor, norm = clip or optimizers.clip_factor(gradients, self.optimizer.clip_norm, scale)
        is_finite = tf.math.is_finite(norm)

        apply = functools.partial(
            self._apply, gradients, learning_rate, factor, joint_results=joint_results
        )
        if self.devices.xla:
            # no tf.cond: XLA would copy all weights and slots for it, and the GPU wait for the host
            apply(only_if=is_finite)
        else:
            tf.cond(is_finite, apply, lambda: None)
        state.num_updates.assign_add(tf.cast(is_finite, tf.int64))
        state.num_skipped.assign_add(tf.cast(~is_finite, tf.int64))
        if self.devices.precision == "float16":
            good = tf.where(is_finite, tf.convert_to_tensor(state.num_good) + 1, 0)
            grown = tf.where(
                good >= LOSS_SCALE_GROWTH_STEPS, tf.minimum(scale * 2.0, LOSS_SCALE_MAX), scale
            )
            state.loss_scale.assign(tf.where(is_finite, grown, tf.maximum(scale / 2.0, 1.0)))
            state.num_good.assign(tf.where(good < LOSS_SCALE_GROWTH_STEPS, good, 0))
        return norm, tf.cast(~is_finite, tf.float32)

    def _apply(
        self,
        gradients: dict[str, tf.Tensor],
        learning_rate: tf.Tensor,
        factor: tf.Tensor,
        only_if: tf.Tensor | None = None,
        joint_results: dict[tuple, tf.Tensor] | None = None,
    ) -> None:
        """Compute the optimizer's update and assign the new weights and slots; arguments as for
        `optimizers.update`.
        """
        state = self.state
        weights = {name: tf.convert_to_tensor(state.weights[name]) for name in state.trained}
        slots = {name: tf.convert_to_tensor(variable) for name, variable in state.slots.items()}
        weights, slots = optimizers.update(
            weights,
            gradients,
            slots,
            learning_rate,
            tf.convert_to_tensor(state.num_updates) + 1,
            self.optimizer,
            factor,
            parts=state.joint_parts,
            dtype=self.devices.dtype,
            joint_results=joint_results,
            only_if=only_if,
            all_names=list(state.weights),
        )
        for name, value in weights.items():
            state.weights[name].assign(value)
        for name, value in slots.items():
            state.slots[name].assign(value)
