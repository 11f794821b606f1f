"""The loop: steps, and what happens between them (logging, validation, checkpoints, signals)."""

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Callable

import numpy as np

from bert_gpu.data.pipeline import prefetch
from bert_gpu.optim.schedules import rate_factor
from bert_gpu.settings import Settings, setting

MAX_BAD_STEPS = 25  # in a row; float16's loss scale needs at most 24 to come down from its highest


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopConfig(Settings):
    """How long a run is, and what it does on the way."""

    num_train_steps: int | None = setting(None, "Optimizer updates of the run. Wins over --num_train_epochs.", low=1)
    num_train_epochs: float = setting(40.0, "Passes over the training records.", above=0.0)
    log_steps: int = setting(10, "Steps between two lines of metrics.jsonl.", low=1)
    save_checkpoints_steps: int = setting(1000, "Steps between two checkpoints; one more is written at the end.", low=1)
    keep_checkpoint_max: int = setting(5, "Newest checkpoints that are kept.", low=1)
    eval_steps: int | None = setting(None, "Steps between two validations. Default: at every checkpoint. Also before the first.", low=1)


@dataclasses.dataclass(frozen=True)
class Job:
    """What the loop runs.

    step(batch, rate, step) -> metrics; batches_at(records) -> iterator of global batches from that position on;
    validate() -> {name: value} or None; read() -> {name: array} for a checkpoint; peak_rate is that of the global batch.
    """

    step: Callable
    batches_at: Callable
    validate: Callable | None
    read: Callable
    num_steps: int
    global_batch_size: int
    peak_rate: float
    schedule: object


class Diverged(Exception):
    """The numbers of a run are no longer finite. The message says since when, and what to try."""


def train(job, config, progress, folder, log, console, caught):
    """Runs until job.num_steps, or until a signal is caught; saves checkpoints on the way and the last step of all.

    Args:
      job: Job. config: LoopConfig. progress: Progress to start from; kept up to date. folder: RunFolder. log: MetricsLog.
      console: Console. caught: list that signal numbers arrive in, of `watch_signals`.

    Raises Diverged.
    """
    window = Window(progress.seconds)
    bar = console.progress(job.num_steps, progress.step, "training")
    eval_steps = config.eval_steps or config.save_checkpoints_steps

    def validate():
        if job.validate is None:
            return
        with window.paused():
            values = job.validate()
        log.write(progress.step, {f"eval_{name}": value for name, value in values.items()})
        console.say(f"validation at step {progress.step}: " + "  ".join(f"{k} {format_metric(v)}" for k, v in values.items()))
        if progress.step and values.get("loss") is not None and not math.isfinite(values["loss"]):
            raise Diverged(f"the validation loss of step {progress.step} is not finite; lower --learning_rate")

    if progress.step == 0:
        validate()
    batches = prefetch(job.batches_at(progress.records))
    with contextlib.closing(batches), contextlib.closing(bar):
        while progress.step < job.num_steps and not caught:
            batch = next(batches)
            rate = job.peak_rate * rate_factor(progress.step, job.num_steps, job.schedule)
            window.add(job.step(batch, rate, progress.step), batch)
            progress.step += 1
            progress.records += job.global_batch_size
            is_last = progress.step == job.num_steps
            saves = progress.step % config.save_checkpoints_steps == 0 or is_last
            if progress.step % config.log_steps == 0 or saves or caught:
                values = window.close() | {"learning_rate": rate, "global_batch_size": job.global_batch_size}
                log.write(progress.step, values)
                bar.update(progress.step, f"loss {format_metric(values['loss'])}  {values['tokens_per_second'] or 0:,.0f} tokens/s")
                if window.num_bad >= MAX_BAD_STEPS or (is_last and window.num_bad):
                    raise Diverged(f"the last {window.num_bad} steps up to {progress.step} were not finite; lower --learning_rate")
            if progress.step % eval_steps == 0 or is_last:
                validate()
            if saves or caught:
                with window.paused():
                    progress.seconds = window.seconds
                    folder.save(progress, job.read(), config.keep_checkpoint_max)


class Window:
    """Metrics and rates since the last log line. Steps are not waited for until the window closes.

    num_bad counts the steps in a row, up to now, that were skipped because they were not finite. The first step of a session traces and
    compiles; its metrics count, its time does not enter the rates.
    """

    def __init__(self, seconds):
        self.spent, self.since, self.is_warm, self.num_bad = seconds, time.monotonic(), False, 0
        self.clear()

    def clear(self):
        self.metrics, self.num_timed, self.num_sequences, self.num_tokens, self.num_padded = [], 0, 0, 0, 0
        self.opened = self.seconds

    @property
    def seconds(self):
        """Seconds spent in training, all sessions, without what was paused."""
        return self.spent + time.monotonic() - self.since

    @contextlib.contextmanager
    def paused(self):
        now = time.monotonic()
        yield
        self.since += time.monotonic() - now

    def add(self, metrics, batch):
        self.metrics.append(metrics)
        if not self.is_warm:
            metrics["loss"].numpy()
            self.is_warm, self.opened = True, self.seconds
            return
        self.num_timed += 1
        self.num_sequences += len(batch["input_mask"])
        self.num_tokens += int(np.sum(batch["input_mask"]))
        self.num_padded += int(np.size(batch["input_mask"]))

    def close(self):
        """The means over the window's finite steps, the rates of all GPUs together, and a new window."""
        values = {name: np.array([step[name].numpy() for step in self.metrics], np.float64) for name in self.metrics[0]}
        elapsed = self.seconds - self.opened
        is_finite = values.pop("skipped") == 0
        good = np.flatnonzero(is_finite)
        self.num_bad = len(is_finite) - 1 - good[-1] if len(good) else self.num_bad + len(is_finite)
        means = {name: float(np.mean(value[is_finite])) if is_finite.any() else None for name, value in values.items()}
        totals = dict(steps=self.num_timed, sequences=self.num_sequences, tokens=self.num_tokens, padded_tokens=self.num_padded)
        rates = {f"{name}_per_second": total / elapsed if self.num_timed else None for name, total in totals.items()}
        result = means | dict(skipped_steps=int(np.sum(~is_finite)), seconds=self.seconds) | rates
        self.clear()
        return result


def format_metric(value):
    return "none" if value is None or not math.isfinite(value) else f"{value:.4f}"


@contextlib.contextmanager
def watch_signals():
    """Gives a list that gets the number of the first SIGINT or SIGTERM; a second one ends the process at once."""
    caught, previous = [], {}

    def handle(number, frame):
        if caught:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        caught.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # not in the main thread: nothing to watch
            previous[number] = signal.signal(number, handle)
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def num_steps_of(config, num_records, global_batch_size):
    """Steps of a run: as told, or the whole epochs' records divided by the global batch, rounded up."""
    if config.num_train_steps is not None:
        return config.num_train_steps
    return max(1, math.ceil(config.num_train_epochs * num_records / global_batch_size))
