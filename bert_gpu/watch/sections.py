"""What a report says of several runs: sections, trials that belong together, what differs, sums.

Pretraining and each task of fine-tuning have sections of their own, because their metrics are not
comparable. Fine-tunings that differ in nothing but the seed are trials, and one entry.
"""

import dataclasses

import numpy as np

from bert_gpu.base.errors import shortened
from bert_gpu.watch.run_data import Run
from bert_gpu.watch.style import ACTIVITIES, short_number, slug

OF_TRIALS = ("seed", "output_dir", "init_checkpoint")  # settings in which trials may differ
NOT_TOLD = ("output_dir", "training_data.made.tokenizer")  # of which no difference is told


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """A name in the legend: a run, or several trials. index: of its style."""

    index: int
    name: str
    runs: tuple[Run, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """Runs whose metrics are comparable. key: tells it apart, also in an HTML id; "" = pretraining.
    title: its heading.
    """

    key: str
    title: str
    entries: tuple[Entry, ...]

    @property
    def runs(self):
        return [run for entry in self.entries for run in entry.runs]

    @property
    def styled_runs(self):
        """[(index of its style, Run)]."""
        return [(entry.index, run) for entry in self.entries for run in entry.runs]


def sections_of(runs):
    """[Section] of those that have runs: pretraining, then each task."""
    pretraining = [[run] for run in runs if run.kind == "pretrain"]
    found = [make_section("", "Pretraining", pretraining)] if pretraining else []
    tasks = {}
    for run in runs:
        if run.kind == "finetune":
            tasks.setdefault(str(run.record["settings"]["task_name"]), []).append(run)
    for number, (task, own) in enumerate(tasks.items()):
        key = slug(task)
        is_taken = key in ("", *(section.key for section in found))
        key = f"task-{number}" if is_taken else key
        found.append(make_section(key, f"Fine-tuning: {task}", trials_of(own)))
    return found


def make_section(key, title, groups):
    """A Section of [[Run]], an entry each."""
    named = enumerate(zip(group_names(groups), groups, strict=True))
    entries = (Entry(index, name, tuple(group)) for index, (name, group) in named)
    return Section(key, title, tuple(entries))


def trials_of(runs):
    """[[Run]] of fine-tunings, those that are trials together.

    The hash of the model that a run starts from covers its fresh head, which the seed draws, so it
    cannot tell models apart; the folders' names must agree up to a last number as well.
    """
    groups = {}
    for run in runs:
        settings = {name: value for name, value in run.settings.items() if name not in OF_TRIALS}
        told = frozenset(pair for pair in settings.items() if not is_provenance(pair[0]))
        groups.setdefault((stem(run.name), told), []).append(run)
    found = []
    for group in groups.values():
        seeds, starts = (
            {run.settings.get(name) for run in group} for name in ("seed", "init_checkpoint")
        )
        is_one = len(seeds) == len(group) or len(starts) == 1
        found += [group] if is_one else [[run] for run in group]
    return found


def stem(name):
    """A name without the number at its end."""
    start = name.rstrip("0123456789").rstrip("-_. /")
    return start.removesuffix("/trial") or name


def is_provenance(name):
    return name.startswith("versions.") or name == "git_commit"


def group_names(groups):
    """A name for each list of runs: that of a single run, or what the names of trials share."""
    names = [group[0].name if len(group) == 1 else stem(group[0].name) for group in groups]
    if len(set(names)) == len(names):
        return names
    return [", ".join(run.name for run in group) for group in groups]


def differences(section):
    """{setting: [its text in each entry]} of what differs between entries; "" where it is lacking.
    The text of trials has the values of all.
    """
    names = dict.fromkeys(name for run in section.runs for name in run.settings)
    rows = {
        name: [
            ", ".join(dict.fromkeys(run.settings.get(name, "") for run in entry.runs))
            for entry in section.entries
        ]
        for name in names
        if name not in NOT_TOLD
    }
    return {name: texts for name, texts in rows.items() if len(set(texts)) > 1}


def summary(run):
    """{term: text} of a run."""
    settings, plan = run.record["settings"], run.record
    facts = {"model": describe_model(run)}
    if run.kind == "finetune":
        labels = settings.get("labels")
        classes = f", {len(labels)} labels" if isinstance(labels, list) and labels else ""
        facts["task"] = f"{settings['task_name']}{classes}"
        facts["F1 is of"] = settings.get("positive_label")
    facts["data"] = describe_data(run)
    total = "" if plan.get("num_steps") is None else f" of {plan['num_steps']:,}"
    epochs = run.last("epoch")
    facts["steps"] = f"{run.last_step:,}{total}" + (
        "" if epochs is None else f" ({epochs:.3g} epochs)"
    )
    batch = plan.get("global_batch_size")
    facts["batch, rate"] = ", ".join(
        [f"{batch:,} sequences", f"{settings.get('optimizer', '')} at {plan['learning_rate']:g}"]
        if batch is not None and "learning_rate" in plan
        else ["–"]
    )
    tokens, hours = run.last("tokens"), elapsed_hours(run)
    facts["real tokens"] = None if tokens is None else short_number(tokens)
    facts["time"] = None if hours is None else format_hours(hours)
    left = run.last("remaining_seconds") if run.state == "running" else None
    facts["left"] = None if left is None else format_hours(left / 3600)
    replicas = plan.get("num_replicas")
    if replicas is not None:
        facts["devices"] = f"{replicas} x {plan.get('device_kind') or 'device'}"
        facts["devices"] += f", {settings.get('precision', '')}".rstrip(", ")
    loss, best = run.last("loss"), best_validation(run)
    facts["last loss"] = None if loss is None else f"{loss:.4g}"
    facts["best validation"] = best
    return {term: text for term, text in facts.items() if text}


def summary_of_entry(entry):
    """{term: text} of a run, or of trials: what is of one alone is left out then."""
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


def state_of_entry(entry):
    """The state of a run; of trials, that of one that is not finished, if any."""
    states = [run.state for run in entry.runs]
    return next((state for state in states if state != "finished"), "finished")


def describe_model(run):
    settings = run.record["settings"]
    name = (run.record.get("free") or {}).get("model")
    size = [settings.get(key) for key in ("num_hidden_layers", "hidden_size")]
    words = [str(name)] if isinstance(name, str) else []
    if None not in size:
        words.append(f"{size[0]} layers x {size[1]}")
    if run.num_parameters is not None:
        words.append(f"{short_number(run.num_parameters)} parameters")
    return ", ".join(words)


def describe_data(run):
    settings, free = run.record["settings"], run.record.get("free") or {}
    data = settings.get("training_data")
    words = [str(free.get("input_file") or free.get("data_dir") or free.get("train_file") or "")]
    if isinstance(data, dict) and isinstance(data.get("files"), list):
        counts = [file[1] for file in data["files"] if isinstance(file, list) and len(file) > 1]
        words.append(f"{sum(counts):,} rows" if all(type(n) is int for n in counts) else "")
    length = settings.get("max_seq_length") or free.get("max_seq_length")
    words.append(f"{length} tokens each" if length else "")
    return ", ".join(filter(None, words))


def elapsed_hours(run):
    hours = [
        value for value in (run.last("hours"), run.last("hours", "valid")) if value is not None
    ]
    return max(hours, default=None)


def format_hours(hours):
    minutes = round(60 * hours)
    if minutes < 60:
        return f"{60 * hours:.1f} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def best_validation(run):
    loss = run.valid.get("loss")
    if loss is None or not np.isfinite(loss).any():
        return None
    best = int(np.nanargmin(loss))
    return f"{loss[best]:.4g} at step {run.valid['step'][best]:,.0f}"


def time_shares(run):
    """{activity: share of the time of a run's lines}, {} for runs that have not logged it."""
    names = [name for name in ACTIVITIES if f"time_{name}" in run.train]
    if not names or "seconds" not in run.train:
        return {}
    seconds = np.diff(run.train["seconds"], prepend=0.0)
    shares = np.stack([run.train[f"time_{name}"] for name in names])
    kept = np.isfinite(shares).all(axis=0) & np.isfinite(seconds) & (seconds > 0)
    if not kept.any():
        return {}
    total = shares[:, kept] @ seconds[kept] / seconds[kept].sum()
    return dict(zip(names, map(float, total), strict=True))


def trial_metrics(section):
    """{metric: {Entry: [value of each trial that has it]}} of the results of fine-tunings."""
    names = dict.fromkeys(name for run in section.runs for name in run.results)
    return {
        name: {
            entry: values
            for entry in section.entries
            if (values := [run.results[name] for run in entry.runs if name in run.results])
        }
        for name in names
    }
