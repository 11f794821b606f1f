"""The workers of a data job: threads for a short one, processes for a long one."""

import contextlib
import functools
import multiprocessing
import multiprocessing.pool
import os
import threading

from bert_gpu.malloc import map_large_blocks
from bert_gpu.text import parallel

# bytes of text times passes; below this, threads finish sooner, because processes start slowly
THREADS_BYTES = 1000 << 20


@contextlib.contextmanager
def open_pool(num_workers, worker, work_bytes):
    """Yields (pool, function that writes a shard in it, [bytes of text, tokens] done so far).

    A short job uses threads, since nearly all of the work is outside Python. Processes take seconds
    to start, but each then has its own interpreter.
    """
    if work_bytes < THREADS_BYTES:
        done, lock = [0, 0], threading.Lock()
        assert worker.tokenizer  # created once, before the threads start
        with multiprocessing.pool.ThreadPool(num_workers) as pool:
            yield pool, functools.partial(write_counted, worker, done, lock), done
    else:
        context = multiprocessing.get_context("spawn")
        done = context.Array("q", 2)
        with parallel.deaf_children():
            pool = context.Pool(num_workers, start_worker, (worker, done, os.getpid()))
        with pool:
            yield pool, write_in_process, done


def write_counted(worker, done, lock, shard):
    """Writes a shard and adds its progress to done = [bytes of text, tokens]."""

    def report(num_bytes, num_tokens):
        with lock:
            done[0] += num_bytes
            done[1] += num_tokens

    worker.write_shard(shard, report)


def start_worker(worker, done, parent):
    """Runs once in each worker process."""
    global process_worker, process_done
    process_worker, process_done = worker, done
    map_large_blocks()
    parallel.start_process(parent)


def write_in_process(shard):
    write_counted(process_worker, process_done, process_done.get_lock(), shard)
