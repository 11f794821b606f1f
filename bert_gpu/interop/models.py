"""Models in any format: reads one with its tokenizer, and writes one.

Our own format is that of Hugging Face (config.json, model.safetensors, vocab.txt), the one that
trainings write. formats.py has the others, sources.py finds a model.
"""

import os

from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import is_inside
from bert_gpu.interop.formats import (  # noqa: F401
    FORMATS,
    OURS,
    Model,
    Notes,
    has_model,
    open_format,
    recognise,
)
from bert_gpu.interop.heads import LABELLED
from bert_gpu.interop.huggingface import write_model, write_own  # noqa: F401
from bert_gpu.interop.sources import (  # noqa: F401
    find_casing,
    find_model,
    find_vocabulary,
    is_run,
)
from bert_gpu.interop.tokenizers import (  # noqa: F401
    check_vocabulary,
    describe_tokenizer,
    load_tokenizer,
    tokenizer_files,
)
from bert_gpu.interop.usage import KINDS, class_names, with_usage
from bert_gpu.model.encoders import open_encoder


def read_model(path):
    """The formats.Model at a path that `find_model` has found, in any format, with all that its
    files say of its use, without its tokenizer.
    """
    return with_usage(path, open_format(recognise(path) or OURS).read(path))


def read_start(path, flag="init_checkpoint"):
    """(path, Model) of the model that a flag names, without its tokenizer. UserError when it lacks
    weights of the encoder.
    """
    found = find_model(path, flag)
    model = read_model(found)
    lacking = [name for name in open_encoder(model.config).weights() if name not in model.weights]
    if lacking:
        raise UserError(
            f"has no weights {lacking[0]}",
            "name a model with the whole encoder",
            setting=flag,
            value=path,
        )
    return found, model


def open_model(path, flag, vocab_file=None, do_lower_case=None):
    """(path, Model) of the model that a flag names, with its tokenizer if it has a vocabulary;
    vocab_file, do_lower_case as for `load_tokenizer`.
    """
    found, model = read_start(path, flag)
    if vocab_file is None and find_vocabulary(found) is None:
        return found, model
    tokenizer = load_tokenizer(found, vocab_file, do_lower_case)
    check_vocabulary(tokenizer, model.config, vocab_file or find_vocabulary(found), found)
    return found, model._replace(tokenizer=tokenizer)


def describe_unused(notes):
    """What a model's files have and no model here, for the log; "" for nothing."""
    names = notes.unused
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    if not names:
        return ""
    why = "ignored, because bert-gpu's models have no such weights"
    return f"{why}: {', '.join(names[:3])}{more}"


def describe_lost(model: Model) -> str:
    """What a format that holds weights alone loses of a Model, for a warning; "" for nothing."""
    means, labels, files = model.notes.problem_type, model.notes.labels, ", ".join(model.task)
    lost = {
        f"the names of its classes ({shortened(', '.join(labels))}), numbers in the copy": (
            means != "regression"
            and () != labels == class_names(model, LABELLED.get(model.notes.architecture))
        ),
        "that several of them may apply": means == KINDS["multilabel"],
        f"{files} (columns and length of its task, or its pooling)": files,
    }
    return "; ".join(name for name, is_lost in lost.items() if is_lost)


def transfer(config, warn, format_name=None, describe=None):
    """Reads a model in any format and writes it in another.

    Args:
      config: ImportConfig or ExportConfig, after its check_paths. warn: called with missing and
        unused weights, as texts. format_name: of formats.FORMATS; None = a folder of ours.
        describe: function of the model's path -> Model.card.

    Returns:
      The last line for the log.

    Raises:
      UserError: there is no such model, it is damaged, or the format cannot hold it; then nothing
        has been written.
    """
    if is_run(config.to):  # its training holds its lock, and would lose what it writes
        raise UserError(
            "is the folder of a run", "name another folder", setting="to", value=config.to
        )
    path, model = open_model(config.source, "from", config.vocab_file, config.do_lower_case)
    if os.path.realpath(path) == os.path.realpath(config.to):
        raise UserError("is the model itself", "name another folder", setting="to", value=config.to)
    if is_inside(path, config.to):
        raise UserError(
            "the model lies in this folder", "name another folder", setting="to", value=config.to
        )
    if model.tokenizer is None:
        warn(f"{path}: has no vocabulary; name it with --vocab_file, or the copy has none either")
    if unused := describe_unused(model.notes):
        warn(f"{path}: {unused}")
    model = model._replace(card=None if describe is None else describe(path))
    if not FORMATS[format_name or OURS].holds_task and (lost := describe_lost(model)):
        warn(f"--format={format_name}: has no room for {lost}")
    if lacking := model.notes.embedding.lacking:
        warn(f"{path}: its sentence vectors need {lacking}, which bert-gpu does not have")
    if format_name is None:
        return write_own(model, config.to, is_whole_model=True)
    return open_format(format_name).write(model, config.to, config)
