"""Sentences -> piece ids, in flat arrays without a Python object per token.

`Tokenizer` is the interface that the rest of the pipeline uses; `WordPieceTokenizer` is BERT's
own. It gives exactly the pieces of Google's published rules (google-research/bert,
tokenization.py) at the speed of tensorflow-text's FastBertTokenizer. That op differs from Google's
rules on several thousand characters (control characters, ß, ellipsis, ligatures, ... ) and in how
it measures long words. So each line is checked first: plain ASCII, nearly all of an English text,
goes straight to the op; a line with a character that the op treats differently, or with a word that
may be too long, is split into words by basic.py and only then into pieces.

Legend: T tokens, R rows.
"""

import abc
import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bert_gpu.base.errors import UserError
from bert_gpu.text.tokenizers import basic
from bert_gpu.text.vocabulary.file import SPECIAL_PIECES, read_vocab

MAX_WORD_CHARACTERS = 200  # Google's limit: a longer word is [UNK]
MAX_WORD_BYTES = 4 * MAX_WORD_CHARACTERS
# measured: the op slows down by a third when its outputs no longer fit the cache
LINES_PER_CALL = 2048
# The op is probed with characters below this code, the Basic Multilingual Plane and emoji; lines
# with rarer characters are split by basic.py.
PROBED_CODES = 0x1FB00


