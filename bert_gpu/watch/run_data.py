"""Reads the files in a run's folder, also during the run, and never writes there.

The lines of metrics.jsonl become two tables, training and validation, in which every step occurs
once: a run that was killed and resumed, or rolled back, may have written a step a second time, and
then the later line counts.
"""

import bisect
import contextlib
import dataclasses
import functools
import json
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
from numpy.typing import ArrayLike

from bert_gpu.base.errors import UserError, printable, shortened
from bert_gpu.base.files import check_regular, read_json, readable
from bert_gpu.base.locks import ENDED, RUNNING, state_of_holder
from bert_gpu.base.run_names import EVAL_RESULTS, LOCK, METRICS, RUN, VARIABLES
from bert_gpu.base.settings import fields_of
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.metrics import parse_line
from bert_gpu.runs.progress import RUN_ENTRIES, RunRecord

EVAL = "eval_"  # beginning of the names of validation metrics
WEIGHTS = "weights/"  # beginning of the names of weights in a checkpoint
DEPTH = 4  # levels of folders that are searched for runs
NOT_METRICS = ("num_examples", "step")  # keys of eval_results.json that are not metrics
TRIAL = re.compile(r"trial-\d+")  # name of a folder that finetune/sweep.py makes
HUGE = 1e100  # a larger value counts as not finite, because no chart could be scaled to it


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """The content of a run's folder.

    Attributes:
      path: path of the folder.
      name: last part of the path, or more parts where runs would have the same name.
      record: content of run.json.
      train, valid: {name: (n,) float64} of the lines of training and of validation, NaN where a
        line has no value; both have "step", "hours" and "tokens" (NaN when not known). Names in
        `valid` are without "eval_".
      results: {name: number} of the metrics in eval_results.json.
      state: a result of `state_of`.
      num_parameters: number of weights; None = not known.
    """

    path: str
    name: str
    record: dict[str, Any]
    train: dict[str, np.ndarray]
    valid: dict[str, np.ndarray]
    results: dict[str, float]
    state: str
    num_parameters: int | None

    @property
    def kind(self) -> str:
        """Return the kind of the run, "pretrain" or "finetune"."""
        return "finetune" if "task_name" in self.record["settings"] else "pretrain"

    @functools.cached_property
    def settings(self) -> dict[str, str]:
        """Return {name: text} of all settings of the run; a setting b inside a setting a is named
        "a.b".
        """
        record = self.record
        plan = {name: record[name] for name in ("global_batch_size", "num_replicas", "device_kind")}
        return flat(record["free"] | record["settings"] | plan) | flat(
            dict(versions=record["versions"], git_commit=record["git_commit"])
        )

    def last(self, name: str, table: str = "train") -> float | None:
        """Return the last finite value of a metric; None without one. table: "train" or "valid"."""
        values = finite_values(getattr(self, table).get(name, ()))
        return float(values[-1]) if len(values) else None

    @property
    def last_step(self) -> int:
        steps = [table["step"][-1] for table in (self.train, self.valid) if len(table["step"])]
        return int(max(steps)) if steps else 0


def finite_values(values: ArrayLike) -> np.ndarray:
    """Return the finite values of an array."""
    array = np.asarray(values, np.float64)
    return array[np.isfinite(array)]


