"""The workers of a run, one process a machine: how they start together, agree, and notice that one
of them is gone.

Gradients go through the strategy's all-reduce; what is here is the rest. All workers run the same
program in lockstep, and what only one of them can know (its clock, its signals, the run's folder)
is broadcast at fixed points of the program: `from_chief` (worker 0 does it, all get the answer),
`gather` and `SharedClock.sync`. These are small collectives on the CPUs, with keys of their own.
ALONE is the same without other workers, and costs nothing.
"""

import contextlib
import os
import pickle
import re
import sys
import threading
import time

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.eager import context

from bert_gpu.base.console import Console, close_streams, print_to
from bert_gpu.base.errors import TrainingStopped, UserError, one_line
from bert_gpu.devices.cluster import find_cluster

WORKER_LOST = 4  # exit code
GROUP_KEY = 1 << 20  # of our collectives; the strategy counts its own from 1
PIECE_BYTES = 64 << 20  # of what is sent at once
SECONDS_BETWEEN_LOOKS, NUM_LOOKS = 10, 3
# What a collective raises when another worker is gone, or does not come in time.
GONE = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)


class WorkerLost(TrainingStopped):
    """Another worker is gone or hangs, so that this one ends."""

    exit_code, ends_at_once = WORKER_LOST, True


class Alone:
    """The only worker."""

    index, count, is_chief = 0, 1, True

    def from_chief(self, act, *arguments):
        """act(*arguments) of worker 0, on all workers; also what it raises of SHARED_ERRORS."""
        return act(*arguments)

    arrays_from_chief = from_chief

    def on_chief(self, act):
        """act() of worker 0, for it alone, None on the others; also what it raises of
        SHARED_ERRORS.
        """
        return act()

    def gather(self, value):
        """The values of all workers, in their order."""
        return [value]

    def clock(self, watch, caught):
        return LocalClock(watch, caught)

    def console(self, console):
        """The Console of this worker: that of worker 0 is `console`, the others' warn only."""
        return console

    def check_alike(self, facts):
        """UserError on all workers when one of them has other facts {name: value}."""

    def together(self):
        """A context that all workers leave together. An error of a collective in it becomes
        WorkerLost.
        """
        return contextlib.nullcontext()

    watched = waiting = together


class LocalClock:
    """The seconds of a run until now, and the signals caught: a loop decides by both.

    Args of the constructor: watch: has the seconds (Stopwatch). caught: list, which grows.
    """

    def __init__(self, watch, caught):
        self.watch, self.caught = watch, caught

    @property
    def seconds(self):
        return self.watch.seconds

    def sync(self):
        """Makes time and caught signals equal on all workers."""


class SharedClock:
    """As LocalClock, equal on all workers: the time is that of worker 0, a signal is anybody's.
    Both stay as they are until all workers call `sync`.
    """

    def __init__(self, workers, watch, caught):
        self.workers, self.watch, self.own = workers, watch, caught
        self.seconds, self.caught = workers.from_chief(getattr, watch, "seconds"), []

    def sync(self):
        seconds = self.watch.seconds if self.workers.is_chief else 0.0
        told = self.workers.maximum([seconds, *(self.own[:1] or [0])])
        self.seconds = float(told[0])
        if told[1] and not self.caught:
            self.caught.append(int(told[1]))


ALONE = Alone()
SHARED_ERRORS = (OSError, UserError, TrainingStopped)  # what workers tell each other of errors


