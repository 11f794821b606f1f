"""Finds the largest micro-batch that fits in GPU memory, by trials (--train_batch_size=auto)."""

import bisect
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.devices.devices import Devices
from bert_gpu.train.batching import gather_windows
from bert_gpu.train.step import TrainStep

GPU = "GPU:0"  # whose memory is measured
NO_GPU_BATCH = 32  # the largest micro-batch on the CPU
FIRST_TRY = 8  # rows; the memory of fewer rows predicts little about larger sizes
AIM = 0.95  # share of the memory to fill; the rest cannot be allocated
MAX_GROWTH = 8  # the next size to try is at most this many times the last that fitted
CLOSE = 1.03  # the search ends when no size above this factor times the best one is left


def find_micro_batch(
    devices: Devices,
    rows: dict[str, np.ndarray],
    make_step: Callable[..., TrainStep],
    say: Callable[[str], None],
    global_batch_size: int | None = None,
    accumulates: bool = False,
) -> int:
    """Return the micro-batch for --train_batch_size=auto: the largest that fits in GPU memory, or
    NO_GPU_BATCH on the CPU. Raises UserError when none fits.

    Args:
      rows: a batch of a few rows of full length, which are repeated. make_step: function of
        (num_micro_batches=) that returns a TrainStep, whose state keeps its values. say: prints a
        line of text.
      global_batch_size: the micro-batches of all replicas must divide it; None = no condition.
        accumulates: whether a step has several micro-batches.
    """
    if devices.kind == "CPU":
        size = choose_micro_batch(
            lambda size: 0.0 if size <= NO_GPU_BATCH else None,
            devices.num_replicas,
            global_batch_size,
        )
        say(f"--train_batch_size=auto: {size}, because there is no GPU memory to fill")
        return size
    if devices.workers.count > 1:
        raise UserError(
            "works on a single machine only",
            "start the command on one machine, and give all of them the number that it finds",
            setting="train_batch_size",
            value="auto",
        )
    say("--train_batch_size=auto: trying what fits")
    make_trial = functools.partial(make_step, num_micro_batches=2 if accumulates else 1)
    state = make_trial().state
    values = state.read()
    share_of = functools.partial(try_size, make_trial, rows, say)
    size = choose_micro_batch(share_of, devices.num_replicas, global_batch_size)
    state.assign(values)
    say(f"--train_batch_size=auto: {size}")
    return size


def try_size(
    make_step: Callable[[], TrainStep],
    rows: Mapping[str, np.ndarray],
    say: Callable[[str], None],
    size: int,
) -> float | None:
    """Run a step with micro-batches of `size` examples, made by repeating `rows`. Return the share
    of the memory that it took, 0 where that is not known, None when it did not fit.
    """
    step = make_step()
    num_examples = size * step.num_micro_batches * step.devices.num_replicas
    batch = {
        name: np.resize(value, (num_examples, *value.shape[1:])) for name, value in rows.items()
    }
    batches = gather_windows([batch], size)
    tf.config.experimental.reset_memory_stats(GPU)
    try:
        step(batches, [0.0], 0).read()
    except (tf.errors.ResourceExhaustedError, MemoryError):
        say(f"  micro-batch {size}: does not fit")
        return None
    peak_bytes = tf.config.experimental.get_memory_info(GPU)["peak"]
    say(f"  micro-batch {size}: fits, {peak_bytes / 2**30:.2f} GB")
    available = step.devices.replica_bytes
    return peak_bytes / available if available else 0.0


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


def choose_micro_batch(
    share_of: Callable[[int], float | None],
    num_replicas: int,
    global_batch_size: int | None = None,
) -> int:
    """Return the largest micro-batch that fits in memory and, where the global batch is set, by
    which replicas divide it evenly. share_of: function of a size, as for `largest_that_fits`.

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
