"""The job behind create_pretraining_data.py: text -> shards of TFRecords, in parallel, resumable,
in bounded memory.

The corpus is cut at document boundaries into blocks of about --window_megabytes. A shard
(shards.py) is several consecutive blocks, and a worker holds one block at a time. Any number of
workers writes the same bytes, and a killed job keeps its complete shards.
"""

import os
import shutil
import time

import google_crc32c
import numpy as np

from bert_gpu.console import LogConsole, format_seconds
from bert_gpu.data import examples
from bert_gpu.data.manifest import Manifest, read_manifest
from bert_gpu.data.random_bits import derive_key, row_keys
from bert_gpu.data.records import shard_path
from bert_gpu.data.shards import (
    DROPPED,
    SCORED_ORDERS,
    TRAIN,
    VALIDATION,
    Counts,
    Shard,
    Worker,
    block_range,
    read_stats,
)
from bert_gpu.data.summary import summary
from bert_gpu.data.target import Target
from bert_gpu.data.workers import open_pool
from bert_gpu.files import only_writer
from bert_gpu.malloc import map_large_blocks, trim_heap
from bert_gpu.settings import UserError
from bert_gpu.text import archives, clean, corpus, learning
from bert_gpu.text.config import LINES
from bert_gpu.text.progress import ByteProgress
from bert_gpu.text.tokenizers import open_tokenizer

SHARD_BYTES = 128 << 20  # target
# Averages of English text. Only the predicted size, and so the number of shards, uses them.
TEXT_BYTES_PER_TOKEN, STATIC_BYTES_PER_POSITION, COMPACT_BYTES_PER_TOKEN, REAL_SHARE = (
    5.0,
    6.0,
    2.2,
    0.86,
)


def build(config, text_format=LINES, overwrite=False, console=None):
    """Writes the data set of a DataConfig, or its missing shards; arguments and errors are those
    of the package's `create_pretraining_data`.
    """
    console = console or LogConsole()
    builder = DatasetBuilder(config, overwrite, text_format)
    if builder.status == "finished":
        builder.target.sweep()
        console.say(
            f"{config.folder}: this data set is already there; "
            "nothing to do (--overwrite builds it again)"
        )
        return read_manifest(config.folder)
    console.say(
        f"{len(builder.inputs)} file{'s' if len(builder.inputs) > 1 else ''}, "
        f"{builder.num_bytes / 1e6:.1f} MB"
    )
    started = time.monotonic()
    manifest, counts, num_duplicates = builder.run(console)
    console.say(
        summary(
            manifest, counts, num_duplicates, config, format_seconds(time.monotonic() - started)
        )
    )
    return manifest


