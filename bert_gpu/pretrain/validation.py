"""The validation of a pretraining."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from bert_gpu.data import pipeline
from bert_gpu.devices.devices import Devices
from bert_gpu.pretrain.config import PretrainConfig
from bert_gpu.pretrain.objectives.joint import JointObjective
from bert_gpu.train.evaluation import MeanMetrics, means_of
from bert_gpu.train.state import TrainState


def open_validation(
    config: PretrainConfig,
    reader: pipeline.Reader | None,
    devices: Devices,
    state: TrainState,
    objective: JointObjective,
    parts: Mapping[str, range],
) -> Callable[..., dict[str, float | None]] | None:
    """Return a function that validates and returns {metric: mean over the validation records};
    "loss" is the sum of the losses. Its argument `until_stopped` is a function that passes batches
    on, and stops the validation after a signal (see loop.Loop).

    reader: reads the validation records; None = there are none, and None is returned. parts: {name
    of a loss: the records that it is the loss of}; each part is validated by itself, on at most
    --max_eval_steps batches.
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
    openers = {name: functools.partial(open_batches, part=part) for name, part in parts.items()}
    return functools.partial(mean_losses, means, openers or {"": open_batches})


def mean_losses(
    means: MeanMetrics,
    openers: Mapping[str, Callable[[], Iterable[Mapping[str, np.ndarray]]]],
    until_stopped: Callable[..., Iterator[Mapping[str, np.ndarray]]] = iter,
) -> dict[str, float | None]:
    """Return {metric: mean over all batches}; "loss", the sum of the mean losses; and this sum for
    each data set.

    openers: {name of the loss of a data set, or "" for none: function that returns its batches}.
    until_stopped: function that passes batches on, or raises to stop.
    """
    totals = {name: means.totals(until_stopped(openers[name]())) for name in openers}
    first = next(iter(totals.values()))
    values = means_of({name: np.sum([own[name] for own in totals.values()], 0) for name in first})
    parts = {name: total_loss(means_of(own)) for name, own in totals.items() if name}
    return dict(loss=total_loss(values)) | values | parts


def total_loss(values: Mapping[str, float | None]) -> float | None:
    losses = [
        value for name, value in values.items() if name.endswith("_loss") and value is not None
    ]
    return sum(losses) if losses else None
