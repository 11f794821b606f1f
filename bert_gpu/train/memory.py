"""Chooses the settings that decide how much memory training needs: recomputation, the kind of
attention, and the largest micro-batch that fits.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence

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


FIRST_TRY = 8  # rows; the memory of fewer rows predicts little about larger sizes
AIM = 0.95  # share of the memory to fill; the rest cannot be allocated
MAX_GROWTH = 8  # the next size to try is at most this many times the last that fitted
CLOSE = 1.03  # the search ends when no size above this factor times the best one is left


def largest_that_fits(share_of: Callable[[int], float | None], sizes: Sequence[int]) -> int | None:
    """Return the largest of `sizes`, in rising order, that fits in memory, or a size at most 3 %
    below it; None when none fits.

    Each try takes a compilation, so there should be few tries, and few that fail. Memory is nearly
    linear in the size, so two sizes that fit predict the largest one. Without two sizes, the size
    doubles until one does not fit, and the range between is bisected.

    Args:
      share_of: function that tries a size and returns the share of the memory that it took, 0 where
        that is not known, None when the size did not fit.
    """
    good = -1  # index of the largest size that fitted
    bad = len(sizes)  # index of the smallest size that did not fit
    taken: dict[int, float] = {}  # {size that fitted: share of the memory}
    index = bisect.bisect_left(sizes, FIRST_TRY, 0, len(sizes) - 1)
    while bad - good > 1 and (good < 0 or sizes[bad - 1] > CLOSE * sizes[good]):
        share = share_of(sizes[index])
        if share is None:
            bad = index
        else:
            good = index
            taken[sizes[index]] = share
        index = next_try(sizes, good, bad, taken)
    return sizes[good] if good >= 0 else None


def next_try(sizes: Sequence[int], good: int, bad: int, taken: Mapping[int, float]) -> int:
    """Return the index in `sizes` of the size to try next.

    good: index of the largest size that fitted, -1 for none. bad: index of the smallest size that
    did not fit, len(sizes) for none. taken: {size that fitted: share of the memory that it took}.
    """
    if good < 0 or (bad < len(sizes) and not any(taken.values())):
        return max((good + bad) // 2, 0)

    def index_of(size: float) -> int:
        return bisect.bisect_right(sizes, size) - 1

    size = sizes[good]
    share = taken[size]
    guess = index_of(2 * size)
    most = index_of(MAX_GROWTH * size)
    # compared with a size of at most half: between closer sizes, memory differs by other causes as
    # well
    smaller = max((other for other in taken if 2 * other <= size), default=None)
    if smaller is not None and share > taken[smaller]:
        size_of_share = (size - smaller) / (share - taken[smaller])
        reached = [index_of(size + (aim - share) * size_of_share) for aim in (AIM, 1.0)]
        guess = next((index for index in reached if index > good), good + 1)
    first = good + 1
    last = bad - 1
    if bad < len(sizes):  # memory is not always linear in size: stay a quarter off both ends
        margin = (bad - good) // 4
        first += margin
        last -= margin
    return max(first, min(guess, most, last))


class Trial:
    """A callable (size) that tries a step with micro-batches of this size. It returns the share of
    the memory that the step took, 0 where that is not known, None when it did not fit. `peak_bytes`
    is the peak memory of the largest size that fitted, None = not known.

    Args of the constructor:
      make_step: function of a size that returns a callable () -> None, which runs a step and waits
        for its end.
      device: name of the GPU whose peak memory is read; None to read none. say: function of a line
        of text, such as Console.say. available: bytes of memory of the GPU; None = not known.
    """

    def __init__(
        self,
        make_step: Callable[[int], Callable[[], object]],
        device: str | None = None,
        say: Callable[[str], None] = lambda text: None,
        available: int | None = None,
    ) -> None:
        self.make_step = make_step
        self.device = device
        self.say = say
        self.available = available
        self.peak_bytes: int | None = None

    def __call__(self, size: int) -> float | None:
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


def choose_micro_batch(
    share_of: Callable[[int], float | None],
    num_replicas: int,
    global_batch_size: int | None = None,
) -> int:
    """Return the size of the micro-batch for --train_batch_size=auto: the largest that fits in
    memory and, where the global batch is set, divides it evenly among the replicas. share_of:
    function of a size, as for `largest_that_fits`.

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
            divisor = max(n for n in range(1, num_replicas + 1) if global_batch_size % n == 0)
            raise UserError(
                f"a global batch of {global_batch_size} cannot be divided among "
                f"{num_replicas} GPUs",
                f"train on {divisor} of them, or in a new run give another --global_batch_size",
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
