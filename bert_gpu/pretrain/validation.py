"""The validation of a pretraining."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from bert_gpu.data import pipeline
from bert_gpu.devices.devices import Devices
from bert_gpu.pretrain.config import PretrainConfig
from bert_gpu.pretrain.objectives.joint import JointObjective
from bert_gpu.train.evaluation import MeanMetrics
from bert_gpu.train.state import TrainState


def open_validation(
    config: PretrainConfig,
    reader: pipeline.Reader | None,
    devices: Devices,
    state: TrainState,
    objective: JointObjective,
) -> Callable[..., dict[str, float | None]] | None:
    """Return a function that validates and returns {metric: mean over the validation records};
    "loss" is the sum of the losses. Its argument `until_stopped` is a function that passes batches
    on, and stops the validation after a signal (see loop.Loop).

    reader: reads the validation records; None = there are none, and None is returned.
    """
    if reader is None:
        return None
    means = MeanMetrics(devices, state, objective.metrics)
    open_batches = functools.partial(
        pipeline.evaluation_batches,
        reader,
        batch_size=config.eval_batch_size * devices.num_replicas,
        max_batches=config.max_eval_steps,
    )
    return functools.partial(mean_losses, means, open_batches)


def mean_losses(
    means: MeanMetrics,
    open_batches: Callable[[], Iterable[Mapping[str, np.ndarray]]],
    until_stopped: Callable[..., Iterator[Mapping[str, np.ndarray]]] = iter,
) -> dict[str, float | None]:
    """Return {metric: mean over the batches}, and "loss", the sum of the mean losses. open_batches:
    function that returns the batches. until_stopped: function that passes them on, or raises to
    stop.
    """
    values = means(until_stopped(open_batches()))
    losses = [
        value for name, value in values.items() if name.endswith("_loss") and value is not None
    ]
    return dict(loss=sum(losses) if losses else None) | values
