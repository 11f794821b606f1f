"""One shard of a data set: blocks of text -> tokens -> instances -> masks -> records.

What a shard holds depends on the settings and the text alone. One block is in memory at a time; random second halves of NSP instances
come from the same block.
"""

import dataclasses
import os

import numpy as np
import tensorflow as tf

from bert_gpu.data import examples, instances, masking, packing
from bert_gpu.data.chance import derive_key, row_keys
from bert_gpu.data.records import ShardWriter
from bert_gpu.files import read_json, write_json
from bert_gpu.settings import Settings, UserError, setting
from bert_gpu.text import corpus
from bert_gpu.text.tokenizer import WordPieceTokenizer

BLOCK_BYTES = 8 << 20  # of text; the window that random second halves come from
ROWS_AT_ONCE = 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(Settings):
    """What is written."""

    input_file: str = setting(
        "sample_text.txt", "Text: one sentence a line, a blank line between documents, UTF-8. A glob, or several with commas between."
    )
    output_file: str = setting(
        "data/pretrain.tfrecord", "DIR/NAME.tfrecord: shards are written as DIR/NAME-00000-of-00008.tfrecord. One data set a folder."
    )
    vocab_file: str | None = setting(
        None, "WordPiece vocabulary, one piece a line. Default: learnt from the text and written to DIR/vocab.txt."
    )
    vocab_size: int = setting(32768, "Pieces of a vocabulary that is learnt; fewer when the text has fewer.", low=100)
    do_lower_case: bool = setting(True, "Lower-case the text and strip accents (an uncased model).")
    objective: str = setting(
        "nsp",
        "What a row is. nsp: two segments, is the second the next one (BERT)? sop: two segments, are they in order (ALBERT)? "
        "full_sentences: whole sentences, across documents (RoBERTa). packed: rows filled to the last token with several sequences "
        "(Cramming).",
        choices=("nsp", "sop", "full_sentences", "packed"),
    )
    pack_separator: str = setting(
        packing.CLS_SEP,
        "What frames a sequence of a packed row: cls_sep = [CLS] ... [SEP]; sep = [SEP] behind each document (Cramming's stream); none.",
        choices=packing.FRAMES,
    )
    masking: str = setting(
        "static",
        "When tokens are masked. static: once, when records are written, in Google's format. dynamic: anew in every epoch, when records "
        "are read; they are compact.",
        choices=("static", "dynamic"),
    )
    max_seq_length: int = setting(128, "Tokens of a row, with [CLS] and [SEP].", low=8, high=65536)
    max_predictions_per_seq: int | None = setting(
        None, "Most masked tokens of a row. Default: max_seq_length x masked_lm_prob, rounded up (20 for 128).", low=1
    )
    masked_lm_prob: float = setting(0.15, "Share of a row's tokens that are masked.", above=0.0, below=1.0)
    do_whole_word_mask: bool = setting(False, "Mask all pieces of a word or none.")
    max_ngram_size: int = setting(1, "Mask spans of up to so many whole words together; 1 = no spans.", low=1, high=64)
    ngram_weights: str = setting(
        "inverse",
        "Weights of span lengths n: inverse = 1/n (Model Garden), geometric = 0.8^(n-1) (SpanBERT).",
        choices=("inverse", "geometric"),
    )
    short_seq_prob: float = setting(0.1, "Share of documents that are cut into shorter instances than max_seq_length.", low=0.0, high=1.0)
    dupe_factor: int | None = setting(
        None, "Passes over the text, each with other rows and other masks. Default: 10 with static masking, 1 with dynamic.", low=1
    )
    random_seed: int = setting(12345, "Seed of all draws: same seed and text, same bytes.", low=0, aliases=("seed",))
    validation_share: float = setting(
        0.01,
        "Share of the documents set aside for validation, at least one (0 = none), in shards of their own.",
        low=0.0,
        below=1.0,
    )
    num_shards: int | None = setting(None, "Training shards. Default: by size, about 128 MB each.", low=1)
    num_workers: int | None = setting(None, "Processes. Default: one for each core. The output does not depend on it.", low=1)

    def __post_init__(self):
        super().__post_init__()
        if not self.output_file.endswith(".tfrecord") or os.path.basename(self.output_file) == ".tfrecord":
            raise UserError(f"--output_file={self.output_file}: must be DIR/NAME.tfrecord")
        if self.num_predictions > self.max_seq_length:
            raise UserError(
                f"--max_predictions_per_seq={self.max_predictions_per_seq}: must be at most --max_seq_length={self.max_seq_length}"
            )

    @property
    def num_predictions(self):
        return self.max_predictions_per_seq or int(np.ceil(self.max_seq_length * self.masked_lm_prob))

    @property
    def num_passes(self):
        return self.dupe_factor or (10 if self.masking == "static" else 1)

    @property
    def folder(self):
        return os.path.dirname(self.output_file) or "."

    @property
    def name(self):
        return os.path.basename(self.output_file).removesuffix(".tfrecord")

    def fixed(self):
        """The settings that decide what is written. Where files lie does not; what is in them is compared by content."""
        return {
            name: value for name, value in self.to_dict().items() if name not in ("num_workers", "input_file", "output_file", "vocab_file")
        }


