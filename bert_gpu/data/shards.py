"""One shard of a data set: windows of text -> tokens -> rows -> masks -> records.

The content of a shard depends on the settings and the text alone. One window is in memory at a
time, for validation up to two; random second segments for NSP come from the same window, and also
from the nearest one if a single document nearly fills the window.
"""

import dataclasses
import functools
import itertools
import json
import operator
import os
import typing
from collections.abc import Callable, Collection, Iterator, Sequence

import google_crc32c
import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import atomic_file, read_json, write_json
from bert_gpu.base.malloc import trim_heap
from bert_gpu.base.settings import fields_of, setting
from bert_gpu.base.tensor_files import load_file, save
from bert_gpu.data import examples, instances, masking, packing
from bert_gpu.data.config import DataConfig
from bert_gpu.data.manifest import SHARES
from bert_gpu.data.random_bits import derive_key, permutation, row_keys
from bert_gpu.data.records import ShardWriter
from bert_gpu.text import clean, corpus
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.text.word_marks import without_marks, word_starts

TRAIN, VALIDATION, DROPPED = 0, 1, 2  # the uses of a document, as in CorpusPlan.split
ROWS_PER_BATCH = 2048  # each array of a batch of 2048 rows has about a megabyte
SCORED_ORDERS = ("length", "common")
PAIRS = ("nsp", "sop")  # objectives whose rows are two segments
LENT_BYTES = 1_000_000  # the most text that a window takes from another for random second segments
# If all documents of a window but the largest have at most this share of its text, random second
# segments also come from another window.
LEAST_OTHERS = 1 / 8


@dataclasses.dataclass(frozen=True)
class Shard:
    """One unit of work: the documents of `windows` that belong to the split, "train" or
    "validation".

    lenders: for each window, the nearest other window with training documents, from which random
    second segments may come, or None; () for validation.
    sources: the training shards, which keep the validation documents of their windows; () for
    training.
    """

    path: str
    split: str
    index: int
    windows: tuple[corpus.Window, ...]
    lenders: tuple[corpus.Window | None, ...] = ()
    sources: tuple["Shard", ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of text in the shard's windows."""
        return sum(window.num_bytes for window in self.windows)


@dataclasses.dataclass
class Counts:
    """Statistics of a shard; Counts of several shards can be added."""

    num_instances: int = setting(0, "Rows.", low=0)
    num_random_next: int = setting(0, "Rows with label 1: a random B, or swapped segments.", low=0)
    num_single: int = setting(0, "Rows whose chunk of the text has one sentence.", low=0)
    num_used_tokens: int = setting(0, "Tokens of documents in their own rows, all passes.", low=0)
    num_pass_tokens: int = setting(0, "Tokens of the text, all passes.", low=0)
    num_documents: int = setting(0, "Documents of the text.", low=0)
    num_sentences: int = setting(0, "Sentences of the text.", low=0)
    num_tokens: int = setting(0, "Tokens of the text, in one pass.", low=0)
    num_unknown: int = setting(0, "Tokens that the vocabulary lacks.", low=0)
    num_row_tokens: int = setting(0, "Tokens of all rows, without padding.", low=0)
    num_bytes: int = setting(0, "Size of the shard's file.", low=0)
    num_dropped: int = setting(0, "Documents that --max_tokens_per_character drops.", low=0)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(operator.add, dataclasses.astuple(self), dataclasses.astuple(other)))

    def pair_shares(self) -> dict[str, float]:
        """Return {name: share} of the entries of dataset.json on pairs (manifest.SHARES)."""
        num_rows = max(1, self.num_instances)
        used_share = self.num_used_tokens / max(1, self.num_pass_tokens)
        shares = self.num_random_next / num_rows, self.num_single / num_rows, used_share
        return dict(zip(SHARES, shares, strict=True))


