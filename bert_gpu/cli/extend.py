"""python -m bert_gpu extend: adds the user's own words to the vocabulary of a trained model."""

from bert_gpu.cli import flags
from bert_gpu.cli.import_ import transfer
from bert_gpu.interop.config import ExtendConfig
from bert_gpu.interop.formats import Model
from bert_gpu.text.config import TextFormat

SUMMARY = (
    "Adds words to a trained model: those that shorten a text most, or those of a list. Each "
    "begins with the mean of the rows of its pieces. Prints the pieces per word before and after, "
    "and writes a model folder of bert-gpu, from which the training scripts continue."
)
EXAMPLE = (
    "python -m bert_gpu extend --from=bert-base-uncased --to=models/medical "
    "--input_file='notes/*.txt' --num_tokens=2000",
    "python -m bert_gpu extend --from=bert-base-uncased --to=models/medical "
    "--tokens_file=words.txt",
)


CLASSES = [ExtendConfig, TextFormat]


def main(argv: list[str], in_program: bool = False) -> str:
    """Run the command; return a line that names the new folder. in_program: as in flags.parse."""
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, in_program=in_program)
    config = parsed.make(ExtendConfig)
    text_format = parsed.make(TextFormat)

    def extended(model: Model) -> Model:
        from bert_gpu.data.own_files import is_own
        from bert_gpu.interop.extension import extend

        return extend(model, config, text_format, parsed.console(config.quiet), is_own)

    return transfer(parsed, config, change=extended)
