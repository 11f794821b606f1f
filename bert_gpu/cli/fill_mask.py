"""python -m bert_gpu fill-mask: predicts words for each [MASK] with a pretrained model."""

from collections.abc import Sequence

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.cli import flags
from bert_gpu.inference.config import FillMaskConfig

SUMMARY = (
    "Guesses the words for each [MASK] of texts with a pretrained model. The texts are "
    "arguments, or the lines of a file."
)
EXAMPLE = (
    'python -m bert_gpu fill-mask "the capital of france is [MASK] ."',
    'python -m bert_gpu fill-mask --model=bert-base-uncased --top_k=10 "a [MASK] of [MASK]"',
    "python -m bert_gpu fill-mask --input=lines.txt --output=answers.jsonl",
)
CLASSES = [FillMaskConfig]


def main(argv: list[str], in_program: bool = False) -> list[list[list[tuple[float, str]]]]:
    """Run the command; return, for each text and each [MASK] in it, (probability, word) pairs. For
    --input only a program gets them; a command line gets [], as each answer is printed or written.
    in_program: as in flags.parse.
    """
    parsed = flags.parse(
        argv, SUMMARY, EXAMPLE, CLASSES, positionals='"TEXT WITH [MASK]"', in_program=in_program
    )
    config = parsed.make(FillMaskConfig)
    texts = parsed.positionals
    if bool(texts) == (config.input is not None):
        raise UserError(
            'a text is needed, in quotes: fill-mask "the sky is [MASK] ."; or --input=FILE'
            if not texts
            else f"--input={config.input}: give this or texts as arguments, not both"
        )
    if texts and config.output is not None:
        raise UserError("has no effect without --input=FILE", setting="output", value=config.output)
    with parsed.imports():
        from bert_gpu.inference.masked_words import MaskFiller, check_masks, fill_file
    if texts:
        filler = MaskFiller(config)
        check_masks(texts, filler.opened.tokenizer)
        answers = filler(texts)
        for text, masks in zip(texts, answers, strict=True):
            if not parsed.in_program:
                show(text if len(texts) > 1 else None, masks)
        return answers
    log = parsed.console(config.quiet or config.output is None)
    answers = []
    say = (lambda text, masks: answers.append(masks)) if parsed.in_program else show
    num_texts = fill_file(config, log, say)
    if config.output is not None:
        log.say(f"{config.output}: answers for {num_texts:,} texts")
    return answers


def show(text: str | None, masks: Sequence[Sequence[tuple[float, str]]]) -> None:
    """Print the words for each [MASK] of a text, below the text unless it is None. masks: for each
    [MASK], (probability, word) pairs.
    """
    if text is not None:
        console.answer(text)
    for index, words in enumerate(masks, 1):
        console.answer(f"[MASK] {index}")
        for probability, word in words:
            console.answer(f"  {probability:.4f}  {word}")
