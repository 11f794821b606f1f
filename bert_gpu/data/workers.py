"""Writes the shards of a data job with its workers (text/parallel.py): threads for a short job,
processes for a long one, or the nodes of a Ray cluster.
"""

import collections
import contextlib
import os
import time
from collections.abc import Callable, Sequence

from bert_gpu.base.errors import UserError
from bert_gpu.data.shards import Shard, ShardBuilder
from bert_gpu.text import parallel

# bytes of text times passes; a smaller job finishes sooner with threads, because processes start
# slowly
THREADS_BYTES = 1000 << 20
# the longest wait for a file that another node has written: network file systems keep listings of
# folders for up to a minute
UNSEEN_SECONDS = 90.0


def write_shards(
    builder: ShardBuilder,
    shards: Sequence[Shard],
    workers: parallel.Workers,
    work_bytes: float,
    report: Callable[[int, int], None],
) -> None:
    """Write shards in any order, and the validation shard after them, from the documents that they
    keep.

    Args:
      work_bytes: bytes of text times passes.
      report: called with (bytes of text, tokens) done since the last call.
    """
    assert builder.tokenizer  # opens the tokenizer once, before threads share it
    train = [shard for shard in shards if shard.split == "train"]
    pool = workers.make_pool(len(train), work_bytes < THREADS_BYTES, parallel.Threads)
    # `closing` ends all workers before the folder's lock is released, also after an error
    with contextlib.closing(pool.run(builder.write_shard, train, report)) as results:
        collections.deque(results, 0)  # returns when all shards are written
    for shard in train:
        wait_for_file(shard.path)
    for shard in shards[len(train) :]:
        builder.write_shard(shard, report)


def wait_for_file(path: str) -> None:
    """Return when a file that a worker has written is visible here. Raise UserError after
    UNSEEN_SECONDS.
    """
    end = time.monotonic() + UNSEEN_SECONDS
    while os.path.basename(path) not in os.listdir(os.path.dirname(path) or "."):
        if time.monotonic() > end:
            raise UserError(
                "was written on another node of the cluster and is not visible here",
                "name a folder that all nodes share",
                where=path,
            )
        time.sleep(1.0)
