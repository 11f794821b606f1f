"""Collects facts about a model from the files of its run, as text for a model card: its data, its
training, and its results.

Everything is read from run.json, metrics.jsonl, results and the dataset.json that the run was
trained on (if its hash is still the one in run.json). The text contains no time, host or folder:
the same run gives the same text, but for the energy of its GPUs.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import read_json
from bert_gpu.base.run_names import EVAL_RESULTS, MARKS, METRICS, MODEL, RUN
from bert_gpu.data.manifest import FILE_NAME, Manifest, read_manifest
from bert_gpu.data.mixture import NEVER, MixedSet, Mixture
from bert_gpu.devices.nvml import describe_energy
from bert_gpu.runs import resume_changes
from bert_gpu.runs.cost import describe_cost
from bert_gpu.runs.folder import RunFolder, read_run
from bert_gpu.runs.metrics import ENERGY, read_lines
from bert_gpu.runs.provenance import file_hash


def facts_beside(model_path: str) -> dict[str, dict[str, str]] | None:
    """Return the facts, as from `facts_of`, about a model whose folder lies in a run's folder, as
    model/ or marks/SHARE; None for any other model.
    """
    parent, name = os.path.split(os.path.abspath(model_path))
    if os.path.basename(parent) == MARKS:
        parent = os.path.dirname(parent)
        return facts_of(parent, None, share=f"{name} of the run") if has_run(parent) else None
    if name != MODEL or not has_run(parent):
        return None
    run = read_run(parent, {})
    step = run.get("exported_step")
    if run["free"].get("export_best"):
        step = RunFolder(parent).best_step() or step
    return facts_of(parent, step, model_path)


def facts_while_training(
    path: str, step: int, warn: Callable[[str], None]
) -> dict[str, dict[str, str]] | None:
    """Return the facts of the run in the folder `path`, whose model of step `step` is about to be
    written. When the run's files cannot be read, warn and return None, so that the model is written
    without facts.
    """
    try:
        return facts_of(path, step)
    except (UserError, OSError) as error:
        warn(f"the model card has no facts about the training: {error}")
        return None


def has_run(path: str) -> bool:
    return os.path.exists(os.path.join(path, RUN))


def facts_of(
    path: str, step: int | None, model_path: str | None = None, share: str | None = None
) -> dict[str, dict[str, str]]:
    """Return {title: {name: text}}, the facts of the run in the folder `path`.

    Args:
      step: the step of the model, None when it is not known.
      model_path: the folder of the model; with it, the results of the model's evaluation are read.
      share: words for the model's place in the run, when its step is not known.
    """
    run = read_run(path, {})
    lines = []
    if step is not None:
        metrics = read_lines(os.path.join(path, METRICS))
        lines = [values for values, _ in metrics if values["step"] <= step]
    return {
        "Data": data_facts(run),
        "Training": training_facts(run, lines, step, share),
        "Results": result_facts(lines) | evaluation_facts(path, step, model_path),
        "Made with": {name: text for name, text in run["versions"].items() if isinstance(text, str)}
        | ({"commit of bert_gpu": run["git_commit"]} if run.get("git_commit") else {}),
    }


def number(value: object) -> str:
    """Return a number as text: a count with separators, a measurement with four significant
    digits.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def data_facts(run: Mapping[str, Any]) -> dict[str, str]:
    settings = run["settings"]
    data = settings.get("training_data")
    facts: dict[str, str] = {}
    for name in ("task_name", "text_a", "text_b", "label", "labels", "positive_label"):
        if settings.get(name) is not None:
            value = settings[name]
            facts[name] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if isinstance(data, str):
        facts["training examples"] = data
    if not isinstance(data, dict):
        return facts
    data_settings = data.get("made") or {}
    # without vocab_size, because the vocabulary may have fewer pieces than that setting
    names = ("objective", "masking", "masked_lm_prob", "tokenization")
    facts |= {name: number(data_settings[name]) for name in names if name in data_settings}
    facts["records"] = f"{num_records(data):,} of {data.get('max_seq_length')} tokens at most"
    manifest = manifest_of(run["free"], run["hashes"])
    if manifest is None:
        return facts | {"text": f"its {FILE_NAME} is not where the run found it"}
    owner = " of the first data set" * (manifest.num_train_instances < num_records(data))
    return facts | {
        f"validation records{owner}": f"{manifest.num_validation_instances:,}",
        f"text{owner}": f"{len(manifest.inputs or [])} file(s): "
        f"{manifest.num_documents:,} documents, {manifest.num_sentences:,} sentences, "
        f"{manifest.num_tokens:,} tokens",
    }


