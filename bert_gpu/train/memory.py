"""Training in little memory: recomputation, the kind of attention, and the largest micro-batch that
fits.
"""

import tensorflow as tf

from bert_gpu.model import cudnn_attention
from bert_gpu.settings import UserError


def training_encoder(encoder, config, devices, max_seq_length=None, is_packed=False):
    """The Encoder with the recomputation and the attention of a MemoryConfig; arguments and errors
    are those of `choose_attention`.
    """
    attention = choose_attention(encoder, config, devices, max_seq_length, is_packed)
    return encoder.for_training(
        recompute_every=config.layers_recomputed, attention=attention, xla=devices.xla
    )


def choose_attention(
    encoder, config, devices, max_seq_length=None, is_packed=False, auto=cudnn_attention.AUTO
):
    """The attention that an encoder trains with: "plain" or "cudnn". UserError when cuDNN is asked
    for but impossible.

    Args:
      encoder: Encoder. config: MemoryConfig. devices: devices.Devices. max_seq_length, is_packed:
        of the data's rows; None = any length.
      auto: whether --attention=auto chooses cuDNN where it is possible.
    """
    if config.attention == "plain" or (config.attention == "auto" and not auto):
        return "plain"
    problem = encoder.cudnn_obstacle(
        kind=devices.kind,
        xla=devices.xla,
        precision=devices.precision,
        capability=lowest_capability(),
        is_packed=is_packed,
        length=max_seq_length,
    )
    if problem and config.attention == "cudnn":
        raise UserError(f"--attention=cudnn: {problem}, or give --attention=plain")
    return "plain" if problem else "cudnn"


def lowest_capability():
    """Compute capability of the oldest GPU in use, (0, 0) without one."""
    gpus = tf.config.get_visible_devices("GPU")
    return min(
        (
            tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
            for gpu in gpus
        ),
        default=(0, 0),
    )


def largest_that_fits(fits, sizes):
    """The largest of the rising `sizes` that fits, None when none does.

    fits: function of a size that tries it and returns whether there was room. The search doubles
    its stride until a size fails, then bisects: about 2 log2(index of the answer) tries, few of
    which fail, because failing is slow.
    """
    good, stride = -1, 1
    while good + stride < len(sizes) and fits(sizes[good + stride]):
        good, stride = good + stride, 2 * stride
    bad = min(good + stride, len(sizes))
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(sizes[middle]) else (good, middle)
    return sizes[good] if good >= 0 else None


class Trial:
    """Tries one step of a micro-batch: callable (size) -> whether it fits. `peak_bytes` is the peak
    memory of the last one that fitted.

    Args of the constructor:
      make_step: function of a size -> callable () that runs a step and waits for it.
      device: name of the GPU whose peak memory is read, None to read none.
    """

    def __init__(self, make_step, device=None, say=lambda text: None):
        self.make_step, self.device, self.say, self.peak_bytes = make_step, device, say, None

    def __call__(self, size):
        if self.device:
            tf.config.experimental.reset_memory_stats(self.device)
        try:
            self.make_step(size)()
        except (tf.errors.ResourceExhaustedError, MemoryError):
            self.say(f"  micro-batch {size}: does not fit")
            return False
        if self.device:
            self.peak_bytes = tf.config.experimental.get_memory_info(self.device)["peak"]
        self.say(
            f"  micro-batch {size}: fits"
            + (f", {self.peak_bytes / 2**30:.2f} GB" if self.peak_bytes else "")
        )
        return True


def choose_micro_batch(fits, num_replicas, global_batch_size=None):
    """The micro-batch of --train_batch_size=auto: the largest that fits and divides the global
    batch, if one is given.

    Raises UserError when nothing fits.
    """
    sizes = [1, 2, 4, *range(8, 1 << 14, 8)]
    if global_batch_size is not None:
        sizes = [
            size
            for size in range(1, global_batch_size + 1)
            if global_batch_size % (size * num_replicas) == 0
        ]
        if not sizes:
            raise UserError(
                f"--global_batch_size={global_batch_size}: "
                f"is not a multiple of the {num_replicas} GPUs; choose one that is"
            )
    largest = largest_that_fits(fits, sizes)
    if largest is None:
        raise UserError(
            "--train_batch_size=auto: not even one sequence fits; "
            "try --recompute, --optimizer=adamw8bit (with muon: --muon_rest=adamw8bit) "
            "or a smaller --model"
        )
    return largest
