"""python -m bert_gpu fill-mask: the words that a pretrained model predicts for [MASK]."""

from bert_gpu import console
from bert_gpu.cli import flags
from bert_gpu.environment import quick_imports
from bert_gpu.pretrain.config import FillMaskConfig
from bert_gpu.settings import UserError

SUMMARY = "Guesses the words behind each [MASK] of a text with a pretrained model."
EXAMPLE = (
    'python -m bert_gpu fill-mask "the capital of france is [MASK] ."',
    'python -m bert_gpu fill-mask --model=bert-base-uncased --top_k=10 "a [MASK] of [MASK]"',
)


def main(argv):
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, [FillMaskConfig], positionals='"TEXT WITH [MASK]"')
    config = parsed.make(FillMaskConfig)
    if len(parsed.positionals) != 1:
        raise UserError(
            f"one text is needed, not {len(parsed.positionals)}; "
            'put it in quotes: fill-mask "the sky is [MASK] ."'
        )
    with quick_imports():
        from bert_gpu.pretrain.fill_mask import MASK, fill_mask
    for index, words in enumerate(fill_mask(config, parsed.positionals[0]), 1):
        console.answer(f"{MASK} {index}")
        for probability, word in words:
            console.answer(f"  {probability:.4f}  {word}")
    return 0
