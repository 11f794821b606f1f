"""Writes the shards of a data job by its workers (text/parallel.py): threads for a short job,
processes for a long one, or the nodes of a Ray cluster.
"""

import collections
import contextlib
import os
import time

from bert_gpu.base.errors import UserError
from bert_gpu.text import parallel

# bytes of text times passes; below this, threads finish sooner, because processes start slowly
THREADS_BYTES = 1000 << 20
# until a file that another node has written is seen here: network file systems keep listings of
# folders for up to a minute
UNSEEN_SECONDS = 90.0


def write_shards(builder, shards, workers, work_bytes, report):
    """Writes shards in any order.

    Args:
      builder: shards.ShardBuilder. shards: list of Shard. workers: parallel.Workers.
      work_bytes: bytes of text times passes. report: called with (bytes of text, tokens) done since
        the last call.
    """
    assert builder.tokenizer  # created once, before threads start
    # the validation shard, which is last, is little work
    num_tasks = sum(shard.split == "train" for shard in shards)
    pool = workers.make_pool(num_tasks, work_bytes < THREADS_BYTES, parallel.Threads)
    # closed before the folder's lock is free, also when this fails
    with contextlib.closing(pool.run(builder.write_shard, shards, report)) as written:
        collections.deque(written, 0)  # until all are written
    for shard in shards:
        wait_for_file(shard.path)


def wait_for_file(path):
    """Returns when a file that a worker has written is seen here; UserError when it never is."""
    end = time.monotonic() + UNSEEN_SECONDS
    while os.path.basename(path) not in os.listdir(os.path.dirname(path) or "."):
        if time.monotonic() > end:
            raise UserError(
                "was written on another node of the cluster and is not seen here",
                "name a folder that all nodes share",
                where=path,
            )
        time.sleep(1.0)
