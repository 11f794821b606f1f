"""The data job on a Ray cluster of this machine's processes: the bytes of the local job, also when
a node is lost or the job is interrupted.
"""

import collections
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile

import psutil
import pytest

from bert_gpu.__main__ import main as command
from tests.cli.pretraining import HANG_SECONDS, ROOT, wait_until

pytestmark = pytest.mark.long

ENVIRONMENT = os.environ | dict(PYTHONPATH=str(ROOT), RAY_USAGE_STATS_ENABLED="0")
FLAGS = ["--num_shards=6", "--vocab_size=300", "--dupe_factor=2", "--drop_duplicates"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Node:
    """A node of a cluster on this machine, with one core: `ray start` and its processes. Returns
    when the cluster knows it. place: folder; log: what it prints.
    """

    STARTED = "Ray runtime started."

    def __init__(self, place, *flags):
        sizes = ["--num-cpus=1", "--object-store-memory=80000000"]  # bytes; Ray's least is 75 MB
        call = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *sizes]
        descriptor, name = tempfile.mkstemp(".log", "node-", place)
        self.log = pathlib.Path(name)
        with open(descriptor, "w") as output:
            self.process = subprocess.Popen(
                [*call, "--node-ip-address=127.0.0.1", *flags],
                env=ENVIRONMENT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(self.process, lambda: self.STARTED in self.log.read_text())
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}\n{self.log.read_text()}") from error

    def processes(self):
        try:
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self):
        """As when a machine loses power: all processes at once."""
        while processes := self.processes():
            for process in processes:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            self.process.wait()
            psutil.wait_procs(processes, timeout=HANG_SECONDS)


class Cluster:
    """The head node, and those that are added. address: for --ray_address."""

    def __init__(self, folder):
        port, client_port = free_port(), free_port()
        self.folder, self.address = folder, f"127.0.0.1:{port}"
        ports = [f"--port={port}", f"--ray-client-server-port={client_port}"]
        own = [f"--temp-dir={folder}", "--include-dashboard=false"]
        self.nodes = [Node(folder, "--head", *ports, *own)]

    def add_node(self):
        self.nodes.append(Node(self.folder, f"--address={self.address}"))
        return self.nodes[-1]

    def live_nodes(self):
        """All nodes; fails when one has ended."""
        for node in self.nodes:
            assert node.process.poll() is None, f"a node has ended\n{node.log.read_text()}"
        return self.nodes


@pytest.fixture(scope="module")
def cluster():
    # A socket's path has 107 bytes at most, and Ray's own part of it, with a time and a process's
    # number, takes 66 of them: the folder of a test may be too long.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        made = Cluster(folder)
        try:
            yield made
        finally:
            for node in made.nodes:
                node.kill()


@pytest.fixture(scope="module")
def text(tmp_path_factory, sample_text):
    """The sample twice, and one of its documents once more."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    with open(sample_text) as file:
        content = file.read().strip() + "\n\n"
    again = content.partition("\n\n")[0]
    path.write_text(content + content.replace("the", "the other") + again + "\n")
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """What the local job writes."""
    folder = tmp_path_factory.mktemp("whole")
    assert command(["bert-gpu", "data", *flags(text, folder)]) == 0
    return content(folder)


def flags(text, folder):
    return [f"--input_file={text}", f"--output_file={folder}/x.tfrecord", "--quiet", *FLAGS]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".x.lock"}


class Job:
    """A data job on the cluster; its shards from the third on are held until `go`. Its folder's
    name is relative to where it runs.
    """

    def __init__(self, place, text, address):
        self.scratch, self.folder = place / "scratch", place / "out"
        self.scratch.mkdir()
        call = [sys.executable, "-m", "tests.cli.held_ray_job", str(self.scratch)]
        self.process = subprocess.Popen(
            [*call, *flags(text, "out"), f"--ray_address={address}"],
            cwd=place,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # a job in the background of a shell would ignore it
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def begun(self):
        """[(split, index, process id)] of the shards that workers have begun, once for each."""
        parts = [path.name.split("-") for path in self.scratch.glob("begun-*")]
        return [(split, int(index), int(pid)) for _, split, index, pid in parts]

    def held_by(self, node):
        ids = {process.pid for process in node.processes()}
        return [index for split, index, pid in self.begun() if index >= 2 and pid in ids]

    def wait_until(self, has_happened):
        try:
            wait_until(self.process, has_happened)
        except AssertionError as error:
            self.process.kill()
            raise AssertionError("\n".join([str(error), *self.process.communicate()])) from error

    def end(self):
        """(exit code, standard output, standard error)."""
        (self.scratch / "go").touch()
        said = self.process.communicate(timeout=HANG_SECONDS)
        return self.process.returncode, *said


def test_a_node_is_killed_in_the_middle(cluster, text, whole, tmp_path):
    """The result is that of the local job, and nobody writes a shard twice but those that the node
    had not finished.
    """
    second = cluster.add_node()
    job = Job(tmp_path, text, cluster.address)
    job.wait_until(lambda: all(job.held_by(node) for node in cluster.live_nodes()))
    lost = job.held_by(second)
    second.kill()
    code, out, problems = job.end()
    assert (code, out) == (0, ""), problems
    (warning,) = problems.splitlines()
    assert re.fullmatch(
        r"warning: a worker of the Ray cluster was lost \(\w+\), and its .*tasks lost so far: 1",
        warning,
    )
    assert content(job.folder) == whole
    times = collections.Counter((split, index) for split, index, _ in job.begun())
    assert len(lost) == 1 and len(times) == 7
    assert {shard: count for shard, count in times.items() if count > 1} == {("train", lost[0]): 2}


@pytest.mark.parametrize("signum, expected", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_job_goes_on_here_or_there(cluster, text, whole, tmp_path, signum, expected):
    """Its tasks have ended before it does; what is whole stays."""
    job = Job(tmp_path, text, cluster.address)
    job.wait_until(lambda: job.held_by(cluster.nodes[0]))
    (worker,) = {psutil.Process(pid) for *_, pid in job.begun()}
    os.killpg(job.process.pid, signum)
    out, error = job.process.communicate(timeout=HANG_SECONDS)
    assert (job.process.returncode, out) == (expected, "")
    # Ctrl-C is answered where the end takes longer
    assert all(line.startswith("warning: SIGINT: ") for line in error.splitlines())
    assert not psutil.wait_procs([worker], timeout=HANG_SECONDS)[1]
    kept = {path: path.stat().st_ino for path in job.folder.glob("x-*.tfrecord")}
    assert len(kept) >= 2 and not (job.folder / "dataset.json").exists()
    assert command(["bert-gpu", "data", *flags(text, job.folder)]) == 0
    assert content(job.folder) == whole
    assert {path: path.stat().st_ino for path in kept} == kept


def test_what_is_wrong_on_a_node_is_one_line(cluster, text, tmp_path):
    (tmp_path / "text.txt").write_bytes(text.read_bytes())
    job = Job(tmp_path, tmp_path / "text.txt", cluster.address)
    job.wait_until(lambda: job.held_by(cluster.nodes[0]))
    (tmp_path / "text.txt").unlink()
    code, _, problems = job.end()
    assert code == 2, problems
    (line,) = problems.splitlines()
    assert line.startswith(f"node {socket.gethostname()}: ")
    assert "text.txt: changed while it was being read" in line
