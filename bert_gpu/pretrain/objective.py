"""The pretraining objective (masked words and, if the data has them, next sentences) and its
metrics.
"""

import functools

from bert_gpu.data import pipeline
from bert_gpu.model import heads
from bert_gpu.train.evaluation import MeanMetrics
from bert_gpu.train.step import Objective

LOSSES = ("mlm", "nsp")  # in the metrics of a step; validation has mlm_loss and nsp_loss


def pretraining_objective(encoder):
    """The pretraining Objective of an Encoder."""
    return Objective(
        counts=heads.pretraining_counts,
        losses=lambda weights, batch, dtype, seed: heads.pretraining_sums(
            weights, batch, encoder, dtype=dtype, seed=seed
        ),
        measures=heads.MEASURES,
    )


def pretraining_validation(config, reader, devices, state, encoder):
    """function (until_stopped) -> {name: mean over the validation records}, with "loss" the sum of
    the objectives' losses. config: PretrainConfig. until_stopped: as for loop.Loop, by default
    none. reader: of the validation records; None = there are none, and no function.
    """
    if reader is None:
        return None
    means = MeanMetrics(
        devices,
        state,
        lambda weights, batch, dtype: heads.pretraining_metrics(weights, batch, encoder, dtype),
    )

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
