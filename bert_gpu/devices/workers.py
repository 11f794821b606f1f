"""Connects the workers of a run, one process a machine: they start together, exchange values, and
detect that one of them is gone.

Gradients go through the strategy's all-reduce, all other values through this module. All workers
run the same program in lockstep, and values that only one of them has (its clock, its signals, the
run's folder) are broadcast at fixed points of the program: `from_chief` (worker 0 calls a function,
all get the result), `gather` and `Clock.sync`. These methods are small collectives on the
CPUs, with keys of their own. ALONE is an object with the same methods for a single process, at no
cost.
"""

import contextlib
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.eager import context

from bert_gpu.base.console import Console, close_streams, print_to
from bert_gpu.base.errors import TrainingStopped, UserError, one_line
from bert_gpu.devices.cluster import Cluster, find_cluster

T = TypeVar("T")
WORKER_LOST = 4  # exit code
GROUP_KEY = 1 << 20  # group key of our collectives; the strategy counts its own from 1
PIECE_BYTES = 64 << 20  # largest part of an array that is sent at once
SECONDS_BETWEEN_LOOKS = 10
NUM_LOOKS = 3
GRACE_SECONDS = 30
# Errors that a collective raises when another worker is gone or does not come in time.
GONE = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)


class WorkerLost(TrainingStopped):
    """The error by which this worker ends because another worker is gone or hangs."""

    exit_code = WORKER_LOST
    ends_at_once = True


