"""create_pretraining_data.py: text -> TFRecords."""

import dataclasses

from bert_gpu import environment
from bert_gpu.cli import flags
from bert_gpu.data.config import DataConfig
from bert_gpu.recipes import RecipeConfig
from bert_gpu.settings import Settings, setting
from bert_gpu.text.config import TextFormat

SUMMARY = (
    "Turns text (one sentence a line, a blank line between documents) into TFRecords for "
    "BERT pretraining. Learns a WordPiece vocabulary from the text unless you give one. "
    "To resume a killed job, run the same command again."
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
    "python create_pretraining_data.py --input_file=corpus.txt --recipe=crammed",
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
        [DataConfig, RecipeConfig, TextFormat, ShowConfig, flags.CommonConfig],
        script="data",
    )
    common, show = parsed.make(flags.CommonConfig), parsed.make(ShowConfig)
    config = parsed.make(
        DataConfig,
        **{} if parsed.given("input_file") else dict(input_file=flags.bundled("sample_text.txt")),
    )
    text_format = parsed.make(TextFormat)
    if common.show_config:
        print(
            flags.describe(parsed, [config, parsed.make(RecipeConfig), text_format, show, common])
        )
        return
    with environment.quick_imports():
        from bert_gpu.console import Console
        from bert_gpu.data.build import build
    build(config, text_format, overwrite=common.overwrite, console=Console(common.quiet))
    if show.show:
        from bert_gpu.data.summary import decode_instances

        for text in decode_instances(config, show.show):
            print(text)
