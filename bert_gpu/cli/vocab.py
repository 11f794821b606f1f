"""python -m bert_gpu vocab: learns a WordPiece vocabulary or a SentencePiece model from text."""

import time

from bert_gpu.base import environment
from bert_gpu.cli import flags
from bert_gpu.text.config import TextFormat, VocabConfig

SUMMARY = (
    "Learns a vocabulary from text: WordPiece (vocab.txt, one piece a line) "
    "or SentencePiece (a unigram model). The same text gives the same vocabulary. "
    "A large corpus is sampled: about 1 GB of it is read."
)
EXAMPLE = (
    "python -m bert_gpu vocab --input_file='books/*.txt' --vocab_size=32768 --vocab_file=vocab.txt",
    (
        "python -m bert_gpu vocab --input_file=wiki.jsonl.zst,more.parquet "
        "--tokenization=SentencePiece --sp_model_file=wiki.model"
    ),
)


def main(argv: list[str]) -> None:
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, [VocabConfig, TextFormat])
    text_format = parsed.make(TextFormat)
    config = parsed.make(
        VocabConfig,
        **{} if parsed.is_set("input_file") else dict(input_file=flags.bundled("sample_text.txt")),
    )
    started = time.monotonic()
    with environment.quick_imports():
        from bert_gpu.base.console import Console, format_seconds
        from bert_gpu.data.own_files import is_own
        from bert_gpu.text.vocabulary.learning import learn_files
    console = Console(config.quiet)
    result = learn_files(config, text_format, console, is_own)
    console.say(f"{result} in {format_seconds(time.monotonic() - started)}")
