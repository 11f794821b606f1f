"""Runs a function on many tasks at a time; results (counts, hashes, nothing) come in any order.

A Pool runs the tasks: this process, threads or processes of this machine, or a Ray cluster
(ray_cluster.py). Processes are spawned, because TensorFlow does not survive a fork, and each takes
seconds to start; so a small job runs without them.
"""

import abc
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
from collections.abc import Callable, Generator, Sequence
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Any, TypeVar

import tensorflow as tf

from bert_gpu.base.environment import start_prepared
from bert_gpu.base.errors import UserError
from bert_gpu.base.malloc import map_large_blocks
from bert_gpu.base.signals import children_ignore_interrupts
from bert_gpu.text.corpus import Block

# Bytes of text up to which a job starts no worker processes: one process counts the words of this
# much text in about the time that another takes to start.
IN_PROCESS_BYTES = 256 << 20
# least number of groups of blocks, so that workers finish together and progress is visible
GROUPS_PER_WORKER = 8
GROUP_BYTES = 64 << 20  # about the most text in a group of blocks, so that its result stays small
POLL_SECONDS = 0.2  # between two readings of the progress
Task = TypeVar("Task")
Result = TypeVar("Result")
# A Report is a function, called with the bytes of text and the tokens done since its last call.
Report = Callable[[int, int], object]
process_call: Callable[[Any], Any]  # runs a task; set when this worker process starts


@dataclasses.dataclass(eq=False)
class Pool(abc.ABC):
    """Runs a function on tasks. num_workers: number of tasks that run at a time."""

    num_workers: int

    @abc.abstractmethod
    def run(
        self, function: Callable[[Task, Report], Result], tasks: Sequence[Task], report: Report
    ) -> Generator[Result, None, None]:
        """Yield function(task, report) of each task, in any order.

        Args:
          function: picklable, as tasks and results must be. It calls the report that it
            gets with the progress of its task.
          report: called in this process with the progress of all tasks, perhaps once for several
            calls of the function.

        Raises the errors of the function, and UserError when workers were killed. After an error,
        and when the generator is closed, running tasks are stopped, except that threads finish
        theirs.
        """


@dataclasses.dataclass(frozen=True)
class Workers:
    """The place where a job runs its tasks: a Ray cluster, if one is given, or this machine.

    num_workers: number of tasks at a time; None = one per core.
    """

    num_workers: int | None = None
    cluster: Pool | None = None

    def make_pool(self, num_tasks: int, is_small: bool, small_pool: Callable[[int], Pool]) -> Pool:
        """Return a Pool for at most num_tasks tasks at a time. is_small: whether the work takes
        less time than starting processes; on this machine small_pool(number of workers) then makes
        the Pool.
        """
        if self.cluster is not None:
            return self.cluster
        num_workers = min(self.num_workers or os.cpu_count() or 1, num_tasks)
        if num_workers <= 1:
            return InThisProcess()
        return small_pool(num_workers) if is_small else Processes(num_workers)


LOCAL = Workers()


@dataclasses.dataclass
class InThisProcess(Pool):
    """A Pool that runs one task after another in this process, whatever num_workers is."""

    num_workers: int = 1

    def run(
        self, function: Callable[[Task, Report], Result], tasks: Sequence[Task], report: Report
    ) -> Generator[Result, None, None]:
        for task in tasks:
            yield function(task, report)


class Threads(Pool):
    """A Pool of threads, for functions that spend most of their time outside Python."""

    def run(
        self, function: Callable[[Task, Report], Result], tasks: Sequence[Task], report: Report
    ) -> Generator[Result, None, None]:
        done = [0, 0]
        lock = threading.Lock()
        call = functools.partial(call_counted, function, done, lock)
        progress = ProgressDelta(report)
        # not a ThreadPoolExecutor, for whose threads an interrupted process would wait
        with multiprocessing.pool.ThreadPool(self.num_workers) as pool:
            results = pool.imap_unordered(call, tasks)
            num_done = 0
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
    """A Pool of processes, each with its own interpreter, which takes seconds to start."""

    def run(
        self, function: Callable[[Task, Report], Result], tasks: Sequence[Task], report: Report
    ) -> Generator[Result, None, None]:
        context = multiprocessing.get_context("spawn")
        done = context.Array("q", 2)
        others = set(multiprocessing.active_children())
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
        except BaseException:  # stop the workers: nothing waits for their results
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()


@dataclasses.dataclass
class ProgressDelta:
    """Calls a Report with the progress since its last call, given totals. before: the last total of
    (bytes, tokens).
    """

    report: Report
    before: tuple[int, int] = (0, 0)

    def update(self, done: "list[int] | SynchronizedArray[int]") -> None:
        """Report the difference between `done` and the last total. done: list or shared array
        [bytes, tokens], the total now.
        """
        now = done[0], done[1]
        self.report(now[0] - self.before[0], now[1] - self.before[1])
        self.before = now


def map_blocks(
    function: Callable[[list[Block]], Result],
    blocks: Sequence[Block],
    workers: Workers,
    report: Report | None = None,
) -> Generator[Result, None, None]:
    """Divide blocks into groups and return a generator of function(group), in any order.

    Args:
      function: picklable, as its result must be.
      report: called with the bytes of text done since its last call, and 0 tokens.
    """
    sizes = [block.num_bytes for block in blocks]
    pool = workers.make_pool(len(blocks), sum(sizes) <= IN_PROCESS_BYTES, InThisProcess)
    num_groups = len(blocks)
    if not isinstance(pool, InThisProcess):
        num_groups = min(
            num_groups, max(pool.num_workers * GROUPS_PER_WORKER, sum(sizes) // GROUP_BYTES)
        )
    groups = [blocks[i::num_groups] for i in range(num_groups)]
    call = functools.partial(call_on_group, function)
    return pool.run(call, groups, report or (lambda num_bytes, num_tokens: None))


def call_on_group(
    function: Callable[[list[Block]], Result], blocks: list[Block], report: Report
) -> Result:
    result = function(blocks)
    report(sum(block.num_bytes for block in blocks), 0)
    return result


def call_counted(
    function: Callable[[Task, Report], Result],
    done: "list[int] | SynchronizedArray[int]",
    lock: contextlib.AbstractContextManager,
    task: Task,
) -> Result:
    """Return function(task, report), with a report that adds the progress to the total `done` =
    [bytes of text, tokens].
    """

    def report(num_bytes: int, num_tokens: int) -> None:
        with lock:
            done[0] += num_bytes
            done[1] += num_tokens

    return function(task, report)


def start_worker(
    function: Callable[[Task, Report], object], done: "SynchronizedArray[int]", parent: int
) -> None:
    """Prepare this new worker process to run a function, and to end when its parent ends. done:
    shared total [bytes of text, tokens]. parent: process id.
    """
    global process_call
    process_call = functools.partial(call_counted, function, done, done.get_lock())
    use_one_thread()
    threading.Thread(target=end_with_parent, args=(parent,), daemon=True).start()


def call_in_process(task: Any) -> Any:
    return process_call(task)


def use_one_thread() -> None:
    """Make this worker process use one thread, since the processes share the cores, and give large
    blocks of freed memory back to the system.
    """
    map_large_blocks()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Hugging Face's library reads it at each call
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def end_with_parent(parent: int) -> None:
    """End this process when its parent has ended, because nothing waits for its result."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
