"""The parent's side of a measurement: starts a variant's process, sends it requests, and ends it
when its time is up.

When a process fails or does not answer in time, Failed is raised with the end of its output; tables
name the failure and continue.
"""

import contextlib
import json
import os
import pathlib
import selectors
import statistics
import subprocess
import sys
import tempfile
import time

from bert_gpu.base import environment

from . import ROOT
from .command import Failed

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = dict(
    ours="ours.py",
    scaling_ours="scaling_ours.py",
    garden="model_garden.py",
    hugging_face="hugging_face.py",
    inference_ours="inference_ours.py",
    inference_hugging_face="inference_hugging_face.py",
    finetuning_ours="finetuning_ours.py",
    finetuning_hugging_face="finetuning_hugging_face.py",
    ahead_lowering="ahead_lowering.py",
    ahead_compiler="ahead_compiler.py",
    programs_jax="programs_jax.py",
)
WITHOUT_TENSORFLOW = (
    "hugging_face",
    "inference_hugging_face",
    "finetuning_hugging_face",
    "ahead_compiler",
    "programs_jax",
)


def tensorflow_environment(environ=os.environ):
    """The environment of any process with TensorFlow: bert_gpu's own settings, and the bert_gpu of
    this checkout.
    """
    found = dict(environ)
    environment.prepare(found)
    return found | dict(PYTHONPATH=":".join([str(ROOT), *filter(None, [found.get("PYTHONPATH")])]))


def clean_environment(environ=os.environ):
    """The environment of a PyTorch process: without TensorFlow's variables and without the
    libraries put first for TensorFlow. TFGPU_HOME, if set, names the folder of those libraries;
    otherwise PYTHONPATH and LD_LIBRARY_PATH are dropped entirely.
    """
    home = environ.get("TFGPU_HOME")
    kept = {name: value for name, value in environ.items() if not name.startswith(("TF_", "XLA_"))}
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH"):
        parts = [part for part in kept.pop(name, "").split(":") if part]
        if home or name == "PATH":
            parts = [part for part in parts if not home or not part.startswith(home)]
            kept |= {name: ":".join(parts)} if parts else {}
    return kept


def environment_of(system, environ=os.environ):
    """The environment of a system's process."""
    return (
        clean_environment(environ)
        if system in WITHOUT_TENSORFLOW
        else tensorflow_environment(environ)
    )


class Peer:
    """One process of serve.py's kind. python: the interpreter; None = this one. settings: of its
    Trainer. seconds: time limit to start; None = do not wait until it has, `ready` does. more:
    further environment variables.
    """

    def __init__(self, system, settings, python=None, seconds=300.0, more=None):
        self.settings, self.errors = settings, tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python or sys.executable, str(HERE / SCRIPTS[system]), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment_of(system) | (more or {}),
        )
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.pending = b""
        if seconds is not None:
            self.ready(seconds)

    def ready(self, seconds=300.0):
        """Waits until the process has started."""
        try:
            self.answer(seconds)
        except Failed:
            self.close()
            raise

    def ask(self, method, patience=600.0, **arguments):
        """Calls a method of the Trainer and returns its result. Failed when there is none within
        `patience` seconds.
        """
        self.send(method, **arguments)
        return self.answer(patience)

    def send(self, method, **arguments):
        """The first half of `ask`, whose second half is `answer`."""
        try:
            self.process.stdin.write(json.dumps({"do": method, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None

    def answer(self, seconds=600.0):
        deadline = time.monotonic() + seconds
        while b"\n" not in self.pending:
            if not self.selector.select(max(0.0, deadline - time.monotonic())):
                raise Failed(f"no answer within {seconds:.0f} s")
            block = os.read(self.process.stdout.fileno(), 1 << 16)
            if not block:
                raise Failed(self._last_words())
            self.pending += block
        line, self.pending = self.pending.split(b"\n", 1)
        return json.loads(line)

    def _last_words(self):
        self.process.wait()
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - 4000))
        lines = [
            line.strip()
            for line in self.errors.read().decode("utf-8", "replace").splitlines()
            if line.strip()
        ]
        said = next(
            (line for line in reversed(lines) if "Error" in line or "error" in line),
            lines[-1] if lines else "nothing printed",
        )
        return f"exit code {self.process.returncode}: {said[:300]}"

    def close(self):
        """Ends the process, which holds nothing to save."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):  # it had ended before it read a request
            self.process.stdin.close()
        self.process.stdout.close()
        self.selector.close()
        self.errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Workers:
    """Peers of one kind that train together, on loopback; `ask` gives the answer of the first."""

    def __init__(self, system, settings, num_workers):
        from bert_gpu.devices.launch import environments

        self.peers = []
        try:
            for more in environments(num_workers, num_gpus=0, environ={}):
                self.peers.append(Peer(system, settings, seconds=None, more=more))
            for peer in self.peers:
                peer.ready()
        except BaseException:
            self.__exit__()
            raise

    def ask(self, method, **arguments):
        for peer in self.peers:
            peer.send(method, **arguments)
        return [peer.answer() for peer in self.peers][0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for peer in self.peers:
            peer.close()


def median_step(turns):
    """Median of the turns' seconds per step."""
    return statistics.median(turn["step_seconds"] for turn in turns)