class Alone:
    """A process that trains without other workers, with the methods of Workers. The docstrings of
    these methods describe both classes.
    """

    index = 0
    count = 1
    is_chief = True

    def from_chief(self, act: Callable[..., T], *arguments: object) -> T:
        """Call act(*arguments) on worker 0 only, and return its result, such as the arrays of a
        checkpoint, on all workers. If it raises one of SHARED_ERRORS, all workers raise that error.
        """
        return act(*arguments)

    def on_chief(self, act: Callable[[], T]) -> T | None:
        """Call act() on worker 0 only, and return its result there, None on the others. If it
        raises one of SHARED_ERRORS, all workers raise that error.
        """
        return act()

    def gather(self, value: T) -> list[T]:
        """Return the `value` that each worker has passed, in the order of the workers."""
        return [value]

    def console(self, console: Console) -> Console:
        """Return the Console of this worker: `console` on worker 0, one that only warns on the
        others.
        """
        return console

    def check_alike(self, facts: Mapping[str, object]) -> None:
        """Raise UserError on all workers when a worker's `facts`, {name: value}, differ from those
        of worker 0.
        """

    def barrier_at_exit(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that all workers leave together. An error of a collective inside the
        context becomes WorkerLost.
        """
        return contextlib.nullcontext()

    watched = waiting = barrier_at_exit


ALONE = Alone()
SHARED_ERRORS = (OSError, UserError, TrainingStopped)  # sent from worker 0 to the others


class Workers:
    """The workers of a cluster, all of which construct this object at the same time. The class
    Alone documents the methods that both classes have.

    timeout_seconds: how long a worker waits for the others.
    """

    def __init__(self, cluster: Cluster, timeout_seconds: float) -> None:
        self.cluster = cluster
        self.timeout_seconds = timeout_seconds
        self.index = cluster.index
        self.count = len(cluster)
        self.is_chief = cluster.index == 0
        self.strategy: tf.distribute.MultiWorkerMirroredStrategy | None = None
        self.next_key = 0

    def prepare(self) -> None:
        """Switch off TensorFlow's own health checks of the workers, which give up later and cannot
        be stopped; `watch_peers` replaces them. Call it before the strategy is created.
        """
        context.context().configure_coordination_service(service_type="")
        CollectiveAllReduceExtended._enable_check_health = False

    def connect(self) -> None:
        """Wait until all workers have connected. Raises WorkerLost when a worker has not come in
        time, with the name of the first that cannot be reached. Call it when the strategy is
        created.
        """
        try:
            self.gather(None)
        except WorkerLost:
            unreachable = self.cluster.first_unreachable()
            if unreachable is None:
                raise
            index, reason = unreachable
            raise WorkerLost(
                f"worker {index} ({self.cluster.addresses[index][:80]}) has not come: "
                f"{reason[:90]}; start it, correct its address on all workers, or unset "
                f"{self.cluster.variable} to train without other workers"
            ) from None
        threading.Thread(target=self.watch_peers, name="health", daemon=True).start()

    def watch_peers(self) -> None:
        """Check the other workers' health until one fails NUM_LOOKS checks in a row; then end all
        collectives with an error. It runs in a thread.
        """
        pause = min(SECONDS_BETWEEN_LOOKS, self.timeout_seconds / 4)
        patience = (self.timeout_seconds - pause) / NUM_LOOKS
        others = [index for index in range(self.count) if index != self.index]
        while True:
            time.sleep(pause)
            for index in others:
                if not any(self._is_healthy(index, patience) for _ in range(NUM_LOOKS)):
                    context.context().abort_collective_ops(
                        tf.errors.UNAVAILABLE, f"task:{index} is down"
                    )
                    return

    def _is_healthy(self, index: int, seconds: float) -> bool:
        peer = f"/job:worker/replica:0/task:{index}"
        try:
            context.context().check_collective_ops_peer_health(peer, round(1000 * seconds))
        except tf.errors.OpError:
            return False
        return True

    def from_chief(self, act: Callable[..., T], *arguments: object) -> T:
        result_and_error: list[Any] = [None, None]
        if self.is_chief:
            try:
                result_and_error[0] = act(*arguments)
            except SHARED_ERRORS as caught:
                result_and_error[1] = caught
        result, error = self._broadcast(result_and_error)
        if error is not None:
            raise error
        return result

    def gather(self, value: T) -> list[T]:
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        size = int(self.maximum([len(data)])[0])
        row = to_words(np.pad(data, (0, size - len(data))))
        rows = self._collective(
            tf.raw_ops.CollectiveGatherV2, input=tf.constant(row[None]), ordering_token=[]
        ).numpy()
        return [pickle.loads(row.tobytes()) for row in rows]

    def maximum(self, values: Sequence[float]) -> np.ndarray:
        """Return, for each of `values`, its maximum over all workers, as a float64 array."""
        return self._collective(
            tf.raw_ops.CollectiveReduceV2,
            input=tf.constant(values, tf.float64),
            ordering_token=[],
            merge_op="Max",
            final_op="Id",
        ).numpy()

    def on_chief(self, act: Callable[[], T]) -> T | None:
        results: list[T] = []
        self.from_chief(lambda: results.append(act()))
        return results[0] if results else None

    def console(self, console: Console) -> Console:
        return console if self.is_chief else FollowerConsole(self.index)

    def check_alike(self, facts: Mapping[str, object]) -> None:
        all_facts = self.gather(facts)
        for index, others in enumerate(all_facts):
            for name, value in all_facts[0].items():
                if others.get(name) != value:
                    raise UserError(
                        f"worker {index} ({self.cluster.addresses[index]}): {name} is "
                        f"{str(others.get(name))[:60]}, on worker 0 {str(value)[:60]}",
                        "give all workers the same command, data and devices",
                    )

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A context in which an error of a collective becomes WorkerLost."""
        try:
            yield
        except tf.errors.OpError as error:
            lost = self.lost_by(error)
            if lost is None:
                raise
            raise lost from None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A context for code that only waits for other workers. It ends the process when the code
        outlasts `timeout_seconds` by GRACE_SECONDS: the last resort, for a collective that neither
        ends nor fails.
        """
        timer = threading.Timer(self.timeout_seconds + GRACE_SECONDS, exit_hung_process)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def barrier_at_exit(self) -> Iterator[None]:
        with self.watched():
            yield
            self.gather(None)

    def lost_by(self, error: tf.errors.OpError) -> WorkerLost | None:
        """Return the WorkerLost to raise for an error of TensorFlow, None when the error has
        another cause than a lost worker.
        """
        text = str(error)
        if not isinstance(error, GONE) and "ollective" not in text:
            return None
        down = re.search(r"task:(\d+) is down", text)
        if down:
            subject = f"worker {down[1]} ({self.cluster.addresses[int(down[1])]}) is gone"
        elif isinstance(error, tf.errors.DeadlineExceededError):
            seconds = f"{self.timeout_seconds:g} s (--worker_timeout)"
            subject = f"another worker has not responded for {seconds}"
        else:
            subject = "another worker is gone"
        return WorkerLost(f"{subject}; this worker stops; see the log of the lost worker; {REMEDY}")

    def _broadcast(self, value: T) -> T:
        """Return worker 0's `value` on all workers, sent as a pickle, in pieces."""
        data = np.frombuffer(pickle.dumps(value, protocol=5) if self.is_chief else b"", np.uint8)
        size = int(self.maximum([len(data)])[0])
        received = np.empty(0 if self.is_chief else size, np.uint8)
        for start in range(0, size, PIECE_BYTES):
            if self.is_chief:
                words = tf.constant(to_words(data[start : start + PIECE_BYTES]))
                self._collective(tf.raw_ops.CollectiveBcastSendV2, input=words)
            else:
                piece = received[start : start + PIECE_BYTES]
                num_words = -(-len(piece) // 4)
                words = self._collective(
                    tf.raw_ops.CollectiveBcastRecvV2, shape=[num_words], T=tf.int32
                )
                piece[:] = words.numpy().view(np.uint8)[: len(piece)]
        return value if self.is_chief else pickle.loads(received.data)

    def _collective(self, operation: Callable[..., tf.Tensor], **inputs: object) -> tf.Tensor:
        self.next_key += 1
        with tf.device("/CPU:0"), self.waiting(), self.watched():
            return operation(
                group_size=self.count,
                group_key=GROUP_KEY,
                instance_key=self.next_key,
                communication_hint="ring",
                timeout_seconds=self.timeout_seconds,
                **inputs,
            )


class Clock:
    """The seconds that a run has taken until now, and the signals that it has caught, by which the
    training loop decides, for example, when to stop. With several workers both are equal on all of
    them, and change only when all call `sync`: the time is worker 0's, and a signal caught by any
    worker counts.

    Args of the constructor: own_seconds: function that returns the seconds by this process's clock.
    caught: the list to which each signal is added when this process catches it.
    """

    def __init__(
        self, workers: Workers | Alone, own_seconds: Callable[[], float], caught: list[int]
    ) -> None:
        self.workers = workers
        self.own_seconds = own_seconds
        self.own_caught = caught
        self.caught = caught if isinstance(workers, Alone) else []
        self.synced_seconds: float = workers.from_chief(own_seconds)

    @property
    def seconds(self) -> float:
        return self.own_seconds() if isinstance(self.workers, Alone) else self.synced_seconds

    def sync(self) -> None:
        """Make time and caught signals equal on all workers."""
        if isinstance(self.workers, Alone):
            return
        own_seconds = self.own_seconds() if self.workers.is_chief else 0.0
        seconds, signum = self.workers.maximum([own_seconds, *(self.own_caught[:1] or [0])])
        self.synced_seconds = float(seconds)
        if signum and not self.caught:
            self.caught.append(int(signum))


REMEDY = "the same command on all workers resumes"


def to_words(data: np.ndarray) -> np.ndarray:
    """Return bytes, uint8, as int32, a type that collectives take; zeros at the end fill the last
    int32.
    """
    return np.pad(data, (0, -len(data) % 4)).view(np.int32)


class FollowerConsole(Console):
    """The Console of workers 1, 2, ...: prints warnings only, with the index of the worker."""

    def __init__(self, index: int) -> None:
        super().__init__(quiet=True)
        self.index = index

    def warn(self, text: str | UserError) -> None:
        super().warn(f"worker {self.index}: {text}")


def exit_hung_process() -> NoReturn:
    text = f"error: the other workers do not answer (--worker_timeout); {REMEDY}"
    print_to(sys.stderr, one_line(text))
    close_streams()
    os._exit(WORKER_LOST)


# The last element counts. Workers stay once joined: TensorFlow connects a process only once.
_workers_of_process: list[Workers | Alone] = [ALONE]


def current_workers() -> Workers | Alone:
    """Return the Workers that this process has joined, or ALONE when it has joined no other
    workers.
    """
    return _workers_of_process[-1]


def join(timeout_seconds: float) -> Workers | Alone:
    """Make this process one of the workers that TF_CONFIG or Slurm's variables name, and return the
    Workers; ALONE if they name none. It does not wait for the other workers; creating the strategy
    does.
    """
    cluster = None if current_workers() is not ALONE else find_cluster()
    if cluster is not None:
        _workers_of_process.append(Workers(cluster, timeout_seconds))
    return current_workers()
