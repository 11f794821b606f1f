"""The Encoder protocol, through which all other code runs, trains and stores encoders, and
`open_encoder`, the only code that chooses between the two implementations.

encoder.BertEncoder is ours; garden.GardenEncoder wraps an encoder of TF Model Garden. Heads,
training, fine-tuning and model folders take any Encoder.

Legend: B batch, S sequence, H hidden.
"""

import typing
from collections.abc import Mapping

import tensorflow as tf

from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder, Products
from bert_gpu.model.weights import WeightSpec


@typing.runtime_checkable
class Encoder(typing.Protocol):
    """An encoder: a pure function from weights and a batch to hidden states, and the facts about it
    that heads, training and model folders need.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def num_groups(self) -> int:
        """Number of groups of layers with weights of their own."""

    @property
    def fixed_length(self) -> int | None:
        """The only row length that the encoder takes; None = any length up to its number of
        positions.
        """

    def weights(self) -> dict[str, WeightSpec]:
        """Return {name: WeightSpec} of embeddings and layers; "embeddings/word" is the table of
        word embeddings. heads.py specifies pooler and heads.

        Raises UserError when the config sets a field that the encoder does not support.
        """

    def encode(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        *,
        dtype: tf.DType = tf.float32,
        seed: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Return the hidden states after the last layer, in the compute dtype: (B, S, H), or with
        `positions`, int32 (B, P), only those at these positions, (B, P, H). Arguments as for
        `encoder.encode`.
        """

    def check(self, length: int | None, precision: str, is_packed: bool = False) -> None:
        """Raise UserError when the encoder cannot take rows of this length, precision and kind.
        `encode` may check too, but TensorFlow adds its own lines to the message of an error in it.

        Args:
          length: tokens of a row; None = not known. precision: "float32", "bfloat16" or "float16".
          is_packed: whether batches have sequence_ids.
        """

    def cudnn_obstacle(self, **conditions: object) -> str | None:
        """Return the reason why the encoder cannot train with cuDNN's attention, worded as the end
        of a sentence; None when it can.

        conditions: the arguments of `cudnn_attention.obstacle` that do not describe the model.
        """

    def token_products(
        self, num_attended: float, num_local: float | None = None
    ) -> Products | None:
        """Return the numbers of multiply-adds for a token that attends to `num_attended` tokens;
        None when they are not known for this encoder. num_local: number of tokens to which it
        attends in local layers; None = as many as are computed in rows of num_attended tokens.
        """

    def for_training(
        self, *, recompute_every: int = 0, attention: str = "plain", xla: bool = False
    ) -> "Encoder":
        """Return this encoder with the given training options; arguments as for `encoder.encode`.
        Raises UserError for an option that the encoder does not support.
        """


def open_encoder(config: ModelConfig) -> Encoder:
    """Return the Encoder of a config. Raises UserError when config.encoder names an unknown
    encoder.
    """
    if config.encoder is None:
        return BertEncoder(config)
    # imported here, because it imports tf_keras and Model Garden, which our encoder does not need
    from bert_gpu.model import garden

    return garden.open_encoder(config)
