"""Runs a function on many blocks in several processes; results (counts, hashes) come in any order.

Processes are spawned, because TensorFlow does not survive a fork, and each takes seconds to start:
a small text is processed in the calling process.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
import time

import tensorflow as tf

from bert_gpu.settings import UserError

# of text; counting its words takes one process about as long as starting another
IN_PROCESS_BYTES = 256 << 20
GROUPS_PER_WORKER = 8  # at least, so that workers finish together and progress is visible
GROUP_BYTES = 64 << 20  # of text at most, within a block, so that a result stays small


def map_blocks(function, blocks, num_workers, report=None):
    """Yields function(list of Block) for groups that together contain all blocks, in any order.

    Args:
      function: picklable, as its result must be.
      blocks: list of Block.
      num_workers: processes; None = one per core.
      report: called with the bytes of text done since the last call.
    """
    sizes = [block.num_bytes for block in blocks]
    num_workers = min(num_workers or os.cpu_count() or 1, len(blocks))
    report = report or (lambda num_bytes: None)
    if num_workers <= 1 or sum(sizes) <= IN_PROCESS_BYTES:
        for block, size in zip(blocks, sizes, strict=True):
            yield function([block])
            report(size)
        return
    num_groups = min(len(blocks), max(num_workers * GROUPS_PER_WORKER, sum(sizes) // GROUP_BYTES))
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with concurrent.futures.ProcessPoolExecutor(
        num_workers, context, start_process, (os.getpid(),)
    ) as pool:
        try:
            with deaf_children():
                groups = {
                    pool.submit(function, blocks[i::num_groups]): sum(sizes[i::num_groups])
                    for i in range(num_groups)
                }
            while groups:
                done, _ = concurrent.futures.wait(
                    groups, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in done:
                    yield future.result()
                    report(groups.pop(future))
        except concurrent.futures.process.BrokenProcessPool:
            raise UserError(
                "a worker process was killed, most often because "
                "memory ran out; give a smaller --num_workers"
            ) from None
        except KeyboardInterrupt:  # nothing waits for what they do
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def deaf_children():
    """Processes started inside do not hear Ctrl-C, which the terminal sends to them too: it is
    their parent's to handle, once they are started.
    """
    caught, handler = [], signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main:  # any thread of this process may get the signal, and Python then interrupts this
        signal.signal(signal.SIGINT, lambda signum, frame: caught.append(signum))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which children inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if is_main:
            signal.signal(signal.SIGINT, handler)
    if caught:
        signal.raise_signal(signal.SIGINT)


def start_process(parent):
    """Runs once in each worker process: it has one thread, since the processes share the cores, and
    ends with its parent, a process id.
    """
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    threading.Thread(target=end_with_parent, args=(parent,), daemon=True).start()


def end_with_parent(parent):
    """Ends this process when its parent has ended, because nothing waits for its result."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
