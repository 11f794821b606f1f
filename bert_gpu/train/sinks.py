"""The sinks of a run's metrics besides TensorBoard (events.py): metrics.jsonl and Weights & Biases.

A sink has write(step, values), cut(step), which drops everything after a step, and close().
`recovers` says whether it can be written to after an error.
"""

import dataclasses
import json
import os
import secrets

from bert_gpu.files import parse_json, write_text
from bert_gpu.settings import (
    Settings,
    UserError,
    fields_of,
    setting,
    shortened,
    stored_complaint,
)


class JsonLines:
    """metrics.jsonl: flushed lines {"step": step, name: value, ...}. A value that is missing or not
    finite is null.

    A line is written completely or not at all: on a full disk, lines wait in memory and are retried
    with the next one.
    """

    recovers = True

    def __init__(self, path):
        self.path, self.waiting = path, b""
        self.file = open(path, "ab", buffering=0)

    def write(self, step, values):
        """Appends a line after those that wait. OSError when they cannot be written now."""
        self.waiting += (json.dumps({"step": step} | values, allow_nan=False) + "\n").encode()
        self._flush()

    def cut(self, step):
        """Drops the lines after `step`, also those that wait. OSError when there is no disk space
        for it; then the file keeps them.
        """
        self.waiting = b"".join(
            line
            for line in self.waiting.splitlines(keepends=True)
            if json.loads(line)["step"] <= step
        )
        self.file.close()
        try:
            cut_lines(self.path, step)
        finally:
            self.file = open(self.path, "ab", buffering=0)

    def close(self):
        try:
            self._flush()
        finally:
            self.file.close()

    def _flush(self):
        size, done = self.file.seek(0, os.SEEK_END), 0
        try:
            while done < len(self.waiting):
                done += self.file.write(self.waiting[done:])
        except OSError:
            self.file.truncate(size)
            raise
        self.waiting = b""


def cut_lines(path, step):
    """Drops from a metrics.jsonl, if there is one, the lines after `step` (all for None) and a last
    line that was not finished. UserError as for `read_lines`.
    """
    if os.path.exists(path):
        kept = [line for at, line in read_lines(path) if step is not None and at <= step]
        write_text(path, "".join(kept))


def read_lines(path):
    """[(step, line)] of a metrics.jsonl, [] without one; without the last line if it has no end.

    UserError names the line, and the key, when it is not what `JsonLines` writes.
    """
    if not os.path.exists(path):
        return []
    lines, found = [], []
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line for line in file if line.endswith("\n")]
    for number, line in enumerate(lines, 1):
        try:
            values = parse_json(line)
            problem = None if isinstance(values, dict) else "not a JSON object"
            problem = problem or metrics_complaint(values)
        except (ValueError, RecursionError) as error:
            problem = f"not valid JSON ({error})"
        if problem:
            raise UserError(
                f"{path}, line {number}: {problem}; correct or remove it, or --overwrite"[:300]
            )
        found.append((values["step"], line))
    return found


def metrics_complaint(values):
    """What is wrong with the object of a line, None when nothing is."""
    if "step" not in values:
        return "has no 'step'"
    if problem := stored_complaint(values, fields_of(MetricsLine)):
        return problem
    odd = [
        name
        for name, value in values.items()
        if value is not None and type(value) not in (int, float)
    ]
    return f"{odd[0][:60]}={shortened(values[odd[0]])}: must be a number or null" if odd else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsLine(Settings):
    """What a line of metrics.jsonl holds besides metrics, which are numbers or null."""

    step: int = setting(0, "Finished steps.", low=0)


class WeightsAndBiases:
    """A run of Weights & Biases (--wandb_project). OUTPUT_DIR/wandb/run_id.txt holds its id, so
    that a resumed run keeps it.

    Weights & Biases deletes nothing, and its own step never decreases. So the x-axis is a metric,
    "step": after a resume or a rollback the steps since that checkpoint appear a second time, and
    none is lost. Offline runs stay in OUTPUT_DIR/wandb until `wandb sync`; a resumed one has
    several folders with one id.

    Args:
      path: OUTPUT_DIR. project: name of the project. mode: "online" | "offline". settings: dict
        that is shown with the run.
    """

    recovers = False

    def __init__(self, path, project, mode, settings):
        wandb = check_wandb(project, mode)
        folder = os.path.join(path, "wandb")
        os.makedirs(folder, exist_ok=True)
        self.id = stored_id(os.path.join(folder, "run_id.txt"))
        try:
            self.run = wandb.init(
                project=project,
                id=self.id,
                name=os.path.basename(os.path.abspath(path)),
                dir=path,
                mode=mode,
                resume="allow" if mode == "online" else None,
                config=settings,
                allow_val_change=True,
                settings=wandb.Settings(console="off", silent=True),
            )
        except (wandb.Error, ValueError) as error:
            raise cannot_start(project, error) from error
        # the last row written, and the step of ours that it belongs to
        self.row, self.step = self.run.step - 1, None
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def write(self, step, values):
        if step != self.step:
            self.row, self.step = max(step, self.row + 1), step
        self.run.log(
            {"step": step} | {name: value for name, value in values.items() if value is not None},
            step=self.row,
        )

    def cut(self, step):
        """Keeps what was sent; later steps get new rows."""
        self.step = None

    def close(self):
        self.run.finish()


def check_wandb(project, mode):
    """The module wandb, logged in when mode is online (on a terminal it asks for the key).
    UserError when the package or the key is missing.
    """
    if mode == "offline":  # otherwise it sends usage statistics
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        import wandb
    except ImportError as error:
        raise UserError(
            f"--wandb_project={project}: needs the package wandb; "
            "pip install 'bert-gpu[wandb]', or leave it out"
        ) from error
    if mode == "online":
        try:
            wandb.login()
        except wandb.Error as error:
            raise cannot_start(project, error) from error
    return wandb


def cannot_start(project, error):
    reason = " ".join(str(error).split())[:120]
    return UserError(
        (
            f"--wandb_project={project}: Weights & Biases cannot start "
            f"({reason}); run `wandb login`, or use --wandb_mode=offline"
        )[:300]
    )


def stored_id(path):
    """The id in a file, which is created when missing."""
    if not os.path.exists(path):
        write_text(path, secrets.token_hex(4) + "\n")
    with open(path, encoding="utf-8") as file:
        return file.read().strip()
