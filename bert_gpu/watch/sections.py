"""Collects the facts for a report on several runs: its sections, the runs that are trials of one
fine-tuning, differences between runs, and summaries.

Pretraining and each task of fine-tuning have sections of their own, because their metrics are not
comparable. Fine-tunings that differ in nothing but the seed are trials, and form one entry.
"""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from bert_gpu.base.console import format_seconds
from bert_gpu.base.errors import shortened
from bert_gpu.runs.cost import COSTS, describe_cost
from bert_gpu.watch.charts import Chart
from bert_gpu.watch.run_data import Run, finite_values

TRIAL_SETTINGS = ("seed", "output_dir", "init_checkpoint")  # settings in which trials may differ
NOT_COMPARED = ("output_dir", "training_data.made.tokenizer")  # omitted from `differences`
ACTIVITIES = ("training", "input", "compiling", "validation", "saving")  # that take a run's time
# colours of Okabe & Ito (2008) for colour-blind readers, except yellow, too faint on white
COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#6b6b6b",
)  # fmt: skip
# (the least number that is written with the unit, the value of the unit, its letter)
UNITS = ((1e12, 1e12, "T"), (1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """A name in the legend of a section, for one run or for several trials. index: number that
    gives its colour and dashes.
    """

    index: int
    name: str
    runs: Sequence[Run]


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """Runs whose metrics are comparable. title: heading of the section."""

    title: str
    entries: tuple[Entry, ...]

    @property
    def runs(self) -> list[Run]:
        return [run for entry in self.entries for run in entry.runs]


def sections_of(runs: Sequence[Run]) -> list[Section]:
    """Return the sections for `runs`: pretraining, if any run is one, then each task of
    fine-tuning.
    """
    pretraining = [[run] for run in runs if run.kind == "pretrain"]
    groups: dict[str, list[list[Run]]] = {"Pretraining": pretraining} if pretraining else {}
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        if run.kind == "finetune":
            tasks.setdefault(str(run.record["settings"]["task_name"]), []).append(run)
    groups |= {f"Fine-tuning: {task}": trials_of(task_runs) for task, task_runs in tasks.items()}
    return [
        Section(title, tuple(Entry(*entry) for entry in zip(count(), group_names(by), by)))
        for title, by in groups.items()
    ]


def trials_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Return fine-tunings in groups: each group has the trials of one fine-tuning, or a single run.

    Trials have the same settings except TRIAL_SETTINGS, and names that are equal except for a
    number at the end. The setting init_checkpoint, a hash of the model that a run starts from,
    cannot tell models apart: the hash covers the new head, whose values depend on the seed.
    """
    groups: dict[tuple[str, frozenset[tuple[str, str]]], list[Run]] = {}
    for run in runs:
        settings = frozenset(
            (name, value)
            for name, value in run.settings.items()
            if name not in TRIAL_SETTINGS and not is_provenance(name)
        )
        groups.setdefault((stem(run.name), settings), []).append(run)
    trials = []
    for group in groups.values():
        seeds, starts = (
            {run.settings.get(name) for run in group} for name in ("seed", "init_checkpoint")
        )
        is_one = len(seeds) == len(group) or len(starts) == 1
        trials += [group] if is_one else [[run] for run in group]
    return trials


def stem(name: str) -> str:
    """Return the name of a run without its number as a trial: "a" for "a-2" and "a/trial-2"."""
    start = name.rstrip("0123456789").rstrip("-_. /")
    return start.removesuffix("/trial") or name


def is_provenance(name: str) -> bool:
    return name.startswith("versions.") or name == "git_commit"


def group_names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return a name for each group of runs: the name of a single run, or the common part of the
    names of trials; where two names would be equal, each is the list of its runs' names.
    """
    names = [group[0].name if len(group) == 1 else stem(group[0].name) for group in groups]
    is_distinct = len(set(names)) == len(names)
    return names if is_distinct else [", ".join(run.name for run in group) for group in groups]


def differences(section: Section) -> dict[str, list[str]]:
    """Return {setting: list of its text in each entry} of the settings that differ between the
    entries of a section. The text is "" where an entry lacks the setting, and lists all values for
    trials.
    """
    names = dict.fromkeys(name for run in section.runs for name in run.settings)
    rows = {
        name: [
            ", ".join(dict.fromkeys(run.settings.get(name, "") for run in entry.runs))
            for entry in section.entries
        ]
        for name in names
        if name not in NOT_COMPARED
    }
    return {name: texts for name, texts in rows.items() if len(set(texts)) > 1}


def summary(run: Run) -> dict[str, str]:
    """Return {term: text} of the facts on a run, for its card on the page."""
    plan = run.record
    settings = plan["settings"]
    labels = settings.get("labels")
    classes = f", {len(labels)} labels" if isinstance(labels, list) and labels else ""
    cost = {name: value for name in COSTS if (value := run.last(name)) is not None}
    seconds = [value for table in ("train", "valid") if (value := run.last("seconds", table))]
    facts = {
        "model": describe_model(run),
        "task": run.kind == "finetune" and f"{settings['task_name']}{classes}",
        "F1 is of": run.kind == "finetune" and settings.get("positive_label"),
        "data": describe_data(run),
        "steps": f"{run.last_step:,}"
        + text_of(plan["num_steps"], " of {:,}".format)
        + text_of(run.last("epoch"), " ({:.3g} epochs)".format),
        "batch, rate": f"{plan['global_batch_size']:,} sequences, {settings.get('optimizer')} at "
        f"{plan['learning_rate']:g}",
        "real tokens": text_of(cost.get("tokens"), short_number),
        "cost": run.kind == "pretrain" and len(cost) == len(COSTS) and describe_cost(cost),
        "time": text_of(max(seconds, default=None), format_seconds),
        "left": run.state == "running" and text_of(run.last("remaining_seconds"), format_seconds),
        "devices": f"{plan['num_replicas']} x {plan['device_kind']}, {settings.get('precision')}",
        "last loss": text_of(run.last("loss"), "{:.4g}".format),
        "best validation": best_validation(run),
    }
    return {term: text for term, text in facts.items() if text}


def text_of(value: float | None, form: Callable[[float], str]) -> str:
    return "" if value is None else form(value)


def summary_of_entry(entry: Entry) -> dict[str, str]:
    """Return {term: text} of the facts on an entry, for its card on the page. The state is that of
    the first run that has not finished. For trials, facts that hold for one trial only are left
    out, and results are means.
    """
    states = [run.state for run in entry.runs if run.state != "finished"]
    facts = {"state": next(iter(states), "finished")} | summary(entry.runs[0])
    if len(entry.runs) > 1:
        for term in ("time", "last loss", "best validation"):
            facts.pop(term, None)
        seeds = ", ".join(str(run.record["settings"].get("seed", "?")) for run in entry.runs)
        facts["trials"] = f"{len(entry.runs)}, seeds {shortened(seeds)}"
    for name in dict.fromkeys(name for run in entry.runs for name in run.results):
        values = [run.results[name] for run in entry.runs if name in run.results]
        spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
        facts[name] = f"{np.mean(values):.4g}{spread}"
    return facts


def describe_model(run: Run) -> str:
    settings = run.record["settings"]
    name = run.record["free"].get("model")
    layers, width = (settings.get(key) for key in ("num_hidden_layers", "hidden_size"))
    words = (
        name if isinstance(name, str) else "",
        "" if None in (layers, width) else f"{layers} layers x {width}",
        text_of(run.num_parameters, lambda number: f"{short_number(number)} parameters"),
    )
    return ", ".join(filter(None, words))


def describe_data(run: Run) -> str:
    settings = run.record["settings"]
    free = run.record["free"]
    data = settings.get("training_data")
    files = data.get("files") if isinstance(data, dict) else None
    files = files if isinstance(files, list) else []
    counts = [file[1] for file in files if isinstance(file, list) and len(file) > 1]
    length = settings.get("max_seq_length") or free.get("max_seq_length")
    words = (
        str(free.get("input_file") or free.get("data_dir") or free.get("train_file") or ""),
        f"{sum(counts):,} rows" if files and all(type(n) is int for n in counts) else "",
        f"{length} tokens each" if length else "",
    )
    return ", ".join(filter(None, words))


def best_validation(run: Run) -> str | None:
    loss = run.valid.get("loss")
    if loss is None or not np.isfinite(loss).any():
        return None
    best = int(np.nanargmin(loss))
    return f"{loss[best]:.4g} at step {run.valid['step'][best]:,.0f}"


def time_shares(run: Run) -> dict[str, float]:
    """Return {activity: share of a run's time}; {} for a run that has not logged the shares."""
    names = [name for name in ACTIVITIES if f"time_{name}" in run.train]
    hours = np.diff(run.train["hours"], prepend=0.0)
    shares = np.array([run.train[f"time_{name}"] for name in names])
    is_known = np.isfinite(shares).all(axis=0) & np.isfinite(hours) & (hours > 0)
    if not names or not is_known.any():
        return {}
    total = shares[:, is_known] @ hours[is_known] / hours[is_known].sum()
    return dict(zip(names, map(float, total), strict=True))


def last_values(run: Run, chart: Chart) -> str:
    """Return the last value of a chart's metric in training, and the last and the best in
    validation, as text.
    """
    validation = finite_values(run.valid.get(chart.valid or "", ()))
    best = max if chart.sign > 0 else min
    values = {
        "last": run.last(chart.train or ""),
        "validation": run.last(chart.valid or "", "valid"),
        "best": best(validation, default=None) if chart.sign else None,
    }
    return ", ".join(
        f"{name} {short_number(value * chart.factor)}"
        for name, value in values.items()
        if value is not None
    )


def trial_metrics(section: Section) -> dict[str, dict[Entry, list[float]]]:
    """Return {metric: {entry: value of each of its runs that has the metric}} of the results of a
    section's fine-tunings.
    """
    names = dict.fromkeys(name for run in section.runs for name in run.results)
    return {
        name: {
            entry: values
            for entry in section.entries
            if (values := [run.results[name] for run in entry.runs if name in run.results])
        }
        for name in names
    }


def short_number(value: float) -> str:
    """Return a number as text with up to four digits, rounded before the unit is chosen: 20k, 1.5M,
    0.25.
    """
    value = float(f"{value:.4g}")
    for limit, unit, letter in UNITS:
        if limit <= abs(value) < 1e16:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"