def flat(content: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return {"a.b": text of the value} of a nested dict, {"a": {"b": value}}; a list becomes
    JSON.
    """
    texts: dict[str, str] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            texts |= flat(value, f"{prefix}{name}.")
        else:
            texts[prefix + name] = as_text(value)
    return texts


def as_text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool | list):
        return shortened(json.dumps(value))
    return f"{value:g}" if isinstance(value, float) else as_name(shortened(value))


def as_name(path: str) -> str:
    """Return a path as one line of text that can be printed and encoded, whatever bytes the path
    contains.
    """
    return printable(path).replace("\n", "\\n").replace("\t", "\\t")


def find_runs(paths: Iterable[str]) -> list[str]:
    """Return the folders of the runs in `paths`: each path is the folder of a run, or a folder with
    runs below it. Raise UserError for a path that is neither.
    """
    runs = []
    for path in paths:
        if not path:
            raise UserError(
                "a folder's name is empty", "name the --output_dir of a run", where="report"
            )
        if not os.path.isdir(path):
            problem = "is not a folder" if os.path.exists(path) else "no such folder"
            raise UserError(problem, "name the --output_dir of a run", where=path[:150])
        below = find_below(path)
        if not below:
            raise UserError(
                f"holds no run (no {RUN}), nor do the folders in it",
                "name the --output_dir of a run",
                where=path[:150],
            )
        runs += below
    return distinct(runs)


def distinct(paths: Iterable[str]) -> list[str]:
    """Return `paths` with each folder only once: where several paths lead to the same folder, a
    path that is no link is preferred.
    """
    by_folder: dict[str, str] = {}
    for path in paths:
        real = os.path.realpath(path)
        if real not in by_folder or os.path.islink(by_folder[real]):
            by_folder[real] = path
    return list(by_folder.values())


def read_whole_runs(paths: Sequence[str], warn: Callable[[str], None]) -> list[Run]:
    """Return the runs in `paths`, as `find_runs` finds them, but without damaged ones below a
    folder: `warn` is called with a text on each of these.

    Raises:
      UserError: a path that is itself a run is damaged, or all runs are.
    """
    runs = []
    problems = {}
    for path in find_runs(paths):
        try:
            runs.append(read_run(path, path))
        except UserError as error:
            problems[path] = error
    real_paths = set(map(os.path.realpath, paths))
    for path, problem in problems.items():
        if not runs or os.path.realpath(path) in real_paths:
            raise problem
    for problem in problems.values():
        warn(f"left out, because it is damaged: {problem}")
    names = names_of([run.path for run in runs])
    return [dataclasses.replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def find_below(path: str, depth: int = DEPTH) -> list[str]:
    """Return folders of runs, sorted: the folder itself, or those at most `depth` levels below it.
    Hidden folders, and those that cannot be read, are left out.
    """
    if os.path.isfile(os.path.join(path, RUN)):
        return [path]
    names = []
    if depth > 0:
        with contextlib.suppress(OSError):
            names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    inside = filter(os.path.isdir, (os.path.join(path, name) for name in names))
    return [run for folder in inside for run in find_below(folder, depth - 1)]


def names_of(paths: Sequence[str]) -> list[str]:
    """Return a name for each path: its last parts, as few as make all names different. If one is a
    trial of a fine-tuning, such as trial-1, names have at least two parts, because only the part
    before names the fine-tuning.
    """
    parts = [as_name(os.path.realpath(path)).split(os.sep) for path in paths]
    names = []
    min_parts = 1 + any(TRIAL.fullmatch(part[-1]) for part in parts)
    for count in range(min_parts, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def read_run(path: str, name: str) -> Run:
    """Return the run in a folder. Raise UserError when one of its files is damaged or cannot be
    read.
    """
    with readable(path):
        record = read_json(
            os.path.join(path, RUN),
            "a run's settings",
            fields_of(RunRecord) | dict(settings={}, free={}, versions={}),
            RUN_ENTRIES,
        )
        train, valid = read_metrics(os.path.join(path, METRICS))
        return Run(
            path=path,
            name=name,
            record=record,
            train=train,
            valid=valid,
            results=read_results(os.path.join(path, EVAL_RESULTS)),
            state=state_of(path, record),
            num_parameters=count_parameters(path),
        )


def state_of(path: str, record: Mapping[str, Any]) -> str:
    """Return the state of a run: "finished", "running", "diverged", "stopped", or "on HOST" where
    the process runs on another host, so that it is not known whether it is alive. Raise UserError
    for a finished run without its whole log.
    """
    if record.get("exported_step") is not None:
        check_ended(os.path.join(path, METRICS))
        return "finished"
    holder = state_of_holder(os.path.join(path, LOCK))
    if holder == RUNNING:
        return RUNNING
    return record.get("ended") or ("stopped" if holder == ENDED else holder)


def check_ended(path: str) -> None:
    """Raise UserError unless a metrics.jsonl exists and ends with a whole line."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)  # raises OSError for an empty file
        if file.read() == b"\n":
            return
    raise UserError(
        "is missing or does not end with a whole line, though the run is finished",
        "restore the file",
        where=path,
    )


def is_validation(line: Iterable[str]) -> bool:
    return any(name.startswith(EVAL) for name in line)


def read_metrics(path: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the tables (training, validation) of a metrics.jsonl: {name: (n,) float64} each, with
    n = 0 when there is no file. Raise UserError for a damaged line; a last line without a line
    break is left out, because it is still being written.
    """
    train_lines: list[dict[str, Any]] = []
    valid_lines: list[dict[str, Any]] = []
    for line in whole_lines(path):
        add_line(train_lines, valid_lines, line)
    train = arrays_of(train_lines)
    valid = {name.removeprefix(EVAL): array for name, array in arrays_of(valid_lines).items()}
    add_axes(train, valid)
    return train, valid


def whole_lines(path: str) -> Iterator[dict[str, object]]:
    """Yield {name: number} of each line of a metrics.jsonl that ends with a line break."""
    if not os.path.exists(path):
        return
    check_regular(path)
    with readable(path), open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield parse_line(line.decode("utf-8", "replace"), f"{path}, line {number}")


def add_line(
    train: list[dict[str, Any]], valid: list[dict[str, Any]], line: dict[str, Any]
) -> None:
    """Add a line to `train` or `valid`, depending on its kind, so that the steps in each list rise.
    A line whose step is not above the last step in its list replaces all lines from its step on,
    because the run returned to an earlier step.
    """
    own = train
    other = valid
    step = line["step"]
    if is_validation(line):
        own, other = other, own
    if own and step <= own[-1]["step"]:
        cut(own, step)
        cut(other, step + 1)
    own.append(line)


def cut(lines: list[dict[str, object]], step: int) -> None:
    """Remove the lines from the step `step` on, in a list of lines whose steps rise."""
    del lines[bisect.bisect_left(lines, step, key=operator.itemgetter("step")) :]


def arrays_of(lines: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return {name: (n,) float64} for n lines, {name: number or None} each; NaN where a line has no
    value.
    """
    names = dict.fromkeys(["step", *(name for line in lines for name in line)])
    return {
        name: np.array([as_float(line.get(name)) for line in lines], np.float64) for name in names
    }


def as_float(value: float | None) -> float:
    """Return a number as a float; NaN for None, and for a number so large that it counts as
    infinite (HUGE).
    """
    return math.nan if value is None or abs(value) > HUGE else float(value)


def add_axes(train: dict[str, np.ndarray], valid: dict[str, np.ndarray]) -> None:
    """Add the columns "hours" and "tokens" to both tables."""
    for table in (train, valid):
        table["hours"] = table.get("seconds", np.full(len(table["step"]), np.nan)) / 3600
    train.setdefault("tokens", np.full(len(train["step"]), np.nan))
    if len(train["step"]) and np.isfinite(train["tokens"]).all():
        steps, tokens = (np.concatenate([[0], train[name]]) for name in ("step", "tokens"))
        valid["tokens"] = np.interp(valid["step"], steps, tokens)
    else:
        valid["tokens"] = np.full(len(valid["step"]), np.nan)


def read_results(path: str) -> dict[str, float]:
    """Return {name: number} of the metrics in an eval_results.json; {} without the file."""
    if not os.path.exists(path):
        return {}
    content = read_json(path, "the results of a fine-tuning")
    return {
        name: float(value)
        for name, value in content.items()
        if type(value) in (int, float) and name not in NOT_METRICS
    }


def count_parameters(path: str) -> int | None:
    """Return the number of weights in a run's newest checkpoint or, without one, in its model/;
    None when neither can be read. Only the headers of files are read.
    """
    folder = RunFolder(path)
    candidates = [
        (os.path.join(folder.checkpoints, f"step-{step:08d}", VARIABLES), WEIGHTS)
        for step in folder.steps()[-1:]
    ]
    for file_path, prefix in [*candidates, (os.path.join(folder.model, "model.safetensors"), "")]:
        with contextlib.suppress(OSError, safetensors.SafetensorError):
            with safetensors.safe_open(file_path, "np") as file:
                return sum(
                    math.prod(file.get_slice(name).get_shape())
                    for name in file.keys()
                    if name.startswith(prefix)
                )
    return None
