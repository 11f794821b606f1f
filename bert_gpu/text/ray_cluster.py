"""A Ray cluster as a Pool (parallel.py): each task is done by a core of some node.

Tasks and results are small: they name parts of files, which every node sees under the same path,
and no text goes through Ray. The function, which may hold an entry for each document, is sent to a
node once. A task whose worker or node is lost is given to another, so a job loses no more than what
was unfinished there. (Ray would do that by itself, but without a word.)
"""

import contextlib
import itertools
import logging
import math
import os
import pickle
import re
import signal
import socket
import time

import bert_gpu
from bert_gpu.base import console
from bert_gpu.base.environment import import_extra
from bert_gpu.base.errors import UserError
from bert_gpu.base.signals import handled_signals
from bert_gpu.text import parallel

MOST_LOSSES = 8  # of a task's workers
# Waiting tasks, times the cores: nodes never wait for this process, a growing cluster sees that
# there is more to do, and not all tasks are held by Ray at once.
TASKS_PER_CORE = 2
WAIT_SECONDS = LOOK_SECONDS = 1.0  # for a task; between looks at the cluster
CANCEL_SECONDS = 30.0
CONNECT_SECONDS = 10.0
CLIENT_PORT = 10001  # of ray://HOST


@contextlib.contextmanager
def connect(address, num_workers=None):
    """Yields a RayPool on the cluster, to which a program may be connected already.

    Args:
      address: auto, HOST:PORT or ray://HOST:PORT. num_workers: tasks at a time; None = all cores.

    Raises UserError: Ray is not installed, or there is no such cluster.
    """
    remedy = "pip install 'bert-gpu[ray]' here and on each node, or leave it out"
    ray = import_extra("ray", f"--ray_address={address}", remedy)
    if ray.is_initialized():
        yield RayPool(ray, num_workers)
        return
    caught = []

    def interrupt(signum, frame):
        caught.append(signum)
        raise KeyboardInterrupt  # of all that ends a program, Ray lets this alone through as it is

    handlers = {signal.SIGTERM: interrupt}
    try:
        with handled_signals(handlers), contextlib.ExitStack() as stack:
            stack.callback(ray.shutdown)
            open_cluster(ray, address)
            # in place of Ray's handler, with an exit code of its own
            stack.enter_context(handled_signals(handlers))
            yield RayPool(ray, num_workers)
    except KeyboardInterrupt:
        if not caught:
            raise
        raise SystemExit(128 + caught[0]) from None


def open_cluster(ray, address):
    """Connects to a cluster; UserError when there is none."""
    whole = f"{address}:{CLIENT_PORT}" if re.fullmatch(r"ray://[^:/]+", address) else address
    problem = refusal(whole)
    if problem is None:
        # what Ray prints of lost workers are long lines; RayPool says what matters
        ray._private.worker._worker_logs_enabled = False
        try:
            ray.init(whole, log_to_driver=False, logging_level=logging.CRITICAL)
            return
        except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
            problem = str(error).strip().rpartition("\n")[2] or type(error).__name__
    raise UserError(
        f"no Ray cluster answers ({problem.rstrip('.')[:120]})",
        "start one with `ray start --head`, or leave the flag out",
        setting="ray_address",
        value=address,
    )


