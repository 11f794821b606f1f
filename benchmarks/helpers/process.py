"""The parent's side of a measurement: starts a process for each variant, sends it requests, and
ends it when its time is up.

Failed is raised, with the end of its output, when a process fails or does not answer in time;
tables name the failure and continue.
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

HERE = pathlib.Path(__file__).resolve().parent  # a system is a script here, named SYSTEM.py
TORCH = ("hugging_face", "inference_hugging_face", "finetuning_hugging_face")
WITHOUT_TENSORFLOW = (*TORCH, "ahead_compiler")


def tensorflow_environment(environ=os.environ):
    """Return the environment of a process with TensorFlow: bert_gpu's own settings, and the
    bert_gpu of this checkout.
    """
    variables = dict(environ)
    environment.prepare(variables)
    path = [str(ROOT), *filter(None, [variables.get("PYTHONPATH")])]
    return variables | dict(PYTHONPATH=":".join(path))


def clean_environment(environ=os.environ):
    """Return the environment of a PyTorch process: without TensorFlow's variables and without the
    libraries put first for TensorFlow. TFGPU_HOME, if set, names the folder of those libraries;
    otherwise PYTHONPATH and LD_LIBRARY_PATH are dropped entirely.
    """
    home = environ.get("TFGPU_HOME")
    variables = {
        name: value for name, value in environ.items() if not name.startswith(("TF_", "XLA_"))
    }
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH"):
        parts = [part for part in variables.pop(name, "").split(":") if part]
        if home:
            parts = [part for part in parts if not part.startswith(home)]
        if parts and (home or name == "PATH"):
            variables[name] = ":".join(parts)
    return variables


def environment_of(system, environ=os.environ):
    """Return the environment of a system's process."""
    make = clean_environment if system in WITHOUT_TENSORFLOW else tensorflow_environment
    return make(environ)


class Peer:
    """One process that serves a Trainer (serve.py). python: the interpreter; None = this one.
    settings: of its Trainer. seconds: time limit to start; None = the caller waits with `ready`.
    more: further environment variables.
    """

    def __init__(self, system, settings, python=None, seconds=300.0, more=None):
        self.settings = settings
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python or sys.executable, str(HERE / f"{system}.py"), json.dumps(settings)],
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
        """Wait until the process has started."""
        try:
            self.answer(seconds)
        except Failed:
            self.close()
            raise

    def ask(self, method, patience=600.0, **arguments):
        """Call a method of the Trainer and return its result. Raises Failed when there is none
        within `patience` seconds.
        """
        self.send(method, **arguments)
        return self.answer(patience)

    def send(self, method, **arguments):
        """Send the request of `ask`, whose result `answer` returns."""
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
        lines = self.errors.read().decode("utf-8", "replace").splitlines()
        lines = [line.strip() for line in lines if line.strip()] or ["nothing printed"]
        errors = [line for line in lines if "rror" in line] or lines
        return f"exit code {self.process.returncode}: {errors[-1][:300]}"

    def close(self):
        """End the process, which holds nothing to save."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):  # it ended before it read a request
            self.process.stdin.close()
        self.process.stdout.close()
        self.selector.close()
        self.errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Workers:
    """Peers of one kind that train together on loopback; `ask` returns the first one's answer."""

    def __init__(self, system, settings, num_workers):
        from bert_gpu.devices.launch import environments

        with contextlib.ExitStack() as stack:
            self.peers = [
                stack.enter_context(Peer(system, settings, seconds=None, more=variables))
                for variables in environments(num_workers, num_gpus=0, environ={})
            ]
            for peer in self.peers:
                peer.ready()
            self.stack = stack.pop_all()

    def ask(self, method, **arguments):
        for peer in self.peers:
            peer.send(method, **arguments)
        return [peer.answer() for peer in self.peers][0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()


class Race:
    """Variants in processes that stay warm and take turns. python: of the systems with PyTorch.

    results: {name: result}; a variant that failed has {"error": reason} and no process any more.
    """

    def __init__(self, python):
        self.python = python
        self.peers = {}
        self.results = {}

    def start(self, name, system, settings, prepare):
        """Start the process of a variant; its result is prepare(process)."""
        if system in TORCH and self.python is None:
            self.results[name] = dict(error="no environment with torch: give --oracle_python")
            return
        try:
            python = self.python if system in TORCH else None
            self.peers[name] = Peer(system, settings, python)
            self.results[name] = prepare(self.peers[name])
        except Failed as problem:
            self.drop(name, str(problem))

    def turn(self, act):
        """Call act(name, process, result) for each variant in turn, which adds to the result."""
        for name, peer in list(self.peers.items()):
            try:
                act(name, peer, self.results[name])
            except Failed as problem:
                self.drop(name, str(problem))

    def drop(self, name, error=None):
        """End the process of a variant; with an error, that is its result."""
        if error is not None:
            self.results[name] = dict(error=error)
        if name in self.peers:
            self.peers.pop(name).close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in list(self.peers):
            self.drop(name)


def median_step(turns):
    """Return the median of the turns' seconds per step."""
    return statistics.median(turn["step_seconds"] for turn in turns)
