"""Training in little memory: recomputation, the kind of attention, and the largest micro-batch that
fits.
"""

import bisect

import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.devices.devices import lowest_capability
from bert_gpu.model import cudnn_attention


def training_encoder(encoder, config, devices, max_seq_length=None, is_packed=False):
    """The Encoder with the recomputation and the attention of a MemoryConfig; arguments and errors
    are those of `choose_attention`.
    """
    return encoder.for_training(
        recompute_every=config.layers_recomputed,
        attention=choose_attention(encoder, config, devices, max_seq_length, is_packed),
        xla=devices.xla,
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
        capability=lowest_capability(tf.config.get_visible_devices("GPU")),
        is_packed=is_packed,
        length=max_seq_length,
    )
    if problem and config.attention == "cudnn":
        raise UserError(f"{problem}, or give --attention=plain", setting="attention", value="cudnn")
    return "plain" if problem else "cudnn"


FIRST_TRY = 8  # rows; fewer predict little about larger sizes
AIM = 0.95  # share of the memory to fill; the rest cannot be allocated
MAX_GROWTH = 8  # of a size from one try to the next
CLOSE = 1.03  # sizes that differ by less are not told apart


def largest_that_fits(share_of, sizes):
    """The largest of the rising `sizes` that fits, None when none does; where sizes are close to
    each other, one within 3 % of it.

    A try takes a compilation, so there should be few, and few that fail: memory is nearly linear in
    the size, and two sizes that fitted tell where it ends. Where they do not tell, sizes double,
    and the rest is bisected.

    Args:
      share_of: function of a size that tries it and returns the share of the memory that it took, 0
        where that is not known, None when it did not fit. sizes: list of ints.
    """
    good, bad, taken = -1, len(sizes), {}  # indices; {size that fitted: share}
    index = bisect.bisect_left(sizes, FIRST_TRY, 0, len(sizes) - 1)
    while bad - good > 1 and (good < 0 or sizes[bad - 1] > CLOSE * sizes[good]):
        share = share_of(sizes[index])
        if share is None:
            bad = index
        else:
            good, taken[sizes[index]] = index, share
        index = next_try(sizes, good, bad, taken)
    return sizes[good] if good >= 0 else None


def next_try(sizes, good, bad, taken):
    """The index to try next between `good`, the largest that fitted, and `bad`, the smallest that
    did not; arguments as in `largest_that_fits`.
    """
    if good < 0 or (bad < len(sizes) and not any(taken.values())):
        return max((good + bad) // 2, 0)

    def index_of(size):
        return bisect.bisect_right(sizes, size) - 1

    size, share = sizes[good], taken[sizes[good]]
    guess, most = index_of(2 * size), index_of(MAX_GROWTH * size)
    # not of its neighbours, which tell more of what shares differ by otherwise
    smaller = max((other for other in taken if 2 * other <= size), default=None)
    if smaller is not None and share > taken[smaller]:
        size_of_share = (size - smaller) / (share - taken[smaller])
        reached = [index_of(size + (aim - share) * size_of_share) for aim in (AIM, 1.0)]
        guess = next((index for index in reached if index > good), good + 1)
    first, last = good + 1, bad - 1
    if bad < len(sizes):  # the line does not always hold
        margin = (bad - good) // 4
        first, last = first + margin, last - margin
    return max(first, min(guess, most, last))


class Trial:
    """Tries one step of a micro-batch: callable (size) -> the share of the memory that it took, 0
    where it is not known, None when it did not fit. `peak_bytes` is the peak memory of the largest
    one that fitted.

    Args of the constructor:
      make_step: function of a size -> callable () that runs a step and waits for it.
      device: name of the GPU whose peak memory is read, None to read none. available: bytes of it,
        None = not known.
    """

    def __init__(self, make_step, device=None, say=lambda text: None, available=None):
        self.make_step, self.device, self.say, self.available = make_step, device, say, available
        self.peak_bytes = None

    def __call__(self, size):
        if self.device:
            tf.config.experimental.reset_memory_stats(self.device)
        try:
            self.make_step(size)()
        except (tf.errors.ResourceExhaustedError, MemoryError):
            self.say(f"  micro-batch {size}: does not fit")
            return None
        if self.device:
            self.peak_bytes = tf.config.experimental.get_memory_info(self.device)["peak"]
        self.say(
            f"  micro-batch {size}: fits"
            + (f", {self.peak_bytes / 2**30:.2f} GB" if self.peak_bytes else "")
        )
        return self.peak_bytes / self.available if self.peak_bytes and self.available else 0.0


def choose_micro_batch(share_of, num_replicas, global_batch_size=None):
    """The micro-batch of --train_batch_size=auto: the largest that fits and divides the global
    batch, if one is given. share_of: as for `largest_that_fits`.

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
            fits = max(n for n in range(1, num_replicas + 1) if global_batch_size % n == 0)
            raise UserError(
                f"a global batch of {global_batch_size} cannot be divided among "
                f"{num_replicas} GPUs",
                f"train on {fits} of them, or in a new run give another --global_batch_size",
                setting="train_batch_size",
                value="auto",
            )
    largest = largest_that_fits(share_of, sizes)
    if largest is None:
        raise UserError(
            "not even one sequence fits",
            "try --recompute, --optimizer=adamw8bit or a smaller --model",
            setting="train_batch_size",
            value="auto",
        )
    return largest
