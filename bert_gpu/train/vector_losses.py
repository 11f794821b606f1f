"""Losses of the vectors of a whole global batch, such as a contrastive loss, whose negatives are
the other examples of all micro-batches and replicas.

They are exact however the global batch is divided (GradCache, Gao et al. 2021, arXiv 2101.06983):
a replica computes the vectors of all its micro-batches, gathers those of all replicas, and takes
the gradient at its vectors, from which the backward pass of each micro-batch starts.

Legend: A micro-batches of B examples on each of R replicas; n = A x B examples of a replica, N =
R x n of the global batch; V vectors an example, of width H.
"""

import abc
import functools
import typing
from collections.abc import Callable, Mapping

import tensorflow as tf

from bert_gpu.devices.devices import narrowed
from bert_gpu.train import shared_update
from bert_gpu.train.step import (
    Gradients,
    Objective,
    PassInputs,
    TrainStep,
    fold_seed,
    gradients_of,
)

GRADIENT = "vector_gradient"  # the feature of a batch with the gradient at its vectors, (B, V, H)


class VectorObjective(Objective):
    """One loss of the vectors of the whole global batch. features: names of the features of a batch
    that `at_vectors` reads beside the vectors.
    """

    features: typing.ClassVar[tuple[str, ...]]

    @abc.abstractmethod
    def vectors(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
        seed: tf.Tensor,
    ) -> tf.Tensor:
        """Return the vectors of a batch, (B, V, H); arguments as for `Objective.sums`."""

    @abc.abstractmethod
    def at_vectors(
        self,
        vectors: tf.Tensor,
        features: Mapping[str, tf.Tensor],
        own: tf.Tensor,
        counts: Mapping[str, tf.Tensor],
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Return {loss: float32 scalar}, the sums over the examples `own`, int32 (n,), which follow
        each other, and the gradient of these sums, divided by their counts, at all vectors.
        vectors and gradient: float32 (N, V, H); features: {feature: (N, ...)}.
        """

    def sums(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
        seed: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Return {loss: the inner product of the vectors and the gradient at them,
        batch[GRADIENT]}, whose gradient at the weights is that of the loss.
        """
        vectors = tf.cast(self.vectors(weights, batch, dtype, seed), tf.float32)
        return {self.losses[0]: tf.reduce_sum(vectors * batch[GRADIENT])}

    def replica_gradients(self, step: TrainStep) -> Callable[[PassInputs], Gradients]:
        vectors = step.compiled(functools.partial(self._vectors, step))
        gradients = functools.partial(self._gradients, step, vectors)
        # several replicas exchange vectors between the compiled programs; one needs one program
        return step.compiled(gradients) if step.devices.num_replicas == 1 else gradients

    def _gradients(
        self, step: TrainStep, vectors_of: Callable[[PassInputs], tf.Tensor], inputs: PassInputs
    ) -> Gradients:
        """Compute all vectors, the gradient at them, and from it the gradients of the weights, for
        which several micro-batches are computed again, with the same dropout.
        """
        trained = {name: inputs.weights[name] for name in step.state.trained}
        is_single = step.num_micro_batches == 1
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained if is_single else {})
            vectors = vectors_of(inputs)
        sums, gradient = self._exchange(step, vectors, inputs)
        losses = self.divided(sums, inputs.counts)
        if is_single:
            return gradients_of(tape, vectors, trained, inputs.scale * gradient), losses
        batch = {**inputs.batch, GRADIENT: gradient}
        passes = inputs._replace(batch=batch, counts=dict.fromkeys(self.losses, tf.constant(1.0)))
        return step.gradients(passes)[0], losses

    def _vectors(self, step: TrainStep, inputs: PassInputs) -> tf.Tensor:
        """Return the vectors of all micro-batches of a replica, float32 (A, B, V, H)."""
        inputs = step.prepared(inputs)
        vectors_of = functools.partial(self._vectors_of, step, inputs)
        if step.num_micro_batches == 1:
            return vectors_of(0)[None]
        vectors = step.over_micro_batches(
            inputs,
            lambda index, array: array.write(index, vectors_of(index)),
            tf.TensorArray(tf.float32, step.num_micro_batches),
        )
        return tf.ensure_shape(vectors.stack(), [step.num_micro_batches, None, None, None])

    def _vectors_of(self, step: TrainStep, inputs: PassInputs, index: int | tf.Tensor) -> tf.Tensor:
        """Return the vectors of a micro-batch, float32 (B, V, H)."""
        rows = {name: value[index] for name, value in inputs.batch.items()}
        seed = fold_seed(inputs.seed, index)
        return tf.cast(self.vectors(inputs.weights, rows, step.devices.dtype, seed), tf.float32)

    def _exchange(
        self, step: TrainStep, vectors: tf.Tensor, inputs: PassInputs
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Return {loss: sum over the examples of this replica}, and the gradient of the losses of
        the global batch, divided by their counts, at this replica's vectors. vectors and gradient:
        float32 (A, B, V, H).
        """
        devices = step.devices
        values = {"vectors": vectors}
        values |= {name: narrowed(inputs.batch[name]) for name in self.features}
        values = {
            name: tf.reshape(value, [value.shape[0] * value.shape[1], *value.shape[2:]])
            for name, value in values.items()
        }
        own = tf.range(values["vectors"].shape[0])
        is_alone = devices.num_replicas == 1
        if not is_alone:
            context = tf.distribute.get_replica_context()
            own += own.shape[0] * context.replica_id_in_sync_group
            values = shared_update.gather(context, values, devices.communication)
        sums, gradient = self.at_vectors(values.pop("vectors"), values, own, inputs.counts)
        if not is_alone:
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient, devices.communication)
            gradient = tf.gather(total, own)
        return sums, tf.reshape(gradient, vectors.shape)
