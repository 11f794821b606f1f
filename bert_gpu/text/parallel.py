"""Runs a function on many tasks at a time; results (counts, hashes, nothing) come in any order.

Whoever runs them is a Pool: this process, threads or processes of this machine, or a Ray cluster
(ray_cluster.py). Processes are spawned, because TensorFlow does not survive a fork, and each takes
seconds to start: little work is done in the calling process.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import multiprocessing
import multiprocessing.pool
import os
import pickle
import threading
import time
import typing

import tensorflow as tf

from bert_gpu.base.environment import start_prepared
from bert_gpu.base.errors import UserError
from bert_gpu.base.malloc import map_large_blocks
from bert_gpu.base.signals import children_ignore_interrupts

# of text; counting its words takes one process about as long as starting another
IN_PROCESS_BYTES = 256 << 20
GROUPS_PER_WORKER = 8  # at least, so that workers finish together and progress is visible
GROUP_BYTES = 64 << 20  # of text at most, within a block, so that a result stays small
POLL_SECONDS = 0.2  # between looks at the progress


@dataclasses.dataclass
class Pool:
    """Runs tasks. num_workers: how many at a time."""

    num_workers: int

    def run(self, function, tasks, report):
        """Yields function(task, report) of each task, in any order.

        Args:
          function: picklable, as tasks and results must be. It calls its own `report` with
            (bytes of text, tokens) done since its last call.
          tasks: a sequence. report: is called in this process with what the function reports,
            maybe several calls in one.

        Raises what the function raises, and UserError when workers were killed. What is under way
        then is stopped, as far as threads can be, and so it is when the iterator is closed.
        """


@dataclasses.dataclass(frozen=True)
class Workers:
    """Who does the work of a job: the cluster, if there is one, or this machine.

    num_workers: tasks at a time; None = one per core. cluster: a Pool, or None.
    """

    num_workers: int | None = None
    cluster: Pool | None = None

    def make_pool(self, num_tasks, is_small, small_pool):
        """A Pool for at most num_tasks tasks at a time. small_pool: its class on this machine when
        there is little work (`is_small`), less than starting processes takes.
        """
        if self.cluster is not None:
            return self.cluster
        num_workers = min(self.num_workers or os.cpu_count() or 1, num_tasks)
        if num_workers <= 1:
            return InThisProcess()
        return small_pool(num_workers) if is_small else Processes(num_workers)


LOCAL = Workers()


@contextlib.contextmanager
def open_workers(config, console):
    """Yields the Workers that a settings object with num_workers and ray_address asks for.
    UserError when the cluster cannot be reached. console: says what the cluster is.
    """
    if config.ray_address is None:
        yield Workers(config.num_workers)
        return
    from bert_gpu.text import ray_cluster

    with ray_cluster.connect(config.ray_address, config.num_workers) as cluster:
        console.say(cluster.summary)
        yield Workers(config.num_workers, cluster)


@dataclasses.dataclass
class InThisProcess(Pool):
    """One task after another, whatever num_workers is."""

    num_workers: int = 1

    def run(self, function, tasks, report):
        for task in tasks:
            yield function(task, report)


class Threads(Pool):
    """For functions that are outside Python most of the time."""

    def run(self, function, tasks, report):
        done, lock = [0, 0], threading.Lock()
        call = functools.partial(call_counted, function, done, lock)
        progress = ProgressDelta(report)
        # not an executor of concurrent.futures: an interrupted process would wait for its threads
        with multiprocessing.pool.ThreadPool(self.num_workers) as pool:
            results, num_done = pool.imap_unordered(call, tasks), 0
            while num_done < len(tasks):
                try:
                    result = results.next(POLL_SECONDS)
                except multiprocessing.TimeoutError:
                    progress.update(done)
                    continue
                num_done += 1
                progress.update(done)
                yield result


class Processes(Pool):
    """Each has its own interpreter and takes seconds to start."""

    def run(self, function, tasks, report):
        context = multiprocessing.get_context("spawn")
        done, others = context.Array("q", 2), set(multiprocessing.active_children())
        progress = ProgressDelta(report)
        start = pickle.dumps(functools.partial(start_worker, function))
        pool = concurrent.futures.ProcessPoolExecutor(
            self.num_workers, context, start_prepared, (start, done, os.getpid())
        )
        try:
            with children_ignore_interrupts():
                running = {pool.submit(call_in_process, task) for task in tasks}
            while running:
                finished, running = concurrent.futures.wait(
                    running, POLL_SECONDS, concurrent.futures.FIRST_COMPLETED
                )
                progress.update(done)
                for future in finished:
                    yield future.result()
        except concurrent.futures.process.BrokenProcessPool:
            raise UserError(
                "a worker process was killed, most often because memory ran out",
                "give a smaller --num_workers",
            ) from None
        except BaseException:  # nothing waits for what they do
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()


@dataclasses.dataclass
class ProgressDelta:
    """Reports what was done since the last report, from (bytes, tokens) done in all."""

    report: typing.Callable
    before: tuple = (0, 0)

    def update(self, done):
        now = tuple(done)
        self.report(now[0] - self.before[0], now[1] - self.before[1])
        self.before = now


def map_blocks(function, blocks, workers, report=None):
    """An iterator of function(list of Block) for groups that together contain all blocks, in any
    order.

    Args:
      function: picklable, as its result must be.
      blocks: list of Block. workers: Workers.
      report: called with (bytes of text, tokens = 0) done since the last call.
    """
    sizes = [block.num_bytes for block in blocks]
    pool = workers.make_pool(len(blocks), sum(sizes) <= IN_PROCESS_BYTES, InThisProcess)
    num_groups = len(blocks)
    if not isinstance(pool, InThisProcess):
        most = max(pool.num_workers * GROUPS_PER_WORKER, sum(sizes) // GROUP_BYTES)
        num_groups = min(num_groups, most)
    groups = [blocks[i::num_groups] for i in range(num_groups)]
    call = functools.partial(call_on_group, function)
    return pool.run(call, groups, report or (lambda num_bytes, num_tokens: None))


def call_on_group(function, blocks, report):
    result = function(blocks)
    report(sum(block.num_bytes for block in blocks), 0)
    return result


def call_counted(function, done, lock, task):
    """Calls a function of a Pool, whose progress is added to done = [bytes of text, tokens]."""

    def report(num_bytes, num_tokens):
        with lock:
            done[0] += num_bytes
            done[1] += num_tokens

    return function(task, report)


def start_worker(function, done, parent):
    """Runs once in each worker process, which ends with its parent, a process id."""
    global process_call
    process_call = functools.partial(call_counted, function, done, done.get_lock())
    use_one_thread()
    threading.Thread(target=end_with_parent, args=(parent,), daemon=True).start()


def call_in_process(task):
    return process_call(task)


def use_one_thread():
    """Prepares a worker process: it has one thread, since the processes share the cores, and
    returns memory.
    """
    map_large_blocks()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def end_with_parent(parent):
    """Ends this process when its parent has ended, because nothing waits for its result."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
