"""Logs a run's metrics to all its sinks at once: the table SINKS, to which a new one adds a row."""

import contextlib
import math
import os
import re
import typing
from collections.abc import Callable

from bert_gpu.base.errors import UserError
from bert_gpu.base.run_names import METRICS
from bert_gpu.monitor.hardware import HardwareSampler
from bert_gpu.monitor.sinks.console import ConsoleSink
from bert_gpu.monitor.sinks.interface import JsonLines
from bert_gpu.monitor.sinks.mlflow import MLflow, check_mlflow
from bert_gpu.monitor.sinks.tensorboard import TensorBoard
from bert_gpu.monitor.sinks.wandb import WeightsAndBiases, check_wandb
from bert_gpu.runs.metrics import cut_lines

SECRETS = re.compile(r"(KEY|TOKEN|PASSWORD|SECRET)$")  # ends of names in the environment


class Row(typing.NamedTuple):
    """A sink in the table.

    open: function of the arguments of `open_log` -> Sink, or None where it is not wanted. check:
    function of a MonitorConfig, called before anything is written: raises UserError when the sink
    that it asks for lacks a package or an account.
    """

    open: Callable
    check: Callable = lambda config: None


def open_lines(folder, config, settings, *, step, **others):
    cut_lines(folder.metrics, step)
    return JsonLines(folder.metrics)


def open_tensorboard(folder, config, settings, *, step, losses, **others):
    return TensorBoard(folder.tensorboard, step, losses) if config.tensorboard else None


def open_wandb(folder, config, settings, **others):
    if config.wandb_project is None:
        return None
    return WeightsAndBiases(folder.path, config.wandb_project, settings)


def open_mlflow(folder, config, settings, **others):
    if config.mlflow_experiment is None:
        return None
    return MLflow(folder.path, config.mlflow_experiment, settings)


def open_console(folder, config, settings, *, console, num_steps, losses, **others):
    return console and ConsoleSink(console, num_steps, losses)


SINKS = {
    METRICS: Row(open_lines),
    "TensorBoard": Row(open_tensorboard),
    "Weights & Biases": Row(
        open_wandb,
        lambda config: config.wandb_project is None or check_wandb(config.wandb_project),
    ),
    "MLflow": Row(
        open_mlflow,
        lambda config: config.mlflow_experiment is None or check_mlflow(config.mlflow_experiment),
    ),
    # last, so that what the others warn of stands before the bar
    "console": Row(open_console),
}
NEEDED = METRICS  # without which a run does not begin


def check_monitoring(config):
    """UserError when a MonitorConfig needs a package that is not installed, or a service has no
    account here. Writes nothing.
    """
    for row in SINKS.values():
        row.check(config)


def open_log(
    folder, config, settings, *, step=None, console=None, num_steps=None, losses=(), gpus=(), warn
):
    """The Log of a run.

    Args:
      folder: RunFolder, created. config: MonitorConfig. settings: dict that services show with the
        run; no key or password is among them.
      step: the restored step, None for a new run; what was written after it is dropped.
      console: Console, None = nobody watches. num_steps: of the run, None = by time. losses: names
        of the parts of "loss" that validation calls NAME_loss.
      gpus: of nvml.visible_gpus, empty on the CPU. warn: takes the text of a problem that does not
        end the run.
    """
    about = dict(step=step, console=console, num_steps=num_steps, losses=losses)
    # when metrics.jsonl, or what the user has to correct, cannot be opened, all are closed again
    with contextlib.ExitStack() as opened:
        sinks = {}
        for name, row in SINKS.items():
            try:
                sink = row.open(folder, config, settings, **about)
            except Exception as error:  # each library has errors of its own
                if name == NEEDED or isinstance(error, UserError):
                    raise
                warn(f"{name}: cannot be opened ({reason(error)}); the run goes on without it")
                continue
            if sink is not None:
                sinks[name] = opened.enter_context(contextlib.closing(sink))
        sampler = HardwareSampler(gpus, warn)
        opened.pop_all()
    return Log(sinks, sampler, warn)


def no_log(warn):
    """A Log that writes nowhere."""
    return Log({}, HardwareSampler([], warn), warn)


class Log:
    """All sinks of a run, {name: Sink}, as one. A sink that fails does not end the training: the
    failure is reported once, and a sink that cannot recover is dropped.
    """

    def __init__(self, sinks, sampler, warn):
        self.sinks, self.sampler, self.warn, self.failing = dict(sinks), sampler, warn, set()

    def write(self, step, values):
        """Writes {name: value} of a step; values are Python numbers, or None when missing or not
        finite.
        """
        values = {
            name: value if value is None or math.isfinite(value) else None
            for name, value in values.items()
        }
        self._each(lambda sink: sink.write(step, values))

    def advance(self, step, share, left):
        """Tells those who watch how far the run is; as for Sink."""
        self._each(lambda sink: sink.advance(step, share, left), clears_failure=False)

    def hardware(self):
        """{name: value} of hardware.READINGS since the last call, {} without GPUs."""
        return self.sampler.read()

    def cut(self, step):
        """Drops what was written after `step`, where the sink can, for a rollback."""
        self._each(lambda sink: sink.cut(step))

    def close(self):
        self.sampler.close()
        self._each(lambda sink: sink.close(), "lines not written yet are lost")

    def _each(self, act, outcome=None, clears_failure=True):
        """Calls act(sink) for each. outcome: of a failure. clears_failure: whether a call that
        succeeds means that the sink works again.
        """
        for name, sink in list(self.sinks.items()):
            try:
                act(sink)
            except Exception as error:  # each library has errors of its own
                if name not in self.failing or outcome:
                    rest = outcome or (
                        "its lines wait in memory"
                        if sink.recovers
                        else "the run goes on without it"
                    )
                    self.warn(f"{name}: cannot be written ({reason(error)}); {rest}")
                self.failing.add(name)
                if not sink.recovers:
                    del self.sinks[name]
            else:
                if clears_failure:
                    self.failing.discard(name)


def reason(error, environ=os.environ):
    """What a sink's error says, on one line, without keys and passwords."""
    text = " ".join(str(error).split()) or type(error).__name__
    for name, value in environ.items():
        if SECRETS.search(name) and len(value) >= 6:
            text = text.replace(value, "***")
    return re.sub(r"(?<=://)[^/@\s]+@", "***@", text)[:120]
