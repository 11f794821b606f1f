"""What a run's files say of its model, as text for a model card: its data, how it was trained, and
what came of it.

Everything is read from run.json, metrics.jsonl, results and the dataset.json that the run was
trained on (if it is still the one whose hash run.json has), so that a card says nothing else. No
time, host or folder is in it: the same run gives the same text.
"""

import os

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import read_json
from bert_gpu.base.run_names import EVAL_RESULTS, MARKS, METRICS, MODEL, RUN
from bert_gpu.data.manifest import FILE_NAME, read_manifest
from bert_gpu.runs import resume_changes
from bert_gpu.runs.folder import RunFolder, read_run
from bert_gpu.runs.metrics import read_lines
from bert_gpu.runs.provenance import file_hash


def facts_beside(model_path):
    """The facts of a model's folder that lies in a run's folder, as model/ or marks/SHARE; None for
    any other.
    """
    parent, name = os.path.split(os.path.abspath(model_path))
    if os.path.basename(parent) == MARKS:
        parent = os.path.dirname(parent)
        return facts_of(parent, None, share=f"{name} of the run") if has_run(parent) else None
    if name != MODEL or not has_run(parent):
        return None
    stored = read_run(parent, {})
    step = stored.get("exported_step")
    if stored.get("free", {}).get("export_best"):
        step = RunFolder(parent).best_step() or step
    return facts_of(parent, step, model_path)


def facts_while_training(path, step, warn):
    """The facts of the run in a folder whose model is about to be written; None, after a warning,
    when its files cannot be read: no model is lost for its card.
    """
    try:
        return facts_of(path, step)
    except (UserError, OSError) as error:
        warn(f"the model card says nothing of the training: {error}")
        return None


def has_run(path):
    return os.path.exists(os.path.join(path, RUN))


def facts_of(path, step, model_path=None, share=None):
    """{title: {name: text}} of the run in a folder.

    step: that of the model, None when it is not known; then `share` says when it was. model_path:
    of the model, whose evaluation counts if it is there.
    """
    stored = read_run(path, {})
    lines = [] if step is None else read_lines(os.path.join(path, METRICS))
    lines = [values for values, _ in lines if values["step"] <= step]
    return {
        "Data": data_facts(stored),
        "Training": training_facts(stored, lines, step, share),
        "Results": result_facts(lines) | evaluation_facts(path, step, model_path),
        "Made with": {
            name: text for name, text in stored.get("versions", {}).items() if isinstance(text, str)
        }
        | ({"commit of bert_gpu": stored["git_commit"]} if stored.get("git_commit") else {}),
    }


def number(value):
    """A count with separators, or a measurement with four digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def data_facts(stored):
    settings, free = stored["settings"], stored.get("free", {})
    facts, data = {}, settings.get("training_data")
    for name in ("task_name", "text_a", "text_b", "label", "labels", "positive_label"):
        if settings.get(name) is not None:
            value = settings[name]
            facts[name] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if isinstance(data, str):
        facts["training examples"] = data
    if not isinstance(data, dict):
        return facts
    made = data.get("made") or {}
    # not vocab_size, which was asked for: the vocabulary may have fewer pieces
    names = ("objective", "masking", "masked_lm_prob", "tokenization")
    facts |= {name: number(made[name]) for name in names if name in made}
    facts["records"] = f"{num_records(data):,} of {data.get('max_seq_length')} tokens at most"
    manifest = manifest_of(free, stored.get("hashes", {}))
    if manifest is None:
        return facts | {"text": f"its {FILE_NAME} is not where the run found it"}
    return facts | {
        "validation records": f"{manifest.num_validation_instances:,}",
        "text": f"{len(manifest.inputs or [])} file(s): "
        f"{manifest.num_documents:,} documents, {manifest.num_sentences:,} sentences, "
        f"{manifest.num_tokens:,} tokens",
    }


def num_records(data):
    return sum(entry[1] for entry in data.get("files", []))


def manifest_of(free, hashes):
    """The Manifest of the data set that a run read, None when it is not there or has changed."""
    for pattern in str(free.get("input_file") or "").split(","):
        folder = os.path.dirname(pattern)
        path = os.path.join(folder, FILE_NAME)
        if os.path.isfile(path) and file_hash(path) == hashes.get("dataset"):
            return read_manifest(folder)
    return None


def training_facts(stored, lines, step, share):
    settings, free = stored["settings"], stored.get("free", {})
    epochs = [line["epoch"] for line in lines if "epoch" in line]
    data = settings.get("training_data")
    facts = {"recipe": free.get("recipe") or "none", "steps": share or number(step)}
    num_steps, hours = stored.get("num_steps"), free.get("total_training_time")
    if free.get("lr_schedule") == "time" and hours is not None:
        facts["time budget"] = (
            f"{resume_changes.describe_length('time', num_steps, hours)}, by the clock"
        )
    elif num_steps is not None:
        facts["steps"] += f" of {num_steps:,}"
    facts["global batch"] = f"{stored['global_batch_size']:,} sequences"
    if epochs and step is not None:
        facts["epochs"] = number(epochs[-1])
        if isinstance(data, dict):
            seen = round(epochs[-1] * num_records(data))
            length = data.get("max_seq_length") or 0
            facts["tokens"] = f"{seen * length:,} in {seen:,} sequences, padding included"
    facts["highest learning rate"] = f"{stored['learning_rate']:g}"
    names = (
        *("optimizer", "curve", "warmup_proportion", "num_warmup_steps", "weight_decay_rate"),
        *("clip_norm", "hidden_dropout_prob", "precision", "max_seq_length"),
    )
    known = {name: settings[name] for name in names if settings.get(name) is not None}
    facts |= {name: number(value) for name, value in known.items()}
    if settings.get("seed") is not None:
        facts["seed"] = str(settings["seed"])
    if settings.get("init_checkpoint") is not None:
        facts["started from"] = "another model's weights"
    return facts


def result_facts(lines):
    """The last training loss and the last validation."""
    facts = {}
    for title, is_result in (
        ("training", lambda name: name == "loss"),
        ("validation", lambda name: name.startswith("eval_")),
    ):
        last = next((line for line in reversed(lines) if any(map(is_result, line))), None)
        if last is not None:
            values = (f"{name} {number(last[name])}" for name in filter(is_result, last))
            facts[f"{title} at step {last['step']:,}"] = ", ".join(values)
    return facts or {"results": "none yet"}


def evaluation_facts(path, step, model_path):
    """The results of an evaluation, if it was of this model: of its step, or later than it."""
    results = os.path.join(path, EVAL_RESULTS)
    if model_path is None or not os.path.exists(results):
        return {}
    values = read_json(results, "the results of an evaluation")
    written = os.path.getmtime(os.path.join(model_path, "config.json"))
    if values.pop("step", None) not in (None, step) or os.path.getmtime(results) < written:
        return {}
    values = {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) or name == "positive_label"
    }
    return {"evaluation": ", ".join(f"{name} {number(v)}" for name, v in values.items())}