class Group(typing.NamedTuple):
    """Documents of a shard, about a window of them, that are made into rows together.

    Attributes:
      pool: documents of another window, from which random second segments may also be drawn.
      num_bytes: bytes of text for the progress; 0 for validation, because training shards have
        counted the same text.
    """

    documents: list[list[bytes]]
    pool: list[list[bytes]] = []
    num_bytes: int = 0


class Tokenized(typing.NamedTuple):
    """Documents (lists of sentences) and their tokens.

    Attributes:
      documents: the documents that are not dropped.
      ids: (T,) int, the token ids of all sentences of these documents.
      splits: (sentences + 1,) offsets of the sentences in ids.
      num_dropped: number of dropped documents.
      word_starts: (T,) bool, whether each token begins a word, where the text marks words; else
        None, and the pieces say it.
    """

    documents: list[list[bytes]]
    ids: np.ndarray
    splits: np.ndarray
    num_dropped: int
    word_starts: np.ndarray | None = None


NOTHING = Tokenized([], np.zeros(0, np.int32), np.zeros(1, np.int64), 0)


@dataclasses.dataclass(eq=False)
class ShardBuilder:
    """Writes shards from windows of text. Can be pickled: each process opens its own tokenizer.

    split: (D,) int8, TRAIN, VALIDATION or DROPPED for each document of the corpus.
    repeated: the file of the sentences to drop (`clean.drop_repeated`), or None.
    """

    config: DataConfig
    vocab_file: str
    split: np.ndarray
    repeated: str | None = None

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), (self.config, self.vocab_file, self.split, self.repeated)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return open_tokenizer(self.vocab_file, self.config.do_lower_case, self.config.strip_accents)

    @functools.cached_property
    def _masks(self) -> masking.MaskingSpec:
        settings = self.config.to_dict(), self.config.num_predictions
        return masking.MaskingSpec.from_settings(*settings, self.tokenizer)

    def write_shard(self, shard: Shard, report: Callable[[int, int], object]) -> None:
        """Write one shard and its statistics. `report` is called with the bytes of text and the
        tokens done since its last call.
        """
        counts = Counts()
        scores = [np.zeros(0)]
        pieces = np.zeros(self.tokenizer.vocab_size, np.int64)
        # Another pass over the validation documents would measure a model no better.
        is_train = shard.split == "train"
        num_passes = self.config.num_passes if is_train else 1
        groups = self._training_groups(shard) if is_train else self._validation_groups(shard)
        with ShardWriter(shard.path) as writer:
            for index, (documents, pool, num_bytes) in enumerate(groups):
                key = derive_key(self.config.random_seed, shard.split, shard.index, index)
                own = self._write_group(
                    documents, pool, writer.write, scores, pieces, key, num_passes
                )
                counts += own
                trim_heap()
                report(num_bytes, own.num_tokens)
            with atomic_file(path_beside(shard, "scores"), "wb") as file:
                file.write(save({"scores": np.concatenate(scores), "pieces": pieces}))
        counts.num_bytes = writer.num_bytes
        write_json(path_beside(shard, "stats"), dataclasses.asdict(counts))

    def _training_groups(self, shard: Shard) -> Iterator[Group]:
        """Yield the Group of each window of a training shard. Keep the windows' validation
        documents in a file beside the shard, a line with a checksum and JSON a window.
        """
        with atomic_file(path_beside(shard, "held_out"), "wb") as file:
            for window, lender in zip(shard.windows, shard.lenders, strict=True):
                documents, held_out = self._read(window)
                texts = [[line.decode() for line in document] for document in held_out]
                row = json.dumps([window.documents.start, texts], ensure_ascii=False).encode()
                file.write(b"%08x %s\n" % (google_crc32c.value(row), row))
                is_short = lender is not None and self._lacks_others(documents)
                pool = self._first_documents(lender) if lender and is_short else []
                yield Group(documents, pool, window.num_bytes)

    def _validation_groups(self, shard: Shard) -> Iterator[Group]:
        """Yield the Groups of the validation shard. Validation documents are few, so those of
        several windows form a group. The last group is joined to the one before it when it has too
        few documents for pairs.
        """
        previous: list[list[bytes]] = []
        pending: list[list[bytes]] = []
        for documents in itertools.chain.from_iterable(map(self._held_out, shard.sources)):
            pending += documents
            if text_bytes(pending) < corpus.WINDOW_BYTES or self._lacks_others(pending):
                continue
            if previous:
                yield Group(previous)
            previous = pending
            pending = []
        if previous and self._lacks_others(pending):
            previous = previous + pending
            pending = []
        yield from (Group(group) for group in (previous, pending) if group)

    def _held_out(self, source: Shard) -> Iterator[list[list[bytes]]]:
        """Yield the validation documents of each window of a training shard. A window is read
        again if they are damaged.
        """
        with open(path_beside(source, "held_out"), "rb") as file:
            for window in source.windows:
                crc, _, row = file.readline().rstrip().partition(b" ")
                is_whole = crc == b"%08x" % google_crc32c.value(row)
                start, texts = json.loads(row) if is_whole else (None, [])
                if start == window.documents.start:
                    yield [[line.encode() for line in document] for document in texts]
                else:
                    yield self._read(window)[VALIDATION]

    def _lacks_others(self, documents: list[list[bytes]]) -> bool:
        """Return whether the objective is nsp and these documents need others for random second
        segments: all but the largest together have at most the share LEAST_OTHERS of their text.
        """
        sizes = [text_bytes([document]) for document in documents]
        is_short = sum(sizes) - max(sizes, default=0) <= LEAST_OTHERS * sum(sizes)
        return self.config.objective == "nsp" and is_short

    def _read(self, window: corpus.Window) -> tuple[list[list[bytes]], list[list[bytes]]]:
        return read_documents(window, self.split, self.repeated)

    def _first_documents(self, window: corpus.Window) -> list[list[bytes]]:
        """Return a window's first documents, up to LENT_BYTES of text; the last one is cut."""
        documents: list[list[bytes]] = []
        num_left = LENT_BYTES
        for document in self._read(window)[TRAIN]:
            ends = np.cumsum([len(line) for line in document])
            documents.append(document[: max(1, int(np.searchsorted(ends, num_left)))])
            num_left -= text_bytes(documents[-1:])
            if num_left <= 0:
                break
        return documents

    def _write_group(
        self,
        texts: list[list[bytes]],
        pool: list[list[bytes]],
        write: Callable[[np.ndarray, np.ndarray], None],
        scores: list[np.ndarray],
        pieces: np.ndarray,
        key: int,
        num_passes: int,
    ) -> Counts:
        """Tokenize documents, make rows in `num_passes` passes, mask and write them; return the
        Counts of documents and rows. If --order sorts rows by a score, append the scores to
        `scores`. Add to `pieces`, (V,), how many tokens of each piece are masked or, if masks are
        drawn at reading, can be.
        """
        if not texts:
            return Counts()
        config, tokenizer = self.config, self.tokenizer
        own = tokenize(config, tokenizer, texts)
        others = tokenize(config, tokenizer, pool)
        documents, rows, counts = make_rows(config, tokenizer, own, others, key, num_passes)
        keys = row_keys(derive_key(key, "masks"), np.arange(len(rows)))
        marked = with_starts(documents, tokenizer, own, others)
        frequencies = np.bincount(own.ids, minlength=tokenizer.vocab_size) / max(1, len(own.ids))
        for start in range(0, len(rows), ROWS_PER_BATCH):
            batch = np.arange(start, min(start + ROWS_PER_BATCH, len(rows)))
            taken = rows.take(batch)
            tokens = taken.tokens(documents, config.max_seq_length, tokenizer)
            starts = (
                None
                if marked is None
                else taken.tokens(marked, config.max_seq_length, tokenizer).input_ids > 0
            )
            if config.order == "length":
                scores.append(tokens.lengths.astype(np.float64))
            elif config.order == "common":
                scores.append(rarity(tokens, frequencies))
            counts.num_row_tokens += int(tokens.lengths.sum())
            if config.masking == "static":
                features = self._static_features(tokens, keys[batch], starts)
                candidates = features["masked_lm_ids"][features["masked_lm_weights"] > 0]
                write(*examples.encode_examples(features))
            else:
                candidates = tokens.input_ids[tokens.sequence_ids > 0]
                write(*examples.encode_examples(compact_features(tokens, starts)))
            pieces += np.bincount(candidates, minlength=tokenizer.vocab_size)
        pieces[[tokenizer.cls_id, tokenizer.sep_id]] = 0  # never masked
        return counts

    def _static_features(
        self, tokens: instances.Tokens, keys: np.ndarray, starts: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return {name: array} of Google's seven features for a batch of rows; without labels there
        are six, and packed rows also have sequence_ids. starts: where words begin, bool (N, S);
        None = where the pieces say so.
        """
        ids = tokens.input_ids
        if starts is None and self._masks.masks_words:
            starts = self.tokenizer.word_starts(ids)
        features = masking.mask_rows(ids, tokens.lengths, starts, keys, self._masks)
        features["input_mask"] = (tokens.sequence_ids > 0).astype(np.int32)
        features["segment_ids"] = np.zeros_like(tokens.sequence_ids)
        if tokens.labels is not None:
            features["segment_ids"] = np.maximum(tokens.sequence_ids - 1, 0)
            features["next_sentence_labels"] = tokens.labels[:, None]
        if self.config.objective == "packed":
            features["sequence_ids"] = tokens.sequence_ids
        return features


def read_documents(
    window: corpus.Window, split: np.ndarray, repeated: str | None = None
) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """Return (the documents to train on, the documents for validation) of a window, without
    repeated sentences. split, repeated: see ShardBuilder.
    """
    parts: tuple[list[list[bytes]], list[list[bytes]]] = [], []
    for document, part in zip(window.read(), split[window.documents].tolist(), strict=True):
        if part != DROPPED:
            parts[part].append(document)
    if repeated is None:
        return parts
    return clean.drop_repeated(parts[0], repeated), clean.drop_repeated(parts[1], repeated)


def tokenize(config: DataConfig, tokenizer: Tokenizer, documents: list[list[bytes]]) -> Tokenized:
    """Tokenize documents without the marks between their words. Drop those with too many tokens for
    --max_tokens_per_character.
    """
    lines = list(itertools.chain(*documents))
    mark, limit = config.word_mark, config.max_tokens_per_character
    tokens = tokenizer.tokenize(without_marks(lines, mark))
    plain = [without_marks(document, mark) for document in documents]
    are_words_masked = config.do_whole_word_mask or config.max_ngram_size > 1
    starts = word_starts(tokenizer, lines, mark, *tokens) if are_words_masked else None
    return drop_dense(plain, *tokens, limit, starts)


def drop_dense(
    documents: list[list[bytes]],
    ids: np.ndarray,
    splits: np.ndarray,
    limit: float | None,
    starts: np.ndarray | None = None,
) -> Tokenized:
    """Return documents and their tokens without the documents of at least `limit` tokens per
    character (--max_tokens_per_character). ids, splits, starts: the tokens of all their sentences,
    and the word_starts, as in Tokenized.
    """
    if limit is None:
        return Tokenized(documents, ids, splits, 0, starts)
    ends = np.cumsum([0, *map(len, documents)])
    texts = (b"".join(document) for document in documents)
    num_characters = np.array([len(text.decode("utf-8", "ignore")) for text in texts])
    is_sparse = np.diff(splits[ends]) < limit * num_characters
    is_sparse_line = np.repeat(is_sparse, np.diff(ends))
    lengths = np.diff(splits)
    is_kept = np.repeat(is_sparse_line, lengths)
    return Tokenized(
        list(itertools.compress(documents, is_sparse)),
        ids[is_kept],
        np.concatenate([[0], np.cumsum(lengths[is_sparse_line])]).astype(np.int64),
        int((~is_sparse).sum()),
        None if starts is None else starts[is_kept],
    )


def with_starts(
    documents: instances.Documents, tokenizer: Tokenizer, own: Tokenized, pool: Tokenized
) -> instances.Documents | None:
    """Return the documents of own and pool with, in place of each token, 1 where it begins a word,
    else 0; None where neither marks words.
    """
    if own.word_starts is None and pool.word_starts is None:
        return None
    starts = [
        tokenizer.word_starts(part.ids) if part.word_starts is None else part.word_starts
        for part in (own, pool)
    ]
    return dataclasses.replace(documents, ids=np.concatenate(starts).astype(np.int32))


def count_pairs(config: DataConfig, tokenizer: Tokenizer, own: Tokenized) -> Counts:
    """Return the Counts of the rows that one pass over the documents `own` makes."""
    return make_rows(config, tokenizer, own, NOTHING, 0, 1)[2]


def make_rows(
    config: DataConfig,
    tokenizer: Tokenizer,
    own: Tokenized,
    pool: Tokenized,
    key: int,
    num_passes: int,
) -> tuple[instances.Documents, instances.PairRows | packing.PieceRows, Counts]:
    """Return (all documents as token ids, the rows of num_passes passes, the Counts of own
    documents and rows).

    Args:
      own: documents to make rows of; if they have no token, there are no rows.
      pool: more documents to draw random second segments from.
    """
    counts = Counts(
        num_documents=len(own.documents),
        num_sentences=len(own.splits) - 1,
        num_tokens=len(own.ids),
        num_dropped=own.num_dropped,
        num_unknown=int(np.sum(own.ids == tokenizer.unk_id)),
        num_pass_tokens=num_passes * len(own.ids),
    )
    documents = instances.Documents.from_sentences(
        np.concatenate([own.ids, pool.ids]),
        np.concatenate([own.splits, len(own.ids) + pool.splits[1:]]),
        [len(document) for document in own.documents + pool.documents],
    )
    if config.objective in PAIRS:
        documents = documents.split_long(config.max_seq_length - 3)
    starts = documents.sentence_splits[documents.document_splits[:-1]]
    num_own = int(np.searchsorted(starts, len(own.ids)))
    if num_own == 0:
        return documents, instances.PairRows(np.zeros((0, 6), np.int64)), counts
    passes = [
        rows_of_pass(config, documents, num_own, derive_key(key, "instances", index))
        for index in range(num_passes)
    ]
    # all passes are of one type
    rows = type(passes[0]).concatenate(passes)  # type: ignore[arg-type]
    if config.order != "as_is":
        rows = rows.take(permutation(derive_key(key, "shuffle"), len(rows)))
    counts.num_instances = len(rows)
    if isinstance(rows, instances.PairRows):
        counts.num_random_next, counts.num_single = rows.pairs[:, 4:].sum(0).tolist()
        counts.num_used_tokens = rows.num_used(is_random=config.objective == "nsp")
    return documents, rows, counts


def rows_of_pass(
    config: DataConfig, documents: instances.Documents, num_own: int, key: int
) -> instances.PairRows | packing.PieceRows:
    """Return the rows of one pass over the first num_own documents."""
    own = np.arange(num_own)
    length = config.max_seq_length
    if config.objective in PAIRS:
        pairs = instances.pair_instances(
            documents,
            own,
            np.arange(len(documents)),
            max_seq_length=length,
            short_seq_prob=config.short_seq_prob,
            key=key,
            swaps=config.objective == "sop",
        )
        return instances.PairRows(pairs)
    if config.order != "as_is":
        own = permutation(key, num_own)
    if config.objective == "full_sentences":
        return packing.full_sentence_rows(documents, own, max_seq_length=length)
    separator = config.pack_separator
    return packing.packed_rows(documents, own, max_seq_length=length, separator=separator)


def text_bytes(documents: Sequence[Sequence[bytes]]) -> int:
    """Return the number of bytes of documents, each a list of sentences."""
    return sum(len(line) for document in documents for line in document)


def compact_features(
    tokens: instances.Tokens, word_starts: np.ndarray | None = None
) -> dict[str, np.ndarray | tuple[np.ndarray, np.ndarray]]:
    """Return {name: feature} of compact records, for encode_examples: input_ids without padding,
    `starts`, the positions where segments or sequences begin, and the labels of pairs; where the
    text marks words, `word_starts`, the positions where words begin.

    word_starts: bool (N, S), or None.
    """
    is_real = tokens.sequence_ids > 0
    begins = is_real & (np.diff(tokens.sequence_ids, axis=1, prepend=0) != 0)
    token_splits, start_splits = (
        np.cumsum(np.append(0, each.sum(1))) for each in (is_real, begins)
    )
    features: dict[str, np.ndarray | tuple[np.ndarray, np.ndarray]] = dict(
        input_ids=(tokens.input_ids[is_real], token_splits),
        starts=(np.nonzero(begins)[1], start_splits),
    )
    if word_starts is not None:
        of_words = word_starts & is_real
        word_splits = np.cumsum(np.append(0, of_words.sum(1)))
        features["word_starts"] = np.nonzero(of_words)[1], word_splits
    if tokens.labels is not None:
        features["next_sentence_labels"] = tokens.labels[:, None]
    return features


def rarity(tokens: instances.Tokens, frequencies: np.ndarray) -> np.ndarray:
    """Return a score (N,) for each row, large for rare words: minus the mean log frequency of the
    row's tokens, without special tokens. frequencies: (V,), the share of each piece in the window's
    tokens.
    """
    shares = frequencies[tokens.input_ids]
    is_counted = (tokens.sequence_ids > 0) & (shares > 0)
    sums = np.where(is_counted, -np.log(np.where(is_counted, shares, 1.0)), 0.0).sum(1)
    return sums / np.maximum(is_counted.sum(1), 1)


def read_arrays(shard: Shard) -> dict[str, np.ndarray]:
    """Return the arrays that were written beside a shard: "scores" (rows,), by which --order sorts
    its rows, and "pieces" (V,), how many tokens of each piece are masked or can be. Raise UserError
    when their file is damaged.
    """
    try:
        return load_file(path_beside(shard, "scores"))
    except UserError as error:
        raise UserError(str(error), "write the data again with --overwrite") from error


def unigram_loss(shards: Collection[Shard]) -> float | None:
    """Return the validation loss of masked words, in nats, that word frequencies alone give: that
    of a model whose probability of a piece is its share of the masked training tokens, with one
    token added for each piece. Without validation tokens it is the loss on the training tokens.
    Return None without any.
    """
    counts = dict(train=np.zeros(1), validation=np.zeros(1))
    for shard in shards:
        counts[shard.split] = counts[shard.split] + read_arrays(shard)["pieces"]
    learnt = counts["train"] + 1
    measured = counts["validation" if counts["validation"].any() else "train"]
    if not measured.any():
        return None
    return round(float(np.average(-np.log(learnt / learnt.sum()), weights=measured)), 4)


def path_beside(shard: Shard, ending: str) -> str:
    """Return the path of a hidden file of a shard, which is removed when the data set is finished:
    its counts ("stats"), arrays ("scores") or validation documents ("held_out").
    """
    folder, name = os.path.split(shard.path)
    return os.path.join(folder, f".{name.removesuffix('.tfrecord')}.{ending}")


def read_stats(shard: Shard) -> Counts:
    """Return the Counts of a complete shard."""
    fields = fields_of(Counts)
    content = read_json(
        path_beside(shard, "stats"),
        "the counts of a shard; delete it, or start over with --overwrite",
        fields,
        tuple(fields),
    )
    return Counts(**{name: content[name] for name in fields})
