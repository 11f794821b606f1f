"""Reads a model in any format with its tokenizer, and converts it to another format.

bert-gpu's own format, in which a training writes its model, is Hugging Face's (config.json,
model.safetensors, vocab.txt). formats.py lists the other formats, and sources.py finds a model.
"""

from collections.abc import Callable, Mapping

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import is_inside
from bert_gpu.interop.config import TransferConfig
from bert_gpu.interop.formats import (  # noqa: F401
    FORMATS,
    OURS,
    Model,
    Notes,
    has_model,
    open_format,
    recognise,
)
from bert_gpu.interop.huggingface import write_model, write_own  # noqa: F401
from bert_gpu.interop.sources import SEEN, find_model, is_run  # noqa: F401
from bert_gpu.interop.tokenizer_rules import find_casing, find_vocabulary  # noqa: F401
from bert_gpu.interop.tokenizers import (  # noqa: F401
    check_vocabulary,
    describe_tokenizer,
    for_training,
    load_tokenizer,
    tokenizer_files,
)
from bert_gpu.interop.usage import seen_texts, with_usage  # noqa: F401
from bert_gpu.model.encoders import open_encoder


def read_model(path: str) -> Model:
    """Return the model, in any format, at a path that `find_model` returned. It has no tokenizer,
    but has all facts on the model's use that the files state.
    """
    return with_usage(path, open_format(recognise(path) or OURS).read(path))


def read_start(path: str, flag: str = "init_checkpoint") -> tuple[str, Model]:
    """Return (path, model) for the path that a user gave with a flag; the model has no tokenizer.
    Raise UserError when the model lacks weights of the encoder.
    """
    model_path = find_model(path, flag)
    model = read_model(model_path)
    lacking = [name for name in open_encoder(model.config).weights() if name not in model.weights]
    if lacking:
        raise UserError(
            f"has no weights {lacking[0]}",
            "name a model with the whole encoder",
            setting=flag,
            value=path,
        )
    return model_path, model


def open_model(
    path: str, flag: str, vocab_file: str | None = None, do_lower_case: bool | None = None
) -> tuple[str, Model]:
    """Return (path, model) for the path that a user gave with a flag; the model has its tokenizer
    if there is a vocabulary. vocab_file, do_lower_case: as for `load_tokenizer`.
    """
    model_path, model = read_start(path, flag)
    vocabulary = find_vocabulary(model_path, do_lower_case) if vocab_file is None else vocab_file
    if vocabulary is None:
        return model_path, model
    tokenizer = load_tokenizer(model_path, vocab_file, do_lower_case)
    check_vocabulary(tokenizer, model.config, vocabulary, model_path)
    return model_path, model._replace(tokenizer=tokenizer)


def describe_unused(notes: Notes) -> str:
    """Return a text for the log that names the tensors in a model's files for which bert-gpu's
    models have no weights; "" for none.
    """
    names = notes.unused
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    of_each_head = {name.partition(".")[0]: name for name in reversed(names)}  # its first name
    shown = [*dict.fromkeys([*sorted(of_each_head.values()), *names])][:3]
    return f"ignored, because bert-gpu's models have no such weights: {', '.join(shown)}{more}"


def transfer(
    config: TransferConfig,
    warn: Callable[[str], None],
    format_name: str | None = None,
    describe: Callable[[str], Mapping[str, Mapping[str, str]] | None] | None = None,
    change: Callable[[Model], Model] = lambda model: model,
    precision: str = "float32",
) -> str:
    """Read a model in any format and write it in another.

    Args:
      config: settings whose check_paths has passed.
      warn: called with a text on each loss, such as missing or unused weights.
      format_name: a key of formats.FORMATS; None = bert-gpu's own format.
      describe: function of the path of a model that returns its Model.card.
      change: function of the model that was read that returns the model to write.
      precision: number format of matrices and products in a SavedModel.

    Returns:
      The last line for the log.

    Raises:
      UserError: there is no such model, it is damaged, or the format cannot hold it; then nothing
        has been written.
    """
    assert config.source is not None and config.to is not None  # check_paths has checked both
    if is_run(config.to):  # replacing it would remove files of the run
        raise UserError(
            "is the folder of a run", "name another folder", setting="to", value=config.to
        )
    path, model = open_model(config.source, "from", config.vocab_file, config.do_lower_case)
    if is_inside(path, config.to):
        raise UserError(
            "the model lies there, and would be replaced",
            "name another folder",
            setting="to",
            value=config.to,
        )
    if model.tokenizer is None:
        warn(f"{path}: has no vocabulary; name it with --vocab_file, or the copy has none either")
    if unused := describe_unused(model.notes):
        warn(f"{path}: {unused}")
    model = change(model._replace(card=None if describe is None else describe(path)))
    if lacking := model.notes.embedding.lacking:
        warn(f"{path}: its sentence vectors need {lacking}, which bert-gpu does not have")
    if format_name != "savedmodel" and (text := model.longer_texts):
        warn(f"{path}: longer texts: {text}")
    if format_name is None:
        return write_own(model, config.to, is_whole_model=True)
    return open_format(format_name).write(model, config.to, precision)
