"""Any tokenizer of Hugging Face's `tokenizers`, read from a tokenizer.json: byte-level BPE (RoBERTa),
Unigram (XLM-R), and WordPiece with rules that are not BERT's.

The library does the work, so the ids are those of transformers, also for added tokens, which stay
whole wherever a text has them. Special pieces are found by the names that published models give
them.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import parse_json
from bert_gpu.text.tokenizers.sentence_piece import SPACE, begins_word, without_spaces
from bert_gpu.text.tokenizers.wordpiece import SPECIAL_PIECES, Tokenizer, as_bytes
from bert_gpu.text.vocabulary.file import read_file

# the name of each special piece in models that do not use BERT's
OTHER_NAMES = dict(zip(SPECIAL_PIECES, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))
BYTE_SPACES = "ĠĊĉč"  # a space, line break, tab and carriage return in byte-level BPE
LINES_PER_CALL = 2048


class HuggingFaceTokenizer(Tokenizer):
    """The tokenizer of a tokenizer.json.

    Attributes:
      separators: number of [SEP] between the two texts of a pair; RoBERTa has two.
    """

    def __init__(self, path: str) -> None:
        """Raises UserError: the file is missing, `tokenizers` cannot read it, it has no name for a
        special piece, or it frames texts otherwise than [CLS] A [SEP] B [SEP].
        """
        # slow to import, and few need it
        import tokenizers

        content = read_file(path, "tokenizer", "file", "python -m bert_gpu vocab")
        try:
            stored = parse_json(content.decode())
            # how a batch is cut and padded is no part of the tokenizer
            stored |= dict(truncation=None, padding=None)
            self._content = json.dumps(stored, ensure_ascii=False)
            self._tokenizer = tokenizers.Tokenizer.from_str(self._content)
        # the library raises plain exceptions
        except Exception as error:
            raise UserError(
                f"is no tokenizer.json that tokenizers {tokenizers.__version__} can read: "
                f"{shortened(str(error))}",
                "save it again with a current version of transformers",
                where=path,
            ) from None
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        pieces = {index: piece for piece, index in ids.items()}
        self.vocab_size = max(pieces, default=-1) + 1
        self.vocab = [pieces.get(index, "") for index in range(self.vocab_size)]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            special_id(ids, piece, path) for piece in SPECIAL_PIECES
        )
        self.do_lower_case = normalized(self._tokenizer, "A") == "a"
        self.identity = hashlib.sha256(
            json.dumps(stored, sort_keys=True, ensure_ascii=True).encode()
        ).hexdigest()
        self.separators = self._count_separators(path)
        is_special = np.zeros(self.vocab_size, bool)
        is_special[[self.pad_id, self.cls_id, self.sep_id, self.mask_id]] = True
        self._starts_word = word_starts(stored, self.vocab) | is_special

    def _count_separators(self, path: str) -> int:
        """The number of [SEP] between two texts. Raises UserError for any other frame."""
        single = self._tokenizer.encode("").ids
        first, *rest = self._tokenizer.encode("", "").ids or [self.cls_id, *2 * [self.sep_id]]
        is_usual = single in ([], [self.cls_id, self.sep_id]) and first == self.cls_id
        if not is_usual or len(rest) not in (2, 3) or {*rest} != {self.sep_id}:
            raise UserError(
                "its post-processor frames texts otherwise than [CLS] A [SEP] B [SEP]",
                "use the model in transformers",
                where=path,
            )
        return len(rest) - 1

    def tokenize(self, sentences: Sequence[bytes | str]) -> tuple[np.ndarray, np.ndarray]:
        flat, lengths = [np.zeros(0, np.int32)], [0]
        for first in range(0, len(sentences), LINES_PER_CALL):
            lines = as_bytes(sentences[first : first + LINES_PER_CALL])
            encoded = self._tokenizer.encode_batch_fast(
                [line.decode("utf-8", "ignore") for line in lines], add_special_tokens=False
            )
            rows = [row.ids for row in encoded]
            lengths += map(len, rows)
            flat.append(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
        return np.concatenate(flat), np.cumsum(lengths, dtype=np.int64)

    def locate(self, text: str) -> tuple[np.ndarray, np.ndarray] | None:
        """(begins, ends), int32 (T,): the characters that the pieces of a text stand for, without
        the spaces before them. None where the text is not valid Unicode.
        """
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            return None
        return without_spaces(text, self._tokenizer.encode(text, add_special_tokens=False).offsets)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of pieces, by the decoder of the file."""
        return self._tokenizer.decode([int(index) for index in ids], skip_special_tokens=False)

    def files(self) -> dict[str, bytes]:
        return {"tokenizer.json": self._content.encode()}


def special_id(ids: dict[str, int], piece: str, path: str) -> int:
    """The id of a special piece by BERT's name or by its other name. Raises UserError."""
    found = [ids[name] for name in (piece, OTHER_NAMES[piece]) if name in ids]
    if not found:
        raise UserError(
            f"has neither {piece} nor {OTHER_NAMES[piece]}",
            "use the tokenizer of a model that was trained on masked words",
            where=path,
        )
    return found[0]


def normalized(tokenizer: Any, text: str) -> str:
    """A text as the tokenizer's normalizer makes it."""
    return text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)


def word_starts(stored: Mapping[str, Any], vocab: Sequence[str]) -> np.ndarray:
    """Bool (V,): whether each piece of a tokenizer.json begins a word. In WordPiece those without
    ## do; in byte-level BPE and Unigram those that begin with a space. A punctuation mark is a word
    by itself.
    """
    model = stored.get("model") or {}
    if model.get("type") == "WordPiece":
        prefix = model.get("continuing_subword_prefix", "##")
        return np.array([not piece.startswith(prefix) for piece in vocab])
    spaces = BYTE_SPACES if "ByteLevel" in json.dumps(stored.get("pre_tokenizer")) else SPACE
    return np.array([piece == "" or piece[0] in spaces or begins_word(piece) for piece in vocab])
