"""Reads and writes model folders of Hugging Face: config.json and model.safetensors.

This is also bert-gpu's own format, so that trained models open in `transformers` directly. For a
model that is not a classic BERT (config.is_classic), such as a pre-LN model, the folder has a
model_type of bert-gpu, bert-gpu's names of tensors and, in modeling_bert_gpu.py, code that computes
the model in `transformers`. Where a relative of BERT computes the same (relatives.py), `export`
writes the relative's class instead. families.py has the names of tensors, heads.py the names of
classes.
"""

import os
import pathlib
from collections.abc import Mapping

import numpy as np

from bert_gpu.base import tensor_files
from bert_gpu.base.errors import UserError
from bert_gpu.interop import card, hf_tensors
from bert_gpu.interop.families import OWN, Family, auto_class, family_of
from bert_gpu.interop.folders import replace_folder
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.interop.heads import (
    ARCHITECTURES,
    LABELLED,
    guess_architecture,
    is_left_out,
    specs_of,
)
from bert_gpu.interop.relatives import Relative, own_relative, read_shape, relative_of
from bert_gpu.interop.tensors import check_tensor, read_tensors
from bert_gpu.interop.tokenizers import tokenizer_files
from bert_gpu.interop.usage import written_usage
from bert_gpu.model import config_json
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoders import open_encoder

# the code that computes a bert-gpu model in transformers; it is copied into the model's folder
CODE = pathlib.Path(__file__).with_name("modeling_bert_gpu.py")


def _num_classes(family: Family, architecture: str, tensors: Mapping[str, np.ndarray]) -> int:
    """Return the number of classes of the classifier among tensors, {a family's name: array}; 1
    where there is no classifier.
    """
    (name,) = family.names(f"{LABELLED.get(architecture, 'classifier')}/kernel")
    kernel = tensors.get(name)
    axis = -1 if family.parts is None else 0
    return 1 if kernel is None or np.ndim(kernel) != 2 else kernel.shape[axis]


def read_model(folder: str) -> tuple[ModelConfig, dict[str, np.ndarray], Notes]:
    """Read the folder of a model whose class is one of BERT's (heads.ARCHITECTURES) or a
    relative's.

    Returns:
      (config, weights, notes): ModelConfig; {bert-gpu's name: float32 array} of the weights in the
        folder; Notes. `notes.missing` names weights of the architecture that the file lacks; for a
        relative, `notes.architecture` names BERT's class with the same heads. The head of a task is
        not read where config.json names a class that bert-gpu does not know.

    Raises:
      UserError: no such folder or file, a damaged file, a shape that contradicts config.json, an
        architecture that is not BERT's.
    """
    tensors, left_out = read_tensors(folder)
    tensors = {
        name: tensor for name, tensor in tensors.items() if not name.endswith("position_ids")
    }
    config_path = os.path.join(folder, "config.json")
    family, config, values = read_shape(config_path)
    tensors = hf_tensors.rename_tensors(family, tensors, folder)
    with config_json.naming(config_path):
        encoder = open_encoder(config)
    if encoder.num_groups > len(tensors):  # checked before a huge table is built
        raise UserError(
            f"config.json says num_hidden_layers={config.num_hidden_layers}, the "
            f"file has {len(tensors)} tensors",
            where=folder,
        )
    all_names = set(tensors)
    if any(name.startswith("mask_predictions.") for name in tensors):
        # DeBERTa v3 finds replaced tokens; a head for masked words beside that was never trained
        heads = ("cls.", "lm_predictions.")
        tensors = {name: x for name, x in tensors.items() if not name.startswith(heads)}
    class_name = (values.get("architectures") or [None])[0]
    foreign = None

    def has(weight: str, architecture: str) -> bool:
        names = family.of(architecture).names(weight)
        return bool(names) and tensors.keys() >= set(names)

    architecture = family.architecture_of(class_name) or guess_architecture(has)
    head = ARCHITECTURES[architecture].own
    if class_name != family.class_of(architecture) and class_name and head:
        foreign = class_name  # the head is not read, as its scores have no known meaning
        for part in ("kernel", "bias"):
            tensors.pop(family.of(architecture).names(f"{head}/{part}")[0], None)
        architecture = guess_architecture(has)
    family = family.of(architecture)
    with config_json.naming(config_path):
        specs = specs_of(encoder, architecture, _num_classes(family, architecture, tensors))

    def read_tensor(their: str, shape: tuple[int, ...]) -> np.ndarray:
        check_tensor(folder, their, tensors[their], shape)
        return tensors[their]

    weights, missing = family.read_weights(
        specs, set(tensors), read_tensor, lambda name: not is_left_out(name, architecture)
    )
    unused = sorted(all_names - {their for name in weights for their in family.names(name)})
    if any(
        name.startswith((family.layer_prefix(config.num_groups), "encoder/")) for name in unused
    ):
        raise UserError(
            f"has more layers than config.json says (num_hidden_layers={config.num_hidden_layers})",
            "correct it",
            where=folder,
        )
    has_labels = any(f"{head}/kernel" in weights for head in LABELLED.values())
    labels = config_json.labels_of(config_path, values) if has_labels else ()
    problem_type = values.get("problem_type") if has_labels else None
    return (
        config,
        weights,
        Notes(
            *(missing, unused + left_out, architecture, labels, problem_type, foreign),
            task_name=values.get("finetuning_task") if has_labels else None,
        ),
    )


