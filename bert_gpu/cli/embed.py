"""python -m bert_gpu embed: hidden states of a trained model for each line of a text."""

import time

from bert_gpu.base.console import format_seconds
from bert_gpu.cli import flags
from bert_gpu.inference.config import EmbedConfig

SUMMARY = (
    "Embeds texts with a trained model: a vector for each line, written to an array file that "
    "numpy.load opens. The text may be of any size; memory stays the same."
)
EXAMPLE = (
    "python -m bert_gpu embed --model=runs/pretrain/model --input=lines.txt --output=lines.npy",
    "zcat lines.gz | python -m bert_gpu embed --pooling=mean --output=lines.npy",
)
CLASSES = [EmbedConfig]


def main(argv, in_program=False):
    """Returns an inference.embeddings.Embedded; in_program: of flags.parse."""
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, in_program=in_program)
    config, started = parsed.make(EmbedConfig), time.monotonic()
    with parsed.imports():
        from bert_gpu.inference.embeddings import embed_file
    console = parsed.console(config.quiet)
    done = embed_file(config, console)
    if done.num_truncated:
        console.say(f"cut to --max_seq_length: {done.num_truncated:,} texts")
    rows = done.num_tokens if config.pooling == "none" else done.num_texts
    console.say(
        f"{' and '.join(done.files)}: {rows:,} x {done.width} of {done.num_texts:,} texts, "
        f"{done.num_tokens:,} tokens, in {format_seconds(time.monotonic() - started)}"
    )
    return done
