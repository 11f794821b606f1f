"""One shard of a data set: windows of text -> tokens -> rows -> masks -> records.

The content of a shard depends on the settings and the text alone. One window is in memory at a
time, for validation up to two; random second segments of NSP instances come from the same window,
and from the nearest one if a single document nearly fills it.
"""

import dataclasses
import os
import typing
import zlib

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import atomic_file, read_json, write_json
from bert_gpu.base.malloc import trim_heap
from bert_gpu.base.settings import fields_of, setting
from bert_gpu.base.tensor_files import load_file, save
from bert_gpu.data import examples, instances, masking, packing
from bert_gpu.data.manifest import SHARES
from bert_gpu.data.random_bits import derive_key, row_keys
from bert_gpu.data.records import FOOTER, GZIP_LEVEL, HEADER, ShardWriter
from bert_gpu.text import clean, corpus
from bert_gpu.text.tokenizers.open import open_tokenizer

TRAIN, VALIDATION, DROPPED = 0, 1, 2  # how a document is used
ROWS_PER_BATCH = 2048  # then each array of a batch has about a megabyte
NUM_SAMPLES, SAMPLE_BYTES = 4, 1 << 18  # of text, to predict the size of the output
SCORED_ORDERS = ("length", "common")
PAIRS = ("nsp", "sop")  # objectives whose rows are two segments
LEAST_RANDOM, MOST_RANDOM = 0.48, 0.70  # of next-sentence pairs; ordinary prose has .5 to .6
LENT_BYTES = 1_000_000  # of another window's text, at most
LEAST_OTHERS = 1 / 8  # of a window's text: what documents beside the largest have, or others lend


@dataclasses.dataclass(frozen=True)
class Shard:
    """One unit of work: the documents of `windows` (tuple of corpus.Window) that belong to the
    split, "train" or "validation". lenders: for each window the nearest one with documents of the
    split, or None; for validation there are none.
    """

    path: str
    split: str
    index: int
    windows: tuple
    lenders: tuple = ()

    @property
    def num_bytes(self):
        """Bytes of text that are read."""
        return sum(window.num_bytes for window in self.windows)


@dataclasses.dataclass
class Counts:
    """Statistics of what was written; Counts of several shards can be added."""

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

    def __add__(self, other):
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*(mine + theirs for mine, theirs in pairs))

    def pair_shares(self) -> dict[str, float]:
        """Return the shares of pairs that dataset.json has, by name (manifest.SHARES)."""
        num_rows = max(1, self.num_instances)
        used = self.num_used_tokens / max(1, self.num_pass_tokens)
        shares = self.num_random_next / num_rows, self.num_single / num_rows, used
        return dict(zip(SHARES, shares, strict=True))


class Tokenized(typing.NamedTuple):
    """Documents (lists of sentences) and their tokens.

    Attributes:
      documents: list, those that are kept. ids: (T,) int, the tokens of all their sentences.
      splits: (sentences + 1,) offsets of the sentences in ids. num_dropped: documents.
    """

    documents: list
    ids: np.ndarray
    splits: np.ndarray
    num_dropped: int


class MemoryWriter:
    """Used in place of a ShardWriter: keeps what would be written in memory."""

    def __init__(self):
        self.parts = []

    def write(self, buffer, splits):
        self.parts += [buffer.tobytes(), bytes((HEADER + FOOTER) * (len(splits) - 1))]


