"""python -m bert_gpu extend: adds the user's own words to the vocabulary of a trained model."""

import functools

from bert_gpu.cli import flags
from bert_gpu.interop.config import ExtendConfig
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
    "--tokens_file=words.txt --use_unused",
)


def main(argv: list[str]) -> str:
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, [ExtendConfig, TextFormat])
    config = parsed.make(ExtendConfig)
    text_format = parsed.make(TextFormat)
    config.check_paths()
    with parsed.imports():
        from bert_gpu.data.own_files import is_own
        from bert_gpu.interop import extension, models
        from bert_gpu.runs.card_facts import facts_beside
    console = parsed.console(config.quiet)
    change = functools.partial(
        extension.extend, config=config, text_format=text_format, console=console, is_own=is_own
    )
    return models.transfer(config, console.warn, describe=facts_beside, change=change)