def refusal(address):
    """Why nothing listens at HOST:PORT; None when something does, or the address is another one.
    Ray itself would try for a minute.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)


class RayPool:
    """The cores of a cluster; see `parallel.Pool`."""

    def __init__(self, ray, num_workers=None):
        self.ray, self.most = ray, num_workers
        here = os.path.dirname(os.path.dirname(os.path.abspath(bert_gpu.__file__)))
        self.place = dict(folder=os.getcwd(), code=here, version=bert_gpu.__version__)
        self.num_nodes = self.num_cores = self.num_losses = 0
        self.looked = self.warned = -math.inf
        self.has_waited = False
        self._look()

    @property
    def num_workers(self):
        return self.most or self.num_cores

    @property
    def summary(self):
        counts = dict(node=self.num_nodes, core=self.num_cores)
        words = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items()]
        return f"on a Ray cluster: {', '.join(words)}"

    def run(self, function, tasks, report):
        ray, call = self.ray, remote_call(self.ray)
        # in a list, so that Ray leaves it to run_task to open them, when the code can be imported
        function = [ray.put(function)]
        waiting, running = ((pickle.dumps(task), 0) for task in tasks), {}

        def start(task, num_losses):
            running[call.remote(self.place, function, task)] = task, num_losses

        try:
            while True:
                self._look()
                most = self.most or TASKS_PER_CORE * self.num_cores
                for task in itertools.islice(waiting, max(0, most - len(running))):
                    start(*task)
                if not running:
                    return
                finished, _ = ray.wait(list(running), timeout=WAIT_SECONDS)
                for reference in finished:
                    task, num_losses = running.pop(reference)
                    try:
                        problem, result, done = ray.get(reference)
                    except ray.exceptions.RayTaskError as error:
                        raise (error.cause or error) from None
                    except ray.exceptions.RayError as error:
                        self._count_loss(error, num_losses + 1)
                        start(task, num_losses + 1)
                        continue
                    if problem is not None:
                        raise UserError(*problem, setting="ray_address")
                    report(*done)
                    yield result
        finally:
            self._cancel(list(running))

    def _look(self):
        """Counts nodes and cores, once in LOOK_SECONDS."""
        if time.monotonic() - self.looked < LOOK_SECONDS:
            return
        alive = [node for node in self.ray.nodes() if node["Alive"]]
        self.num_nodes = len(alive)
        num_cores = int(sum(node["Resources"].get("CPU", 0) for node in alive))
        if not num_cores and not self.has_waited:
            console.warn("the Ray cluster has no node with cores; waiting for one")
        self.has_waited = not num_cores
        self.num_cores = max(1, num_cores)
        self.looked = time.monotonic()

    def _count_loss(self, error, num_losses):
        """Warns of a task's lost worker, at most once in LOOK_SECONDS; UserError for one too many
        of a task.
        """
        if num_losses > MOST_LOSSES:
            raise UserError(
                f"a task was lost with {num_losses} workers ({type(error).__name__}), "
                "most often because memory ran out",
                "give fewer tasks at a time with --num_workers, then repeat the command",
                setting="ray_address",
            ) from error
        self.num_losses += 1
        if time.monotonic() - self.warned >= LOOK_SECONDS:
            console.warn(
                f"a worker of the Ray cluster was lost ({type(error).__name__}), and what it had "
                f"not finished is done again; tasks lost so far: {self.num_losses}"
            )
            self.warned = time.monotonic()

    def _cancel(self, running):
        """Ends tasks and waits until they have ended, so that nothing writes to a folder after its
        lock is free.
        """
        if not running:
            return
        # the cluster may be gone
        with contextlib.suppress(ConnectionError, self.ray.exceptions.RayError):
            for reference in running:
                self.ray.cancel(reference, force=True)
            self.ray.wait(running, num_returns=len(running), timeout=CANCEL_SECONDS)


def remote_call(ray):
    """The function that Ray runs on nodes. Ray sends its code, since a node may lack ours."""

    def call(place, function, task):
        import os
        import socket
        import sys

        try:
            os.chdir(place["folder"])  # names of files may be relative
        except OSError:
            problem = f"node {socket.gethostname()} has no folder {place['folder']}"
            remedy = "all nodes must have the same files under the same paths"
            return (problem, remedy), None, None
        if place["code"] not in sys.path:
            sys.path.append(place["code"])
        try:
            from bert_gpu.base import environment

            environment.prepare()
            from bert_gpu.text import ray_cluster
        except ImportError as error:
            problem = f"node {socket.gethostname()} cannot import bert_gpu ({error})"
            return (problem, "install it there, in the same version"), None, None
        return ray_cluster.run_task(place, function, task)

    return ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(call)


held = {}  # in a worker process: {reference: the function of the job}


def run_task(place, function, task):
    """Does a task on a node: (None, result, (bytes of text, tokens)).

    Args:
      place: of RayPool. function: [reference]. task: pickled.

    Raises what the function raises, UserErrors with the name of the node.
    """
    node = socket.gethostname()
    if bert_gpu.__version__ != place["version"]:
        raise UserError(
            f"node {node} has bert-gpu {bert_gpu.__version__}, and this is {place['version']}",
            "install the same version there",
            setting="ray_address",
        )
    [reference] = function
    if reference not in held:
        import ray

        if not held:
            parallel.use_one_thread()
        held.clear()
        held[reference] = ray.get(reference)
    done, lock = [0, 0], contextlib.nullcontext()  # one thread adds to it
    try:
        result = parallel.call_counted(held[reference], done, lock, pickle.loads(task))
        return None, result, tuple(done)
    except UserError as error:
        raise UserError(str(error), where=f"node {node}") from error
