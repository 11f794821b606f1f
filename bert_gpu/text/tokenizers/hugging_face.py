"""Any tokenizer of Hugging Face's `tokenizers`, read from a tokenizer.json: byte-level BPE
(RoBERTa), Unigram (XLM-R), and WordPiece with rules that are not BERT's; and the learner of
byte-level BPE.

The library does the work, so the ids are those of transformers, also for added tokens, which stay
whole wherever a text has them. Special pieces are found by the names that published models give
them.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import parse_json
from bert_gpu.text.tokenizers.rules import (
    OTHER_NAMES,
    as_text,
    casing_of,
    special_ids,
    texts_of,
)
from bert_gpu.text.tokenizers.sentence_piece import (
    SPACE,
    begins_word,
    most_frequent_words,
    without_spaces,
)
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.text.vocabulary.file import read_file
from bert_gpu.text.vocabulary.wordpiece_learner import MIN_PIECE_COUNT

WORDS_PER_STRING = 1000  # copies of a word in a string for the learner
# a learnt vocabulary begins with these pieces, as RoBERTa's does; the 256 bytes follow
ROBERTA_PIECES = tuple(OTHER_NAMES[f"[{name}]"] for name in "CLS PAD SEP UNK MASK".split())
NUM_BYTES = 256
SEPARATORS = 2  # [SEP] between the texts of a pair, as in RoBERTa


class HuggingFaceTokenizer(Tokenizer):
    """The tokenizer of a tokenizer.json.

    Attributes:
      kind: type of its model, such as BPE or Unigram.
      second_segment: segment id that its file gives the second text of a pair; None if the file has
        no rule for this.
    """

    word_prefix = " "

    def __init__(self, path: str, do_lower_case: bool | None = None) -> None:
        """Load a tokenizer.json. do_lower_case: None = as the file does.

        Raises UserError: the file is missing, `tokenizers` cannot read it, it lacks a special
        piece, it frames texts otherwise than [CLS] A [SEP] B [SEP], or it does not do as
        do_lower_case says.
        """
        # here, because it is slow to import and few commands need it
        import tokenizers

        content = read_file(path, "tokenizer", "file", "python -m bert_gpu vocab")
        try:
            self._content = as_text(parse_json(content.decode()))
            self._tokenizer = tokenizers.Tokenizer.from_str(self._content)
        # the library raises Exception itself, no subclass
        except Exception as error:
            raise UserError(
                f"is no tokenizer.json that tokenizers {tokenizers.__version__} can read: "
                f"{shortened(str(error))}",
                "save it again with a current version of transformers",
                where=path,
            ) from None
        casing = casing_of(self._tokenizer)
        self.do_lower_case = casing["do_lower_case"]
        if do_lower_case is not None and do_lower_case is not self.do_lower_case:
            raise UserError(
                "this tokenizer "
                + ("lower-cases the text" if self.do_lower_case else "keeps capital letters"),
                f"give --{'' if self.do_lower_case else 'no'}do_lower_case, or no such flag",
                where=path,
            )
        self.strip_accents = casing["strip_accents"] or not self.do_lower_case
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        pieces = {index: piece for piece, index in ids.items()}
        self.vocab_size = max(pieces, default=-1) + 1
        self.vocab = [pieces.get(index, "") for index in range(self.vocab_size)]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special_ids(
            ids, path, "use the tokenizer of a model that was trained on masked words"
        )
        stored = json.loads(self._content)
        self.kind = stored["model"].get("type") or "BPE"
        self.separators, self.second_segment = self._find_frame(path)
        self.identity = hashlib.sha256(  # without segments, which do not change ids
            json.dumps(stored | dict(post_processor=self.separators), sort_keys=True).encode()
        ).hexdigest()
        self._starts_word, self._ends_word = self._word_bounds(stored)
        whole = {ids[text] for text in texts_of(stored.get("added_tokens"))} - {self.unk_id}
        self._starts_word[[*whole]] = True

    def _find_frame(self, path: str) -> tuple[int, int | None]:
        """Return the number of [SEP] between the texts of a pair, and the segment id of the second
        text (None if the file has no rule for this). Raises UserError if texts are framed otherwise
        than [CLS] A [SEP] B [SEP].
        """
        single = self._tokenizer.encode("").ids
        pair = self._tokenizer.encode("", "")
        first, *rest = pair.ids or [self.cls_id, *2 * [self.sep_id]]
        is_usual = single in ([], [self.cls_id, self.sep_id]) and first == self.cls_id
        if not is_usual or len(rest) not in (2, 3) or {*rest} != {self.sep_id}:
            raise UserError(
                "its post-processor frames texts otherwise than [CLS] A [SEP] B [SEP]",
                "use the model in transformers",
                where=path,
            )
        return len(rest) - 1, pair.type_ids[-1] if single and pair.ids else None

    def _word_bounds(self, stored: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each piece, whether it begins a word, and whether the piece after it does:
        both bool (V,). In WordPiece a piece without ## begins a word. In byte-level BPE and Unigram
        a piece begins one if it begins with a space, punctuation or a CJK character, or if the
        piece before it ends with punctuation or a CJK character. The latter finds the first word of
        a sentence, which has no space, after a sentence that ends with punctuation. stored: content
        of the tokenizer.json.
        """
        import tokenizers

        if self.kind == "WordPiece":
            prefix = stored["model"].get("continuing_subword_prefix", "##")
            starts = [bool(piece) and not piece.startswith(prefix) for piece in self.vocab]
            return np.array(starts), np.zeros(self.vocab_size, bool)
        is_bytes = "ByteLevel" in json.dumps(stored.get("pre_tokenizer"))
        # a piece of bytes that begins or ends inside a character has U+FFFD there
        decode = tokenizers.decoders.ByteLevel().decode if is_bytes else "".join
        texts = [decode([piece]).replace(SPACE, " ") for piece in self.vocab]
        starts = [bool(text) and (text[0].isspace() or begins_word(text)) for text in texts]
        ends = np.array([bool(text) and begins_word(text[-1]) for text in texts])
        ends[self.unk_id] = False
        return np.array(starts), ends

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        starts = super().word_starts(ids)
        starts[..., 1:] |= self._ends_word[ids[..., :-1]]
        return starts

    def _tokenize_batch(self, lines: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        encoded = self._tokenizer.encode_batch_fast(
            [line.decode("utf-8", "ignore") for line in lines], add_special_tokens=False
        )
        rows = [row.ids for row in encoded]
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
        return ids, np.fromiter(map(len, rows), np.int64)

    def locate(self, text: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return where in a text its T pieces begin and end, without the spaces before them:
        (begins, ends), int32 (T,), in characters. None if the text is not valid Unicode.
        """
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            return None
        return without_spaces(text, self._tokenizer.encode(text, add_special_tokens=False).offsets)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the pieces with these ids, by the decoder of the file."""
        return self._tokenizer.decode([int(index) for index in ids], skip_special_tokens=False)

    def files(self) -> dict[str, bytes]:
        return {"tokenizer.json": self._content.encode()}


def learn_bpe(word_counts: Mapping[str, int], vocab_size: int, do_lower_case: bool) -> bytes:
    """Learn a byte-level BPE in RoBERTa's form (Radford et al. 2019; Liu et al. 2019).

    Args:
      word_counts: from `sentence_piece.count_words`. Each word is learnt with a space before it.
      vocab_size: largest number of pieces, with special ones and the 256 bytes.

    Returns:
      The bytes of a tokenizer.json, which depend on the arguments alone.

    Raises:
      UserError: vocab_size leaves no room for the bytes.
    """
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    if vocab_size < len(ROBERTA_PIECES) + NUM_BYTES:
        raise UserError(
            f"must be at least {len(ROBERTA_PIECES) + NUM_BYTES}, to have a piece for each byte",
            setting="vocab_size",
            value=vocab_size,
        )
    first, _, last, _, mask = ROBERTA_PIECES
    tokenizer = Tokenizer(models.BPE())
    if do_lower_case:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        copies(most_frequent_words(word_counts)),
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=MIN_PIECE_COUNT,
            special_tokens=[*ROBERTA_PIECES[:-1], AddedToken(mask, lstrip=True, special=True)],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        (last, ROBERTA_PIECES.index(last)),
        (first, ROBERTA_PIECES.index(first)),
        add_prefix_space=False,
    )
    return (tokenizer.to_str() + "\n").encode()


def copies(words: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield strings that together have as many copies of each word as its count, a space before
    each copy.
    """
    for word, count in words:
        for first in range(0, count, WORDS_PER_STRING):
            yield f" {word}" * min(WORDS_PER_STRING, count - first)