class DatasetBuilder:
    """One data job. The constructor checks the settings, reads the input once and writes nothing.

    Attributes: status ("new", "resumed" or "finished"), inputs (paths), num_bytes (of input).
    """

    def __init__(self, config, overwrite=False, text_format=LINES):
        map_large_blocks()
        self.config, self.overwrite, self.text_format = config, overwrite, text_format
        self.inputs = corpus.expand_inputs(config.input_file)
        named = config.given_vocabulary
        identity = (
            "learnt from the text"
            if named is None
            else open_tokenizer(named, config.do_lower_case).identity
        )
        self.settings = config.fixed() | text_format.to_dict() | dict(vocabulary=identity)
        self.fingerprint = [
            [os.path.basename(path), os.path.getsize(path), file_crc(path)] for path in self.inputs
        ]
        self.num_bytes = sum(size for _, size, _ in self.fingerprint)
        self.target = Target(config, self.settings, self.fingerprint)
        self.status = self.target.status(overwrite)
        self.is_compressed = any(map(archives.is_compressed, self.inputs))
        if self.status != "finished" and not self.is_compressed:
            self._plan(self.inputs)

    def _plan(self, paths):
        """Cuts the corpus into blocks and assigns each document to training or validation."""
        config = self.config
        self.num_text_bytes = sum(os.path.getsize(path) for path in paths)
        num_blocks = max(
            1, round(self.num_text_bytes / (config.window_megabytes * 1e6)), config.num_shards or 1
        )
        self.blocks = corpus.plan_blocks(
            paths, -(-self.num_text_bytes // num_blocks), self.text_format, names=self.inputs
        )
        self.num_documents = sum(block.num_documents for block in self.blocks)
        self.fate = choose_validation(
            self.num_documents, config.validation_share, config.random_seed
        ).astype(np.int8)
        self.shards()  # raises UserError when --num_shards is too large
        # gzip's ratio is not known yet; _write_shards measures it on a sample
        if self.status == "new" and not config.gzip_compress:
            self._check_space(self.predicted_bytes())

    def _check_space(self, num_bytes):
        free = shutil.disk_usage(existing_parent(self.config.folder)).free
        if num_bytes > free:
            raise UserError(
                f"--output_file={self.config.output_file}: about {format_bytes(num_bytes)} will be "
                f"written, but only {format_bytes(free)} are free; make room, choose another disk, "
                "or take a smaller --dupe_factor, --gzip_compress or --masking=dynamic"
            )

    def predicted_bytes(self):
        """Estimated size of the shards on disk, from averages of English text; it decides their
        number.
        """
        num_tokens = self.num_text_bytes / TEXT_BYTES_PER_TOKEN * self.config.num_passes
        if self.config.masking == "static":
            return num_tokens / REAL_SHARE * STATIC_BYTES_PER_POSITION
        return num_tokens * COMPACT_BYTES_PER_TOKEN

    def shards(self):
        """The shards of the job, training first."""
        config = self.config
        max_shards = sum((self.fate[block_range(block)] == TRAIN).any() for block in self.blocks)
        num_shards = config.num_shards or max(
            1, min(max_shards, max(min(max_shards, 8), round(self.predicted_bytes() / SHARD_BYTES)))
        )
        if num_shards > max(1, max_shards):
            raise UserError(
                f"--num_shards={num_shards}: the text can be cut "
                f"into {max_shards} at most; give {max_shards} or fewer"
            )
        prefix = os.path.join(config.folder, config.name)
        groups = np.array_split(np.arange(len(self.blocks)), num_shards)
        shards = [
            Shard(
                shard_path(prefix, i, num_shards),
                "train",
                i,
                tuple(self.blocks[block] for block in group),
            )
            for i, group in enumerate(groups)
        ]
        if (self.fate == VALIDATION).any():
            shards.append(
                Shard(shard_path(prefix, 0, 1, "validation"), "validation", 0, tuple(self.blocks))
            )
        return shards

    def run(self, console):
        """Writes the missing shards; returns (Manifest, Counts, number of duplicate documents
        dropped).

        Raises UserError for bad input. If the folder was empty before and no shard is complete, its
        new files are removed.
        """
        config, target = self.config, self.target
        # Bad text fails here, before a folder is made or an earlier data set is removed.
        content = None if self.is_compressed else self._vocabulary(console)
        with only_writer(config.folder, config.name, target.flag):
            target.check_unchanged(self.status, self.overwrite)
            was_empty = target.is_empty()
            try:
                if self.is_compressed:
                    # next to the output, because it may be as large
                    self._plan(learning.unpack(self.inputs, target.spool, console))
                    content = self._vocabulary(console)
                if self.overwrite:
                    target.clear(mark=True)
                target.begin(content)
                num_duplicates = self._drop_duplicates(console)
                result = self._write_shards(console)
            except UserError:
                if was_empty and not target.has_shards():
                    target.undo()
                raise
        return *result, num_duplicates

    def _vocabulary(self, console):
        """The content of the vocabulary file, given or learnt; None keeps the file of an
        interrupted job.
        """
        config = self.config
        if config.given_vocabulary is not None:
            self._check_words()
            with open(config.given_vocabulary, "rb") as file:
                return file.read()
        if self.status == "resumed" and self.target.kept_vocabulary():
            return None
        return learning.learn(self.blocks, config, console).content

    def _check_words(self):
        """UserError when the given vocabulary finds no word in any block."""
        tokenizer = open_tokenizer(self.config.given_vocabulary, self.config.do_lower_case)
        for block in self.blocks:
            lines = [line for document in corpus.read_block(block) for line in document]
            if any(
                len(tokenizer.tokenize(lines[start : start + 1000])[0])
                for start in range(0, len(lines), 1000)
            ):
                return
        raise learning.no_words(self.config.input_file)

    def _drop_duplicates(self, console):
        """Marks documents that equal an earlier one as dropped; returns their number."""
        if not self.config.drop_duplicates:
            return 0
        with ByteProgress(console, self.num_text_bytes, "looking for duplicates") as progress:
            args = dict(
                normalization=self.config.normalization,
                num_workers=self.config.num_workers,
                report=progress.add,
            )
            is_duplicate = clean.find_duplicates(self.blocks, self.target.spool + ".hashes", **args)
        trim_heap()
        self.fate[is_duplicate] = DROPPED
        return int(is_duplicate.sum())

    def _write_shards(self, console):
        trim_heap()  # frees what planning and counting used
        worker = Worker(self.config, self.target.vocab_file, self.fate)
        shards = self.shards()
        kept = self.target.keep(shards)
        if kept:
            console.say(f"resuming: {len(kept)} of {len(shards)} shards are complete and kept")
        missing = [shard for shard in shards if shard not in kept]
        if missing:
            # The training shards cover all blocks; the validation shard reads them again.
            num_bytes = sum(
                block.end - block.start
                for shard in missing
                if shard.split == "train"
                for block in shard.blocks
            )
            num_bytes *= worker.bytes_per_text_byte(self.blocks)
            self._check_space(num_bytes)
            console.say(f"about {format_bytes(num_bytes)} will be written to {self.config.folder}/")
        self._write(missing, worker, console)
        counts = {shard: read_stats(shard) for shard in shards}
        manifest = self._manifest(worker.tokenizer, counts)
        if not manifest.num_train_instances:
            self.target.clear()
            raise UserError(
                f"--input_file={self.config.input_file}: nothing is left of the text "
                "after cleaning; use other text, or drop fewer documents"
            )
        self.target.finish(manifest, shards, counts)
        return manifest, sum(counts.values(), Counts())

    def _manifest(self, tokenizer, counts):
        config = self.config
        both = sum(counts.values(), Counts())
        shards = {
            split: [s for s in counts if s.split == split and counts[s].num_instances]
            for split in ("train", "validation")
        }
        return Manifest(
            name=config.name,
            schema=examples.STATIC if config.masking == "static" else examples.COMPACT,
            objective=config.objective,
            masking=config.masking,
            max_seq_length=config.max_seq_length,
            max_predictions_per_seq=config.num_predictions,
            vocab_file=os.path.basename(self.target.vocab_file),
            vocab_size=tokenizer.vocab_size,
            tokenizer=tokenizer.identity,
            do_lower_case=config.do_lower_case,
            order_file=os.path.basename(self.target.order_file)
            if config.order in SCORED_ORDERS
            else "",
            seed=config.random_seed,
            train_shards=tuple(os.path.basename(shard.path) for shard in shards["train"]),
            validation_shards=tuple(os.path.basename(shard.path) for shard in shards["validation"]),
            num_train_instances=sum(counts[shard].num_instances for shard in shards["train"]),
            num_validation_instances=sum(
                counts[shard].num_instances for shard in shards["validation"]
            ),
            num_documents=both.num_documents,
            num_sentences=both.num_sentences,
            num_tokens=both.num_tokens,
            settings=self.settings,
            inputs=self.fingerprint,
        )

    def _write(self, shards, worker, console):
        """Writes shards, in this process or several."""
        total = sum(
            block.end - block.start
            for shard in shards
            if shard.split == "train"
            for block in shard.blocks
        )
        num_workers = min(
            self.config.num_workers or os.cpu_count() or 1,
            len([s for s in shards if s.split == "train"]),
        )
        with ByteProgress(console, total, "writing") as progress:
            if num_workers <= 1:
                for shard in shards:
                    worker.write_shard(shard, progress.add)
                return
            with open_pool(num_workers, worker, total * self.config.num_passes) as (
                pool,
                write,
                done,
            ):
                results = [pool.apply_async(write, (shard,)) for shard in shards]
                while not all(result.ready() for result in results):
                    for result in results:
                        result.wait(0.2 / len(results))
                        if result.ready():
                            result.get()
                    progress.set(*done[:])
                for result in results:
                    result.get()


def choose_validation(num_documents, share, seed):
    """(D,) bool: the documents set aside for validation, chosen by a hash of seed and index; at
    least one when share > 0, and never all.
    """
    if not share or num_documents < 2:
        return np.zeros(num_documents, bool)
    keys = row_keys(derive_key(seed, "validation"), np.arange(num_documents))
    num_chosen = min(num_documents - 1, max(1, round(share * num_documents)))
    chosen = np.zeros(num_documents, bool)
    chosen[np.argpartition(keys, num_chosen - 1)[:num_chosen]] = True
    return chosen


def format_bytes(num_bytes):
    unit, size = next(
        ((unit, size) for unit, size in (("GB", 1e9), ("MB", 1e6)) if num_bytes >= size),
        ("kB", 1e3),
    )
    return f"{num_bytes / size:,.1f} {unit}"


def existing_parent(path):
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def file_crc(path):
    """CRC-32C of a file's content, read in pieces."""
    crc = 0
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 24):
                crc = google_crc32c.extend(crc, piece)
    except OSError as error:
        raise UserError(f"--input_file={path}: cannot be read ({error.strerror})") from error
    return crc
