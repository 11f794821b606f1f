"""What an encoder is to everything that runs, trains or stores one, and the one place that asks
which of the two it is.

Ours is encoder.BertEncoder, and an encoder of TF Model Garden is a garden.GardenEncoder. Heads,
training, fine-tuning and model folders take an Encoder and do not know which they have.

Legend: B batch, S sequence, H hidden.
"""

import typing

import tensorflow as tf

from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder, Products
from bert_gpu.model.weights import WeightSpec


@typing.runtime_checkable
class Encoder(typing.Protocol):
    """A pure function from weights and a batch to hidden states, with what its users need
    to know of it.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def num_groups(self) -> int:
        """Number of groups of layers with weights of their own."""

    @property
    def fixed_length(self) -> int | None:
        """The one length of rows that it takes; None = any up to its number of positions."""

    def weights(self) -> dict[str, WeightSpec]:
        """{name: WeightSpec} of embeddings and layers, "embeddings/word" (V, E) among them;
        heads.py specifies pooler and heads.

        Raises UserError when the config asks for what the encoder does not have.
        """

    def encode(self, weights, batch, *, dtype=tf.float32, seed=None) -> tf.Tensor:
        """Hidden states behind the last layer, (B, S, H) in the compute dtype; arguments as for
        `encoder.encode`.
        """

    def check(self, length: int | None, precision: str, is_packed: bool = False) -> None:
        """Raises UserError when the encoder cannot take such rows. `encode` may check too, but
        TensorFlow adds its own lines to errors.

        Args:
          length: tokens of a row, None when not known. precision: "float32", "bfloat16"
            or "float16".
          is_packed: whether batches have sequence_ids.
        """

    def cudnn_obstacle(self, **conditions) -> str | None:
        """What keeps it from training with cuDNN's attention, as the end of a sentence; None when
        nothing does.

        conditions: those of `cudnn_attention.obstacle` that are not the model's.
        """

    def token_products(self, num_attended: float) -> Products | None:
        """Multiply-adds for a token that attends to `num_attended`; None when they
        are not known.
        """

    def for_training(
        self, *, recompute_every: int = 0, attention: str = "plain", xla: bool = False
    ) -> "Encoder":
        """The encoder that trains so; arguments as for `encoder.encode`. Raises UserError
        when it cannot.
        """


def open_encoder(config):
    """The Encoder of a ModelConfig. UserError when it names one that there is not."""
    if config.encoder is None:
        return BertEncoder(config)
    # brings tf_keras and Model Garden, which other models need not wait for
    from bert_gpu.model import garden

    return garden.open_encoder(config)
