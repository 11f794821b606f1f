"""Runs forward passes over many batches on all replicas, to compute means of metrics or an output
for every row.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tensorflow as tf

from bert_gpu.devices.devices import Devices
from bert_gpu.train.state import ModelState
from bert_gpu.train.step import cast_weights, divide_batch


class ForwardPass:
    """Runs function(weights, batch, dtype) -> {name: tensor} on a global batch, divided among the
    replicas.

    Weights are cast to the compute dtype as in training. The number of rows in a batch must be a
    multiple of the number of replicas.
    """

    def __init__(
        self, devices: Devices, state: ModelState, function: Callable[..., dict[str, tf.Tensor]]
    ) -> None:
        self.devices = devices
        self.state = state
        self.compiled = tf.function(
            lambda weights, batch: function(
                cast_weights(weights, devices.dtype), batch, devices.dtype
            ),
            autograph=False,
            jit_compile=devices.xla,
            reduce_retracing=not devices.xla,
        )
        self.run = tf.function(self._run, autograph=False, reduce_retracing=True)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return the results {name: array} for a batch, one dict for every replica of all the
        workers together.
        """
        everyone = self.devices.workers.gather(self.on_own_replicas(batch))
        return [result for results in everyone for result in results]

    def on_own_replicas(self, batch: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return the results {name: array} for a batch, one for each replica of this worker."""
        parts = divide_batch(batch, self.devices.num_replicas, 1)
        distributed = self.devices.strategy.experimental_distribute_values_from_function(
            lambda context: {
                k: tf.constant(v[0]) for k, v in parts[context.replica_id_in_sync_group].items()
            }
        )
        results = self.run(distributed)
        return [
            {name: values[i].numpy() for name, values in results.items()}
            for i in range(len(self.devices.local_devices))
        ]

    def _run(self, batch: object) -> dict[str, tuple[tf.Tensor, ...]]:
        return {
            name: self.devices.strategy.experimental_local_results(value)
            for name, value in self.devices.strategy.run(self._replica, args=(batch,)).items()
        }

    def _replica(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return self.compiled(
            {name: tf.convert_to_tensor(value) for name, value in self.state.weights.items()}, batch
        )


class MeanMetrics:
    """A callable (batches) -> {name: mean over all batches, None where the count is 0}.

    Args of the constructor: function: (weights, batch, dtype) -> {name: (sum, count)} over a batch.
    A mean is the total of the sums divided by the total of the counts.
    """

    def __init__(
        self,
        devices: Devices,
        state: ModelState,
        function: Callable[..., dict[str, tuple[tf.Tensor, tf.Tensor]]],
    ) -> None:
        def flat(
            weights: Mapping[str, tf.Tensor], batch: Mapping[str, tf.Tensor], dtype: tf.DType
        ) -> dict[str, tf.Tensor]:
            return {
                name: tf.stack([tf.cast(part, tf.float32) for part in pair])
                for name, pair in function(weights, batch, dtype).items()
            }

        self.forward = ForwardPass(devices, state, flat)

    def __call__(self, batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float | None]:
        return means_of(self.totals(batches))

    def totals(self, batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return {name: (sum, count)} over all batches."""
        totals: dict[str, np.ndarray] = {}
        own = [self.forward.on_own_replicas(batch) for batch in batches]
        # added in the order of one machine with all replicas, for exactly the sums that it computes
        for everyone in zip(*self.forward.devices.workers.gather(own), strict=True):
            for result in itertools.chain(*everyone):
                for name, pair in result.items():
                    totals[name] = totals.get(name, np.zeros(2)) + pair.astype(np.float64)
        return totals


def means_of(totals: Mapping[str, np.ndarray]) -> dict[str, float | None]:
    """Return {name: mean, None where the count is 0} of {name: (sum, count)}."""
    return {
        name: float(total / count) if count else None for name, (total, count) in totals.items()
    }
