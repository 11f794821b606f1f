"""Reads how a model must be used: choices made in its training, such as the length of texts, that
files beside its weights record.

task.json is bert-gpu's, modules.json and the files that it names are those of
sentence-transformers, and config.json gives the meaning of a classifier's scores. Commands and
formats read all of these files here. Imports no TensorFlow.
"""

import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import parse_json, read_json
from bert_gpu.base.settings import Settings, fields_of, setting
from bert_gpu.interop.formats import Embedding, Model
from bert_gpu.interop.heads import LABELLED
from bert_gpu.interop.sources import TASK, folder_of

# {kind of task in task.json: problem_type in config.json}
KINDS = dict(
    classification="single_label_classification",
    regression="regression",
    multilabel="multi_label_classification",
)
MODULES = "modules.json"
TEXTS = "sentence_bert_config.json"
SENTENCES = "config_sentence_transformers.json"
# {mode of Pooling in sentence-transformers: value of --pooling}
POOLINGS = dict(cls_token="cls", mean_tokens="mean", cls="cls", mean="mean")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UsageNotes(Settings):
    """The keys of a task.json or a sentence_bert_config.json whose values are checked."""

    task_kind: str | None = setting(None, "What the model predicts.")
    max_seq_length: int | None = setting(None, "Maximum tokens of a text.", low=3)


def with_usage(path: str, model: Model) -> Model:
    """Return `model` with the facts on its use from the files at `path`, where the model lies. A
    classifier of one score without a problem type becomes a regression, as in transformers.
    """
    files, modules = usage_files(path)
    task, texts = (_read(files, name, fields_of(UsageNotes)) for name in (TASK, TEXTS))
    kind = str(task.get("task_kind"))
    is_one = np.shape(model.weights.get("classifier/bias", ())) == (1,)
    problem_type = model.notes.problem_type or ("regression" if is_one else None)
    task_length = task.get("max_seq_length") if kind in KINDS else None
    notes = model.notes._replace(
        problem_type=KINDS.get(kind) or problem_type,
        max_seq_length=task_length or texts.get("max_seq_length"),
        embedding=read_embedding(files, modules) if modules else Embedding(),
    )
    contents = {name: pathlib.Path(file).read_bytes() for name, file in files.items()}
    return model._replace(notes=notes, task=contents)


def usage_files(path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return ({name of a file in a copy of the model: its path} of the files that describe the use
    of the model at `path`, {kind: folder} of its sentence-transformers modules or {}). An encoder
    of sentence-transformers lies beside modules.json or, in old folders, in 0_Transformer.
    """
    own = os.path.realpath(folder_of(path))
    root = os.path.dirname(own) if os.path.basename(own).startswith("0_") else own
    modules = read_modules(os.path.join(root, MODULES))
    names = (MODULES, SENTENCES, f"{modules.get('Pooling')}/config.json") if modules else ()
    files = {name: os.path.join(own, name) for name in (TASK, TEXTS)}
    files |= {name: os.path.join(root, name) for name in names}
    return {name: file for name, file in files.items() if os.path.exists(file)}, modules


def read_modules(file: str) -> dict[str, str]:
    """Return {kind, such as "Pooling": name of the module's folder} of the modules in a
    modules.json of sentence-transformers; {} without the file. A Pooling without a folder has
    1_Pooling.
    """
    if not os.path.exists(file):
        return {}
    try:
        with open(file, encoding="utf-8") as opened:
            modules = parse_json(opened.read())
            return {
                part["type"].rpartition(".")[2]: (
                    os.path.basename(part["path"].strip("/.")) or "1_Pooling"
                )
                for part in modules
            }
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise UserError(
            "is no list of modules of sentence-transformers",
            "put the model's own there, or remove it",
            where=file,
        ) from None


def read_embedding(files: dict[str, str], modules: dict[str, str]) -> Embedding:
    """Return the Embedding that the files of a sentence-transformers folder describe. files,
    modules: as `usage_files` returns them. The Pooling mode "mean" is on unless its config.json
    turns it off.
    """
    config = _read(files, f"{modules.get('Pooling')}/config.json")
    sentences = _read(files, SENTENCES)
    start = "pooling_mode_"
    switches = {f"{start}mean_tokens": True} | config if config else {}
    modes = [name[len(start) :] for name, on in switches.items() if on and name.startswith(start)]
    modes = [str(config["pooling_mode"])] if "pooling_mode" in config else modes
    prompts = sentences["prompts"] if isinstance(sentences.get("prompts"), dict) else {}
    prefix = str(prompts.get(str(sentences.get("default_prompt_name"))) or "")
    pooling = POOLINGS.get(modes[0]) if len(modes) == 1 else None
    lacking = [kind for kind in modules if kind not in ("Transformer", "Pooling", "Normalize")]
    lacking += [] if pooling else [f"pooling {'+'.join(modes) or 'none'}"]
    lacking += ["include_prompt=false"] if prefix and config.get("include_prompt") is False else []
    lowers = _read(files, TEXTS).get("do_lower_case") is True
    return Embedding(pooling, "Normalize" in modules, prefix, lowers, ", ".join(lacking))


def _read(files: dict[str, str], name: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
    return read_json(files[name], "how a model is used", fields) if name in files else {}


def class_names(model: Model, head: str | None = "classifier") -> tuple[str, ...]:
    """Return the names of the classes of a model's head; () when the model lacks the head; the
    indices of the classes, as text, where there are no distinct names. LABEL_0, LABEL_1 count as
    names only in a bert-gpu model: in models of Hugging Face they mean that nobody named the
    classes.
    """
    scores = model.weights.get(f"{head}/bias", ()) if head in LABELLED.values() else ()
    names = model.notes.labels
    indices = range(len(scores))
    is_nameless = TASK not in (model.task or {}) and list(names) == [f"LABEL_{i}" for i in indices]
    has_names = len(set(names)) == len(indices) and not is_nameless
    return names if has_names else tuple(map(str, indices))


def check_scores(path: str, model: Model) -> None:
    """Raise UserError for a classifier whose number of scores contradicts its problem type."""
    kind = model.notes.problem_type
    num_scores = len(model.weights["classifier/bias"])
    if kind != KINDS["multilabel"] and (kind == "regression") != (num_scores == 1):
        raise UserError(
            f"has {num_scores} scores and the problem_type {kind}",
            "only a regression of one number and a choice among several classes "
            "are supported: correct problem_type in its config.json, or take the "
            "scores from --format=onnx",
            where=path[:90],
        )