def read(path: str) -> Model:
    """Return the model in a folder; see formats.FormatModule."""
    return Model(*read_model(path))


def write(model: Model, folder: str, precision: str = "float32") -> str:
    """Write a model's folder for transformers: as a BERT, as a relative that computes the same, or
    with bert-gpu's code. Return the line for the log, which names the class.
    """
    config = model.config
    architecture = model.notes.architecture
    if not config.has_own_encoder:
        raise UserError(
            f"{config.encoder!s:.80} is an encoder of Model Garden, which "
            "transformers has no class for",
            "give --format=savedmodel (--init_checkpoint and fill-mask take the folder as it is)",
            setting="format",
            value="huggingface",
        )
    relative = relative_of(config, architecture)
    other = relative and relative.architecture_for(architecture) or architecture
    copy = model._replace(notes=model.notes._replace(architecture=other))
    line = write_own(copy, folder, is_whole_model=True, relative=relative, must_open=True)
    if relative:
        difference = "" if other == architecture else ", without next sentences"
        line += f" of transformers, which computes the same{difference}; "
    elif config.is_classic:
        line += " of transformers; "
    else:
        line += f", which transformers has no class for and {CODE.name} in the folder computes; "
    more = "" if relative or config.is_classic else ", trust_remote_code=True"
    return f'{line}{auto_class(other)}.from_pretrained("{folder}"{more})'


def write_own(
    model: Model,
    folder: str,
    more: Mapping[str, bytes] | None = None,
    is_whole_model: bool = False,
    relative: Relative | None = None,
    must_open: bool = False,
) -> str:
    """Write a model as a bert-gpu folder, with its tokenizer, its card, the files on its use
    and further files `more`, {name: bytes}; return the line for the log. is_whole_model: as in
    folders.replace_folder; relative: as for `_write_folder`; must_open: as for `tokenizer_files`.
    """
    config = model.config
    notes = model.notes
    files = tokenizer_files(model.tokenizer, config, must_open, notes.max_seq_length)
    files |= {**written_usage(model), **(more or {})}
    usage = card.own_usage(notes.architecture)
    relative = relative or own_relative(config, notes.architecture)
    if config.has_own_encoder:
        remote = not (config.is_classic or relative)
        is_sentence = notes.embedding.is_known
        usage |= card.transformers_usage(notes.architecture, remote, is_sentence)
    files["README.md"] = card.readme(model, usage, library="transformers")
    _write_folder(model, folder, files, relative, is_whole_model)
    family = relative.family if relative else family_of(config)
    return f"{folder}: {family.class_of(notes.architecture)}"


