"""Finds the processes that train together: a Cluster from TF_CONFIG or from Slurm's variables, None
where this process trains alone.

Every worker gets the same list of addresses and its own index in it. TensorFlow is needed only to
parse Slurm's lists of nodes.
"""

import dataclasses
import json
import os
import re
import socket
from collections.abc import Mapping

from bert_gpu.base.errors import UserError

# The jobs of TF_CONFIG whose tasks train; where there is a chief, it is worker 0.
TRAINING_JOBS = ("chief", "worker")
SECONDS_TO_ANSWER = 2.0  # time limit of a connection to a worker's port
SLURM_FIRST_PORT = 15000
SLURM_PORTS = 10000


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a job.

    addresses: "host:port" of each worker. index: index of this process among the workers. variable:
    the environment variable that names the workers.
    """

    addresses: tuple[str, ...]
    index: int
    variable: str = dataclasses.field(default="TF_CONFIG", compare=False)

    def __len__(self) -> int:
        return len(self.addresses)

    def first_unreachable(self) -> tuple[int, str] | None:
        """Return (index, reason) of the first other worker to whose address no connection can be
        made, None when all workers can be reached.
        """
        for index, address in enumerate(self.addresses):
            host, _, port = address.rpartition(":")
            if index == self.index:
                continue
            try:
                socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
            except (socket.gaierror, UnicodeError):
                return index, "its host name does not resolve here"
            except OSError as error:
                return index, f"nothing answers there ({error.strerror or 'no answer'})"
        return None


def find_cluster(environ: Mapping[str, str] = os.environ) -> Cluster | None:
    """Return the Cluster to which this process belongs, None when it is the only worker. TF_CONFIG
    takes precedence over Slurm's variables. Raises UserError when the variables describe a cluster
    that cannot train.
    """
    if environ.get("TF_CONFIG"):
        cluster = from_tf_config(environ["TF_CONFIG"])
    elif environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        cluster = from_slurm(environ)
    else:
        return None
    return cluster if cluster is not None and len(cluster) > 1 else None


def from_tf_config(text: str) -> Cluster | None:
    """Return the Cluster that TF_CONFIG's value `text` describes, None when this process is to
    train alone. Raises UserError when the value is not valid.
    """

    def problem(description: str) -> UserError:
        return UserError(
            f"TF_CONFIG={text[:100]}: {description}",
            "correct it, or unset the environment variable",
        )

    try:
        content = json.loads(text)
        jobs = content.get("cluster", {})
        jobs = {job: addresses[:] for job, addresses in jobs.items()}  # [:] raises for JSON objects
        task = content.get("task", {})
        kind = task.get("type")
        index = task.get("index", 0)
    except (ValueError, AttributeError, TypeError, LookupError, RecursionError) as error:
        raise problem(f"cannot be read ({str(error)[:80]})") from error
    if isinstance(index, str) and re.fullmatch(r"\d{1,9}", index, re.ASCII):
        index = int(index)
    workers = [(job, place) for job in TRAINING_JOBS for place in range(len(jobs.get(job, ())))]
    addresses = [jobs[job][place] for job, place in workers]
    known_jobs = (*TRAINING_JOBS, "evaluator", None)
    unknown_jobs = [str(job)[:30] for job in (*jobs, kind) if job not in known_jobs]
    bad_addresses = [str(address)[:40] for address in addresses if not is_address(address)]
    problems = {
        "parameter servers and evaluators are not supported, only chief and worker are": (
            "ps" in jobs or kind in ("ps", "evaluator")
        ),
        f"the job {''.join(unknown_jobs[:1])!r} is not known, only chief and worker are": bool(
            unknown_jobs
        ),
        f"the task's index, {str(index)[:30]}, must be an integer": type(index) is not int,
        f"{''.join(bad_addresses[:1])!r} must be host:port with a port from 1 to 65535": bool(
            bad_addresses
        ),
        "two workers have the same address": len({*map(str, addresses)}) < len(addresses),
    }
    for description, is_problem in problems.items():
        if is_problem:
            raise problem(description)
    if not workers:
        if task:
            raise problem('it has a task, but no "cluster" with a "chief" or "worker"')
        return None
    if (kind, index) not in workers:
        if len(workers) == 1 and kind is None:
            return None
        raise problem(f"its task, {kind} {str(index)[:30]}, is not in the cluster")
    return Cluster(tuple(addresses), workers.index((kind, index)))


def is_address(value: object) -> bool:
    """Return whether a value is a text "host:port", or "[IPv6]:port"."""
    match = re.fullmatch(r"(\[[\w.:%]+\]|[^\s:/\[\]]+):(\d{1,5})", str(value), re.ASCII)
    return isinstance(value, str) and match is not None and 1 <= int(match[2]) <= 65535


def from_slurm(environ: Mapping[str, str]) -> Cluster:
    """Return the Cluster of the tasks of a Slurm step, in Slurm's order.

    TensorFlow's SlurmClusterResolver does not serve here, because it sorts the hosts by name: Slurm
    counts node9 before node10, and a worker must listen at the address at which the others look for
    it. Ports are computed from the number of the job, so that two jobs on a node use different
    ones.
    """
    from tensorflow.python.distribute.cluster_resolver import slurm_cluster_resolver as slurm

    try:
        hosts = slurm.expand_hostlist(environ["SLURM_STEP_NODELIST"])
        tasks = slurm.expand_tasks_per_node(environ["SLURM_STEP_TASKS_PER_NODE"])
        job = int(environ["SLURM_JOB_ID"])
        index = int(environ["SLURM_PROCID"])
        num_tasks = int(environ["SLURM_STEP_NUM_TASKS"])
    except (KeyError, ValueError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(
            f"SLURM_STEP_NUM_TASKS={environ['SLURM_STEP_NUM_TASKS']}: the other "
            f"variables of the step cannot be read ({reason[:120]})",
            "start the workers with srun, or set TF_CONFIG",
        ) from error
    if not 0 <= index < num_tasks:
        raise UserError(
            f"SLURM_PROCID={index}: must be from 0 to {num_tasks - 1}, by SLURM_STEP_NUM_TASKS",
            "start the workers with srun, or set TF_CONFIG",
        )
    port = SLURM_FIRST_PORT + job % SLURM_PORTS
    addresses = tuple(
        f"{host}:{port + place}"
        for host, number in zip(hosts, tasks, strict=False)
        for place in range(number)
    )
    if len(addresses) != num_tasks:
        raise UserError(
            f"SLURM_STEP_NUM_TASKS={num_tasks}: SLURM_STEP_NODELIST and "
            f"SLURM_STEP_TASKS_PER_NODE give {len(addresses)} tasks",
            "start the workers with srun --distribution=block",
        )
    return Cluster(addresses, index, "SLURM_STEP_NUM_TASKS")
