"""The job behind create_pretraining_data.py: text -> shards of TFRecords, in parallel, resumable, in bounded memory.

The corpus is cut at document boundaries into blocks of about BLOCK_BYTES; a shard (shards.py) is a run of blocks, and a worker holds one
block at a time. Any number of workers writes the same bytes, and a killed job keeps the shards that are whole.
"""

import itertools
import multiprocessing
import os
import signal

import google_crc32c
import numpy as np
import tensorflow as tf

from bert_gpu.data import examples
from bert_gpu.data.chance import derive_key, row_keys
from bert_gpu.data.manifest import Manifest
from bert_gpu.data.records import shard_path
from bert_gpu.data.shards import BLOCK_BYTES, Counts, Shard, Worker, block_range, read_stats, stats_path
from bert_gpu.data.target import Target
from bert_gpu.files import only_writer
from bert_gpu.settings import UserError
from bert_gpu.text import corpus, vocab
from bert_gpu.text.tokenizer import WordPieceTokenizer

SHARD_BYTES = 128 << 20  # aimed at
RECORD_BYTES_PER_TEXT_BYTE = 2.6  # static records of 128 tokens, English; only the number of shards depends on it


class Job:
    """A checked and planned job. Making it reads the corpus once and writes nothing."""

    def __init__(self, config, overwrite=False):
        self.config, self.overwrite = config, overwrite
        self.inputs = corpus.expand_inputs(config.input_file)
        named = config.vocab_file is not None
        identity = WordPieceTokenizer(config.vocab_file, config.do_lower_case).identity if named else "learnt from the text"
        self.settings = config.fixed() | dict(vocabulary=identity)
        self.fingerprint = [[os.path.basename(path), os.path.getsize(path), file_crc(path)] for path in self.inputs]
        num_bytes = sum(size for _, size, _ in self.fingerprint)
        num_blocks = max(1, round(num_bytes / BLOCK_BYTES), config.num_shards or 1)
        self.blocks = corpus.plan_blocks(self.inputs, -(-num_bytes // num_blocks))
        self.num_bytes = num_bytes
        self.num_documents = sum(block.num_documents for block in self.blocks)
        self.is_validation = choose_validation(self.num_documents, config.validation_share, config.random_seed)
        self.target = Target(config, self.settings, self.fingerprint)
        self.status = self.target.status(overwrite)
        self.shards()  # complains of an impossible number

    def shards(self):
        """The shards of the job, training first."""
        config = self.config
        most = sum(block.num_documents > self.is_validation[block_range(block)].sum() for block in self.blocks)
        size = self.num_bytes * config.num_passes * RECORD_BYTES_PER_TEXT_BYTE
        number = config.num_shards or min(most, max(min(most, 8), round(size / SHARD_BYTES)))
        if number > most:
            raise UserError(f"--num_shards={number}: the text can be cut into {most} at most; give {most} or fewer")
        prefix = os.path.join(config.folder, config.name)
        groups = np.array_split(np.arange(len(self.blocks)), number)
        shards = [
            Shard(shard_path(prefix, i, number), "train", i, tuple(self.blocks[block] for block in group)) for i, group in enumerate(groups)
        ]
        if self.is_validation.any():
            shards.append(Shard(shard_path(prefix, 0, 1, "validation"), "validation", 0, tuple(self.blocks)))
        return shards

    def run(self, console):
        """Writes what is missing; returns (Manifest, Counts)."""
        config, target = self.config, self.target
        pieces = None if self.status == "resumed" and target.kept_vocabulary() else self._vocabulary(console)
        with only_writer(config.folder, config.name, f"--output_file={config.output_file}"):
            if self.overwrite:
                target.clear()
            target.begin(pieces)
            worker = Worker(config, target.vocab_file, self.is_validation)
            shards = self.shards()
            kept = [shard for shard in shards if os.path.exists(shard.path) and os.path.exists(stats_path(shard))]
            if kept:
                console.say(f"going on: {len(kept)} of {len(shards)} shards are whole and kept")
            self._write([shard for shard in shards if shard not in kept], worker, console)
            counts = {shard: read_stats(shard) for shard in shards}
            manifest = self._manifest(worker.tokenizer, counts)
            target.finish(manifest, shards, [shard for shard in shards if not counts[shard].num_instances])
        return manifest, sum(counts.values(), Counts())

    def _manifest(self, tokenizer, counts):
        config = self.config
        both = sum(counts.values(), Counts())
        shards = {split: [s for s in counts if s.split == split and counts[s].num_instances] for split in ("train", "validation")}
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
            seed=config.random_seed,
            train_shards=tuple(os.path.basename(shard.path) for shard in shards["train"]),
            validation_shards=tuple(os.path.basename(shard.path) for shard in shards["validation"]),
            num_train_instances=sum(counts[shard].num_instances for shard in shards["train"]),
            num_validation_instances=sum(counts[shard].num_instances for shard in shards["validation"]),
            num_documents=both.num_documents,
            num_sentences=both.num_sentences,
            num_tokens=both.num_tokens,
            settings=self.settings,
            inputs=self.fingerprint,
        )

    def _vocabulary(self, console):
        """The pieces of the vocabulary, read or learnt; UserError when the text has no word that it could be used on."""
        config = self.config
        lines = (line for block in self.blocks for document in corpus.read_block(block) for line in document)
        if config.vocab_file is not None:
            tokenizer = WordPieceTokenizer(config.vocab_file, config.do_lower_case)
            if not any(len(tokenizer.tokenize(part)[0]) for part in iter(lambda: list(itertools.islice(lines, 1000)), [])):
                raise UserError(f"--input_file={config.input_file}: has no word in it, so there is nothing to write")
            return tokenizer.vocab
        console.say(f"learning a vocabulary of {config.vocab_size} pieces from {self.num_bytes / 1e6:.1f} MB of text")
        documents = (document for block in self.blocks for document in corpus.read_block(block))
        counts = vocab.count_words(documents, config.do_lower_case)
        if not counts:
            raise UserError(f"--input_file={config.input_file}: has no word in it, so there is nothing to write")
        return vocab.learn_wordpiece(counts, config.vocab_size)

    def _write(self, shards, worker, console):
        """Writes shards, in this process or several, with progress in megabytes of text."""
        total = sum(block.end - block.start for shard in shards for block in shard.blocks) / 1e6
        bar = console.progress(round(total, 1), 0, "writing", "MB")
        num_workers = min(self.config.num_workers or os.cpu_count() or 1, len([s for s in shards if s.split == "train"]))
        if num_workers <= 1:
            done = [0.0]

            def report(num_bytes):
                done[0] += num_bytes / 1e6
                bar.update(round(done[0], 1))

            for shard in shards:
                worker.write_shard(shard, report)
        else:
            context = multiprocessing.get_context("spawn")
            counter = context.Value("d", 0.0)
            with context.Pool(num_workers, start_worker, (worker, counter)) as pool:
                results = [pool.apply_async(work, (shard,)) for shard in shards]
                while not all(result.ready() for result in results):
                    for result in results:
                        result.wait(0.2 / len(results))
                        if result.ready():
                            result.get()
                    bar.update(round(counter.value / 1e6, 1))
                for result in results:
                    result.get()
        bar.update(round(total, 1))
        bar.close()


def start_worker(worker, counter):
    """Runs once in each worker process: one thread each, since the processes share the cores."""
    global process_worker, process_counter, process_parent
    process_worker, process_counter, process_parent = worker, counter, os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, too, and ends the pool
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def work(shard):
    def report(num_bytes):
        if os.getppid() != process_parent:  # nobody waits for this any more
            os._exit(1)
        with process_counter.get_lock():
            process_counter.value += num_bytes

    process_worker.write_shard(shard, report)


def choose_validation(num_documents, share, seed):
    """(D,) bool: which documents are set aside, by a hash of seed and number; at least one when share > 0, and never all."""
    if not share or num_documents < 2:
        return np.zeros(num_documents, bool)
    keys = row_keys(derive_key(seed, "validation"), np.arange(num_documents))
    number = min(num_documents - 1, max(1, round(share * num_documents)))
    chosen = np.zeros(num_documents, bool)
    chosen[np.argpartition(keys, number - 1)[:number]] = True
    return chosen


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
