"""The workers of a data job: threads for a short one, processes for a long one."""

import contextlib
import functools
import multiprocessing
import multiprocessing.pool
import os
import signal
import threading
import time

import tensorflow as tf

from bert_gpu.malloc import map_large_blocks

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
        with context.Pool(num_workers, start_process, (worker, done)) as pool:
            yield pool, write_in_process, done


def write_counted(worker, done, lock, shard):
    """Writes a shard and adds its progress to done = [bytes of text, tokens]."""

    def report(num_bytes, num_tokens):
        with lock:
            done[0] += num_bytes
            done[1] += num_tokens

    worker.write_shard(shard, report)


def start_process(worker, done):
    """Runs once in each worker process: one thread each, since the processes share the cores."""
    global process_worker, process_done
    process_worker, process_done = worker, done
    map_large_blocks()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too and ends the pool
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()


def end_with_parent(parent):
    """Ends this process when its parent has ended, because nothing waits for its result."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def write_in_process(shard):
    write_counted(process_worker, process_done, process_done.get_lock(), shard)
