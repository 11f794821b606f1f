"""A Ray cluster as a Pool (parallel.py): each task is done by a core of some node.

Tasks and results are small: they name parts of files, which every node sees under the same path,
and no text goes through Ray. The function, which may hold an entry for each document, is sent to a
node once. A task whose worker or node is lost is given to another, so that only unfinished tasks
are repeated. (Ray would do that by itself, but without a warning.)
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
from collections.abc import Callable, Generator, Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any

import bert_gpu
from bert_gpu.base.console import Console, warn
from bert_gpu.base.environment import import_extra
from bert_gpu.base.errors import UserError
from bert_gpu.base.signals import handled_signals
from bert_gpu.text import parallel
from bert_gpu.text.parallel import Report, Result, Task

MAX_LOSSES = 8  # a task that loses more workers than this ends the job
# Tasks that Ray holds for each core. With more than one, nodes never wait for this process and a
# growing cluster has work for its new nodes; all tasks at once would fill Ray's memory.
TASKS_PER_CORE = 2
WAIT_SECONDS = LOOK_SECONDS = 1.0  # longest wait for a task; time between counts of the nodes
CANCEL_SECONDS = 30.0
CONNECT_SECONDS = 10.0
CLIENT_PORT = 10001  # default port of ray://HOST


@contextlib.contextmanager
def open_workers(
    num_workers: int | None, ray_address: str | None, console: Console
) -> Iterator[parallel.Workers]:
    """Yield the Workers that settings ask for: on a Ray cluster, of which a summary is printed, if
    its address is given, else on this machine. Raises UserError when the cluster cannot be reached.
    """
    if ray_address is None:
        yield parallel.Workers(num_workers)
        return
    with connect(ray_address, num_workers) as cluster:
        console.say(cluster.summary)
        yield parallel.Workers(num_workers, cluster)


@contextlib.contextmanager
def connect(address: str, num_workers: int | None = None) -> "Iterator[RayPool]":
    """Yield a RayPool on the cluster at an address, or on the cluster to which this program is
    connected already.

    Args:
      address: auto, HOST:PORT or ray://HOST:PORT. num_workers: tasks at a time; None = all cores.

    Raises UserError: Ray is not installed, or there is no such cluster.
    """
    ray = import_extra(
        "ray",
        f"--ray_address={address}",
        remedy="pip install 'bert-gpu[ray]' here and on each node, or leave it out",
    )
    if ray.is_initialized():
        yield RayPool(ray, num_workers)
        return
    caught: list[int] = []

    def interrupt(signum: int, frame: FrameType | None) -> None:
        caught.append(signum)
        raise KeyboardInterrupt  # Ray lets no other exception through unchanged

    handlers = {signal.SIGTERM: interrupt}
    try:
        with handled_signals(handlers), contextlib.ExitStack() as stack:
            stack.callback(ray.shutdown)
            open_cluster(ray, address)
            # replaces the signal handler that Ray has set, which ends with another exit code
            stack.enter_context(handled_signals(handlers))
            yield RayPool(ray, num_workers)
    except KeyboardInterrupt:
        if not caught:
            raise
        raise SystemExit(128 + caught[0]) from None


def open_cluster(ray: ModuleType, address: str) -> None:
    """Connect to the Ray cluster at an address. Raises UserError when there is none."""
    whole = f"{address}:{CLIENT_PORT}" if re.fullmatch(r"ray://[^:/]+", address) else address
    problem = connection_problem(whole)
    if problem is None:
        # Ray prints long lines about lost workers; RayPool warns instead
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


def connection_problem(address: str) -> str | None:
    """Return the reason why nothing answers at HOST:PORT or ray://HOST:PORT; None when something
    does, and for addresses of other forms. Ray itself would try for a minute.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        return None
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)


