"""python -m bert_gpu vocab: learns a WordPiece vocabulary or a SentencePiece model from text."""

import contextlib
import os
import shutil
import time

from bert_gpu.cli import flags
from bert_gpu.settings import UserError
from bert_gpu.text import archives, corpus, counting, sentence_piece, vocab
from bert_gpu.text.config import TextFormat, VocabConfig
from bert_gpu.train.monitor import Console, NoProgress, format_seconds

SUMMARY = (
    "Learns a vocabulary from text: WordPiece (vocab.txt, one piece a line) or SentencePiece (a unigram model). The same text gives the "
    "same vocabulary. Of a large corpus, a sample of about 1 GB is looked at."
)
EXAMPLE = (
    "python -m bert_gpu vocab --input_file='books/*.txt' --vocab_size=32768 --vocab_file=vocab.txt",
    "python -m bert_gpu vocab --input_file=wiki.jsonl.zst --input_format=jsonl --tokenization=SentencePiece --sp_model_file=wiki.model",
)
BLOCK_BYTES = 8 << 20  # what a process holds at once, and what a sample is made of


def main(argv):
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, [VocabConfig, TextFormat])
    text_format = parsed.make(TextFormat)
    config = parsed.make(VocabConfig, **{} if parsed.given("input_file") else dict(input_file=flags.bundled("sample_text.txt")))
    if parsed.given("sp_model_file") and config.tokenization == "WordPiece":
        raise UserError(f"--sp_model_file={config.sp_model_file}: is for --tokenization=SentencePiece; give that too, or leave it out")
    check_targets(config)
    console, started = Console(config.quiet), time.monotonic()
    inputs = corpus.expand_inputs(config.input_file)
    spool = f"{config.targets[0]}.unpacked"  # stays when this is killed, and is gone on with then
    try:
        counts, num_sampled, num_bytes = count_words(config, text_format, inputs, spool, console)
        console.say(f"learning {config.vocab_size:,} pieces from {counts.total():,} words, {len(counts):,} different ones")
        num_pieces = learn(config, counts)
    finally:
        shutil.rmtree(spool, ignore_errors=True)
    of_text = f"{num_bytes / 1e6:,.1f} MB of text"
    if num_sampled < num_bytes:
        of_text = f"a sample of {num_sampled / 1e6:,.1f} MB of {of_text}"
    console.say(f"{' and '.join(config.targets)}: {num_pieces:,} pieces from {of_text} in {format_seconds(time.monotonic() - started)}")
    return 0


def check_targets(config):
    """Refuses what cannot be written before hours are spent on it."""
    for flag, path in (("vocab_file", config.vocab_file), ("sp_model_file", config.sp_model_file)):
        if path == "":
            raise UserError(f"--{flag}=: needs the name of a file")
    for path in config.targets:
        folder = os.path.dirname(path) or "."
        if os.path.isdir(path):
            raise UserError(f"{path}: is a folder; name the file to be written in it"[:300])
        if os.path.exists(path) and not config.overwrite:
            raise UserError(f"{path}: is there already; name another file, or --overwrite"[:300])
        if "://" not in path and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
            raise UserError(f"{path}: {folder} is no folder that can be written to; make it first"[:300])


def count_words(config, text_format, inputs, spool, console):
    """(Counter of words, bytes of text counted, bytes of text there are)."""
    with progress(console, archives.compressed_bytes(inputs), "unpacking") as report:
        paths = archives.unpack(inputs, spool, report)
    blocks = corpus.plan_blocks(paths, BLOCK_BYTES, text_format, names=inputs)
    num_bytes = sum(block.end - block.start for block in blocks)
    blocks = counting.sample_blocks(blocks, counting.SAMPLE_BYTES, config.random_seed)
    num_sampled = sum(block.end - block.start for block in blocks)
    with progress(console, num_sampled, "counting words") as report:
        counts = counting.count_words_of_blocks(
            blocks,
            config.do_lower_case,
            config.num_workers,
            tokenization=config.tokenization,
            normalization=config.normalization,
            report=report,
        )
    return counts, num_sampled, num_bytes


def learn(config, counts):
    """Writes the files; returns the number of pieces."""
    if config.tokenization == "WordPiece":
        pieces = vocab.learn_wordpiece(counts, config.vocab_size)
        vocab.write_vocab(config.targets[0], pieces)
        return len(pieces)
    number = sentence_piece.learn_sentencepiece(counts, config.vocab_size, config.sp_model_file, config.do_lower_case)
    if config.vocab_file:
        vocab.write_vocab(config.vocab_file, sentence_piece.SentencePieceTokenizer(config.sp_model_file).vocab)
    return number


@contextlib.contextmanager
def progress(console, total, what):
    """A context in which bytes are counted, and shown as megabytes: gives report(num_bytes)."""
    bar = console.progress(round(total / 1e6, 1), 0, what, "MB") if total else NoProgress()
    done = 0

    def report(num_bytes):
        nonlocal done
        done += num_bytes
        bar.update(round(done / 1e6, 1))

    try:
        yield report
    finally:
        bar.close()
