"""Shows a run's metrics to a person: a bar in a terminal, a line with a time stamp for each log
step elsewhere, and a line for each validation.
"""

import time
from collections.abc import Collection, Iterator, Mapping

from bert_gpu.base.console import (
    Console,
    broken,
    columns_of,
    format_metric,
    format_seconds,
    is_terminal,
)
from bert_gpu.monitor.sinks.interface import Sink
from bert_gpu.monitor.sinks.tensorboard import EVAL

# {name: (label, format, importance)} of the metrics in a line, in their order; where there is too
# little room, the least important are left out. Losses and accuracies of the task follow "loss".
FIELDS = {
    "loss": ("loss {}", "{:.4f}", 9),
    "learning_rate": ("lr {}", "{:.3g}", 4),
    "tokens_per_second": ("{} tokens/s", "{:,.0f}", 8),
    "mfu": ("MFU {}", "{:.1%}", 5),
    "input_wait": ("input wait {}", "{:.1%}", 3),
    "gpu_utilization": ("GPU {} %", "{:.0f}", 2),
}
LOSS_IMPORTANCE, ACCURACY_IMPORTANCE = 6, 7


class ConsoleSink(Sink):
    """A sink that prints to the console.

    Args of the constructor: num_steps: the run's steps, None = it ends by time. losses: names of
    the metrics that are parts of "loss".
    """

    recovers = True

    def __init__(
        self, console: Console, num_steps: int | None, losses: Collection[str] = ()
    ) -> None:
        self.console = console
        self.num_steps = num_steps
        self.losses = losses
        self.bar = console.share_bar("training")
        # where the bar is on the terminal but messages go to a file, the file gets log lines
        self.has_lines = self.bar is None or not is_terminal(console.stream)
        self.share = 0.0
        self.seconds_left: float | None = None

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        if any(name.startswith(EVAL) for name in values):
            texts = [
                f"{name.removeprefix(EVAL)} {format_metric(value)}"
                for name, value in values.items()
                if name.startswith(EVAL)
            ]
            self._say(f"validation at step {step}: {'  '.join(texts)}")
            return
        self.seconds_left = values.get("remaining_seconds")
        fields = list(fields_of(values, self.losses))
        if self.bar is not None:
            self.bar.show(self.share, self._count(step), self._left(), fields)
        if self.has_lines:
            texts = [f"step {self._count(step)}", *(text for _, text in fields)]
            self._say("  ".join([*texts, f"{self._left()} left"]))

    def advance(self, step: int, share: float, seconds_left: float | None) -> None:
        self.share = share
        self.seconds_left = seconds_left
        if self.bar is not None:
            self.bar.show(share, self._count(step), self._left())

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def _say(self, text: str) -> None:
        if self.has_lines:
            has_stamp = self.console.in_program  # the program's logger adds a time stamp
            self.console.say(text if has_stamp else time.strftime("%Y-%m-%d %H:%M:%S  ") + text)
        else:
            self.console.say(broken(text, columns_of(self.console.stream)))

    def _count(self, step: int) -> str:
        return str(step) if self.num_steps is None else f"{step}/{self.num_steps}"

    def _left(self) -> str:
        return "?" if self.seconds_left is None else format_seconds(self.seconds_left)


def fields_of(
    values: Mapping[str, float | None], losses: Collection[str]
) -> Iterator[tuple[int, str]]:
    """Yield (importance, text) for each metric of a log line, {metric: value}, that the console
    shows. losses: names of the metrics that are parts of "loss".
    """
    for name, (label, form, importance) in FIELDS.items():
        if name in values and (values[name] is not None or name == "loss"):
            number = "none" if values[name] is None else form.format(values[name])
            yield importance, label.format(number)
        if name == "loss":
            for part in [name for name in values if name in losses]:
                yield LOSS_IMPORTANCE, f"{part} {format_metric(values[part])}"
            for part in [name for name in values if name.endswith("_accuracy")]:
                yield ACCURACY_IMPORTANCE, f"{part} {format_metric(values[part])}"