class RayPool(parallel.Pool):
    """A Pool that runs tasks on the cores of a Ray cluster."""

    def __init__(self, ray: ModuleType, num_workers: int | None = None) -> None:
        self.ray = ray
        self.max_tasks = num_workers
        here = os.path.dirname(os.path.dirname(os.path.abspath(bert_gpu.__file__)))
        self.place = dict(folder=os.getcwd(), code=here, version=bert_gpu.__version__)
        self.num_nodes = self.num_cores = self.num_losses = 0
        self.last_look = self.last_warning = -math.inf
        self.has_waited = False
        self._look()

    @property
    def summary(self) -> str:
        """The size of the cluster, for the log."""
        counts = dict(node=self.num_nodes, core=self.num_cores)
        words = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items()]
        return f"on a Ray cluster: {', '.join(words)}"

    def run(
        self,
        function: Callable[[Task, Report], Result],
        tasks: Sequence[Task],
        report: Report,
    ) -> Generator[Result, None, None]:
        ray = self.ray
        call = remote_call(ray)
        # Ray does not open a reference in a list: run_task does, when this package is imported.
        shared = [ray.put(function)]
        waiting = ((pickle.dumps(task), 0) for task in tasks)
        running: dict[object, tuple[bytes, int]] = {}  # {reference: (task, workers it lost)}

        def start(task: bytes, num_losses: int) -> None:
            running[call.remote(self.place, shared, task)] = task, num_losses

        try:
            while True:
                self._look()
                limit = self.max_tasks or TASKS_PER_CORE * self.num_cores
                for unstarted in itertools.islice(waiting, max(0, limit - len(running))):
                    start(*unstarted)
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

    def _look(self) -> None:
        """Count the cluster's nodes and cores, at most once in LOOK_SECONDS."""
        if time.monotonic() - self.last_look < LOOK_SECONDS:
            return
        alive = [node for node in self.ray.nodes() if node["Alive"]]
        self.num_nodes = len(alive)
        num_cores = int(sum(node["Resources"].get("CPU", 0) for node in alive))
        if not num_cores and not self.has_waited:
            warn("the Ray cluster has no node with cores; waiting for one")
        self.has_waited = not num_cores
        self.num_cores = max(1, num_cores)
        self.num_workers = self.max_tasks or self.num_cores
        self.last_look = time.monotonic()

    def _count_loss(self, error: Exception, num_losses: int) -> None:
        """Count the loss of a task's worker, and warn of it at most once in LOOK_SECONDS.
        num_losses: of this task. Raises UserError when these are more than MAX_LOSSES.
        """
        if num_losses > MAX_LOSSES:
            raise UserError(
                f"a task was lost with {num_losses} workers ({type(error).__name__}), "
                "most often because memory ran out",
                "give fewer tasks at a time with --num_workers, then repeat the command",
                setting="ray_address",
            ) from error
        self.num_losses += 1
        if time.monotonic() - self.last_warning >= LOOK_SECONDS:
            warn(
                f"a worker of the Ray cluster was lost ({type(error).__name__}), and its "
                f"unfinished tasks are repeated; tasks lost so far: {self.num_losses}"
            )
            self.last_warning = time.monotonic()

    def _cancel(self, running: list[object]) -> None:
        """Cancel tasks and wait until they have ended, so that none of them writes to the job's
        folder after its lock is released. running: Ray's references to the tasks.
        """
        if not running:
            return
        # These errors mean that the cluster, and so its tasks, are gone.
        with contextlib.suppress(ConnectionError, self.ray.exceptions.RayError):
            for reference in running:
                self.ray.cancel(reference, force=True)
            self.ray.wait(running, num_returns=len(running), timeout=CANCEL_SECONDS)


def remote_call(ray: ModuleType) -> Any:
    """Return the remote function that runs a task. Ray sends the function's code to the nodes,
    because a node may lack this package.
    """

    # The annotations are pickled too, so they name no class of this package.
    def call(place: dict, function: list, task: bytes) -> tuple:
        import os
        import socket
        import sys

        try:
            os.chdir(place["folder"])  # names of files may be relative
        except OSError:
            problem = f"node {socket.gethostname()} has no folder {place['folder']}"
            return (problem, "all nodes must have the same files under the same paths"), None, None
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


# {Ray's reference: function}: the one function that this worker process has fetched
functions: dict[object, Callable[[Any, Report], object]] = {}


def run_task(
    place: dict[str, str], function: list[Any], task: bytes
) -> tuple[None, object, tuple[int, ...]]:
    """Run a task on this node. Return (None for no problem, result, (bytes of text, tokens)).

    Args:
      place: RayPool.place. function: [Ray's reference to the function]. task: pickled.

    Raises the errors of the function; a UserError gets the name of the node.
    """
    node = socket.gethostname()
    if bert_gpu.__version__ != place["version"]:
        raise UserError(
            f"node {node} has bert-gpu {bert_gpu.__version__}, and this is {place['version']}",
            "install the same version there",
            setting="ray_address",
        )
    [reference] = function
    if reference not in functions:
        import ray

        if not functions:
            parallel.use_one_thread()
        functions.clear()
        functions[reference] = ray.get(reference)
    done = [0, 0]
    lock = contextlib.nullcontext()  # only one thread adds to `done`
    try:
        result = parallel.call_counted(functions[reference], done, lock, pickle.loads(task))
        return None, result, tuple(done)
    except UserError as error:
        raise UserError(str(error), where=f"node {node}") from error
