"""A model opened for inference: its tokenizer, and one compiled function from padded rows to
hidden states.

Rows are sorted by length and cut into batches of about equally many tokens, so that little of what
is computed is padding. Row lengths are rounded up to a few values and a batch always has as many
rows as its length allows, because every new shape is compiled.

Legend: N rows, B batch, S sequence, H hidden.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_gpu.base import fused
from bert_gpu.base.errors import UserError
from bert_gpu.interop import models
from bert_gpu.interop.formats import Notes
from bert_gpu.model.encoders import Encoder, open_encoder
from bert_gpu.text.framing import padded
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

# Measured on two cores: from 1024 to 4096 tokens a batch equally fast, and smaller ones leave less
# padding in the last batch of a window.
BATCH_TOKENS = dict(CPU=2048, GPU=65536)
# the arguments of `hidden`: input_ids (B, S), num_tokens (B,)
ROWS = (tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32))
ROUNDING = ((64, 8), (256, 16), (1 << 30, 64))  # (up to this length, to a multiple of this)


@dataclasses.dataclass(frozen=True)
class OpenedModel:
    """A model's path, its Encoder, weights in the compute type, tokenizer, tokens a batch, and the
    formats.Notes of its files.
    """

    path: str
    encoder: Encoder
    weights: dict
    tokenizer: Tokenizer
    dtype: tf.DType
    batch_tokens: int
    notes: Notes

    @property
    def config(self):
        return self.encoder.config

    def compile(self, function, *signature):
        """Compiles a function of tensors of any sizes: as a whole on GPUs, its small parts on CPUs.
        signature: a tf.TensorSpec for each.
        """
        compiled = tf.function(
            function, autograph=False, jit_compile=fused.has_gpu(), input_signature=signature
        )
        # Traces now: TensorFlow counts the calls that trace over all models of a process, and soon
        # warns of them with a message that prints this object with its weights.
        compiled.get_concrete_function()
        return compiled

    def hidden(self, input_ids, num_tokens, positions=None):
        """Hidden states of padded rows of single texts: int32 (B, S), (B,) -> (B, S, H) in the
        compute type, or (B, P, H) at int32 positions (B, P).
        """
        mask = tf.cast(tf.range(tf.shape(input_ids)[1]) < num_tokens[:, None], tf.int32)
        batch = dict(input_ids=input_ids, input_mask=mask, segment_ids=tf.zeros_like(input_ids))
        return self.encoder.encode(self.weights, batch, dtype=self.dtype, positions=positions)

    def batches(self, lengths, max_seq_length):
        """Cuts rows (N,) of these lengths into batches of similar length: yields (rows, S, B); rows
        are at most B of the indices 0 to N - 1, longest first.
        """
        order = np.argsort(-lengths, kind="stable")
        first = 0
        while first < len(order):
            length = self.encoder.fixed_length or rounded_up(lengths[order[first]], max_seq_length)
            num_rows = max(1, self.batch_tokens // length)
            yield order[first : first + num_rows], length, num_rows
            first += num_rows

    def pad(self, ids, splits, rows, length, num_rows):
        """(input_ids int32 (B, S), num_tokens int32 (B,)) of `rows`; rows beyond them are empty,
        but for one token, so that attention has something to see.
        """
        input_ids, is_token = padded(ids, splits, rows, length)
        missing = num_rows - len(rows)
        num_tokens = np.pad(is_token.sum(1), (0, missing), constant_values=1).astype(np.int32)
        return np.pad(input_ids, ((0, missing), (0, 0))), num_tokens


def rounded_up(length, max_seq_length):
    """A row length to compute with, at least `length` and at most `max_seq_length`."""
    multiple = next(multiple for limit, multiple in ROUNDING if length <= limit)
    return min(-(-int(length) // multiple) * multiple, max_seq_length)


def open_model(source, flag, needs=lambda config: {}, lacks=""):
    """Opens the model of a ModelSource.

    Args:
      flag: that names the model, in errors. needs: function of a ModelConfig -> {name: WeightSpec}
        beside the encoder's. lacks: what it cannot do without these, and what to name instead.
    """
    set_up_device()
    path, model = models.open_model(source.model, flag, source.vocab_file, source.do_lower_case)
    missing = [name for name in needs(model.config) if name not in model.weights]
    if missing:
        raise UserError(f"has no {missing[0]}{lacks}", setting=flag, value=source.model)
    if model.tokenizer is None:
        raise UserError(
            "has no vocabulary", "put its vocab.txt there, or name it with --vocab_file", where=path
        )
    encoder = open_encoder(model.config)
    encoder.check(None, source.precision)
    dtype = tf.as_dtype(source.precision)
    kept = {
        name: tf.constant(value, dtype if np.ndim(value) >= 2 else tf.float32)
        for name, value in model.weights.items()
    }
    tokens = BATCH_TOKENS["GPU" if fused.has_gpu() else "CPU"]
    return OpenedModel(path, encoder, kept, model.tokenizer, dtype, tokens, model.notes)


def set_up_device():
    """The first GPU, whose memory grows on demand, or the CPU."""
    try:
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:  # the program that uses us has started TensorFlow its own way
        pass
    fused.compile_silently_once()
