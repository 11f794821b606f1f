"""A tiny BERT and batches for the engine's tests."""

import functools

import numpy as np

from bert_gpu.devices.config import DeviceConfig
from bert_gpu.devices.devices import set_up
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import column_blocks, initialize
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.train.state import TrainState, frozen_names
from bert_gpu.train.step import TrainStep
from tests import pretraining

VOCAB, LENGTH, PREDICTIONS = 50, 16, 4


def tiny_model(dropout=0.0, num_layers=1, positions="absolute"):
    return ModelConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        position_embedding_type=positions,
    )


def batches(number, rows=16, seed=0):
    """Random batches in Google's features; rows have unequal numbers of masked tokens
    and lengths.
    """
    rng = np.random.default_rng(seed)
    for _ in range(number):
        lengths = rng.integers(6, LENGTH + 1, rows)
        mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
        masked = rng.integers(1, PREDICTIONS + 1, rows)
        yield dict(
            input_ids=(rng.integers(5, VOCAB, (rows, LENGTH)) * mask).astype(np.int32),
            input_mask=mask,
            segment_ids=((np.arange(LENGTH) >= lengths[:, None] // 2) * mask).astype(np.int32),
            masked_lm_positions=rng.integers(1, 6, (rows, PREDICTIONS)).astype(np.int32),
            masked_lm_ids=rng.integers(5, VOCAB, (rows, PREDICTIONS)).astype(np.int32),
            masked_lm_weights=(np.arange(PREDICTIONS) < masked[:, None]).astype(np.float32),
            next_sentence_labels=rng.integers(0, 2, rows).astype(np.int32),
        )


class Trainer:
    """State and step of a tiny BERT."""

    def __init__(
        self,
        num_replicas=1,
        accumulation=1,
        dropout=0.0,
        precision="float32",
        xla="off",
        seed=7,
        freeze=(),
        is_ramped=False,
        devices=None,
        num_layers=1,
        positions="absolute",
        **optimizer,
    ):
        self.devices = set_up(
            DeviceConfig(
                num_gpus=0,
                virtual_replicas=num_replicas,
                precision=precision,
                xla=xla,
                **devices or {},
            )
        )
        encoder = BertEncoder(tiny_model(dropout, num_layers, positions))
        specs = pretraining.weights(encoder)
        weights, config = initialize(specs, seed), OptimizerConfig(**optimizer)
        self.state = TrainState(
            self.devices.strategy,
            weights,
            config,
            frozen_names(weights, freeze),
            column_blocks(specs),
        )
        self.step = TrainStep(
            self.devices,
            self.state,
            pretraining.objective(encoder),
            config,
            num_micro_batches=accumulation,
            seed=seed,
            is_ramped=is_ramped,
        )

    def run(self, steps, learning_rate=1e-2, start=0, steps_per_call=1):
        """Runs the batches; returns [{metric: float}], one for each."""
        steps, results = list(steps), []
        for first in range(0, len(steps), steps_per_call):
            part = steps[first : first + steps_per_call]
            metrics = self.step(part, [learning_rate] * len(part), start + first).read()
            results += [
                {name: float(values[i]) for name, values in metrics.items()}
                for i in range(len(part))
            ]
        return results


@functools.lru_cache
def _traced(*arguments, **options):
    trainer = Trainer(*arguments, **options)
    return trainer, trainer.state.read()


def fresh(*arguments, **options):
    """A Trainer as the constructor makes it. Those of equal arguments share their compiled steps,
    so a test has only one of them at a time, and changes nothing of it but its state.
    """
    trainer, first = _traced(*arguments, **options)
    trainer.state.assign(first)
    return trainer


def distance(first, second):
    """Relative L2 distance of two dicts of weights."""
    difference = sum(float(np.sum((first[name] - second[name]) ** 2)) for name in first)
    return np.sqrt(difference / sum(float(np.sum(value**2)) for value in first.values()))
