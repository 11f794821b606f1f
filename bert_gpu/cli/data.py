"""create_pretraining_data.py: turns text into TFRecords for pretraining."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import read_json
from bert_gpu.base.malloc import map_large_blocks
from bert_gpu.base.settings import Settings, setting
from bert_gpu.cli import flags
from bert_gpu.cli.quick import implied_recipe
from bert_gpu.data.config import DataConfig
from bert_gpu.interop.sources import (
    NONE,
    OWN_WORDS,
    find_model,
    library_casing,
    read_config,
)
from bert_gpu.interop.tokenizer_rules import (
    find_casing,
    find_vocabulary,
    folder_strips_accents,
)
from bert_gpu.recipes.rules import RecipeConfig
from bert_gpu.text.config import TextFormat
from bert_gpu.text.tokenizers.rules import flat, letters_of, needs_library

if TYPE_CHECKING:
    from bert_gpu.data.manifest import Manifest

SUMMARY = (
    "Turns text (lines, JSON, csv, tsv, parquet or saved data sets; files, folders or standard "
    "input) into TFRecords for BERT pretraining, and prints which format it recognised. Learns a "
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
        None,
        "Folder of the data set; short for --output_file=DIR/pretrain.tfrecord.",
        path="one",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartConfig(Settings):
    """The model whose pretraining continues with the data."""

    init_checkpoint: str | None = setting(
        None,
        "Use the vocabulary, tokenization and casing of this model, to continue its pretraining: "
        "a model/ folder, a run's folder or a Hugging Face BERT folder. none = no model, the "
        "default.",
        path="one",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowConfig(Settings):
    """Show the result."""

    show: int = setting(0, "Print this many decoded records of the data set.", low=0)
    dry_run: bool = setting(
        False, "Read and check the text, print what would be dropped, and write no data set."
    )


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
    "Many settings at once": ("recipe", "show_config"),
}


def main(argv: list[str], in_program: bool = False) -> "Manifest | str | None":
    """Run the command; return its result: with --show_config the settings as text, with --dry_run
    None. in_program: as in flags.parse.
    """
    parsed = flags.parse(
        argv,
        SUMMARY,
        EXAMPLE,
        CLASSES,
        script="data",
        main=MAIN,
        implied=implied_recipe,
        in_program=in_program,
    )
    with parsed.naming_origins(), naming_folder(parsed):
        return run(parsed)


def run(parsed: flags.Parsed) -> "Manifest | str | None":
    common = parsed.make(flags.CommonConfig)
    show = parsed.make(ShowConfig)
    name = parsed.make(StartConfig).init_checkpoint
    model = None if name in (None, NONE) else find_model(name, "init_checkpoint")
    values = model_values(parsed, model)
    config = with_vocabulary(parsed, parsed.make(DataConfig, **own_defaults(parsed) | values))
    if model is not None:
        used = {name: value for name, value in values.items() if getattr(config, name) == value}
        # the model's size; config.vocab_size only matters for a vocabulary that is learnt
        used["vocab_size"] = read_config(model).vocab_size
        parsed.file_values = {
            name: (value, "the folder of --init_checkpoint") for name, value in used.items()
        }
    text_format = parsed.make(TextFormat)
    if common.show_config:
        other_configs = [parsed.make(kind) for kind in (FolderConfig, StartConfig, RecipeConfig)]
        return flags.describe(parsed, [config, *other_configs, text_format, show, common])
    if not parsed.in_program:  # it cannot be taken back
        map_large_blocks()
    with parsed.imports():
        from bert_gpu.data.build import build, dry_run
    log = parsed.console(common.quiet)
    if model is not None:
        log.say(check_vocabulary(parsed, model, config))
    if show.dry_run:
        dry_run(config, text_format, log)
        return None
    manifest = build(config, text_format, overwrite=common.overwrite, console=log)
    if show.show:
        from bert_gpu.data.summary import decode_instances

        for text in decode_instances(config, show.show):
            console.answer(text)
    return manifest


@contextlib.contextmanager
def naming_folder(parsed: flags.Parsed) -> Iterator[None]:
    """Make each UserError about --output_file that is raised inside this context name --output_dir
    instead, if the user has set --output_dir alone.
    """
    try:
        yield
    except UserError as error:
        folder = parsed.make(FolderConfig).output_dir
        names_file = folder is None or parsed.is_set("output_file")
        if error.settings[:1] == ("output_file",) and not names_file:
            error.settings = ("output_dir", *error.settings[1:])
            error.value = folder
        raise


def own_defaults(parsed: flags.Parsed) -> dict[str, str]:
    """Return {field of DataConfig: default} for defaults that are not constants: the path of the
    bundled text, and the output file in --output_dir.
    """
    defaults = {}
    folder = parsed.make(FolderConfig).output_dir
    if not parsed.is_set("input_file"):
        defaults["input_file"] = flags.bundled("sample_text.txt")
    if folder is not None:
        if parsed.is_set("output_file"):
            raise UserError(
                "--output_file names the folder too",
                "give one of them",
                setting="output_dir",
                value=folder,
            )
        defaults["output_file"] = os.path.join(folder, "pretrain.tfrecord")
    return defaults


def model_values(parsed: flags.Parsed, folder: str | None) -> dict[str, object]:
    """Return {field of DataConfig: value} for the settings that a model's folder determines; {} if
    there is no model.

    Raises UserError for a flag of the user's that contradicts the model.
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
    values: dict[str, object] = {"tokenization": kind_of(vocabulary)}
    casing = find_casing(folder)
    user_values = parsed.user_values(DataConfig)
    user_casing = user_values.get("do_lower_case", casing.is_lower)
    values["do_lower_case"] = user_casing if casing.guess else casing.is_lower
    if values["do_lower_case"] and not folder_strips_accents(folder):
        # the folder's tokenizer keeps accents, but the user's own --do_lower_case strips them
        values["strip_accents"] = "do_lower_case" in user_values
    for name, value in (values | dict(vocab_size=read_config(folder).vocab_size)).items():
        if user_values.get(name, value) != value:
            raise UserError(
                f"the model in {folder} has {value}",
                "drop the flag, or --init_checkpoint",
                setting=name,
                value=user_values[name],
            )
    names = ("sp_model_file", "vocab_file")
    flag, other_flag = names if vocabulary.endswith(".model") else names[::-1]
    if other_flag in user_values:
        raise UserError(
            f"the model in {folder} has {values['tokenization']} ({os.path.basename(vocabulary)})",
            "drop the flag",
            setting=other_flag,
            value=user_values[other_flag],
        )
    return values | {flag: vocabulary}


