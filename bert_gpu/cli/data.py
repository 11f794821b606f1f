"""create_pretraining_data.py: text -> TFRecords."""

import dataclasses
import os

from bert_gpu import console, environment
from bert_gpu.cli import flags
from bert_gpu.data.config import DataConfig
from bert_gpu.recipes import RecipeConfig
from bert_gpu.settings import Settings, UserError, setting
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
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderConfig(Settings):
    """The folder to write to."""

    output_dir: str | None = setting(
        None, "Folder of the data set; short for --output_file=DIR/pretrain.tfrecord."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowConfig(Settings):
    """Show the result."""

    show: int = setting(0, "Print this many decoded instances of the data set.", low=0)


def main(argv):
    parsed = flags.parse(
        argv,
        SUMMARY,
        EXAMPLE,
        [DataConfig, FolderConfig, RecipeConfig, TextFormat, ShowConfig, flags.CommonConfig],
        script="data",
    )
    with parsed.blaming_recipe():
        return run(parsed)


def run(parsed):
    common, show = parsed.make(flags.CommonConfig), parsed.make(ShowConfig)
    config = parsed.make(DataConfig, **own_defaults(parsed))
    text_format = parsed.make(TextFormat)
    if common.show_config:
        rest = [parsed.make(kind) for kind in (FolderConfig, RecipeConfig)]
        console.answer(flags.describe(parsed, [config, *rest, text_format, show, common]))
        return
    with environment.quick_imports():
        from bert_gpu.data.build import build
    build(config, text_format, overwrite=common.overwrite, console=parsed.console(common.quiet))
    if show.show:
        from bert_gpu.data.summary import decode_instances

        for text in decode_instances(config, show.show):
            console.answer(text)


def own_defaults(parsed):
    """{field: value} of a DataConfig that depend on where the program is and on --output_dir."""
    defaults, folder = {}, parsed.make(FolderConfig).output_dir
    if not parsed.given("input_file"):
        defaults["input_file"] = flags.bundled("sample_text.txt")
    if folder is not None:
        if parsed.given("output_file"):
            raise UserError(
                f"--output_dir={folder}: --output_file names the folder too; give one of them"
            )
        defaults["output_file"] = os.path.join(folder, "pretrain.tfrecord")
    return defaults