@dataclasses.dataclass(frozen=True)
class Shard:
    """One unit of work. documents: which of the blocks' documents, "train" or "validation"."""

    path: str
    split: str
    number: int
    blocks: tuple


@dataclasses.dataclass
class Counts:
    """What was written, added up over shards."""

    num_instances: int = 0
    num_random_next: int = 0
    num_documents: int = 0
    num_sentences: int = 0
    num_tokens: int = 0  # of the text, one pass
    num_unknown: int = 0
    num_row_tokens: int = 0  # of all rows, without padding
    num_bytes: int = 0

    def __add__(self, other):
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*(mine + theirs for mine, theirs in pairs))


class Worker:
    """Turns blocks into a shard. Picklable; the tokenizer is made in the process that uses it."""

    def __init__(self, config, vocab_file, is_validation):
        self.config, self.vocab_file, self.is_validation = config, vocab_file, is_validation
        self._tokenizer = None

    def __getstate__(self):
        return self.__dict__ | {"_tokenizer": None}

    @property
    def tokenizer(self):
        if self._tokenizer is None:
            self._tokenizer = WordPieceTokenizer(self.vocab_file, self.config.do_lower_case)
            self._mask = tf.function(self._mask_rows, reduce_retracing=True)
        return self._tokenizer

    def write_shard(self, shard, report):
        """Writes one shard and its statistics; `report` is told the bytes of text as they are done."""
        counts = Counts()
        with ShardWriter(shard.path) as writer:
            for number, (texts, others) in enumerate(self._groups(shard, report)):
                counts += self._write_group(texts, others, writer, derive_key(self.config.random_seed, shard.split, shard.number, number))
            counts.num_bytes = writer.num_bytes
            write_json(stats_path(shard), dataclasses.asdict(counts))

    def _groups(self, shard, report):
        """(documents, other documents to draw random second halves from) of a shard, about a block at a time."""
        waiting, others = [], []
        for block in shard.blocks:
            chosen = self.is_validation[block_range(block)]
            documents = corpus.read_block(block)
            own = [document for document, is_validation in zip(documents, chosen, strict=True) if is_validation == (shard.split != "train")]
            if shard.split == "train":
                if own:
                    yield own, []
            else:
                # Validation documents are few: gather them, and lend a lone one the training documents of its block.
                waiting += own
                if own:
                    others = [document for document, is_validation in zip(documents, chosen, strict=True) if not is_validation]
                if sum(len(line) for document in waiting for line in document) >= BLOCK_BYTES:
                    yield waiting, []
                    waiting = []
            report(block.end - block.start)
        if waiting:
            yield waiting, others if len(waiting) == 1 else []

    def _write_group(self, texts, others, writer, key):
        """Tokenizes documents, makes instances in `dupe_factor` passes, masks, encodes and writes them."""
        config, tokenizer = self.config, self.tokenizer
        lines = [line for document in texts + others for line in document]
        ids, splits = tokenizer.tokenize(lines)
        documents = instances.Documents.from_sentences(ids, splits, [len(document) for document in texts + others])
        num_own_lines = sum(len(document) for document in texts)
        num_own = int(np.searchsorted(documents.sentence_splits[documents.document_splits], splits[num_own_lines], side="left"))
        own_ids = ids[: splits[num_own_lines]]
        counts = Counts(num_documents=len(texts), num_sentences=num_own_lines, num_tokens=len(own_ids))
        counts.num_unknown = int(np.sum(own_ids == tokenizer.unk_id))
        if num_own == 0:
            return counts
        rows = self._rows(documents, num_own, key)
        counts.num_instances = len(rows)
        keys = row_keys(derive_key(key, "masks"), np.arange(len(rows)))
        for start in range(0, len(rows), ROWS_AT_ONCE):
            chosen = np.arange(start, min(start + ROWS_AT_ONCE, len(rows)))
            tokens = rows.take(chosen).tokens(documents, config.max_seq_length, tokenizer)
            counts.num_row_tokens += int(tokens.lengths.sum())
            counts.num_random_next += 0 if tokens.labels is None else int(tokens.labels.sum())
            features = self._static_features(tokens, keys[chosen]) if config.masking == "static" else compact_features(tokens)
            writer.write(*examples.encode_examples(features))
        return counts

    def _rows(self, documents, num_own, key):
        """PairRows or PieceRows of the first `num_own` documents, of all passes, in random order."""
        config, length = self.config, self.config.max_seq_length
        passes = []
        for number in range(config.num_passes):
            pass_key = derive_key(key, "instances", number)
            if config.objective in ("nsp", "sop"):
                args = documents, np.arange(num_own), np.arange(len(documents))
                settings = dict(max_seq_length=length, short_seq_prob=config.short_seq_prob, swaps=config.objective == "sop")
                passes.append(instances.PairRows(instances.pair_instances(*args, key=pass_key, **settings)))
                continue
            order = np.random.Generator(np.random.Philox(key=pass_key)).permutation(num_own)
            if config.objective == "packed":
                passes.append(packing.packed_rows(documents, order, max_seq_length=length, separator=config.pack_separator))
            else:
                passes.append(packing.full_sentence_rows(documents, order, max_seq_length=length))
        rows = type(passes[0]).concatenate(passes)
        return rows.take(np.random.Generator(np.random.Philox(key=derive_key(key, "shuffle"))).permutation(len(rows)))

    def _static_features(self, tokens, keys):
        """Google's seven features of a batch of rows; without labels six, and with the numbers of packed sequences."""
        masked = self._mask(tokens.input_ids, tokens.lengths, self.tokenizer.word_starts(tokens.input_ids), keys)
        features = {name: value.numpy() for name, value in masked.items()}
        features["input_mask"] = (tokens.numbers > 0).astype(np.int32)
        if tokens.labels is not None:
            features["segment_ids"] = np.maximum(tokens.numbers - 1, 0)
            features["next_sentence_labels"] = tokens.labels[:, None]
        else:
            features["segment_ids"] = np.zeros_like(tokens.numbers)
        if self.config.objective == "packed":
            features["sequence_ids"] = tokens.numbers
        return features

    def _mask_rows(self, input_ids, lengths, word_starts, keys):
        tokenizer = self.tokenizer
        spec = masking.MaskingSpec(
            max_predictions=self.config.num_predictions,
            share=self.config.masked_lm_prob,
            vocab_size=tokenizer.vocab_size,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
            mask_id=tokenizer.mask_id,
            whole_word=self.config.do_whole_word_mask,
            max_ngram_size=self.config.max_ngram_size,
            ngram_weights=self.config.ngram_weights,
        )
        return masking.mask_rows(input_ids, lengths, word_starts, keys, spec)


def compact_features(tokens):
    """Rows without padding: input_ids, `starts` of their segments or sequences, and the labels of pairs."""
    is_real = tokens.numbers > 0
    begins = is_real & (np.diff(tokens.numbers, axis=1, prepend=0) != 0)
    features = {}
    for name, values, where in (("input_ids", tokens.input_ids, is_real), ("starts", None, begins)):
        splits = np.concatenate([[0], np.cumsum(where.sum(1))])
        features[name] = (np.nonzero(where)[1] if values is None else values[where], splits)
    if tokens.labels is not None:
        features["next_sentence_labels"] = tokens.labels[:, None]
    return features


def stats_path(shard):
    folder, name = os.path.split(shard.path)
    return os.path.join(folder, f".{name.removesuffix('.tfrecord')}.stats")


def read_stats(shard):
    names = [field.name for field in dataclasses.fields(Counts)]
    content = read_json(stats_path(shard), "the counts of a shard; delete it to have the shard written again", names)
    return Counts(**{name: content[name] for name in names})


def block_range(block):
    """The corpus-wide numbers of a block's documents."""
    return slice(block.first_document, block.first_document + block.num_documents)
