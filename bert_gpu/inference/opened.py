"""A model opened for inference: its tokenizer, and one compiled function from padded rows to
hidden states.

Rows are sorted by length and cut into batches of about equally many tokens, so that little of the
computation is spent on padding. Every new shape is compiled; therefore row lengths are rounded up
to a few values, and a batch always has as many rows as its length allows.

Legend: N rows, B batch, S sequence, P positions, H hidden.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from bert_gpu.base import fused
from bert_gpu.base.errors import UserError
from bert_gpu.inference.config import ModelSource
from bert_gpu.interop import models
from bert_gpu.interop.formats import Notes
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoders import Encoder, open_encoder
from bert_gpu.model.weights import WeightSpec
from bert_gpu.text.framing import padded
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

# On two cores batches of 1024 to 4096 tokens are equally fast, and smaller ones leave less padding
# in the last batch of a window.
BATCH_TOKENS = dict(CPU=2048, GPU=65536)
# the specs of input_ids (B, S) and num_tokens (B,)
ROWS = (tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32))
# (row length, n): lengths up to this one are rounded up to a multiple of n
ROUNDING = ((64, 8), (256, 16), (1 << 30, 64))


@dataclasses.dataclass(frozen=True)
class OpenedModel:
    """A model in memory. weights: tensors in the compute type, by name. batch_tokens: tokens of a
    batch, padding included. notes: facts about the model's files.
    """

    path: str
    encoder: Encoder
    weights: dict[str, tf.Tensor]
    tokenizer: Tokenizer
    dtype: tf.DType
    batch_tokens: int
    notes: Notes

    @property
    def config(self) -> ModelConfig:
        return self.encoder.config

    def compile(
        self, function: Callable[..., tf.Tensor], *signature: tf.TensorSpec
    ) -> Callable[..., tf.Tensor]:
        """Return a compiled function of tensors of any sizes. On GPUs XLA compiles it as a whole,
        on CPUs only its small parts. signature: a spec for each argument.
        """
        # Trace now, not in a call: after a few calls that trace, TensorFlow prints a warning that
        # contains this object with all of its weights. The trace stays compiled in a program that
        # runs functions eagerly.
        compiled = tf.function(
            lambda *values: function(*values),  # without parameters that the signature lacks
            autograph=False,
            jit_compile=fused.has_gpu(),
            input_signature=signature,
        ).get_concrete_function()
        return lambda *values: compiled(*map(tf.convert_to_tensor, values))

    def hidden(
        self, input_ids: tf.Tensor, num_tokens: tf.Tensor, positions: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return the hidden states of padded rows of single texts: int32 (B, S), (B,) -> (B, S, H)
        in the compute type, or (B, P, H) at int32 positions (B, P).
        """
        mask = tf.cast(tf.range(tf.shape(input_ids)[1]) < num_tokens[:, None], tf.int32)
        batch = dict(input_ids=input_ids, input_mask=mask, segment_ids=tf.zeros_like(input_ids))
        return self.encoder.encode(self.weights, batch, dtype=self.dtype, positions=positions)

    def batches(
        self, lengths: np.ndarray, max_seq_length: int
    ) -> Iterator[tuple[np.ndarray, int, int]]:
        """Yield (rows, S, B) for batches of rows of similar length, longest first. lengths: (N,),
        in tokens. rows: at most B of the indices 0 to N - 1.
        """
        order = np.argsort(-lengths, kind="stable")
        first = 0
        while first < len(order):
            length = self.encoder.fixed_length or rounded_up(lengths[order[first]], max_seq_length)
            num_rows = max(1, self.batch_tokens // length)
            yield order[first : first + num_rows], length, num_rows
            first += num_rows

    def pad(
        self, ids: np.ndarray, splits: np.ndarray, rows: np.ndarray, length: int, num_rows: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return some rows of flat ids as a batch, S = length, B = num_rows: (input_ids int32 (B,
        S), num_tokens int32 (B,)). Missing rows are padding of one token, so that attention is
        defined in them. ids, splits: as in Framed.
        """
        input_ids, is_token = padded(ids, splits, rows, length)
        missing = num_rows - len(rows)
        num_tokens = np.pad(is_token.sum(1), (0, missing), constant_values=1).astype(np.int32)
        return np.pad(input_ids, ((0, missing), (0, 0))), num_tokens


def rounded_up(length: int, max_seq_length: int) -> int:
    """Return the row length to compute with, at least `length` and at most `max_seq_length`."""
    multiple = next(multiple for limit, multiple in ROUNDING if length <= limit)
    return min(-(-int(length) // multiple) * multiple, max_seq_length)


def open_model(
    source: ModelSource,
    flag: str,
    needs: Callable[[ModelConfig], Mapping[str, WeightSpec]] = lambda config: {},
    consequence: str = "",
) -> OpenedModel:
    """Open the model that a ModelSource names.

    Args:
      flag: name of the flag that named the model, for messages. needs: returns the weights, by
        name, that are needed beside the encoder's. consequence: end of the message when one of
        these weights is missing.

    Raises UserError: there is no model, or it lacks a weight or a vocabulary.
    """
    set_up_device()
    path, model = models.open_model(source.model, flag, source.vocab_file, source.do_lower_case)
    missing = [name for name in needs(model.config) if name not in model.weights]
    if missing:
        raise UserError(f"has no {missing[0]}{consequence}", setting=flag, value=source.model)
    if model.tokenizer is None:
        raise UserError(
            "has no vocabulary", "put its vocab.txt there, or name it with --vocab_file", where=path
        )
    encoder = open_encoder(model.config)
    encoder.check(None, source.precision)
    dtype = tf.as_dtype(source.precision)
    weights = {
        name: tf.constant(value, dtype if np.ndim(value) >= 2 else tf.float32)
        for name, value in model.weights.items()
    }
    return OpenedModel(
        path,
        encoder,
        weights,
        model.tokenizer,
        dtype,
        batch_tokens=BATCH_TOKENS["GPU" if fused.has_gpu() else "CPU"],
        notes=model.notes,
    )


def set_up_device() -> None:
    """Make TensorFlow take the memory of GPUs on demand, not all of it at once."""
    try:
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:  # the calling program has initialised the devices already
        pass
    fused.compile_silently_once()
