"""Writes the shards of a data job by its workers (text/parallel.py): threads for a short job,
processes for a long one, or the nodes of a Ray cluster.
"""

import contextlib
import functools
import os
import time

from bert_gpu.settings import UserError
from bert_gpu.text import parallel

# bytes of text times passes; below this, threads finish sooner, because processes start slowly
THREADS_BYTES = 1000 << 20
# until a file that another node has written is seen here: network file systems keep listings of
# folders for up to a minute
UNSEEN_SECONDS = 90.0


def write_shards(worker, shards, workers, work_bytes, report):
    """Writes shards in any order.

    Args:
      worker: shards.Worker. shards: list of Shard. workers: parallel.Workers.
      work_bytes: bytes of text times passes. report: called with (bytes of text, tokens) done since
        the last call.
    """
    assert worker.tokenizer  # created once, before threads start
    # the validation shard, which is last, is little work
    num_tasks = sum(shard.split == "train" for shard in shards)
    pool = workers.pool(num_tasks, work_bytes < THREADS_BYTES, parallel.Threads)
    # closed before the folder's lock is free, also when this fails
    with contextlib.closing(
        pool.run(functools.partial(write_shard, worker), shards, report)
    ) as written:
        for path in written:
            wait_for_file(path)


def write_shard(worker, shard, report):
    """Writes a shard; returns its path."""
    worker.write_shard(shard, report)
    return shard.path


def wait_for_file(path, clock=time.monotonic, sleep=time.sleep):
    """Returns when a file that a worker has written is seen here; UserError when it never is."""
    end = clock() + UNSEEN_SECONDS
    while os.path.basename(path) not in os.listdir(os.path.dirname(path) or "."):
        if clock() > end:
            raise UserError(
                f"{path}: was written on another node of the cluster and is not seen here; "
                "name a folder that all nodes share"
            )
        sleep(1.0)
