"""create_pretraining_data.py: text -> TFRecords."""

import contextlib
import dataclasses
import os

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, setting
from bert_gpu.cli import flags
from bert_gpu.cli.quick import implied_recipe
from bert_gpu.data.config import DataConfig
from bert_gpu.interop.sources import (
    NONE,
    OWN_WORDS,
    find_casing,
    find_model,
    find_vocabulary,
    read_config,
)
from bert_gpu.recipes.rules import RecipeConfig
from bert_gpu.text.config import TextFormat

SUMMARY = (
    "Turns text (lines, JSON, csv, tsv, parquet or saved datasets; files, folders or standard "
    "input) into TFRecords for BERT pretraining, and says what it takes the text for. Learns a "
    "WordPiece vocabulary from the text unless you give one. "
    "To resume a job that was stopped, repeat the same command."
)
EXAMPLE = (
    "python create_pretraining_data.py",
    (
        "python create_pretraining_data.py --input_file='books/*.txt' "
        "--output_file=data/books.tfrecord --vocab_size=32768"
    ),
    (
        "python create_pretraining_data.py --input_file=corpus.txt "
        "--vocab_file=vocab.txt --max_seq_length=512"
    ),
    (
        "python create_pretraining_data.py --input_file=wiki.parquet,notes/ "
        "--text_column=body --output_dir=data"
    ),
    "zcat corpus.txt.gz | python create_pretraining_data.py --input_file=- --output_dir=data",
    "python create_pretraining_data.py --input_file=corpus.txt --recipe=crammed",
    (
        "python create_pretraining_data.py --input_file=corpus.txt "
        "--init_checkpoint=bert-base-uncased"
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderConfig(Settings):
    """The folder to write to."""

    output_dir: str | None = setting(
        None, "Folder of the data set; short for --output_file=DIR/pretrain.tfrecord."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartConfig(Settings):
    """The model whose pretraining the data is to continue."""

    init_checkpoint: str | None = setting(
        None,
        "Take vocabulary, tokenization and casing from this model, to continue its pretraining: a "
        "model/ folder, a run's folder or a Hugging Face BERT folder. none = from no model, the "
        "default.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowConfig(Settings):
    """Show the result."""

    show: int = setting(0, "Print this many decoded instances of the data set.", low=0)


CLASSES = [
    *(DataConfig, FolderConfig, StartConfig, RecipeConfig, TextFormat, ShowConfig),
    flags.CommonConfig,
]
MAIN = {
    "The text": ("input_file", "input_format", "text_field", "validation_share"),
    "The vocabulary": ("vocab_file", "vocab_size", "do_lower_case", "init_checkpoint"),
    "The rows and their masks": (
        "objective",
        "max_seq_length",
        "masking",
        "masked_lm_prob",
        "dupe_factor",
    ),
    "What is written": ("output_dir", "num_workers", "overwrite", "show"),
    "Many settings at once": ("recipe", "show_config", "save_config"),
}


def main(argv, in_program=False):
    """Returns a data.manifest.Manifest, or the text of --show_config. in_program: of
    flags.parse.
    """
    rules = dict(script="data", main=MAIN, implied=implied_recipe)
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, **rules, in_program=in_program)
    with parsed.naming_origins(), naming_folder(parsed):
        return run(parsed)


def run(parsed):
    common, show = parsed.make(flags.CommonConfig), parsed.make(ShowConfig)
    name = parsed.make(StartConfig).init_checkpoint
    model = None if name in (None, NONE) else find_model(name, "init_checkpoint")
    values = adopted(parsed, model)
    config = parsed.make(DataConfig, **own_defaults(parsed) | values)
    if model is not None:
        taken = {name: value for name, value in values.items() if getattr(config, name) == value}
        # that of `config` is for a vocabulary to be learnt
        taken["vocab_size"] = read_config(model).vocab_size
        parsed.adopted = {
            name: (value, "the folder of --init_checkpoint") for name, value in taken.items()
        }
    text_format = parsed.make(TextFormat)
    if common.save_config is not None:
        parsed.save_config(common.save_config, [config, text_format])
    if common.show_config:
        rest = [parsed.make(kind) for kind in (FolderConfig, StartConfig, RecipeConfig)]
        return flags.describe(parsed, [config, *rest, text_format, show, common])
    with parsed.imports():
        from bert_gpu.data.build import build
    log = parsed.console(common.quiet)
    if model is not None:
        log.say(check_vocabulary(parsed, model, config))
    manifest = build(config, text_format, overwrite=common.overwrite, console=log)
    if show.show:
        from bert_gpu.data.summary import decode_instances

        for text in decode_instances(config, show.show):
            console.answer(text)
    return manifest


@contextlib.contextmanager
def naming_folder(parsed):
    """Errors about --output_file name --output_dir where that was given instead."""
    try:
        yield
    except UserError as error:
        folder = parsed.make(FolderConfig).output_dir
        is_named = folder is None or parsed.given("output_file")
        if error.settings[:1] == ("output_file",) and not is_named:
            error.settings = ("output_dir", *error.settings[1:])
            error.value = folder
        raise


def own_defaults(parsed):
    """{field: value} of a DataConfig that depend on where the program is and on --output_dir."""
    defaults, folder = {}, parsed.make(FolderConfig).output_dir
    if not parsed.given("input_file"):
        defaults["input_file"] = flags.bundled("sample_text.txt")
    if folder is not None:
        if parsed.given("output_file"):
            raise UserError(
                "--output_file names the folder too",
                "give one of them",
                setting="output_dir",
                value=folder,
            )
        defaults["output_file"] = os.path.join(folder, "pretrain.tfrecord")
    return defaults


def adopted(parsed, folder):
    """{field of DataConfig: value} that a model's folder decides, {} without one. UserError for a
    flag of the user's that contradicts it.
    """
    if folder is None:
        return {}
    vocabulary = find_vocabulary(folder)
    if vocabulary is None:
        raise UserError(
            "has no vocab.txt and no other vocabulary",
            "put the model's there, or give --vocab_file instead of --init_checkpoint",
            where=folder,
        )
    is_sentence_piece = vocabulary.endswith(".model")
    values = dict(tokenization="SentencePiece" if is_sentence_piece else "WordPiece")
    casing, given = find_casing(folder), parsed.given_values(DataConfig)
    insisted = given.get("do_lower_case", casing.is_lower)
    values["do_lower_case"] = insisted if casing.guess else casing.is_lower
    size = read_config(folder).vocab_size
    for name, value in (values | dict(vocab_size=size)).items():
        if given.get(name, value) != value:
            raise UserError(
                f"the model in {folder} has {value}",
                "drop the flag, or --init_checkpoint",
                setting=name,
                value=given[name],
            )
    mine, other = ("sp_model_file", "vocab_file")[:: 1 if is_sentence_piece else -1]
    if other in given:
        raise UserError(
            f"the model in {folder} has {values['tokenization']} ({os.path.basename(vocabulary)})",
            "drop the flag",
            setting=other,
            value=given[other],
        )
    return values | {mine: vocabulary}


def check_vocabulary(parsed, folder, config):
    """What is taken from a model's folder, for the log. UserError when its vocabulary is not the
    model's, or not that of the DataConfig.
    """
    from bert_gpu.interop import models
    from bert_gpu.text.tokenizers.open import open_tokenizer

    casing = config.do_lower_case if parsed.given("do_lower_case") else None
    tokenizer, path = models.load_tokenizer(folder, None, casing), find_vocabulary(folder)
    models.check_vocabulary(tokenizer, read_config(folder), path)
    named = config.vocabulary_path
    if open_tokenizer(named, config.do_lower_case).identity != tokenizer.identity:
        flag = "vocab_file" if config.vocab_file else "sp_model_file"
        raise UserError(
            f"is not the vocabulary of the model, {path}",
            f"drop the flag, or --init_checkpoint; {OWN_WORDS}",
            setting=flag,
            value=named,
        )
    described = models.describe_tokenizer(tokenizer, folder)
    return f"from {folder}: {config.tokenization} {os.path.basename(path)}, {described}"