def kind_of(vocabulary: str) -> str:
    """Return the value of --tokenization, such as "WordPiece", for a vocabulary's local file."""
    if not vocabulary.endswith(".json"):
        return "SentencePiece" if vocabulary.endswith(".model") else "WordPiece"
    content = flat(read_json(vocabulary, "a tokenizer"))
    kind = "BPE" if "model.merges" in content else content.get("model.type")
    return {"BPE": "BPE", "Unigram": "SentencePiece"}.get(str(kind), "WordPiece")


def with_vocabulary(parsed: flags.Parsed, config: DataConfig) -> DataConfig:
    """Return settings in which a folder as --vocab_file is replaced by the vocabulary's file in it.
    The folder's casing, or the kind and casing of a tokenizer.json that is not ours, are filled in;
    a SentencePiece model is moved to --sp_model_file.

    Raises UserError for a flag of the user's that contradicts the tokenizer's file.
    """
    path = config.vocab_file
    if path is None or "://" in path or not os.path.exists(path):
        return config
    values: dict[str, Any] = {}
    if os.path.isdir(path):
        vocabulary = find_vocabulary(path)
        if vocabulary is None:
            return config  # reading the folder later raises the error
        values |= dict(
            do_lower_case=find_casing(path).is_lower, strip_accents=folder_strips_accents(path)
        )
        path = vocabulary
    stored = read_json(path, "a tokenizer") if path.endswith(".json") else {}
    user_values = parsed.user_values(DataConfig)
    is_model = path.endswith(".model")
    if needs_library(stored):
        values = library_casing(path)
        values["strip_accents"] = values.get("strip_accents") or not values.get("do_lower_case")
    if is_model or needs_library(stored):
        values["tokenization"] = kind_of(path)
        for name in user_values.keys() & values.keys():
            if user_values[name] != values[name]:
                raise UserError(
                    f"the tokenizer in {path[-150:]} has {values[name]}",
                    "drop the flag",
                    setting=name,
                    value=user_values[name],
                )
    elif stored:
        values.setdefault("strip_accents", letters_of(flat(stored)).get("strip_accents", True))
    values |= {name: value for name, value in user_values.items() if name in values}
    flag = "sp_model_file" if is_model else "vocab_file"
    return dataclasses.replace(config, **values | {"vocab_file": None, flag: path})


def check_vocabulary(parsed: flags.Parsed, folder: str, config: DataConfig) -> str:
    """Check that the vocabulary of the data is that of the model in `folder`; return a line for the
    log that describes the vocabulary.

    Raises UserError when the folder's vocabulary does not fit its model or differs from the data's.
    """
    from bert_gpu.interop import models
    from bert_gpu.text.tokenizers.open import open_tokenizer

    by_user = parsed.user_values(DataConfig)
    casing = (by_user.get("do_lower_case"), by_user.get("strip_accents"))
    tokenizer = models.load_tokenizer(folder, None, *casing)
    path = str(find_vocabulary(folder))
    models.check_vocabulary(tokenizer, read_config(folder), path)
    data_vocabulary = str(config.vocabulary_path)
    theirs = open_tokenizer(data_vocabulary, config.do_lower_case, config.strip_accents)
    if theirs.identity != tokenizer.identity:
        raise UserError(
            f"is not the vocabulary of the model, {path}",
            f"drop the flag, or --init_checkpoint; {OWN_WORDS}",
            setting="vocab_file" if config.vocab_file else "sp_model_file",
            value=data_vocabulary,
        )
    description = models.describe_tokenizer(tokenizer, folder)
    return f"from {folder}: {config.tokenization} {os.path.basename(path)}, {description}"