class Workers:
    """The workers of a cluster.Cluster; all of them make one at the same time.

    Args of the constructor:
      cluster: Cluster. timeout_seconds: how long one waits for the others. watchdog: Watchdog.
    """

    def __init__(self, cluster, timeout_seconds, watchdog):
        self.cluster, self.timeout_seconds, self.watchdog = cluster, timeout_seconds, watchdog
        self.index, self.count, self.is_chief = cluster.index, len(cluster), cluster.index == 0
        self.strategy, self.next_key = None, 0

    def prepare(self):
        """Call it before the strategy is made: `watch_peers` takes the place of
        TensorFlow's own checks, which end later and cannot be ended.
        """
        context.context().configure_coordination_service(service_type="")
        CollectiveAllReduceExtended._enable_check_health = False

    def connect(self):
        """Call it when the strategy is made: returns when all workers are there. WorkerLost when
        one has not come in time; it names the first that cannot be reached.
        """
        try:
            self.gather(None)
        except WorkerLost as lost:
            raise self.absent() or lost from None
        threading.Thread(target=self.watch_peers, name="health", daemon=True).start()

    def absent(self):
        """The WorkerLost of the first worker that cannot be reached, None when all can."""
        found = self.cluster.first_unreachable()
        if found is None:
            return None
        index, reason = found
        return WorkerLost(
            f"worker {index} ({self.cluster.addresses[index][:80]}) has not come: {reason[:90]}; "
            "start it, correct its address on all workers, or unset "
            f"{self.cluster.variable} to train without other workers"
        )

    def watch_peers(self):
        """Ends all collectives with an error when a worker does not answer NUM_LOOKS times."""
        pause = min(SECONDS_BETWEEN_LOOKS, self.timeout_seconds / 4)
        patience = (self.timeout_seconds - pause) / NUM_LOOKS
        others = [index for index in range(self.count) if index != self.index]
        while True:
            time.sleep(pause)
            for index in others:
                if not any(self._answers(index, patience) for _ in range(NUM_LOOKS)):
                    context.context().abort_collective_ops(
                        tf.errors.UNAVAILABLE, f"task:{index} is down"
                    )
                    return

    def _answers(self, index, seconds):
        peer = f"/job:worker/replica:0/task:{index}"
        try:
            context.context().check_collective_ops_peer_health(peer, round(1000 * seconds))
        except tf.errors.OpError:
            return False
        return True

    def from_chief(self, act, *arguments):
        answer = [None, None]
        if self.is_chief:
            try:
                answer[0] = act(*arguments)
            except SHARED_ERRORS as error:
                answer[1] = error
        answer = self._broadcast_object(answer)
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    def arrays_from_chief(self, act, *arguments):
        """As from_chief, of an act whose result, or the last part of it, is {name: array}, or which
        has none. Arrays are sent in pieces.
        """
        given = {}

        def describe():
            found = act(*arguments)
            if found is None:
                return None
            *rest, arrays = found if isinstance(found, tuple) else (found,)
            given.update(arrays)
            shapes = {name: (value.shape, value.dtype) for name, value in arrays.items()}
            return rest, shapes, isinstance(found, tuple)

        described = self.from_chief(describe)
        if described is None:
            return None
        rest, shapes, is_tuple = described
        arrays = {
            name: self._broadcast_array(given.get(name), shape, dtype)
            for name, (shape, dtype) in shapes.items()
        }
        return (*rest, arrays) if is_tuple else arrays

    def gather(self, value):
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        size = int(self.maximum([len(data)])[0])
        row = to_words(np.pad(data, (0, size - len(data))))
        rows = self._collective(
            tf.raw_ops.CollectiveGatherV2, input=tf.constant(row[None]), ordering_token=[]
        ).numpy()
        return [pickle.loads(row.tobytes()) for row in rows]

    def maximum(self, values):
        """The highest of each of the float64 values over all workers."""
        return self._collective(
            tf.raw_ops.CollectiveReduceV2,
            input=tf.constant(values, tf.float64),
            ordering_token=[],
            merge_op="Max",
            final_op="Id",
        ).numpy()

    def on_chief(self, act):
        results = []
        self.from_chief(lambda: results.append(act()))
        return results[0] if results else None

    def clock(self, watch, caught):
        return SharedClock(self, watch, caught)

    def console(self, console):
        return console if self.is_chief else FollowerConsole(self.index)

    def check_alike(self, facts):
        everyone = self.gather(facts)
        for index, others in enumerate(everyone):
            for name, value in everyone[0].items():
                if others.get(name) != value:
                    raise UserError(
                        f"worker {index} ({self.cluster.addresses[index]}): {name} is "
                        f"{str(others.get(name))[:60]}, on worker 0 {str(value)[:60]}",
                        "give all workers the same command, data and devices",
                    )

    @contextlib.contextmanager
    def watched(self):
        """A context in which an error of a collective becomes WorkerLost."""
        try:
            yield
        except tf.errors.OpError as error:
            lost = self.lost_by(error)
            if lost is None:
                raise
            raise lost from None

    def waiting(self):
        """A context that waits for nothing but other workers, and not for longer than allowed."""
        return self.watchdog.armed(self.timeout_seconds)

    @contextlib.contextmanager
    def together(self):
        with self.watched():
            yield
            self.gather(None)

    def lost_by(self, error):
        """The WorkerLost that an error of TensorFlow means, None when it means something else."""
        text = str(error)
        if not isinstance(error, GONE) and "ollective" not in text:
            return None
        down = re.search(r"task:(\d+) is down", text)
        if down:
            who = f"worker {down[1]} ({self.cluster.addresses[int(down[1])]}) is gone"
        elif isinstance(error, tf.errors.DeadlineExceededError):
            seconds = f"{self.timeout_seconds:g} s (--worker_timeout)"
            who = f"another worker has not responded for {seconds}"
        else:
            who = "another worker is gone"
        return WorkerLost(f"{who}; this worker stops; the lost worker's log may say why; {REMEDY}")

    def _broadcast_object(self, value):
        """The chief's value, on all workers."""
        data = np.frombuffer(pickle.dumps(value), np.uint8) if self.is_chief else None
        size = int(self.maximum([len(data) if self.is_chief else 0])[0])
        found = self._broadcast_array(data, (size,), np.dtype(np.uint8))
        return value if self.is_chief else pickle.loads(found.tobytes())

    def _broadcast_array(self, value, shape, dtype):
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        result = value if self.is_chief else np.empty(shape, dtype)
        flat = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
        for start in range(0, num_bytes, PIECE_BYTES):
            piece = flat[start : start + PIECE_BYTES]
            num_words = -(-len(piece) // 4)
            if self.is_chief:
                self._collective(
                    tf.raw_ops.CollectiveBcastSendV2, input=tf.constant(to_words(piece))
                )
            else:
                words = self._collective(
                    tf.raw_ops.CollectiveBcastRecvV2, shape=[num_words], T=tf.int32
                ).numpy()
                piece[:] = words.view(np.uint8)[: len(piece)]
        return result

    def _collective(self, operation, **inputs):
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


REMEDY = "the same command on all workers resumes"


def to_words(data):
    """Bytes (uint8) as int32, which collectives take, with zeros at the end."""
    return np.pad(data, (0, -len(data) % 4)).view(np.int32)


class FollowerConsole(Console):
    """Console of workers 1, 2, ...: prints warnings only, with the index of the worker."""

    def __init__(self, index):
        super().__init__(quiet=True)
        self.index = index

    def warn(self, text):
        super().warn(f"worker {self.index}: {text}")


class Watchdog:
    """Ends the process when a wait for other workers outlasts its limit by GRACE_SECONDS: the last
    resort, for a collective that neither ends nor fails.

    Args of the constructor: clock: () -> seconds. end: () -> None, ends the process.
    """

    GRACE_SECONDS, SECONDS_BETWEEN = 30, 5

    def __init__(self, clock=time.monotonic, end=None):
        self.clock, self.end, self.deadline = clock, end or exit_hung_process, None

    @contextlib.contextmanager
    def armed(self, seconds):
        before, self.deadline = self.deadline, self.clock() + seconds + self.GRACE_SECONDS
        try:
            yield
        finally:
            self.deadline = before

    def look(self):
        """Ends the process if the deadline has passed."""
        deadline = self.deadline
        if deadline is not None and self.clock() > deadline:
            self.end()

    def start(self):
        """Looks every few seconds, in a thread."""

        def run():
            while True:
                time.sleep(self.SECONDS_BETWEEN)
                self.look()

        threading.Thread(target=run, name="watchdog", daemon=True).start()


def exit_hung_process():
    text = f"error: the other workers do not answer (--worker_timeout); {REMEDY}"
    print_to(sys.stderr, one_line(text))
    close_streams()
    os._exit(WORKER_LOST)


_joined = [ALONE]  # TensorFlow connects a process once


def joined():
    """The Workers that this process has joined, ALONE when it has not."""
    return _joined[-1]


def join(timeout_seconds):
    """Joins the Workers that this process is one of by TF_CONFIG or Slurm's variables, if it is;
    returns them, or ALONE. They are waited for when the strategy is made.
    """
    cluster = None if joined() is not ALONE else find_cluster()
    if cluster is not None:
        watchdog = Watchdog()
        watchdog.start()
        _joined.append(Workers(cluster, timeout_seconds, watchdog))
    return joined()
