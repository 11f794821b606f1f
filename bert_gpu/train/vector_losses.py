"""Losses of the vectors of a whole global batch, such as a contrastive loss, whose negatives are
the other examples of all micro-batches and replicas.

They are exact however the global batch is divided (GradCache, Gao et al. 2021, arXiv 2101.06983):
TrainStep computes the vectors of all micro-batches, `at_vectors` gathers those of all replicas and
returns the gradient at the vectors, and the backward pass of each micro-batch starts from it.

Legend: A micro-batches of B examples on each of R replicas; n = A x B examples of a replica, N =
R x n of the global batch; V vectors an example, of width H.
"""

import typing
from collections.abc import Callable, Mapping

import tensorflow as tf

from bert_gpu.devices.devices import Devices, narrowed
from bert_gpu.train import shared_update

GRADIENT = "vector_gradient"  # the feature of a batch with the gradient at its vectors, (B, V, H)


class VectorLosses(typing.NamedTuple):
    """The losses of vectors, and the vectors, as functions.

    features: names of the features of a batch that `losses` reads beside the vectors.
    vectors(weights, batch, dtype=, seed=) -> (B, V, H); arguments as for `Objective.losses`.
    losses(vectors, features, own, counts) -> ({loss: float32 scalar}, (N, V, H)): the sums over the
    examples `own`, int32 (n,), which follow each other, and the gradient of these sums, divided by
    their counts, at all vectors. vectors: float32 (N, V, H); features: {feature: (N, ...)}.
    """

    features: tuple[str, ...]
    vectors: Callable[..., tf.Tensor]
    losses: Callable[..., tuple[dict[str, tf.Tensor], tf.Tensor]]

    def product(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
        seed: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Return the inner product of the vectors and the gradient at them, batch[GRADIENT]. Its
        gradient at the weights is that of the losses.
        """
        vectors = self.vectors(weights, batch, dtype=dtype, seed=seed)
        return {GRADIENT: tf.reduce_sum(tf.cast(vectors, tf.float32) * batch[GRADIENT])}


def at_vectors(
    functions: VectorLosses,
    devices: Devices,
    vectors: tf.Tensor,
    batch: Mapping[str, tf.Tensor],
    counts: Mapping[str, tf.Tensor],
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Return {loss: sum over the examples of this replica}, and the gradient of the losses of the
    global batch, divided by their counts, at this replica's vectors. vectors and gradient: float32
    (A, B, V, H). batch: {feature: (A, B, ...)}.
    """
    values = {"vectors": vectors}
    values |= {name: narrowed(batch[name]) for name in functions.features}
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
    sums, gradient = functions.losses(values.pop("vectors"), values, own, counts)
    if not is_alone:
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient, devices.communication)
        gradient = tf.gather(total, own)
    return sums, tf.reshape(gradient, vectors.shape)
