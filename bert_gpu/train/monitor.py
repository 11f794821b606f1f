"""Where numbers go: a progress bar or plain lines on the console, and all sinks of a run (metrics.jsonl, TensorBoard, W&B) as one log."""

import contextlib
import logging
import math
import sys
import time

import tqdm

from bert_gpu.train.events import TensorBoard
from bert_gpu.train.hardware import HardwareSampler
from bert_gpu.train.sinks import JsonLines, WeightsAndBiases, check_wandb, cut_lines


class Console:
    """What a person reads. quiet: warnings only. Progress is a bar on a terminal, and a line now and then elsewhere."""

    def __init__(self, quiet=False, stream=None):
        self.quiet, self.stream = quiet, stream or sys.stdout

    def say(self, text):
        if not self.quiet:
            print(text, file=self.stream, flush=True)

    def warn(self, text):
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def progress(self, total, start, what, unit="step"):
        if self.quiet:
            return NoProgress()
        return Bar(total, start, what, unit) if sys.stderr.isatty() else Lines(self, total, start, what, unit)


class LogConsole(Console):
    """For a program that uses the library: what would be printed goes to Python's logger "bert_gpu", and there are no bars."""

    def __init__(self):
        super().__init__(quiet=True)
        self.logger = logging.getLogger("bert_gpu")

    def say(self, text):
        self.logger.info(text)

    def warn(self, text):
        self.logger.warning(text)


class NoProgress:
    def update(self, done, text=""):
        pass

    def close(self):
        pass


class Bar:
    """A tqdm bar: share done, time left, and a few numbers."""

    def __init__(self, total, start, what, unit):
        self.bar = tqdm.tqdm(total=total, initial=start, desc=what, unit=unit, dynamic_ncols=True, smoothing=0.1)

    def update(self, done, text=""):
        if text:
            self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(done - self.bar.n)

    def close(self):
        self.bar.close()


class Lines:
    """For logs: the same as lines, at most one every ten seconds, and the last."""

    SECONDS = 10.0

    def __init__(self, console, total, start, what, unit):
        self.console, self.total, self.what, self.unit = console, total, what, unit
        self.start, self.started, self.shown, self.latest = start, time.monotonic(), time.monotonic(), ""
        self.is_done = False

    def update(self, done, text=""):
        now = time.monotonic()
        self.latest = text or self.latest
        is_last = done == self.total and not self.is_done
        if (now - self.shown >= self.SECONDS or is_last) and done > self.start:
            left = (now - self.started) / (done - self.start) * (self.total - done)
            self.console.say(f"{self.what}: {self.unit} {done}/{self.total}  {self.latest}  {format_seconds(left)} left")
            self.shown, self.is_done = now, is_last

    def close(self):
        pass


def format_seconds(seconds):
    seconds = int(seconds)
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}" if seconds >= 3600 else f"{seconds // 60}:{seconds % 60:02d}"


def check_monitoring(config):
    """UserError when what a MonitorConfig asks for is not installed, or W&B has no key to log in with. Writes nothing."""
    if config.wandb_project is not None:
        check_wandb(config.wandb_project, config.wandb_mode)


def open_log(folder, config, *, step, settings, gpus, warn):
    """The Log of a run.

    Args:
      folder: checkpoint.RunFolder, created. config: MonitorConfig. settings: dict that Weights & Biases shows with the run.
      step: the restored one, None for a new run. What was written after it is dropped.
      gpus: of hardware.visible_gpus, [] on the CPU. warn: takes the text of a problem that does not end the run.
    """
    cut_lines(folder.metrics, step)
    with contextlib.ExitStack() as opened:  # what is open when one of them cannot be opened is closed again
        sinks = [opened.enter_context(contextlib.closing(JsonLines(folder.metrics)))]
        if config.tensorboard:
            sinks.append(opened.enter_context(contextlib.closing(TensorBoard(folder.tensorboard, step))))
        if config.wandb_project is not None:
            sink = WeightsAndBiases(folder.path, config.wandb_project, config.wandb_mode, settings)
            sinks.append(opened.enter_context(contextlib.closing(sink)))
        sampler = HardwareSampler(gpus if config.hardware_seconds else [], config.hardware_seconds, warn)
        opened.pop_all()
    return Log(sinks, sampler, warn)


class Log:
    """All sinks of a run as one. A sink that fails does not end the training: it is told once, and is left out if it cannot recover."""

    def __init__(self, sinks, sampler, warn):
        self.sinks, self.sampler, self.warn, self.troubled = list(sinks), sampler, warn, set()

    def write(self, step, values):
        """Writes {name: value} of a step; values are Python numbers, or None where a number does not exist or is not finite."""
        values = {name: value if value is None or math.isfinite(value) else None for name, value in values.items()}
        self._each(lambda sink: sink.write(step, values))

    def hardware(self):
        """{name: number} of hardware.READINGS since the last call, {} without GPUs."""
        return self.sampler.read()

    def cut(self, step):
        """Drops what was written after `step`, where that can be done: for a rollback."""
        self._each(lambda sink: sink.cut(step))

    def close(self):
        self.sampler.close()
        self._each(lambda sink: sink.close(), "what was not written yet is lost")

    def _each(self, act, outcome=None):
        for sink in list(self.sinks):
            name = type(sink).__name__
            try:
                act(sink)
            except Exception as error:  # each library has errors of its own
                if name not in self.troubled or outcome:
                    rest = outcome or ("its lines wait in memory" if sink.recovers else "the run goes on without it")
                    self.warn(f"{name}: cannot be written ({' '.join(str(error).split())[:120]}); {rest}")
                self.troubled.add(name)
                if not sink.recovers:
                    self.sinks.remove(sink)
            else:
                self.troubled.discard(name)
