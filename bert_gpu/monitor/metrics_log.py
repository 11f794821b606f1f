"""Logs a run's metrics to all its sinks at once. To add a sink, add an entry to SINKS."""

import contextlib
import math
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.base.run_names import METRICS
from bert_gpu.monitor.config import MonitorConfig
from bert_gpu.monitor.hardware import HardwareSampler
from bert_gpu.monitor.sinks.console import ConsoleSink
from bert_gpu.monitor.sinks.interface import JsonLines, Sink
from bert_gpu.monitor.sinks.mlflow import MLflow, check_mlflow
from bert_gpu.monitor.sinks.tensorboard import TensorBoard
from bert_gpu.monitor.sinks.wandb import WeightsAndBiases, check_wandb
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.metrics import ENERGY, cut_lines, read_lines
from bert_gpu.runs.shared_folder import SharedFolder

SECRETS = re.compile(r"(KEY|TOKEN|PASSWORD|SECRET)$")  # how names of secrets in the environment end


class Opening(typing.NamedTuple):
    """Arguments of `open_log`, from which each sink is opened."""

    folder: RunFolder | SharedFolder
    config: MonitorConfig
    settings: Mapping[str, object]
    step: int | None
    console: Console | None
    num_steps: int | None
    losses: Sequence[str]


class SinkSpec(typing.NamedTuple):
    """The functions that open and check a sink of metrics.

    open: function that returns the Sink, or None where it is not configured. check: function of the
    config, called before anything is written; raises UserError when a configured sink lacks a
    package or an account.
    """

    open: Callable[[Opening], Sink | None]
    check: Callable[[MonitorConfig], object] = lambda config: None


def open_lines(opening: Opening) -> Sink:
    cut_lines(opening.folder.metrics, opening.step)
    return JsonLines(opening.folder.metrics)


def open_tensorboard(opening: Opening) -> Sink | None:
    return (
        TensorBoard(opening.folder.tensorboard, opening.step, opening.losses)
        if opening.config.tensorboard
        else None
    )


def open_wandb(opening: Opening) -> Sink | None:
    project = opening.config.wandb_project
    return (
        None
        if project is None
        else WeightsAndBiases(opening.folder.path, project, opening.settings)
    )


def open_mlflow(opening: Opening) -> Sink | None:
    experiment = opening.config.mlflow_experiment
    return None if experiment is None else MLflow(opening.folder.path, experiment, opening.settings)


def open_console(opening: Opening) -> Sink | None:
    return (
        None
        if opening.console is None
        else ConsoleSink(opening.console, opening.num_steps, opening.losses)
    )


SINKS = {
    METRICS: SinkSpec(open_lines),
    "TensorBoard": SinkSpec(open_tensorboard),
    "Weights & Biases": SinkSpec(
        open_wandb,
        lambda config: config.wandb_project is None or check_wandb(config.wandb_project),
    ),
    "MLflow": SinkSpec(
        open_mlflow,
        lambda config: config.mlflow_experiment is None or check_mlflow(config.mlflow_experiment),
    ),
    # last, so that warnings of the other sinks are printed before the bar is drawn
    "console": SinkSpec(open_console),
}
NEEDED = METRICS  # a run does not begin without this sink


def check_monitoring(config: MonitorConfig) -> None:
    """Raise UserError when a configured sink needs a package that is not installed, or an account
    that is not set up. Write nothing.
    """
    for spec in SINKS.values():
        spec.check(config)


