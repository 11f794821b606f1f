"""Collects the facts for a report on several runs: its sections, the runs that are trials of one
fine-tuning, differences between runs, and summaries.

Pretraining and each task of fine-tuning have sections of their own, because their metrics are not
comparable. Fine-tunings that differ in nothing but the seed are trials, and form one entry.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_gpu.base.errors import shortened
from bert_gpu.runs.cost import COSTS, describe_cost
from bert_gpu.watch.run_data import Run
from bert_gpu.watch.style import ACTIVITIES, short_number, slug

TRIAL_SETTINGS = ("seed", "output_dir", "init_checkpoint")  # settings in which trials may differ
NOT_COMPARED = ("output_dir", "training_data.made.tokenizer")  # omitted from `differences`


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """A name in the legend of a section, for one run or for several trials. index: number that
    gives its colour and dashes (style_of).
    """

    index: int
    name: str
    runs: tuple[Run, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """Runs whose metrics are comparable.

    Attributes:
      key: text that distinguishes the section in HTML ids and names of pictures; "" = pretraining.
      title: heading of the section.
    """

    key: str
    title: str
    entries: tuple[Entry, ...]

    @property
    def runs(self) -> list[Run]:
        return [run for entry in self.entries for run in entry.runs]

    @property
    def styled_runs(self) -> list[tuple[int, Run]]:
        """Return a pair (index of the style, run) for each run of the section."""
        return [(entry.index, run) for entry in self.entries for run in entry.runs]


def sections_of(runs: Sequence[Run]) -> list[Section]:
    """Return the sections for `runs`: pretraining, if any run is one, then each task of
    fine-tuning.
    """
    pretraining = [[run] for run in runs if run.kind == "pretrain"]
    sections = [make_section("", "Pretraining", pretraining)] if pretraining else []
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        if run.kind == "finetune":
            tasks.setdefault(str(run.record["settings"]["task_name"]), []).append(run)
    for number, (task, task_runs) in enumerate(tasks.items()):
        key = slug(task)
        is_taken = key in ("", *(section.key for section in sections))
        key = f"task-{number}" if is_taken else key
        sections.append(make_section(key, f"Fine-tuning: {task}", trials_of(task_runs)))
    return sections


def make_section(key: str, title: str, groups: Sequence[Sequence[Run]]) -> Section:
    """Return a section with an entry for each group of runs."""
    named = enumerate(zip(group_names(groups), groups, strict=True))
    entries = (Entry(index, name, tuple(group)) for index, (name, group) in named)
    return Section(key, title, tuple(entries))


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
    if len(set(names)) == len(names):
        return names
    return [", ".join(run.name for run in group) for group in groups]


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
    facts: dict[str, str | None] = {"model": describe_model(run)}
    if run.kind == "finetune":
        labels = settings.get("labels")
        classes = f", {len(labels)} labels" if isinstance(labels, list) and labels else ""
        facts["task"] = f"{settings['task_name']}{classes}"
        facts["F1 is of"] = settings.get("positive_label")
    facts["data"] = describe_data(run)
    total = "" if plan["num_steps"] is None else f" of {plan['num_steps']:,}"
    epochs = run.last("epoch")
    facts["steps"] = f"{run.last_step:,}{total}" + (
        "" if epochs is None else f" ({epochs:.3g} epochs)"
    )
    facts["batch, rate"] = (
        f"{plan['global_batch_size']:,} sequences, {settings.get('optimizer')} at "
        f"{plan['learning_rate']:g}"
    )
    tokens = run.last("tokens")
    hours = elapsed_hours(run)
    facts["real tokens"] = None if tokens is None else short_number(tokens)
    cost = {name: value for name in COSTS if (value := run.last(name)) is not None}
    if run.kind == "pretrain" and len(cost) == len(COSTS):
        facts["cost"] = describe_cost(cost)
    facts["time"] = None if hours is None else format_hours(hours)
    seconds = run.last("remaining_seconds") if run.state == "running" else None
    facts["left"] = None if seconds is None else format_hours(seconds / 3600)
    facts["devices"] = (
        f"{plan['num_replicas']} x {plan['device_kind']}, {settings.get('precision')}"
    )
    loss = run.last("loss")
    facts["last loss"] = None if loss is None else f"{loss:.4g}"
    facts["best validation"] = best_validation(run)
    return {term: text for term, text in facts.items() if text}


def summary_of_entry(entry: Entry) -> dict[str, str]:
    """Return {term: text} of the facts on an entry, for its card on the page. For trials, facts
    that hold for one trial only are left out, and results are means.
    """
    facts = summary(entry.runs[0])
    if len(entry.runs) > 1:
        for term in ("time", "last loss", "best validation"):
            facts.pop(term, None)
        seeds = [str(run.record["settings"].get("seed", "?")) for run in entry.runs]
        facts["trials"] = f"{len(entry.runs)}, seeds {shortened(', '.join(seeds))}"
    for name in dict.fromkeys(name for run in entry.runs for name in run.results):
        values = [run.results[name] for run in entry.runs if name in run.results]
        spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
        facts[name] = f"{np.mean(values):.4g}{spread}"
    return facts


def state_of_entry(entry: Entry) -> str:
    """Return the state of an entry: "finished" if all of its runs are, else the state of the first
    run that is not.
    """
    states = [run.state for run in entry.runs]
    return next((state for state in states if state != "finished"), "finished")


def describe_model(run: Run) -> str:
    settings = run.record["settings"]
    name = run.record["free"].get("model")
    size = [settings.get(key) for key in ("num_hidden_layers", "hidden_size")]
    words = [str(name)] if isinstance(name, str) else []
    if None not in size:
        words.append(f"{size[0]} layers x {size[1]}")
    if run.num_parameters is not None:
        words.append(f"{short_number(run.num_parameters)} parameters")
    return ", ".join(words)


def describe_data(run: Run) -> str:
    settings = run.record["settings"]
    free = run.record["free"]
    data = settings.get("training_data")
    words = [str(free.get("input_file") or free.get("data_dir") or free.get("train_file") or "")]
    if isinstance(data, dict) and isinstance(data.get("files"), list):
        counts = [file[1] for file in data["files"] if isinstance(file, list) and len(file) > 1]
        words.append(f"{sum(counts):,} rows" if all(type(n) is int for n in counts) else "")
    length = settings.get("max_seq_length") or free.get("max_seq_length")
    words.append(f"{length} tokens each" if length else "")
    return ", ".join(filter(None, words))


def elapsed_hours(run: Run) -> float | None:
    hours = [
        value for value in (run.last("hours"), run.last("hours", "valid")) if value is not None
    ]
    return max(hours, default=None)


def format_hours(hours: float) -> str:
    minutes = round(60 * hours)
    if minutes < 60:
        return f"{60 * hours:.1f} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def best_validation(run: Run) -> str | None:
    loss = run.valid.get("loss")
    if loss is None or not np.isfinite(loss).any():
        return None
    best = int(np.nanargmin(loss))
    return f"{loss[best]:.4g} at step {run.valid['step'][best]:,.0f}"


def time_shares(run: Run) -> dict[str, float]:
    """Return {activity: share of a run's time}; {} for a run that has not logged the shares."""
    names = [name for name in ACTIVITIES if f"time_{name}" in run.train]
    if not names or "seconds" not in run.train:
        return {}
    seconds = np.diff(run.train["seconds"], prepend=0.0)
    shares = np.stack([run.train[f"time_{name}"] for name in names])
    is_known = np.isfinite(shares).all(axis=0) & np.isfinite(seconds) & (seconds > 0)
    if not is_known.any():
        return {}
    total = shares[:, is_known] @ seconds[is_known] / seconds[is_known].sum()
    return dict(zip(names, map(float, total), strict=True))


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
