"""python -m bert_gpu embed: writes a vector, or hidden states, for each line of a text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bert_gpu.base.console import format_seconds
from bert_gpu.cli import flags
from bert_gpu.inference.config import EmbedConfig

if TYPE_CHECKING:
    from bert_gpu.inference.embeddings import Embedded

SUMMARY = (
    "Embeds texts with a trained model: a vector for each line, written to an array file that "
    "numpy.load opens. The text may be of any size; memory stays the same."
)
EXAMPLE = (
    "python -m bert_gpu embed --model=runs/pretrain/model --input=lines.txt --output=lines.npy",
    "zcat lines.gz | python -m bert_gpu embed --pooling=mean --output=lines.npy",
)
CLASSES = [EmbedConfig]


def main(argv: list[str], in_program: bool = False) -> Embedded:
    """Run the command; return the names of the files written and the counts of texts and tokens.
    in_program: as in flags.parse.
    """
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, in_program=in_program)
    config = parsed.make(EmbedConfig)
    started = time.monotonic()
    with parsed.imports():
        from bert_gpu.inference.embeddings import embed_file
    console = parsed.console(config.quiet)
    result = embed_file(config, console)
    if result.num_truncated:
        console.say(f"cut to --max_seq_length: {result.num_truncated:,} texts")
    rows = result.num_tokens if config.pooling == "none" else result.num_texts
    console.say(
        f"{' and '.join(result.files)}: {rows:,} x {result.width} of {result.num_texts:,} texts, "
        f"{result.num_tokens:,} tokens, in {format_seconds(time.monotonic() - started)}"
    )
    return result