def open_log(
    folder: RunFolder | SharedFolder,
    config: MonitorConfig,
    settings: Mapping[str, object],
    *,
    step: int | None = None,
    console: Console | None = None,
    num_steps: int | None = None,
    losses: Sequence[str] = (),
    gpus: Sequence[int | str] = (),
    warn: Callable[[str], None],
) -> "Log":
    """Return the Log of a run, with every configured sink open.

    Args:
      folder: exists already. settings: {setting: value} that services show with the run, without
        keys and passwords.
      step: the restored step, None for a new run; lines of later steps are dropped.
      console: shows the metrics; None = they are not shown. num_steps: of the run, None = it ends
        by time. losses: names of the parts of "loss"; validation calls a part NAME_loss.
      gpus: from nvml.visible_gpus, empty on the CPU. warn: called with the text of a problem that
        does not end the run.
    """
    lines = read_lines(folder.metrics) if step is not None else []
    # also of lines that the sinks drop: their steps are done again, but their energy is spent
    earlier = lines[-1][0].get(ENERGY) if lines else 0.0
    opening = Opening(folder, config, settings, step, console, num_steps, losses)
    # an error that ends the run, such as one of metrics.jsonl, closes the sinks that are open
    with contextlib.ExitStack() as stack:
        sinks = {}
        for name, spec in SINKS.items():
            try:
                sink = spec.open(opening)
            except Exception as error:  # each library has errors of its own
                if name == NEEDED or isinstance(error, UserError):
                    raise
                warn(f"{name}: cannot be opened ({reason(error)}); the run continues without it")
                continue
            if sink is not None:
                sinks[name] = stack.enter_context(contextlib.closing(sink))
        sampler = HardwareSampler(gpus, warn, earlier)
        stack.pop_all()
    return Log(sinks, sampler, warn)


def no_log(warn: Callable[[str], None]) -> "Log":
    """Return a Log without sinks."""
    return Log({}, HardwareSampler([], warn), warn)


class Log:
    """Writes to all sinks of a run, {name: Sink}. A sink that fails does not end the training: the
    failure is reported once, and a sink that cannot recover is dropped.
    """

    def __init__(
        self,
        sinks: Mapping[str, Sink],
        sampler: HardwareSampler,
        warn: Callable[[str], None],
    ) -> None:
        self.sinks = dict(sinks)
        self.sampler = sampler
        self.warn = warn
        self.failing: set[str] = set()  # names of sinks whose failure is already reported

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Write {metric: value} of a step to all sinks; a value that is not finite is written as
        None.
        """
        values = {
            name: value if value is None or math.isfinite(value) else None
            for name, value in values.items()
        }
        self._each(lambda sink: sink.write(step, values))

    def advance(self, step: int, share: float, seconds_left: float | None) -> None:
        """Show the progress of the run; arguments as for Sink.advance."""
        self._each(lambda sink: sink.advance(step, share, seconds_left), clears_failure=False)

    def hardware(self) -> dict[str, float]:
        """Return {reading: value since the last call} of hardware.READINGS, and the energy; {}
        without GPUs.
        """
        return self.sampler.read() | self.energy()

    def energy(self) -> dict[str, float]:
        """Return {ENERGY: kWh of the run until now}, {} when it is not known."""
        return self.sampler.energy()

    def cut(self, step: int) -> None:
        """Drop the lines after `step` from the sinks that can drop lines, for a rollback."""
        self._each(lambda sink: sink.cut(step))

    def close(self, is_complete: bool = True) -> None:
        """Close all sinks. is_complete: whether the run has done all its steps."""
        self.sampler.close()
        for sink in self.sinks.values():
            sink.is_complete = is_complete
        self._each(lambda sink: sink.close(), "lines not written yet are lost")

    def _each(
        self,
        act: Callable[[Sink], object],
        outcome: str | None = None,
        clears_failure: bool = True,
    ) -> None:
        """Call act(sink) for each sink. outcome: the consequence of a failure, for the warning.
        clears_failure: whether a successful call shows that a sink that failed works again.
        """
        for name, sink in list(self.sinks.items()):
            try:
                act(sink)
            except Exception as error:  # each library has errors of its own
                if name not in self.failing or outcome:
                    rest = outcome or (
                        "its lines wait in memory"
                        if sink.recovers
                        else "the run continues without it"
                    )
                    self.warn(f"{name}: cannot be written ({reason(error)}); {rest}")
                self.failing.add(name)
                if not sink.recovers:
                    del self.sinks[name]
            else:
                if clears_failure:
                    self.failing.discard(name)


def reason(error: Exception, environ: Mapping[str, str] = os.environ) -> str:
    """Return the text of a sink's error on one line, without keys and passwords."""
    text = " ".join(str(error).split()) or type(error).__name__
    for name, value in environ.items():
        if SECRETS.search(name) and len(value) >= 6:
            text = text.replace(value, "***")
    return re.sub(r"(?<=://)[^/@\s]+@", "***@", text)[:120]