class Tokenizer(abc.ABC):
    """The interface of a tokenizer. Ids are int32, 0 <= id < vocab_size.

    Attributes:
      strip_accents: whether lower-casing removes accents; it means nothing in a cased tokenizer.
      separators: number of [SEP] between the two texts of a pair.
      word_prefix: text to put before a word that is tokenized alone, so that it gets the pieces
        that it has inside a text.
      settings: entries of the tokenizer_config.json of its model that a copy of the model keeps.
    """

    kind: str
    strip_accents = True
    separators = 1
    word_prefix = ""
    settings: Mapping[str, object] = {}
    vocab: list[str]  # "" for an id without a piece
    vocab_size: int
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    do_lower_case: bool
    identity: str  # equal if and only if two tokenizers give the same ids for every text
    _starts_word: np.ndarray  # bool (vocab_size,)

    def tokenize(self, sentences: Sequence[str | bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids int32 (T,), row_splits int64 (len(sentences) + 1,)) of sentences, which are
        UTF-8 if they are bytes.

        Sentence i has the ids[row_splits[i] : row_splits[i + 1]], possibly none.
        """
        ids = [np.zeros(0, np.int32)]
        lengths = [np.zeros(1, np.int64)]
        for first in range(0, len(sentences), LINES_PER_CALL):
            lines = as_bytes(sentences[first : first + LINES_PER_CALL])
            batch_ids, batch_lengths = self._tokenize_batch(lines)
            ids.append(batch_ids)
            lengths.append(batch_lengths)
        return np.concatenate(ids), np.cumsum(np.concatenate(lengths))

    @abc.abstractmethod
    def _tokenize_batch(self, lines: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids int32 (T,), number of ids of each line int64 (len(lines),)). May overwrite
        elements of `lines`.
        """

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the pieces with these ids: pieces joined to words, and words by
        spaces.
        """

    @abc.abstractmethod
    def files(self) -> dict[str, bytes]:
        """Return {name: content} of the files that the tokenizer can be opened from."""

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """Return, for each id of rows (..., S), whether its piece begins a word: bool (..., S)."""
        return self._starts_word[ids]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each id."""
        return [self.vocab[index] for index in ids]


class WordPieceTokenizer(Tokenizer):
    """BERT's tokenizer, piece for piece as Google's `FullTokenizer`, in arrays.

    Bytes that are not UTF-8 are dropped, as in Google's code. A lone surrogate in a str, which no
    vocabulary file can hold, makes its word [UNK]; any other text gets the pieces of Google's
    rules. As in Google's code, the literal text "[MASK]" is three words, not the special piece.
    """

    kind = "WordPiece"

    def __init__(
        self, vocab_file: str, do_lower_case: bool | None = True, strip_accents: bool = True
    ) -> None:
        """Load the vocabulary, one piece a line, in order of ids. do_lower_case: None = no.

        Raises:
          UserError: the file is missing, empty, not UTF-8, lacks a special piece, or [PAD] is not
            first.
        """
        self.vocab = read_vocab(vocab_file)
        self.vocab_size = len(self.vocab)
        self.do_lower_case = bool(do_lower_case)
        self.strip_accents = strip_accents or not self.do_lower_case
        self._uncases = self.do_lower_case and self.strip_accents
        self._ids = {piece: index for index, piece in enumerate(self.vocab) if piece}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self._ids[piece] for piece in SPECIAL_PIECES
        )
        casing = f"{'un' * self.do_lower_case}cased{' with accents' * (not self.strip_accents)}"
        self.identity = hashlib.sha256("\n".join([*self.vocab, casing]).encode()).hexdigest()
        self._starts_word = np.array([not piece.startswith("##") for piece in self.vocab])
        try:
            self._op = fast_bert_op(tuple(matchable(self.vocab)), self._uncases)
        except RuntimeError as error:  # a piece of more than 256 bytes, or millions of pieces
            problem = " ".join(str(error).split())[:120]
            raise UserError(
                f"tensorflow-text cannot use this vocabulary: {problem}", where=vocab_file
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the pieces with these ids: pieces joined to words, and words by
        spaces. Case, accents and spacing that tokenizing removed are lost.
        """
        return " ".join(self.pieces(ids)).replace(" ##", "")

    def files(self) -> dict[str, bytes]:
        return {"vocab.txt": "".join(f"{piece}\n" for piece in self.vocab).encode()}

    def _tokenize_batch(self, lines: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        if not self.strip_accents:
            lines = [lowered(line) for line in lines]
        rows, texts = odd_lines(lines, self._uncases)
        for row in rows:
            lines[row] = b""
        ids, splits = run_op(self._op, lines)
        lengths = np.diff(splits)
        if len(rows):
            odd_ids, odd_lengths = self._tokenize_words(basic.split_words(texts, self._uncases))
            # The op saw these lines as empty, so their ids are inserted where the next line begins.
            ids = np.insert(ids, np.repeat(splits[rows], odd_lengths), odd_ids)
            lengths[rows] = odd_lengths
        return ids, lengths

    def _tokenize_words(self, rows: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of lists of words: (ids int32 (T,), number of ids of each list int64
        (len(rows),)).
        """
        # The op's limit is in bytes: a word with too many characters is replaced by one with too
        # many bytes.
        too_long = b"x" * (MAX_WORD_BYTES + 1)
        words = [
            word.encode() if len(word) <= MAX_WORD_CHARACTERS else too_long
            for row in rows
            for word in row
        ]
        ids, word_splits = run_op(self._word_op, words)
        row_splits = np.cumsum([0, *map(len, rows)])
        return ids, np.diff(word_splits[row_splits])

    @functools.cached_property
    def _word_op(self) -> object:
        return tf_text.FastWordpieceTokenizer(
            matchable(self.vocab),
            max_bytes_per_word=MAX_WORD_BYTES,
            token_out_type=tf.int32,
            no_pretokenization=True,
        )


def lowered(line: bytes) -> bytes:
    """Return a line in lower case. The line is cleaned first, since a final sigma depends on the
    characters that follow it in the cleaned text.
    """
    if line.isascii():
        return line.lower()
    return line.decode("utf-8", "ignore").translate(basic.CLEAN).lower().encode()


def matchable(vocab: list[str]) -> list[str]:
    """Return a vocabulary as tensorflow-text's ops can load it: placeholders stand for ids without
    a piece and for pieces with a control character, which no cleaned text contains.
    """
    idle = re.compile("[\x00-\x1f\x7f-\x9f]|^$")
    return [f"[idle {index}]" if idle.search(piece) else piece for index, piece in enumerate(vocab)]


@functools.lru_cache(2)  # a data job opens its tokenizer several times
def fast_bert_op(vocab: tuple[str, ...], do_lower_case: bool) -> object:
    # A limit of 200 bytes is Google's 200 characters for ASCII; `odd_lines` handles the rest.
    return tf_text.FastBertTokenizer(
        list(vocab),
        max_bytes_per_word=MAX_WORD_CHARACTERS,
        token_out_type=tf.int32,
        lower_case_nfd_strip_accents=do_lower_case,
    )


def run_op(op: Any, lines: Sequence[str | bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids that a tokenizer op gives lines: (ids int32 (T,), row_splits int64 (len(lines)
    + 1,)). Line i has ids[row_splits[i] : row_splits[i + 1]].
    """
    with tf.device("CPU:0"):
        tokens = op.tokenize(tf.constant(lines, tf.string, shape=(len(lines),)))
    return tokens.values.numpy(), tokens.row_splits.numpy()


def as_bytes(sentences: Iterable[str | bytes]) -> list[bytes]:
    """Return a new list of the sentences, each as bytes."""
    return [encode(sentence) if isinstance(sentence, str) else sentence for sentence in sentences]


def encode(sentence: str) -> bytes:
    try:
        return sentence.encode()
    except UnicodeEncodeError:
        # A lone surrogate becomes a noncharacter, which is in no vocabulary either.
        return "".join(
            "\U0010ffff" if "\ud800" <= char <= "\udfff" else char for char in sentence
        ).encode()


def odd_lines(lines: list[bytes], do_lower_case: bool) -> tuple[np.ndarray, list[str]]:
    """Return the indices, int64 (R,), and the texts of the R lines that FastBertTokenizer may
    tokenize otherwise than Google's rules.
    """
    codes = np.frombuffer(b"".join(lines), np.uint8)
    # true for printable ASCII: smaller bytes wrap to values above the limit
    is_plain = codes - np.uint8(32) < np.uint8(95)
    if is_plain.all():
        return np.zeros(0, np.int64), []
    line_ends = np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))
    rows = np.unique(np.searchsorted(line_ends, np.flatnonzero(~is_plain), side="right"))
    candidates = [lines[row] for row in rows]
    try:
        texts = [line.decode() for line in candidates]
        is_odd = differs(texts, do_lower_case)
    except UnicodeDecodeError:
        texts = [line.decode("utf-8", "ignore") for line in candidates]
        is_broken = [
            len(text.encode()) != len(line) for text, line in zip(texts, candidates, strict=True)
        ]
        is_odd = differs(texts, do_lower_case) | np.array(is_broken)
    return rows[is_odd], [text for text, odd in zip(texts, is_odd, strict=True) if odd]


def differs(texts: list[str], do_lower_case: bool) -> np.ndarray:
    """Return, for each text, whether it has a character or a word that the op may treat otherwise
    than Google's rules: bool (len(texts),).
    """
    codes = np.frombuffer("".join(text + "\n" for text in texts).encode("utf-32-le"), np.uint32)
    text_ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
    kinds = character_kinds(codes, do_lower_case)
    odd = kinds == DIFFERENT
    # A word of more than 200 bytes after normalisation is odd: the op's limit is 200 bytes, but
    # Google's is 200 characters.
    is_separator = kinds == SEPARATOR
    bytes_before = np.cumsum(np.where(is_separator | odd, 0, kinds), dtype=np.int64)
    separators = np.flatnonzero(is_separator)
    word_bytes = np.diff(bytes_before[separators], prepend=0)
    odd[separators[word_bytes > MAX_WORD_CHARACTERS]] = True
    result = np.zeros(len(texts), bool)
    result[np.searchsorted(text_ends, np.flatnonzero(odd), side="right")] = True
    return result


# kinds of characters; smaller values are numbers of bytes, see character_kinds
UNKNOWN = 253
DIFFERENT = 254
SEPARATOR = 255
PAGE_CODES = 256  # characters that are probed together


def character_kinds(codes: np.ndarray, do_lower_case: bool) -> np.ndarray:
    """Return how the op treats each character, by running it: uint8 of the shape of codes (uint32).

    The kind is DIFFERENT where the op may differ from Google; SEPARATOR where both end a word
    (space, punctuation, CJK); else the number of bytes that the character has after normalisation.
    Probing the op, rather than a fixed list, is right for every version of Unicode that
    tensorflow-text and Python have. Only pages of characters that occur are probed, once each.
    """
    table = character_table(do_lower_case)
    codes = np.minimum(codes, PROBED_CODES)
    kinds = table[codes]
    is_unknown = kinds == UNKNOWN
    if is_unknown.any():
        for page in np.unique(codes[is_unknown] // PAGE_CODES).tolist():
            first = page * PAGE_CODES
            table[first : first + PAGE_CODES] = probe_kinds(
                range(first, min(first + PAGE_CODES, PROBED_CODES)), do_lower_case
            )
        kinds = table[codes]
    return kinds


@functools.lru_cache(2)
def character_table(do_lower_case: bool) -> np.ndarray:
    """Return the table of kinds by character code, uint8 (PROBED_CODES + 1,), which
    `character_kinds` fills in place. The last entry stands for all characters from PROBED_CODES on.
    """
    table = np.full(PROBED_CODES + 1, UNKNOWN, np.uint8)
    table[PROBED_CODES] = DIFFERENT
    return table


@functools.lru_cache(2)
def probing_op(do_lower_case: bool) -> Any:
    return fast_bert_op(("[UNK]", "a", "b", "ab"), do_lower_case)


def probe_kinds(codes: range, do_lower_case: bool) -> np.ndarray:
    """Return the kinds of characters, as `character_kinds` does, by running the op: uint8
    (len(codes),).
    """
    kinds = np.full(len(codes), DIFFERENT, np.uint8)
    probed = [index for index, code in enumerate(codes) if context_free(chr(code))]
    if not probed:
        return kinds
    probes = [f"a{chr(codes[index])}b" for index in probed]
    op = probing_op(do_lower_case)
    with tf.device("CPU:0"):
        normal = op._fast_bert_normalizer.normalize(tf.constant(probes)).numpy()
    ids, splits = (values.tolist() for values in run_op(op, probes))
    known = {"a": 1, "b": 2, "ab": 3}
    for probe, words in enumerate(basic.split_words(probes, do_lower_case)):
        same_text = "".join(words).encode() == normal[probe].replace(b" ", b"")
        if (
            same_text
            and [known.get(word, 0) for word in words] == ids[splits[probe] : splits[probe + 1]]
        ):
            kinds[probed[probe]] = len(normal[probe]) - 2 if len(words) == 1 else SEPARATOR
    return kinds


def context_free(character: str) -> bool:
    """Return whether the op treats a character alike beside any neighbours, so that one probe is
    enough.
    """
    category = unicodedata.category(character)
    reorders = unicodedata.combining(character) and category != "Mn"
    return not (reorders or character == "Σ" or category in ("Cn", "Co", "Cs"))
