"""SentencePiece: the second tokenizer, with the same interface as WordPiece, and the learner of its
models.

A model learnt here is a unigram model (Kudo 2018, "Subword regularization") whose pieces 0 to 4 are
[PAD] [UNK] [CLS] [SEP] [MASK]; they are control symbols, which never come from text. The model
normalises text itself: NFKC with SentencePiece's rules for spaces (nmt_nfkc), plus case folding
(nmt_nfkc_cf) for an uncased model; unlike WordPiece it keeps accents. The learner gets words and
their counts, to which it would reduce sentences anyway: that takes half the time, and the order of
the text does not matter. Learning takes about 1.4 GB of memory for a text of any size.

Legend: T tokens.
"""

import collections
import hashlib
import io
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import sentencepiece
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.text.tokenizers import basic
from bert_gpu.text.tokenizers.rules import OTHER_NAMES, SPECIAL_PIECES, special_ids
from bert_gpu.text.tokenizers.wordpiece import Tokenizer, as_bytes
from bert_gpu.text.vocabulary.file import read_file
from bert_gpu.text.vocabulary.wordpiece_learner import CHARACTER_COVERAGE, MIN_PIECE_COUNT

SPACE = "▁"  # U+2581, marks a space in a piece
LINES_PER_BATCH = 4096
MAX_WORDS = 1_000_000  # most words that the learner gets: the most frequent ones
# SentencePiece's own limit. Longer strings are not words; in Chinese and Japanese a "word" is a
# whole clause.
MAX_WORD_BYTES = 4192
# the same on any machine, because sums of floats, and so the model, depend on this number
TRAINER_THREADS = 8


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer with the pieces of a SentencePiece model.

    A piece begins a word if it begins with a space, or with punctuation or a CJK character, which
    are separate words in WordPiece too. A model that lacks [MASK] alone gets it as its last piece.
    """

    kind = "SentencePiece"

    def __init__(self, model_file: str, do_lower_case: bool | None = None) -> None:
        """Load a model.

        Args:
          do_lower_case: None = as the model does. True lower-cases the text first if the model does
            not fold case (ALBERT's uncased models need that).

        Raises:
          UserError: the file is missing or not such a model, lacks a special piece, [PAD] is not
            its first, or it folds case although do_lower_case is False.
        """
        content = read_model(model_file)
        self._model = sentencepiece.SentencePieceProcessor(model_proto=content)
        self.vocab = [self._model.id_to_piece(i) for i in range(self._model.get_piece_size())]
        if (
            set(SPECIAL_PIECES) - {*self.vocab} == {"[MASK]"}
            and OTHER_NAMES["[MASK]"] not in self.vocab
        ):
            self.vocab.append("[MASK]")  # as DeBERTa's tokenizer does
        self.vocab_size = len(self.vocab)
        # a model with pieces for bytes cuts a character without a piece into them
        is_byte = [self._model.is_byte(index) for index in range(self._model.get_piece_size())]
        self.has_bytes = any(is_byte)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special_ids(
            {piece: index for index, piece in enumerate(self.vocab)},
            model_file,
            "learn a model with `python -m bert_gpu vocab`, or give spm_train --control_symbols",
        )
        if self.pad_id != 0:
            raise UserError(
                f"[PAD] has id {self.pad_id}",
                "it must be 0, because BERT pads with id 0 (spm_train --pad_id=0)",
                where=model_file,
            )
        folds = "A" not in self._model.normalize("A")
        if folds and do_lower_case is False:
            raise UserError(
                "this model lower-cases the text",
                "leave --do_lower_case on, or learn a cased model",
                where=model_file,
            )
        self.do_lower_case = folds if do_lower_case is None else bool(do_lower_case)
        self.lowers_first = self.do_lower_case and not folds
        self.identity = hashlib.sha256(
            content + (b"lowered first" if self.lowers_first else b"as it is")
        ).hexdigest()
        self.is_special = np.zeros(self.vocab_size, bool)
        self.is_special[[self.pad_id, self.cls_id, self.sep_id, self.mask_id]] = True
        self._starts_word = np.array([begins_word(piece) for piece in self.vocab]) | self.is_special
        self._starts_word[: len(is_byte)] &= ~np.array(is_byte)

    def _tokenize_batch(self, lines: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        if self.lowers_first:
            lines = [
                line.lower() if line.isascii() else line.decode("utf-8", "ignore").lower().encode()
                for line in lines
            ]
        # One thread, because the workers are processes. Measured on one core: 15 MB/s, and 12.5
        # with tensorflow-text's op for the same model.
        rows = self._model.encode(lines, return_type="numpy", num_threads=1)
        ids = np.concatenate(rows)
        # Models from other tools may find "[MASK]" in the text, which must not count as a mask.
        known = np.where(self.is_special[ids], np.int32(self.unk_id), ids)
        return known, np.fromiter(map(len, rows), np.int64)

    def locate(self, text: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return where in a text its T pieces begin and end: (begins, ends), int32 (T,), in
        characters. None where lower-casing changes the text's length, or the text is not valid
        Unicode.

        Each piece has at least one character, also where several pieces stand for the same one (a
        ligature), and does not begin with the space before it.
        """
        lowered = text.lower() if self.lowers_first else text
        if len(lowered) != len(text) or any("\ud800" <= letter <= "\udfff" for letter in text):
            return None
        return without_spaces(
            text, self._model.encode(lowered, return_type="offset_mapping")["offsets"]
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the pieces with these ids: the text as the model normalises it, except
        for unknown characters.
        """
        spaced = (
            f" {self.vocab[index]} "
            if self.is_special[index]
            else self.vocab[index].replace(SPACE, " ")
            for index in ids
        )
        text = "".join(spaced)
        if self.has_bytes:
            text = re.sub("(<0x[0-9A-F]{2}>)+", of_byte_pieces, text)
        return re.sub(" +", " ", text).strip(" ")

    def files(self) -> dict[str, bytes]:
        return {"sentencepiece.model": self._model.serialized_model_proto()}


def of_byte_pieces(match: re.Match) -> str:
    """Return the text of neighbouring byte pieces."""
    return bytes.fromhex(re.sub("<0x|>", "", match[0])).decode("utf-8", "replace")


def without_spaces(text: str, offsets: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets of T pieces in a text as (begins, ends), int32 (T,), in rising order. A
    piece keeps at least one character and does not begin with the space before it.
    """
    begins, ends = np.array(offsets, np.int32).reshape(-1, 2).T
    is_letter = np.array([not letter.isspace() for letter in text] + [True])
    after = np.minimum.accumulate(np.where(is_letter, np.arange(len(text) + 1), len(text))[::-1])
    begins = np.minimum(after[::-1][begins], max(0, len(text) - 1))
    ends = np.maximum(ends, begins + 1)
    begins, ends = (np.maximum.accumulate(side).astype(np.int32) for side in (begins, ends))
    return begins, ends


def begins_word(piece: str) -> bool:
    # a piece of a space precedes [UNK] and begins its word, so the bracket is no punctuation
    is_unknown = piece in ("[UNK]", OTHER_NAMES["[UNK]"])
    return (
        piece.startswith(SPACE)
        or basic.is_cjk(ord(piece[0]))
        or (basic.is_punctuation(piece[0]) and not is_unknown)
    )


def read_model(model_file: str) -> bytes:
    """Return the bytes of a SentencePiece model file. Raises UserError if it cannot be read or
    loaded.
    """
    if tf.io.gfile.isdir(model_file):
        raise UserError(
            "is a folder",
            "name the SentencePiece model in it, such as sentencepiece.model",
            where=model_file,
        )
    content = read_file(
        model_file,
        "SentencePiece model",
        "file",
        command="python -m bert_gpu vocab --tokenization=SentencePiece",
    )
    try:
        # the library prints errors of its own about an empty model
        if content and sentencepiece.SentencePieceProcessor(model_proto=content).get_piece_size():
            return content
    except (RuntimeError, ValueError, TypeError):
        pass
    raise UserError(
        "is not a SentencePiece model",
        "name a file that spm_train wrote (NAME.model)",
        where=model_file,
    )


def count_words(documents: Iterable[Iterable[str | bytes]]) -> collections.Counter[str]:
    """Count words, the strings between spaces, as they are; the learner normalises them later.

    Args:
      documents: each an iterable of sentences (bytes in UTF-8, or str); read once.

    Returns:
      {word: count}, which grows with the number of distinct words, not with the text.
    """
    counts: collections.Counter[bytes] = collections.Counter()
    sentences = itertools.chain.from_iterable(documents)
    while batch := list(itertools.islice(sentences, LINES_PER_BATCH)):
        counts.update(b"\n".join(as_bytes(batch)).split())
    return collections.Counter(
        {word.decode("utf-8", "ignore"): count for word, count in counts.items()}
    )


def learn_sentencepiece(
    word_counts: Mapping[str, int], vocab_size: int, do_lower_case: bool = True
) -> bytes:
    """Learn a unigram model.

    Args:
      word_counts: from `count_words`.
      vocab_size: largest number of pieces, with special ones; a small text gives fewer.
      do_lower_case: fold case.

    Returns:
      The bytes of the model file, which depend on the arguments alone.

    Raises:
      UserError: there are no words, or vocab_size leaves no room for characters.
    """
    no_words = UserError(
        "the text has no words to learn a vocabulary from", "check the input files"
    )
    words = most_frequent_words(word_counts)
    if not words:
        raise no_words
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in words),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=CHARACTER_COVERAGE,
            required_chars=ascii_characters(words, do_lower_case),
            normalization_rule_name="nmt_nfkc_cf" if do_lower_case else "nmt_nfkc",
            max_sentence_length=MAX_WORD_BYTES,
            num_threads=TRAINER_THREADS,
            pad_id=SPECIAL_PIECES.index("[PAD]"),
            unk_id=SPECIAL_PIECES.index("[UNK]"),
            bos_id=-1,
            eos_id=-1,
            pad_piece="[PAD]",
            unk_piece="[UNK]",
            control_symbols=list(SPECIAL_PIECES[2:]),
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        sizes = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
        if sizes:
            raise UserError(
                f"must be at least {sizes[1]}, to have a piece for each of the text's characters",
                setting="vocab_size",
                value=vocab_size,
            ) from None
        if "sentences_.empty" in str(error) or "all_chars_count" in str(error):
            raise no_words from None
        raise UserError(
            f"SentencePiece cannot learn from this text: {' '.join(str(error).split())}"
        ) from None
    return model.getvalue()


def most_frequent_words(word_counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (word, count) of the most frequent words, at most MAX_WORDS, sorted by count and then
    by text.

    Ties at the cut are broken by a hash, not by the text: where a "word" is a line (Chinese, Thai)
    nearly all occur once, and the first ones by text have only the characters of the lowest codes.
    """
    words = [item for item in word_counts.items() if len(item[0].encode()) <= MAX_WORD_BYTES]
    if len(words) > MAX_WORDS:
        words.sort(
            key=lambda item: (
                -item[1],
                hashlib.blake2b(item[0].encode(), digest_size=16).digest(),
            )
        )
    return sorted(words[:MAX_WORDS], key=lambda item: (-item[1], item[0]))


def ascii_characters(words: list[tuple[str, int]], do_lower_case: bool) -> str:
    """Return, in one string, the ASCII characters that occur more than once in the words; they get
    pieces even when rare.
    """
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words:
        for character in word.lower() if do_lower_case else word:
            counts[character] += count
    return "".join(
        sorted(
            character
            for character, count in counts.items()
            if "!" <= character <= "~" and count >= MIN_PIECE_COUNT
        )
    )
