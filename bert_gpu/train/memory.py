"""Chooses recomputation and the kind of attention, which decide how much memory training needs."""

import tensorflow as tf
from tensorflow.python.framework import config as tf_config

from bert_gpu.base.errors import UserError
from bert_gpu.devices.devices import Devices, lowest_capability
from bert_gpu.model import cudnn_attention
from bert_gpu.model.encoders import Encoder
from bert_gpu.train.config import MemoryConfig


def training_encoder(
    encoder: Encoder,
    config: MemoryConfig,
    devices: Devices,
    max_seq_length: int | None = None,
    is_packed: bool = False,
) -> Encoder:
    """Return the encoder with recomputation and attention as configured; arguments and errors are
    those of `choose_attention`.
    """
    return encoder.for_training(
        recompute_every=config.recompute_every or 0,
        attention=choose_attention(encoder, config, devices, max_seq_length, is_packed),
        xla=devices.xla,
    )


def choose_attention(
    encoder: Encoder,
    config: MemoryConfig,
    devices: Devices,
    max_seq_length: int | None = None,
    is_packed: bool = False,
) -> str:
    """Return the attention that an encoder trains with, "plain" or "cudnn". Raises UserError when
    --attention=cudnn is impossible.

    Args:
      max_seq_length: tokens of the data's rows; None = any number. is_packed: whether rows hold
        several sequences.
    """
    capability = lowest_capability(tf.config.get_visible_devices("GPU"))
    is_known = capability >= cudnn_attention.MEASURED and not tf_config.is_op_determinism_enabled()
    if config.attention == "plain" or (config.attention == "auto" and not is_known):
        return "plain"
    problem = encoder.cudnn_obstacle(
        kind=devices.kind,
        xla=devices.xla,
        precision=devices.precision,
        capability=capability,
        is_packed=is_packed,
        length=max_seq_length,
    )
    if problem and config.attention == "cudnn":
        raise UserError(f"{problem}, or give --attention=plain", setting="attention", value="cudnn")
    return "plain" if problem else "cudnn"
