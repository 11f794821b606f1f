"""Reads and writes how a model must be used: choices made in its training, such as the length of
texts, that files beside its weights record.

task.json and texts.json are bert-gpu's, modules.json and the files that it names are those of
sentence-transformers, and config.json gives the meaning of a classifier's scores. Commands and
formats read all of these files here. Imports no TensorFlow.
"""

import dataclasses
import json
import os
import pathlib
from typing import Any

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import parse_json, read_json
from bert_gpu.base.settings import Settings, fields_of, setting
from bert_gpu.interop.formats import Embedding, Model
from bert_gpu.interop.heads import LABELLED
from bert_gpu.interop.sources import SEEN, TASK, find_model, folder_of, tokenizer_notes
from bert_gpu.text.long_texts import RULES, LongTexts

# {kind of task in task.json: problem_type in config.json}
KINDS = dict(
    classification="single_label_classification",
    regression="regression",
    multilabel="multi_label_classification",
)
MODULES = "modules.json"
TEXTS = "sentence_bert_config.json"
SENTENCES = "config_sentence_transformers.json"
SWITCH = "pooling_mode_"  # start of the names of modes of Pooling in files of all versions
# {mode of Pooling in sentence-transformers: value of --pooling}
POOLINGS = dict(cls_token="cls", mean_tokens="mean", cls="cls", mean="mean")
PASSAGES = ("document", "passage", "corpus")  # names of the prompt of texts that a search finds


@dataclasses.dataclass(frozen=True, kw_only=True)
class UsageNotes(Settings):
    """The keys of a task.json, sentence_bert_config.json or texts.json whose values are checked."""

    task_kind: str | None = setting(None, "What the model predicts.")
    max_seq_length: int | None = setting(None, "Maximum tokens of a text.", low=3)
    long_texts: str | None = setting(None, "What is read of longer texts.", choices=RULES)
    doc_stride: int | None = setting(None, "Tokens between two rows of a text.", low=1)
    max_windows: int | None = setting(None, "The most rows of a text.", low=1)
    texts: tuple[str, ...] = setting((), "The texts of a texts.json.")


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
        max_seq_length=task_length or _length_of_texts(path, model, texts, bool(modules)),
        embedding=read_embedding(files, modules) if modules else Embedding(),
        long_texts=LongTexts.given(task.get) if kind in KINDS else LongTexts(),
    )
    contents = {name: pathlib.Path(file).read_bytes() for name, file in files.items()}
    return model._replace(notes=notes, task=contents)


def seen_texts(start: str | None) -> list[str]:
    """Return the texts in the texts.json of the model that --init_checkpoint names, or []."""
    files = usage_files(find_model(start, "init_checkpoint"))[0] if start else {}
    return _read(files, SEEN, fields_of(UsageNotes)).get("texts", [])


def _length_of_texts(
    path: str, model: Model, texts: dict[str, Any], is_sentence: bool
) -> int | None:
    """Return the tokens at which texts are cut, None where no file says it. sentence-transformers
    wrote it to its own file, `texts`, before version 6, and to that of the tokenizer since.
    """
    if not is_sentence or "max_seq_length" in texts:
        return texts.get("max_seq_length")
    length = tokenizer_notes(path).get("model_max_length")
    if not isinstance(length, int) or length < 3:
        return None
    return min(length, model.config.num_positions)


def usage_files(path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return ({name of a file in a copy of the model: its path} of the files that describe the use
    of the model at `path`, {kind: folder} of its sentence-transformers modules or {}). An encoder
    of sentence-transformers lies beside modules.json or, in old folders, in 0_Transformer.
    """
    own = os.path.realpath(folder_of(path))
    root = os.path.dirname(own) if os.path.basename(own).startswith("0_") else own
    modules = read_modules(os.path.join(root, MODULES))
    names = (MODULES, SENTENCES, f"{modules.get('Pooling')}/config.json") if modules else ()
    files = {name: os.path.join(own, name) for name in (TASK, TEXTS, SEEN)}
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
    switches = {f"{SWITCH}mean_tokens": True} | config if config else {}
    modes = [name[len(SWITCH) :] for name, on in switches.items() if on and name.startswith(SWITCH)]
    modes = [str(config["pooling_mode"])] if "pooling_mode" in config else modes
    prompts = sentences["prompts"] if isinstance(sentences.get("prompts"), dict) else {}
    names = ([str(sentences.get("default_prompt_name"))], ["query"], PASSAGES)
    prefixes = [next((str(prompts[x]) for x in row if prompts.get(x)), "") for row in names]
    pooling = POOLINGS.get(modes[0]) if len(modes) == 1 else None
    lacking = [kind for kind in modules if kind not in ("Transformer", "Pooling", "Normalize")]
    modes = modes or [f"of a kind that {modules.get('Pooling', MODULES)} does not name"]
    lacking += [] if pooling else [f"pooling {'+'.join(modes)}"]
    is_left_out = any(prefixes) and config.get("include_prompt") is False
    lacking += ["include_prompt=false"] if is_left_out else []
    return Embedding(
        pooling,
        "Normalize" in modules,
        prefix=prefixes[0],
        query_prefix=prefixes[1],
        passage_prefix=prefixes[2],
        lowers=_read(files, TEXTS).get("do_lower_case") is True,
        lacking=", ".join(lacking),
    )


def written_usage(model: Model) -> dict[str, bytes]:
    """Return {name: bytes} of the files for a copy of a model that describe its use: those that
    were read with it, else those of sentence-transformers for a sentence model.
    """
    is_new = model.notes.embedding.is_known and MODULES not in (model.task or {})
    return {**(sentence_files(model) if is_new else {}), **(model.task or {})}


def sentence_files(model: Model) -> dict[str, bytes]:
    """Return {name: bytes} of the files by which sentence-transformers, of any version, computes
    the vectors of a sentence model. encode() puts the default prefix before texts,
    encode_query() that of queries.
    """
    rules = model.notes.embedding
    parts = ["Transformer", "Pooling", *["Normalize"] * rules.is_normalized]
    modes = {mode: pooling == rules.pooling for mode, pooling in POOLINGS.items() if "_" in mode}
    prompts = dict.fromkeys(PASSAGES[:2], rules.passage_prefix) | dict(query=rules.query_prefix)
    named = next((name for name, text in prompts.items() if text == rules.prefix), "default")
    default = {named: rules.prefix} if rules.prefix else {}
    contents = {
        MODULES: [
            dict(
                idx=index,
                name=str(index),
                path=f"{index}_{kind}" if index else "",
                type=f"sentence_transformers.models.{kind}",
            )
            for index, kind in enumerate(parts)
        ],
        "1_Pooling/config.json": dict(word_embedding_dimension=model.config.hidden_size)
        | {f"{SWITCH}{mode}": is_on for mode, is_on in modes.items()},
        TEXTS: dict(max_seq_length=model.notes.max_seq_length, do_lower_case=rules.lowers),
        SENTENCES: dict(
            prompts=prompts | default,
            default_prompt_name=next(iter(default), None),
            similarity_fn_name="cosine",
        ),
    }
    return {name: f"{json.dumps(value, indent=2)}\n".encode() for name, value in contents.items()}


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