def num_records(data: Mapping[str, Any]) -> int:
    return sum(entry[1] for entry in data.get("files", []))


def manifest_of(free: Mapping[str, object], hashes: Mapping[str, object]) -> Manifest | None:
    """Return the Manifest of the data set that a run read; None when its dataset.json has been
    moved or changed. free, hashes: these entries of run.json.
    """
    for pattern in map(str.strip, str(free.get("input_file") or "").split(",")):
        folder = pattern if os.path.isdir(pattern) else os.path.dirname(pattern)
        path = os.path.join(folder, FILE_NAME)
        if os.path.isfile(path) and file_hash(path) == hashes.get("dataset"):
            return read_manifest(folder)
    return None


def training_facts(
    run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], step: int | None, share: str | None
) -> dict[str, str]:
    settings = run["settings"]
    free = run["free"]
    epochs = [line["epoch"] for line in lines if "epoch" in line]
    data = settings.get("training_data")
    facts = {"recipe": free.get("recipe") or "none", "steps": share or number(step)}
    num_steps = run["num_steps"]
    hours = free.get("total_training_time")
    if free.get("lr_schedule") == "time" and hours is not None:
        facts["time budget"] = (
            f"{resume_changes.describe_length('time', num_steps, hours)}, by the clock"
        )
    elif num_steps is not None:
        facts["steps"] += f" of {num_steps:,}"
    facts["global batch"] = f"{run['global_batch_size']:,} sequences"
    if epochs and step is not None:
        facts["epochs"] = number(epochs[-1])
        if isinstance(data, dict):
            num_sequences = round(epochs[-1] * num_records(data))
            num_tokens = num_sequences * (data.get("max_seq_length") or 0)
            facts["tokens"] = f"{num_tokens:,} in {num_sequences:,} sequences, padding included"
            facts["cost"] = describe_cost([line for line in lines if "epoch" in line][-1])
            if "sets" in data:
                sets = [MixedSet(**entry) for entry in data["sets"]]
                mixture = Mixture(sets, changed=run.get("weights_changed", NEVER))
                facts |= mixture.rows(num_sequences)
    if step is not None:
        kwh = lines[-1].get(ENERGY) if lines else None
        facts["energy"] = describe_energy(kwh, run.get("num_workers", 1))
    facts["highest learning rate"] = f"{run['learning_rate']:g}"
    names = (
        *("optimizer", "curve", "warmup_proportion", "num_warmup_steps", "weight_decay_rate"),
        *("clip_norm", "hidden_dropout_prob", "precision", "max_seq_length"),
    )
    facts |= {name: number(settings[name]) for name in names if settings.get(name) is not None}
    if settings.get("seed") is not None:
        facts["seed"] = str(settings["seed"])
    if settings.get("init_checkpoint") is not None:
        facts["started from"] = "another model's weights"
    return facts


def result_facts(lines: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """Return {title: text} of the last training loss and of the last validation. lines: {name:
    value} of each line of metrics.jsonl.
    """
    facts = {}
    kinds: dict[str, Callable[[str], bool]] = dict(
        training=lambda name: name == "loss", validation=lambda name: name.startswith("eval_")
    )
    for title, is_result in kinds.items():
        last = next((line for line in reversed(lines) if any(map(is_result, line))), None)
        if last is not None:
            values = (f"{name} {number(last[name])}" for name in filter(is_result, last))
            facts[f"{title} at step {last['step']:,}"] = ", ".join(values)
    return facts or {"results": "none yet"}


def evaluation_facts(path: str, step: int | None, model_path: str | None) -> dict[str, str]:
    """Return {"evaluation": text}, the results of the evaluation in the run's folder, if it was of
    this model (of the same step, and not older than the model); else {}.
    """
    results = os.path.join(path, EVAL_RESULTS)
    if model_path is None or not os.path.exists(results):
        return {}
    values = read_json(results, "the results of an evaluation")
    model_time = os.path.getmtime(os.path.join(model_path, "config.json"))
    if values.pop("step", None) not in (None, step) or os.path.getmtime(results) < model_time:
        return {}
    values = {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) or name == "positive_label"
    }
    text = ", ".join(f"{name} {number(v)}" for name, v in values.items())
    return {"evaluation": text} if text else {}
