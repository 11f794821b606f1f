"""Two crops of each text, for a training without labels: contiguous spans of its tokens that are
drawn independently, so that they may overlap (Izacard et al. 2022, "Unsupervised Dense Information
Retrieval with Contrastive Learning", arXiv 2112.09118, sections 3.2 and A.1).

A crop has 5 % to 50 % of the tokens of its text, as there, but at least MIN_TOKENS and at most a
row's; each length, and then each place, is equally likely. The draws of a text depend on (seed,
epoch, example) alone, so that every epoch has new crops, and a resumed run those of an
uninterrupted one.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.data.random_bits import derive_key, row_keys
from bert_gpu.finetune.files.encoded import EncodedExamples, encode_examples, splits_of
from bert_gpu.finetune.files.pairs import PairExamples
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

MIN_TOKENS = 4  # of a crop; a text needs twice as many
MIN_SHARE = 0.05
MAX_SHARE = 0.5
UNLIMITED = 1 << 40  # tokens of a whole text
NO_EPOCH = -1  # the epoch of an evaluation, whose crops are always the same


@dataclasses.dataclass(frozen=True)
class CroppedTexts(EncodedExamples):
    """Texts that are long enough, N, of which each batch has two crops; `ids` and `splits` are
    those of all whole texts.

    begins: int64 (N,), the index in `ids` of each text's first token behind [CLS]. seed: of the
    draws. tokenizer: its ids of [CLS] and [SEP] are used. prefixes: ids before the first and before
    the second crop.
    """

    seed: int = 0
    begins: np.ndarray = dataclasses.field(kw_only=True)
    tokenizer: Tokenizer = dataclasses.field(kw_only=True)
    prefixes: list[np.ndarray] = dataclasses.field(kw_only=True)

    def __len__(self) -> int:
        return len(self.first_lengths)

    @property
    def lengths(self) -> np.ndarray:
        longest = self.first_lengths // 2 + 1 + max(map(len, self.prefixes))
        return np.minimum(longest, self.max_seq_length)

    def drawn(
        self, indices: np.ndarray, epochs: np.ndarray | None
    ) -> tuple[EncodedExamples, np.ndarray]:
        examples = indices + len(self) * (NO_EPOCH if epochs is None else epochs)
        keys = row_keys(derive_key(self.seed, "crops"), examples[:, None] * 4 + np.arange(4))
        shares = (keys >> np.uint64(11)) / 2.0**53  # in [0, 1)
        lengths = self.first_lengths[indices, None] - 2
        before = np.array([len(prefix) for prefix in self.prefixes])
        high = np.minimum((lengths * MAX_SHARE).astype(np.int64), self.max_seq_length - 2 - before)
        low = np.minimum(high, np.maximum(MIN_TOKENS, np.ceil(lengths * MIN_SHARE)))
        sizes = (low + shares[:, :2] * (high - low + 1)).astype(np.int64)
        begins = self.begins[indices, None] + (shares[:, 2:] * (lengths - sizes + 1)).astype(
            np.int64
        )
        ends = [self.tokenizer.cls_id], [self.tokenizer.sep_id]
        crops = [
            np.concatenate([ends[0], prefix, self.ids[begin : begin + size], ends[1]])
            for own in zip(begins.tolist(), sizes.tolist(), strict=True)
            for prefix, begin, size in zip(self.prefixes, *own, strict=True)
        ]
        row_lengths = np.array(list(map(len, crops)))
        rows = EncodedExamples(
            ids=np.concatenate(crops).astype(np.int32),
            splits=splits_of([row_lengths]),
            first_lengths=row_lengths,
            labels=np.ones(len(indices), np.float32),
            max_seq_length=self.max_seq_length,
            padding=self.padding,
            rows_per_example=2,
            text_ids=None if self.text_ids is None else self.text_ids[indices],
        )
        return rows, np.arange(len(indices))


def encode_crops(
    examples: PairExamples,
    texts: Iterable[list[str]],
    tokenizer: Tokenizer,
    prefixes: Iterable[str],
    max_seq_length: int,
    padding: str,
    seed: int,
    folder: str,
) -> CroppedTexts:
    """Tokenize the texts of examples, chunk by chunk. Return those that are long enough for two
    crops; count the others as skipped. A prefix may fill half a row. folder: as for DiskArray.

    Raises UserError when all texts are too short.
    """
    chunks = ((chunk, None) for chunk in texts)
    rows = encode_examples(tokenizer, chunks, None, UNLIMITED, folder=folder)
    is_long = rows.lengths - 2 >= 2 * MIN_TOKENS
    too_short = f"fewer than {2 * MIN_TOKENS} tokens, too few for two crops"
    if not is_long.any():
        raise UserError(
            f"each of its texts has {too_short}", "give longer ones", where=examples.path
        )
    examples.why_skipped = f"lines with {too_short},"
    examples.num_skipped += int(np.count_nonzero(~is_long))
    examples.num_examples = int(np.count_nonzero(is_long))
    return CroppedTexts(
        ids=rows.ids,
        splits=rows.splits,
        first_lengths=rows.first_lengths[is_long],
        labels=None,
        begins=rows.splits[:-1][is_long] + 1,
        max_seq_length=max_seq_length,
        padding=padding,
        rows_per_example=2,
        text_hashes=rows.text_hashes[:, is_long],
        seed=seed,
        tokenizer=tokenizer,
        prefixes=[
            tokenizer.tokenize([text.rstrip()])[0][: max_seq_length // 2] for text in prefixes
        ],
    )
