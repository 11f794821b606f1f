"""Several pretraining objectives, trained together in one pass through the encoder.

Legend: B batch, H hidden, K hidden states that an objective reads of each row.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.data.examples import Schema
from bert_gpu.interop.heads import architecture_of
from bert_gpu.model.encoders import Encoder
from bert_gpu.model.flops import Flops, FlopsCounter
from bert_gpu.model.heads import two_uses_one_gradient
from bert_gpu.model.layers import sizes
from bert_gpu.model.weights import WeightSpec
from bert_gpu.pretrain.objectives.interface import PretrainingObjective
from bert_gpu.pretrain.objectives.table import OBJECTIVES
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.train.step import Objective

WORDS = "embeddings/word"


def default_objectives(schema: Schema) -> tuple[str, ...]:
    """Return the names of the default objectives to train on records with this schema."""
    return tuple(
        name
        for name, row in OBJECTIVES.items()
        if row.by_default and schema.features.issuperset(row.module.Objective.features)
    )


def named_objectives(names: Sequence[str], schema: Schema) -> list[str]:
    """Return the names of the objectives as run.json holds them: [] where they are the default ones
    for the schema.
    """
    return [] if tuple(names) == default_objectives(schema) else list(names)


def select_objectives(names: Sequence[str], schema: Schema) -> tuple[str, ...]:
    """Return the names of the objectives to train on records with this schema, in the order of the
    table OBJECTIVES; without `names`, the default ones. Raises UserError for an objective whose
    features the records lack.
    """
    for name in names:
        lacking = set(OBJECTIVES[name].module.Objective.features) - schema.features
        if lacking:
            raise UserError(
                f"needs {', '.join(sorted(lacking))}, which the records do not have",
                "name other objectives, or build other data",
                setting="train_objective",
                value=name,
            )
    return tuple(name for name in OBJECTIVES if name in names) or default_objectives(schema)


def open_objective(
    names: Sequence[str], encoder: Encoder, tokenizer: Tokenizer | None = None
) -> "JointObjective":
    """Return the named objectives on an encoder as one JointObjective. tokenizer: of the data, None
    = not known.
    """
    parts = tuple(OBJECTIVES[name].module.Objective(encoder.config, tokenizer) for name in names)
    return JointObjective(encoder, tuple(names), parts)


@dataclasses.dataclass(frozen=True)
class JointObjective(Objective):
    """Objectives on one encoder, whose losses are added. losses: their names in OBJECTIVES."""

    encoder: Encoder
    losses: tuple[str, ...]
    parts: tuple[PretrainingObjective, ...]

    def weights(self) -> dict[str, WeightSpec]:
        """Return {name: WeightSpec} of the encoder and of all heads."""
        heads = {name: spec for part in self.parts for name, spec in part.weights().items()}
        return {**self.encoder.weights(), **heads}

    @property
    def measures(self) -> dict[str, str]:
        """{measure: the loss whose count divides it}; measures are sums beside the losses."""
        return {name: loss for part in self.parts for name, loss in part.measures.items()}

    @property
    def validation_metrics(self) -> list[str]:
        return ["loss", *(name for part in self.parts for name in part.validation_metrics)]

    @property
    def architecture(self) -> str:
        """The name of the class in Hugging Face's transformers that opens the exported model."""
        return architecture_of({head for part in self.parts for head in part.heads})

    def counts(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return {loss: float32 scalar}, the number by which the sum of this loss over a batch is
        divided; needs no forward pass.
        """
        return {name: count for part in self.parts for name, count in part.counts(batch).items()}

    def sums(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType = tf.float32,
        seed: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Return {loss or measure: float32 scalar}, sums over a batch.

        Args:
          batch: Google's features: input_ids, input_mask, segment_ids (B, S), for B rows of S
            tokens; the features of the objectives; and optionally row_weights (B,), 0 for rows that
            only fill the batch.
          seed: int32 (2,) for dropout; None switches it off.
        """
        encoder_weights = weights
        if any(part.reuses_words for part in self.parts):
            table, kernel = two_uses_one_gradient(weights[WORDS])
            encoder_weights = {**weights, WORDS: table}
            weights = {**weights, WORDS: kernel}
        return {
            name: value
            for part, hidden in self._read(encoder_weights, batch, dtype, seed)
            for name, value in part.sums(weights, hidden, batch, dtype).items()
        }

    def metrics(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType = tf.float32,
    ) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Return {validation metric: (sum, count)} of a batch, without dropout."""
        return {
            name: pair
            for part, hidden in self._read(weights, batch, dtype, None)
            for name, pair in part.metrics(weights, hidden, batch, dtype).items()
        }

    def _read(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
        seed: tf.Tensor | None,
    ) -> Iterator[tuple[PretrainingObjective, tf.Tensor]]:
        """Yield (objective, the hidden states that it reads, (B, K, H)): K states of size H from
        each of B rows.
        """
        positions = [part.positions(batch) for part in self.parts]
        hidden = self.encoder.encode(
            weights,
            batch,
            dtype=dtype,
            seed=seed,
            positions=tf.concat(positions, axis=1) if len(positions) > 1 else positions[0],
        )
        first = 0
        for part, own in zip(self.parts, positions, strict=True):
            yield part, hidden[:, first : first + sizes(own)[1]]
            first += sizes(own)[1]

    def flops(self, batch: Mapping[str, np.ndarray]) -> Flops:
        """Return the FLOPs of the forward and backward passes over a batch."""
        heads = [(part.num_read(batch), part.products()) for part in self.parts]
        return FlopsCounter(self.encoder).per_batch(batch, heads)