class ShardBuilder:
    """Turns windows into a shard. Picklable: each process makes its own tokenizer."""

    def __init__(self, config, vocab_file, fate):
        """fate: (D,) int8, TRAIN, VALIDATION or DROPPED for each document of the corpus."""
        self.config, self.vocab_file, self.fate = config, vocab_file, fate
        self._tokenizer = None

    def __getstate__(self):
        return {
            "config": self.config,
            "vocab_file": self.vocab_file,
            "fate": self.fate,
            "_tokenizer": None,
        }

    @property
    def tokenizer(self):
        if self._tokenizer is None:
            self._mask = tf.function(self._mask_rows, autograph=False, reduce_retracing=True)
            self._tokenizer = open_tokenizer(self.vocab_file, self.config.do_lower_case)
        return self._tokenizer

    def write_shard(self, shard, report):
        """Writes one shard and its statistics. `report` is called with the bytes of text and the
        tokens done since its last call.
        """
        counts, scores = Counts(), []
        # Another pass over the validation documents would say no more about a model.
        num_passes = self.config.num_passes if shard.split == "train" else 1
        with ShardWriter(shard.path, self.config.gzip_compress) as writer:
            for index, (texts, others, num_bytes) in enumerate(self._groups(shard)):
                key = derive_key(self.config.random_seed, shard.split, shard.index, index)
                group_counts = Counts()
                if texts:
                    group_counts = self._write_group(texts, others, writer, scores, key, num_passes)
                counts += group_counts
                trim_heap()
                # The validation shard reads the text again; progress counts each byte once.
                report(num_bytes if shard.split == "train" else 0, group_counts.num_tokens)
            if self.config.order in SCORED_ORDERS:
                whole = np.concatenate(scores) if scores else np.zeros(0)
                with atomic_file(scores_path(shard), "wb") as file:
                    file.write(save({"scores": whole}))
        counts.num_bytes = writer.num_bytes
        write_json(stats_path(shard), dataclasses.asdict(counts))

    def bytes_per_text_byte(self, windows):
        """Size of the output relative to the text, measured on a few samples of the corpus; writes
        no file.
        """
        num_read, writer = 0, MemoryWriter()
        for index in np.unique(
            np.linspace(0, len(windows) - 1, NUM_SAMPLES).round().astype(int)
        ).tolist():
            block = windows[index].blocks[0]
            fates = self.fate[corpus.Window((block,)).documents]
            texts, end = [], num_read + SAMPLE_BYTES
            for document, fate in zip(corpus.read_block(block), fates, strict=True):
                if num_read >= end:
                    break
                num_read += sum(map(len, document)) + len(document)  # as formats.py measures it
                if fate != DROPPED:
                    texts.append(clean.normalize(document, self.config.normalization))
            if texts:
                key = derive_key(self.config.random_seed, "trial", index)
                self._write_group(texts, [], writer, [], key, self.config.num_passes)
        trim_heap()
        content = b"".join(writer.parts)
        return len(
            zlib.compress(content, GZIP_LEVEL) if self.config.gzip_compress else content
        ) / max(1, num_read)

    def _groups(self, shard):
        """Yields (documents, documents of another window to draw random second segments from,
        bytes of text read) of a shard, about a window at a time.
        """
        if shard.split == "validation":
            yield from self._validation_groups(shard)
            return
        for window, lender in zip(shard.windows, shard.lenders, strict=True):
            documents = self._read(window, TRAIN)
            is_short = lender is not None and self._lacks_others(documents)
            yield documents, self._lent(lender) if is_short else [], window.num_bytes

    def _validation_groups(self, shard):
        """As `_groups`: validation documents are few, so those of several windows form a group. The
        last group is joined to the one before it when it has too few documents for pairs.
        """
        least = self.config.window_megabytes * 1e6
        previous, pending = [], []
        for window in shard.windows:
            if not (self.fate[window.documents] == VALIDATION).any():
                continue
            pending += self._read(window, VALIDATION)
            if text_bytes(pending) < least or self._lacks_others(pending):
                continue
            if previous:
                yield previous, [], 0
            previous, pending = pending, []
        if previous and self._lacks_others(pending):
            previous, pending = previous + pending, []
        yield from ((group, [], 0) for group in (previous, pending) if group)

    def _lacks_others(self, documents):
        """Whether next-sentence pairs need documents beside these: all but the largest have no more
        than LEAST_OTHERS of their text.
        """
        sizes = [text_bytes([document]) for document in documents]
        is_short = sum(sizes) - max(sizes, default=0) <= LEAST_OTHERS * sum(sizes)
        return self.config.objective == "nsp" and is_short

    def _read(self, window, split):
        """The documents of a window that belong to TRAIN or VALIDATION, normalised."""
        return [
            clean.normalize(document, self.config.normalization)
            for document, fate in zip(window.read(), self.fate[window.documents], strict=True)
            if fate == split
        ]

    def _lent(self, window):
        """The first documents of another window, up to LENT_BYTES of text; the last one is cut."""
        lent, num_left = [], LENT_BYTES
        for document in self._read(window, TRAIN):
            ends = np.cumsum([len(line) for line in document])
            lent.append(document[: max(1, int(np.searchsorted(ends, num_left)))])
            num_left -= text_bytes(lent[-1:])
            if num_left <= 0:
                break
        return lent

    def _write_group(self, texts, others, writer, scores, key, num_passes):
        """Tokenizes documents, makes rows in `num_passes` passes, masks and writes them. Appends
        to `scores` when the order needs them.
        """
        config, own = self.config, self.tokenize(texts)
        documents, rows, counts = self._make_rows(own, self.tokenize(others), key, num_passes)
        if rows is None:
            return counts
        keys = row_keys(derive_key(key, "masks"), np.arange(len(rows)))
        counted = np.bincount(own.ids, minlength=self.tokenizer.vocab_size)
        frequencies = counted / max(1, len(own.ids))
        for start in range(0, len(rows), ROWS_PER_BATCH):
            chosen = np.arange(start, min(start + ROWS_PER_BATCH, len(rows)))
            tokens = rows.take(chosen).tokens(documents, config.max_seq_length, self.tokenizer)
            if config.order in SCORED_ORDERS:
                scores.append(
                    tokens.lengths.astype(np.float64)
                    if config.order == "length"
                    else rarity(tokens, frequencies)
                )
            counts.num_row_tokens += int(tokens.lengths.sum())
            features = (
                self._static_features(tokens, keys[chosen])
                if config.masking == "static"
                else compact_features(tokens)
            )
            writer.write(*examples.encode_examples(features))
        return counts

    def count_pairs(self, texts: list) -> Counts:
        """Return the Counts of the rows that one pass over documents makes; writes nothing."""
        return self._make_rows(self.tokenize(texts), self.tokenize([]), 0, 1)[2]

    def _make_rows(self, own, others, key, num_passes):
        """Returns Documents, their rows and the Counts of both, from two Tokenized: the documents
        to make rows of, and those to draw random second segments from. The rows are None when no
        document of `own` has tokens.
        """
        counts = Counts(
            num_documents=len(own.documents),
            num_sentences=len(own.splits) - 1,
            num_tokens=len(own.ids),
            num_dropped=own.num_dropped,
            num_unknown=int(np.sum(own.ids == self.tokenizer.unk_id)),
            num_pass_tokens=num_passes * len(own.ids),
        )
        documents = instances.Documents.from_sentences(
            np.concatenate([own.ids, others.ids]),
            np.concatenate([own.splits, len(own.ids) + others.splits[1:]]),
            [len(document) for document in own.documents + others.documents],
        )
        if self.config.objective in PAIRS:
            documents = documents.split_long(self.config.max_seq_length - 3)
        starts = documents.sentence_splits[documents.document_splits[:-1]]
        num_own = int(np.searchsorted(starts, len(own.ids)))
        if num_own == 0:
            return documents, None, counts
        rows = self._rows(documents, num_own, key, num_passes)
        counts.num_instances = len(rows)
        if self.config.objective in PAIRS:
            counts.num_random_next = int(rows.instances[:, 4].sum())
            counts.num_single = rows.num_single
            counts.num_used_tokens = rows.num_used(is_random=self.config.objective == "nsp")
        return documents, rows, counts

    def tokenize(self, texts):
        """The Tokenized of documents, without those that --max_tokens_per_character drops."""
        ids, splits = self.tokenizer.tokenize([line for document in texts for line in document])
        limit = self.config.max_tokens_per_character
        if limit is None:
            return Tokenized(texts, ids, splits, 0)
        ends = np.cumsum([0, *map(len, texts)])
        num_tokens = np.diff(splits[ends])
        num_characters = np.array(
            [sum(len(line.decode("utf-8", "ignore")) for line in document) for document in texts]
        )
        keep = num_tokens < limit * num_characters
        kept_lines = np.repeat(keep, np.diff(ends))
        lengths = np.diff(splits)
        kept = [document for document, good in zip(texts, keep, strict=True) if good]
        kept_splits = np.concatenate([[0], np.cumsum(lengths[kept_lines])]).astype(np.int64)
        kept_ids = ids[np.repeat(kept_lines, lengths)]
        return Tokenized(kept, kept_ids, kept_splits, int((~keep).sum()))

    def _rows(self, documents, num_own, key, num_passes):
        """PairRows or PieceRows of all passes over the first `num_own` documents, ordered as the
        settings say.
        """
        config, length = self.config, self.config.max_seq_length
        passes = []
        for index in range(num_passes):
            pass_key = derive_key(key, "instances", index)
            if config.objective in PAIRS:
                args = documents, np.arange(num_own), np.arange(len(documents))
                settings = dict(
                    max_seq_length=length,
                    short_seq_prob=config.short_seq_prob,
                    swaps=config.objective == "sop",
                )
                passes.append(
                    instances.PairRows(instances.pair_instances(*args, key=pass_key, **settings))
                )
                continue
            order = np.arange(num_own)
            if config.order != "as_is":
                order = np.random.Generator(np.random.Philox(key=pass_key)).permutation(num_own)
            if config.objective == "packed":
                passes.append(
                    packing.packed_rows(
                        documents, order, max_seq_length=length, separator=config.pack_separator
                    )
                )
            else:
                passes.append(packing.full_sentence_rows(documents, order, max_seq_length=length))
        rows = type(passes[0]).concatenate(passes)
        if config.order == "as_is":
            return rows
        return rows.take(
            np.random.Generator(np.random.Philox(key=derive_key(key, "shuffle"))).permutation(
                len(rows)
            )
        )

    def _static_features(self, tokens, keys):
        """Google's seven features of a batch of rows; six without labels, and sequence_ids for
        packed rows.
        """
        masked = self._mask(
            tokens.input_ids, tokens.lengths, self.tokenizer.word_starts(tokens.input_ids), keys
        )
        features = {name: value.numpy() for name, value in masked.items()}
        features["input_mask"] = (tokens.sequence_ids > 0).astype(np.int32)
        if tokens.labels is not None:
            features["segment_ids"] = np.maximum(tokens.sequence_ids - 1, 0)
            features["next_sentence_labels"] = tokens.labels[:, None]
        else:
            features["segment_ids"] = np.zeros_like(tokens.sequence_ids)
        if self.config.objective == "packed":
            features["sequence_ids"] = tokens.sequence_ids
        rename = examples.V2_NAMES if self.config.use_v2_feature_names else {}
        return {rename.get(name, name): values for name, values in features.items()}

    def _mask_rows(self, input_ids, lengths, word_starts, keys):
        spec = masking.MaskingSpec.from_settings(
            self.config.to_dict(), self.config.num_predictions, self.tokenizer
        )
        return masking.mask_rows(input_ids, lengths, word_starts, keys, spec)


