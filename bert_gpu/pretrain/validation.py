"""The validation of a pretraining."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from bert_gpu.base.console import Console
from bert_gpu.data import pipeline
from bert_gpu.data.inputs import read_manifests
from bert_gpu.data.records import RecordSet
from bert_gpu.devices.devices import Devices
from bert_gpu.pretrain.config import PretrainConfig
from bert_gpu.pretrain.objectives.joint import JointObjective
from bert_gpu.train.evaluation import MeanMetrics, means_of
from bert_gpu.train.state import TrainState

# A model's loss must be lower by this much, in nats, than that of word frequencies before it counts
# as having learnt more: a mean over 10,000 masked words varies by .03.
MARGIN = 0.1


def open_validation(
    config: PretrainConfig,
    reader: pipeline.Reader | None,
    devices: Devices,
    state: TrainState,
    objective: JointObjective,
    parts: Mapping[str, range],
    console: Console,
) -> Callable[..., dict[str, float | None]] | None:
    """Return a function that validates and returns {metric: mean over the validation records};
    "loss" is the sum of the losses. Its argument `until_stopped` is a function that passes batches
    on, and stops the validation after a signal (see loop.Loop). While the loss of masked words is
    only that of word frequencies, the function says so.

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
    compare = functools.partial(compare_loss, unigram_loss(reader.records), console)
    return functools.partial(mean_losses, means, openers or {"": open_batches}, compare)


def compare_loss(frequencies: float | None, console: Console, loss: float | None) -> None:
    """Say so if `loss`, the loss of masked words, is only that of word frequencies; None = not
    known.
    """
    if loss is not None and frequencies is not None and loss > frequencies - MARGIN:
        console.say(f"masked words: loss {loss:.2f}; word frequencies alone give {frequencies:.2f}")


def unigram_loss(records: RecordSet) -> float | None:
    """Return the loss of masked words that word frequencies alone give on validation records: the
    mean of their data sets' by numbers of records; None where a data set does not have it.
    """
    infos = read_manifests(file.path for file in records.files)
    losses = {folder: info and info.unigram_loss for folder, info in infos.items()}
    if None in losses.values():
        return None
    own = [losses[os.path.dirname(file.path)] for file in records.files]
    return float(np.average(own, weights=[len(file) for file in records.files]))  # type: ignore[arg-type]


def mean_losses(
    means: MeanMetrics,
    openers: Mapping[str, Callable[[], Iterable[Mapping[str, np.ndarray]]]],
    compare: Callable[[float | None], object],
    until_stopped: Callable[..., Iterator[Mapping[str, np.ndarray]]] = iter,
) -> dict[str, float | None]:
    """Return {metric: mean over all batches}; "loss", the sum of the mean losses; and this sum for
    each data set.

    openers: {name of the loss of a data set, or "" for none: function that returns its batches}.
    compare: called with the mlm_loss, None without one. until_stopped: function that passes batches
    on, or raises to stop.
    """
    totals = {name: means.totals(until_stopped(openers[name]())) for name in openers}
    first = next(iter(totals.values()))
    values = means_of({name: np.sum([own[name] for own in totals.values()], 0) for name in first})
    compare(values.get("mlm_loss"))
    parts = {name: total_loss(means_of(own)) for name, own in totals.items() if name}
    return dict(loss=total_loss(values)) | values | parts


def total_loss(values: Mapping[str, float | None]) -> float | None:
    losses = [
        value for name, value in values.items() if name.endswith("_loss") and value is not None
    ]
    return sum(losses) if losses else None
