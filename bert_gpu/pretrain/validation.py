"""The validation of a pretraining."""

import functools

from bert_gpu.data import pipeline
from bert_gpu.train.evaluation import MeanMetrics


def open_validation(config, reader, devices, state, objective):
    """function (until_stopped) -> {name: mean over the validation records} of a JointObjective,
    with "loss" the sum of its losses. config: PretrainConfig. until_stopped: as for loop.Loop, by
    default none. reader: of the validation records; None = there are none, and no function.
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


def mean_losses(means, open_batches, until_stopped=iter):
    values = means(until_stopped(open_batches()))
    losses = [
        value for name, value in values.items() if name.endswith("_loss") and value is not None
    ]
    return dict(loss=sum(losses) if losses else None) | values