def write_model(
    folder: str | os.PathLike[str],
    config: ModelConfig,
    weights: dict[str, np.ndarray],
    architecture: str = "BertForPreTraining",
    labels: tuple[str, ...] = (),
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a bert-gpu folder without a model card. `read_model` reads it, and the from_pretrained
    of the class `architecture` opens it in `transformers`. labels: names of classes, as in Notes;
    files: as for `_write_folder`.
    """
    _write_folder(Model(config, weights, Notes([], [], architecture, labels)), folder, files or {})


def _write_folder(
    model: Model,
    folder: str | os.PathLike[str],
    files: Mapping[str, bytes],
    relative: Relative | None = None,
    is_whole_model: bool = False,
) -> None:
    """Write a model's folder in Hugging Face's format: as the class of `relative`, else of the
    relative that the model was read from, else as BERT or bert-gpu's own.

    The bytes depend on the arguments alone. The folder is replaced as a whole when the new one is
    complete; other files of the old folder stay.

    Args:
      model: of its weights, those that the architecture does not have (a pretraining head in a
        classifier) are left out; without labels, the classes are named LABEL_0, LABEL_1 and so on.
      files: {name: bytes} of further files, such as vocab.txt.
      is_whole_model: as in folders.replace_folder.

    Raises:
      UserError: a weight of the architecture is missing.
    """
    config = model.config
    notes = model.notes
    relative = relative or own_relative(config, notes.architecture)
    family = relative.family if relative else family_of(config)
    code, more = ({}, {}) if relative else _code_for(config)
    more |= score_meaning(notes.architecture, notes.problem_type)
    if relative and relative.has_token_ids and (words := model.tokenizer):
        more |= dict(
            pad_token_id=words.pad_id,
            **dict.fromkeys(("bos_token_id", "cls_token_id"), words.cls_id),
            **dict.fromkeys(("eos_token_id", "sep_token_id"), words.sep_id),
        )
    labels = _checked_labels(folder, model.weights, notes.architecture, notes.labels)
    tensors = _their_tensors(folder, family, config, model.weights, notes.architecture)
    make_config = relative.config_bytes if relative else config_json.config_bytes
    contents = {
        **files,
        **code,
        "model.safetensors": tensor_files.save(tensors),
        "config.json": make_config(config, notes.architecture, labels, more),
    }
    replace_folder(str(folder).rstrip("/"), contents, is_whole_model)


def _code_for(config: ModelConfig) -> tuple[dict[str, bytes], dict[str, object]]:
    """Return ({name: bytes} of the code that computes a model in transformers, entries of
    config.json that name the code). Both are empty where transformers has a class for the model,
    and for an encoder of Model Garden, which the code does not compute.
    """
    if config.is_classic or not config.has_own_encoder:
        return {}, {}
    auto_map = {
        "AutoConfig": f"{CODE.stem}.{OWN.class_name}Config",
        **{auto_class(name): f"{CODE.stem}.{OWN.class_of(name)}" for name in ARCHITECTURES},
    }
    return {CODE.name: CODE.read_bytes()}, {"auto_map": auto_map}


def score_meaning(architecture: str, problem_type: str | None) -> dict[str, str]:
    """Return the entry of config.json for the meaning of a classifier's scores, {"problem_type":
    problem_type}; {} where there is none.
    """
    has_meaning = architecture in LABELLED and problem_type is not None
    return {"problem_type": str(problem_type)} if has_meaning else {}


def _checked_labels(
    folder: str | os.PathLike[str],
    weights: Mapping[str, np.ndarray],
    architecture: str,
    labels: tuple[str, ...],
) -> tuple[str, ...]:
    """Return the names of all classes of an architecture's head: `labels`, or LABEL_0, LABEL_1 and
    so on; () for a head without classes. Raise UserError for a wrong number of labels.
    """
    if architecture not in LABELLED:
        return ()
    num_classes = _num_classes(OWN, architecture, weights)
    labels = tuple(labels) or tuple(f"LABEL_{index}" for index in range(num_classes))
    if len(labels) != num_classes:
        raise UserError(f"{len(labels)} labels for {num_classes} classes", where=folder)
    return labels


def _their_tensors(
    folder: str | os.PathLike[str],
    family: Family,
    config: ModelConfig,
    weights: Mapping[str, np.ndarray],
    architecture: str,
) -> dict[str, np.ndarray]:
    """Return {name: tensor} of a model's weights, with the names and layout of a family's class.
    Raise UserError when the model lacks a weight of the class.
    """
    family = family.of(architecture)
    tensors: dict[str, np.ndarray] = {}
    specs = specs_of(open_encoder(config), architecture, _num_classes(OWN, architecture, weights))
    for name, spec in specs.items():
        if is_left_out(name, architecture) or not family.names(name):
            continue
        if name not in weights:
            if name.startswith("pooler/") and architecture == "BertModel":
                continue
            raise UserError(
                f"{architecture} needs the weight {name}, which this model lacks", where=folder
            )
        array = np.asarray(weights[name], np.float32)
        assert array.shape == spec.shape, f"{name}: {array.shape}, expected {spec.shape}"
        tensors |= zip(family.names(name), family.to_theirs(name, array), strict=True)
    if "mlm" in ARCHITECTURES[architecture].heads:
        tensors |= {
            name: np.zeros(shape(config), np.float32) for name, shape in family.zeros.items()
        }
    prefix = family.prefix if architecture == "BertModel" else ""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
