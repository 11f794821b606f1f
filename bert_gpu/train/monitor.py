"""Logs a run's metrics to all its sinks (metrics.jsonl, TensorBoard, W&B) at once."""

import contextlib
import math

from bert_gpu.train.events import TensorBoard
from bert_gpu.train.hardware import HardwareSampler
from bert_gpu.train.sinks import JsonLines, WeightsAndBiases, check_wandb, cut_lines


def check_monitoring(config):
    """UserError when a MonitorConfig needs a package that is not installed, or W&B has no API key.
    Writes nothing.
    """
    if config.wandb_project is not None:
        check_wandb(config.wandb_project, config.wandb_mode)


def open_log(folder, config, *, step, settings, gpus, warn, losses=()):
    """The Log of a run.

    Args:
      folder: checkpoint.RunFolder, created. config: MonitorConfig. settings: dict that Weights &
        Biases shows with the run.
      step: the restored step, None for a new run. Later lines are dropped.
      gpus: of hardware.visible_gpus, [] on the CPU. warn: takes the text of a problem that does not
        end the run. losses: as for TensorBoard.
    """
    cut_lines(folder.metrics, step)
    # when one sink cannot be opened, the others are closed again
    with contextlib.ExitStack() as opened:
        sinks = [opened.enter_context(contextlib.closing(JsonLines(folder.metrics)))]
        if config.tensorboard:
            sink = TensorBoard(folder.tensorboard, step, losses)
            sinks.append(opened.enter_context(contextlib.closing(sink)))
        if config.wandb_project is not None:
            sink = WeightsAndBiases(folder.path, config.wandb_project, config.wandb_mode, settings)
            sinks.append(opened.enter_context(contextlib.closing(sink)))
        sampler = HardwareSampler(
            gpus if config.hardware_seconds else [], config.hardware_seconds, warn
        )
        opened.pop_all()
    return Log(sinks, sampler, warn)


class Log:
    """All sinks of a run as one. A sink that fails does not end the training: the failure is
    reported once, and a sink that cannot recover is dropped.
    """

    def __init__(self, sinks, sampler, warn):
        self.sinks, self.sampler, self.warn, self.troubled = list(sinks), sampler, warn, set()

    def write(self, step, values):
        """Writes {name: value} of a step; values are Python numbers, or None when missing or not
        finite.
        """
        values = {
            name: value if value is None or math.isfinite(value) else None
            for name, value in values.items()
        }
        self._each(lambda sink: sink.write(step, values))

    def hardware(self):
        """{name: value} of hardware.READINGS since the last call, {} without GPUs."""
        return self.sampler.read()

    def cut(self, step):
        """Drops what was written after `step`, where the sink can, for a rollback."""
        self._each(lambda sink: sink.cut(step))

    def close(self):
        self.sampler.close()
        self._each(lambda sink: sink.close(), "lines not written yet are lost")

    def _each(self, act, outcome=None):
        for sink in list(self.sinks):
            name = type(sink).__name__
            try:
                act(sink)
            except Exception as error:  # each library has errors of its own
                if name not in self.troubled or outcome:
                    rest = outcome or (
                        "its lines wait in memory"
                        if sink.recovers
                        else "the run goes on without it"
                    )
                    self.warn(
                        f"{name}: cannot be written ({' '.join(str(error).split())[:120]}); {rest}"
                    )
                self.troubled.add(name)
                if not sink.recovers:
                    self.sinks.remove(sink)
            else:
                self.troubled.discard(name)
