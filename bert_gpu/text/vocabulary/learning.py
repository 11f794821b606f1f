"""Text -> a vocabulary: for `python -m bert_gpu vocab`, and for a data job that is given none.

Words are counted block by block, on all cores, in a sample of a large corpus; a learner makes
pieces from the counts. The result is the content of a file, so that a job can learn before it
writes to its folder.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bert_gpu.base.console import Console, format_bytes
from bert_gpu.base.errors import UserError, shortened_path
from bert_gpu.base.files import exists
from bert_gpu.text import corpus, parallel, quality
from bert_gpu.text.config import TextFormat, VocabConfig
from bert_gpu.text.formats.inputs import Inputs, find_inputs, read_standard_input, unpack
from bert_gpu.text.progress import ByteProgress
from bert_gpu.text.ray_cluster import open_workers
from bert_gpu.text.tokenizers import hugging_face, sentence_piece
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from bert_gpu.text.vocabulary import counting, letters, wordpiece_learner
from bert_gpu.text.word_marks import MARK

BLOCK_BYTES = 8 << 20  # text of a block, which a process holds at once; samples are whole blocks

# {kind of vocabulary: its learner}
LEARNERS = {
    "BPE": hugging_face.learn_bpe,
    "SentencePiece": sentence_piece.learn_sentencepiece,
}
TOKENIZERS = {
    "WordPiece": WordPieceTokenizer,
    "BPE": hugging_face.HuggingFaceTokenizer,
    "SentencePiece": sentence_piece.SentencePieceTokenizer,
}


def learn(
    blocks: Sequence[corpus.Block],
    config: Any,
    console: Console,
    workers: parallel.Workers = parallel.LOCAL,
    mark: bytes = MARK,
) -> tuple[bytes, int]:
    """Learn a vocabulary from blocks of text. Return (the bytes of its file, a vocab.txt, a
    SentencePiece model or a tokenizer.json; the bytes of text whose words were counted).

    Args:
      config: VocabConfig, or other settings with the same fields for learning.
      console: shows progress. workers: the workers that count words. mark: as for
        `counting.count_words_of_blocks`.

    Raises UserError: the text has no words, or --vocab_size leaves no room for characters.
    """
    blocks = counting.sample_blocks(blocks, counting.SAMPLE_BYTES, config.random_seed)
    num_bytes = sum(block.num_bytes for block in blocks)
    console.say(
        f"learning a {config.tokenization} vocabulary of "
        f"{config.vocab_size} pieces from {format_bytes(num_bytes)} of text"
    )
    with ByteProgress(console, num_bytes, "counting words") as progress:
        counts = counting.count_words_of_blocks(
            blocks,
            config.do_lower_case,
            workers,
            tokenization=config.tokenization,
            strip_accents=config.strip_accents,
            mark=mark,
            report=progress.add,
        )
    if not counts:
        raise no_words(config.input_file)
    if config.tokenization == "WordPiece":
        pieces = wordpiece_learner.learn_wordpiece(counts, config.vocab_size)
        return wordpiece_learner.file_content(pieces), num_bytes
    learner = LEARNERS[config.tokenization]
    return learner(counts, config.vocab_size, config.do_lower_case), num_bytes


def no_words(input_file: str) -> UserError:
    return UserError(
        "has no word, so there is nothing to write",
        "name files with text",
        setting="input_file",
        value=shortened_path(input_file),
    )


@contextlib.contextmanager
def open_text(
    config: Any,
    text_format: TextFormat,
    console: Console,
    is_own: Callable[[str], bool],
    spool: str,
) -> Iterator[tuple[list[corpus.Block], Inputs, parallel.Workers]]:
    """Yield the blocks of a text, its Inputs, and the workers that can count its words.

    Args:
      config: settings with input_file, num_workers and ray_address.
      console: shows notes on the files. is_own: as for `find_inputs`.
      spool: folder for unpacked text. It is removed at the end; the next call uses the folder that
        a killed process left.

    Raises UserError when the text or a file name is wrong.
    """
    inputs: Inputs | None = None
    standard_input: str | None = None
    try:
        with open_workers(config.num_workers, config.ray_address, console) as workers:
            standard_input, _ = read_standard_input(config.input_file, spool)
            inputs = find_inputs(config.input_file, text_format, standard_input, is_own)
            for line in inputs.lines:
                console.say(line)
            for text in inputs.without_effect():
                console.warn(text)
            paths, formats = unpack(inputs, spool, console)
            blocks = corpus.plan_blocks(paths, BLOCK_BYTES, formats, inputs.names)
            for line in quality.describe_empty(blocks):
                console.say(line)
            yield blocks, inputs, workers
    finally:
        if standard_input is not None or (inputs is not None and inputs.needs_spool):
            shutil.rmtree(spool, ignore_errors=True)


def learn_files(
    config: VocabConfig,
    text_format: TextFormat,
    console: Console,
    is_own: Callable[[str], bool] = lambda path: False,
) -> str:
    """Learn a vocabulary, write it to the output files of the settings, and return a summary in one
    line.

    Args:
      console: shows progress. is_own: as for `find_inputs`.

    Raises UserError when the text or a file name is wrong.
    """
    check_targets(config)
    spool = f"{config.targets[0]}.unpacked"
    with open_text(config, text_format, console, is_own, spool) as (blocks, inputs, workers):
        warn = quality.Warner(console, config.strict)
        sample = quality.sample(blocks)
        warn(inputs.warnings + quality.shape_warnings(blocks, sample))
        warn(letters.lower_case_warnings(sample, config))
        content, num_counted = learn(blocks, config, console, workers)
    wordpiece_learner.write_whole_file(config.targets[0], content, "the vocabulary")
    pieces = TOKENIZERS[config.tokenization](config.targets[0], None).vocab
    for path in config.targets[1:]:
        wordpiece_learner.write_vocab(path, pieces)
    num_bytes = sum(block.num_bytes for block in blocks)
    of_text = f"{format_bytes(num_bytes)} of text"
    if num_counted < num_bytes:
        of_text = f"a sample of {format_bytes(num_counted)} of {of_text}"
    return f"{' and '.join(config.targets)}: {len(pieces):,} pieces from {of_text}"


def check_targets(config: VocabConfig) -> None:
    """Raise UserError for an output file that cannot be written, before hours are spent on
    learning.
    """
    for path in config.targets:
        folder = os.path.dirname(path) or "."
        if os.path.isdir(path):
            raise UserError("is a folder", "name a file in it", where=path)
        if exists(path) and not config.overwrite:
            raise UserError("exists already", "name another file, or give --overwrite", where=path)
        if "://" not in path and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
            raise UserError(
                f"{shortened_path(folder)} is missing or cannot be written to",
                "make it first",
                where=path,
            )