def is_usual(random: float, num_rows: int) -> bool:
    """Return whether a share of random second segments is usual, but for chance: two standard
    errors of a share of num_rows rows.
    """
    noise = max(1, num_rows) ** -0.5
    return LEAST_RANDOM - noise <= random <= MOST_RANDOM + noise


def text_bytes(documents: list) -> int:
    """Return the bytes of documents, each a list of sentences."""
    return sum(len(line) for document in documents for line in document)


def compact_features(tokens):
    """Rows without padding: input_ids, `starts` of segments or sequences, and the labels of
    pairs.
    """
    is_real = tokens.sequence_ids > 0
    begins = is_real & (np.diff(tokens.sequence_ids, axis=1, prepend=0) != 0)
    features = {}
    for name, values, where in (("input_ids", tokens.input_ids, is_real), ("starts", None, begins)):
        splits = np.concatenate([[0], np.cumsum(where.sum(1))])
        features[name] = (np.nonzero(where)[1] if values is None else values[where], splits)
    if tokens.labels is not None:
        features["next_sentence_labels"] = tokens.labels[:, None]
    return features


def rarity(tokens, frequencies):
    """(N,) minus the mean log frequency of each row's tokens in the window, without special tokens:
    large for rare words.
    """
    shares = frequencies[tokens.input_ids]
    counted = (tokens.sequence_ids > 0) & (shares > 0)
    return np.where(counted, -np.log(np.where(counted, shares, 1.0)), 0.0).sum(1) / np.maximum(
        counted.sum(1), 1
    )


def read_scores(shard):
    """What the rows of a shard are sorted by, (rows,). UserError when the file is damaged."""
    try:
        return load_file(scores_path(shard))["scores"]
    except UserError as error:
        raise UserError(str(error), "write the data again with --overwrite") from error


def scores_path(shard):
    return stats_path(shard).removesuffix(".stats") + ".scores"


def stats_path(shard):
    folder, name = os.path.split(shard.path)
    return os.path.join(folder, f".{name.removesuffix('.tfrecord')}.stats")


def read_stats(shard):
    """The Counts of a complete shard."""
    fields = fields_of(Counts)
    content = read_json(
        stats_path(shard),
        "the counts of a shard; delete it, or start over with --overwrite",
        fields,
        tuple(fields),
    )
    return Counts(**{name: content[name] for name in fields})
