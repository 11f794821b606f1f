"""The job behind create_pretraining_data.py: text -> shards of TFRecords, in parallel, resumable,
in bounded memory.

The corpus is cut at document boundaries into windows of about --window_megabytes. A shard
(shards.py) is several consecutive windows, and a worker holds one window at a time. Any number of
workers writes the same bytes, and a killed job keeps its complete shards.
"""

import contextlib
import os
import shutil
import tempfile
import time

import google_crc32c

from bert_gpu.base.console import Console, LogConsole, format_seconds
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_writable, only_writer
from bert_gpu.base.malloc import map_large_blocks, trim_heap
from bert_gpu.data import examples, text_checks, validation
from bert_gpu.data.manifest import Manifest, read_manifest
from bert_gpu.data.own_files import is_own
from bert_gpu.data.plan import plan_corpus
from bert_gpu.data.shards import (
    DROPPED,
    PAIRS,
    SCORED_ORDERS,
    VALIDATION,
    Counts,
    ShardBuilder,
    read_stats,
)
from bert_gpu.data.summary import summary
from bert_gpu.data.target import LEARNT, Target
from bert_gpu.data.workers import write_shards
from bert_gpu.text import clean, corpus, parallel, quality
from bert_gpu.text.config import AUTO, FILE_NAMES
from bert_gpu.text.formats import inputs
from bert_gpu.text.progress import ByteProgress, format_bytes
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.vocabulary import learning, letters
from bert_gpu.text.vocabulary.file import warn_of_blanks

LARGE_TEXT_BYTES = 100_000_000  # from which reading it takes a second


def build(config, text_format=AUTO, overwrite=False, console=None):
    """Writes the data set of a DataConfig, or its missing shards; arguments and errors are those
    of the package's `create_pretraining_data`.
    """
    console = console or LogConsole()
    with parallel.open_workers(config, console) as workers:
        return build_with(workers, config, text_format, overwrite, console)


def build_with(workers, config, text_format, overwrite, console):
    builder = DatasetBuilder(config, overwrite, text_format, workers, console)
    if builder.status == "finished":
        builder.sweep()
        console.say(
            f"{config.folder}: this data set is finished; nothing to do (--overwrite starts over)"
        )
        return read_manifest(config.folder)
    for text in builder.inputs.without_effect():
        console.warn(text)
    started = time.monotonic()
    manifest, counts, num_duplicates = builder.run(console)
    console.say(
        summary(
            manifest, counts, num_duplicates, config, format_seconds(time.monotonic() - started)
        )
    )
    return manifest


class DatasetBuilder:
    """One data job. The constructor checks the settings, says what the input is and reads it. It
    writes nothing, except standard input to a file beside the output. workers: parallel.Workers;
    default: this machine's. console: default: one that is quiet.

    Attributes: status ("new", "resumed" or "finished"), inputs (inputs.Inputs), plan (CorpusPlan;
    None before compressed files and tables are unpacked, and of a finished data set).
    """

    def __init__(self, config, overwrite=False, text_format=AUTO, workers=None, console=None):
        map_large_blocks()
        self.console = console or Console(quiet=True)
        self.workers = workers or parallel.Workers(config.num_workers)
        self.config, self.overwrite = config, overwrite
        self.has_warned_of_vocabulary = self.has_warned_of_pairs = False
        self.plan = None  # until the text is unpacked
        if corpus.STANDARD_INPUT in map(str.strip, config.input_file.split(",")):
            check_writable(config.folder, "output_file", config.output_file)
        spool = Target(config, {}, []).spool
        standard_input, is_new = inputs.read_standard_input(config.input_file, spool)
        try:
            self._open(text_format, standard_input)
        except UserError:
            if is_new:
                os.remove(standard_input)
                remove_empty(spool)
                remove_empty(config.folder)
            raise

    def _open(self, text_format, standard_input):
        config = self.config
        self.inputs = inputs.find_inputs(config.input_file, text_format, standard_input, is_own)
        for line in self.inputs.lines:
            self.console.say(line)
        named = config.given_vocabulary
        identity = LEARNT if named is None else open_tokenizer(named, config.do_lower_case).identity
        kinds = sorted({each.input_format for each in self.inputs.formats})
        self.settings = config.fixed() | text_format.to_dict()
        self.settings |= dict(vocabulary=identity, input_format=",".join(kinds))
        self.fingerprint = []
        with self._progress(self.inputs.paths, "computing checksums") as progress:
            for path, shown in zip(self.inputs.paths, self.inputs.names, strict=True):
                name = "-" if path == standard_input else os.path.basename(path)
                crc = file_crc(path, shown, progress.add)
                self.fingerprint.append([name, inputs.file_bytes(path, shown), crc])
        self.target = Target(config, self.settings, self.fingerprint)
        self.status = self.target.status(self.overwrite)
        if self.status != "finished" and not self.inputs.needs_spool:
            self._plan(self.inputs.paths, self.inputs.formats)

    def _progress(self, paths, what):
        """The progress of reading the files once; a small text gets no bar."""
        num_bytes = sum(map(inputs.file_bytes, paths, self.inputs.names))
        console = self.console if num_bytes >= LARGE_TEXT_BYTES else Console(quiet=True)
        return ByteProgress(console, num_bytes, what)

    def _plan(self, paths, formats):
        with self._progress(paths, "looking for documents") as progress:
            self.plan = plan_corpus(self.config, paths, formats, self.inputs.names, progress.add)
        # gzip's ratio is not known yet; _write_shards measures it on a sample
        if self.status == "new" and not self.config.gzip_compress:
            self._check_space(self.plan.predicted_bytes)

    def _look(self, console):
        """Warns of what would make a poor data set, before anything is written."""
        config = self.config
        self.warn = quality.Warner(console, config.strict)
        self.sample = quality.sample(self.plan.blocks, config.normalization, config.drop_duplicates)
        for line in quality.describe_empty(self.plan.blocks):
            console.say(line)
        shape_warnings = quality.shape_warnings(self.plan.blocks, self.sample, config.objective)
        self.warn(self.inputs.warnings + shape_warnings)
        self.plan.check_documents()
        if config.objective == "nsp":
            self.warn(text_checks.size_warnings(self.plan.blocks))
        self.warn(letters.lower_case_warnings(self.sample, config))
        if not config.drop_duplicates:  # else once they are known
            self._say_validation(console)

    def _say_validation(self, console):
        """Says what is held out, and warns if that is much of the text."""
        plan = self.plan
        chosen, is_kept = plan.fate == VALIDATION, plan.fate != DROPPED
        held_out = validation.bytes_of(plan.blocks, chosen, plan.most_bytes)
        kept = validation.bytes_of(plan.blocks, is_kept)
        chosen, text_share = chosen[is_kept], held_out / kept
        rows = plan.predicted_rows * kept / plan.num_text_bytes
        console.say(validation.describe(chosen, text_share, rows, self.config.validation_share))
        self.warn(validation.validation_warnings(chosen, text_share, plan.share))

    def _check_space(self, num_bytes):
        parent = existing_parent(self.config.folder)
        usage, named = (
            shutil.disk_usage(parent),
            dict(setting="output_file", value=self.config.output_file),
        )
        free = usage.free
        if not usage.total:  # such as /proc
            raise UserError(f"files cannot be stored in {parent}", "choose another folder", **named)
        if num_bytes > free:
            raise UserError(
                f"about {format_bytes(num_bytes)} will be written, but only "
                f"{format_bytes(free)} are free",
                "make room, choose another disk, or take a smaller --dupe_factor, "
                "--gzip_compress or --masking=dynamic",
                **named,
            )

    def run(self, console):
        """Writes the missing shards; returns (Manifest, Counts, number of duplicate documents
        dropped).

        Raises UserError for bad input. If the folder was empty before and no shard is complete, its
        new files are removed.
        """
        config, target = self.config, self.target
        # Bad text fails here, before a folder is made or an earlier data set is removed.
        content = None
        if not self.inputs.needs_spool:
            self._look(console)
            content = self._vocabulary(console)
        with only_writer(config.folder, config.name, **target.named):
            target.check_unchanged(self.status, self.overwrite)
            was_empty = target.is_empty()
            try:
                if self.inputs.needs_spool:
                    # next to the output, because it may be as large
                    self._plan(*inputs.unpack(self.inputs, target.spool, console))
                    self._look(console)
                    content = self._vocabulary(console)
                # The last that --strict may refuse; an earlier data set is removed after it.
                num_duplicates = self._drop_duplicates(console)
                if self.overwrite:
                    with self._builder_of(content) as builder:
                        text_checks.check_left(config, self.plan, builder)
                    target.clear(mark=True)
                target.begin(content)
                result = self._write_shards(console)
            except UserError:
                if was_empty and not target.has_shards():
                    target.undo()
                raise
        return *result, num_duplicates

    def sweep(self):
        """Removes what a job killed at its end left of a finished data set."""
        target = self.target
        if target.has_leftovers():
            with only_writer(self.config.folder, self.config.name, **target.named):
                target.check_unchanged(self.status, self.overwrite)
                target.sweep()

    def _vocabulary(self, console):
        """The content of the vocabulary file, given or learnt; None keeps the file of an
        interrupted job.
        """
        config = self.config
        if config.given_vocabulary is not None:
            builder = ShardBuilder(config, config.given_vocabulary, self.plan.fate)
            warn_of_blanks(config.given_vocabulary, builder.tokenizer.vocab)
            text_checks.check_words(config, self.plan.blocks, builder.tokenizer)
            self._check_vocabulary(builder, console)
            if config.given_vocabulary.endswith(".json"):
                content = builder.tokenizer.files()[FILE_NAMES["WordPiece"]]
            else:
                with corpus.open_binary(config.given_vocabulary) as file:
                    content = file.read()
        elif self.status == "resumed" and self.target.kept_vocabulary():
            content = None
        else:
            content = learning.learn(self.plan.blocks, config, console, self.workers).content
            with self._builder_of(content) as builder:
                self._check_vocabulary(builder, console)
        return content

    @contextlib.contextmanager
    def _builder_of(self, content):
        """A ShardBuilder with a vocabulary (bytes) that is not in the folder yet."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, FILE_NAMES[self.config.tokenization])
            with open(path, "wb") as file:
                file.write(content)
            yield ShardBuilder(self.config, path, self.plan.fate)

    def _check_vocabulary(self, builder, console):
        """Warns of a vocabulary that does not fit the text, of documents that will be dropped, and
        of pairs that teach little; says what share of them is random.
        """
        config = self.config
        is_given = config.given_vocabulary is not None
        casing = config.do_lower_case
        warnings = quality.vocabulary_warnings(builder.tokenizer, self.sample, casing, is_given)
        if config.max_tokens_per_character is not None:
            num_dropped = builder.tokenize(self.sample).num_dropped
            warnings += text_checks.drop_warnings(config, num_dropped, len(self.sample))
        self.has_warned_of_vocabulary = bool(warnings)
        self.warn(warnings)
        counts = builder.count_pairs(self.sample)
        if config.objective in PAIRS and counts.num_documents > 1:
            console.say(text_checks.describe_pairs(config, counts))
            warnings = text_checks.pair_warnings(config, counts)
            self.has_warned_of_pairs = bool(warnings)
            self.warn(warnings)

    def _drop_duplicates(self, console):
        """Drops documents that equal an earlier one from the plan; returns their number."""
        if not self.config.drop_duplicates:
            return 0
        with ByteProgress(console, self.plan.num_text_bytes, "looking for duplicates") as progress:
            args = dict(
                normalization=self.config.normalization,
                workers=self.workers,
                report=progress.add,
            )
            folder = self.target.spool + ".hashes"
            try:
                is_duplicate = clean.find_duplicates(self.plan.blocks, folder, **args)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        trim_heap()
        num_dropped = int(is_duplicate.sum())
        console.say(text_checks.describe_copies(num_dropped, self.plan.num_documents))
        self.warn(text_checks.copy_warnings(num_dropped, self.plan.num_documents))
        self.plan = self.plan.without(is_duplicate)
        self.plan.check_documents()
        self._say_validation(console)
        return num_dropped

    def _write_shards(self, console):
        trim_heap()  # frees what planning and counting used
        builder = ShardBuilder(self.config, self.target.vocab_file, self.plan.fate)
        shards = self.plan.shards()
        kept = self.target.keep(shards)
        if kept:
            console.say(f"resuming from {len(kept)} of {len(shards)} shards")
        missing = [shard for shard in shards if shard not in kept]
        if missing:
            # The training shards cover all blocks; the validation shard reads them again.
            num_bytes = sum(shard.num_bytes for shard in missing if shard.split == "train")
            num_bytes *= builder.bytes_per_text_byte(self.plan.windows)
            self._check_space(num_bytes)
            console.say(f"about {format_bytes(num_bytes)} will be written to {self.config.folder}/")
        self._write(missing, builder, console)
        counts = {shard: read_stats(shard) for shard in shards}
        manifest = self._manifest(builder.tokenizer, counts)
        trained = sum((counts[s].num_documents for s in shards if s.split == "train"), 0)
        if not manifest.num_train_instances or trained < validation.least_documents(
            self.config.objective
        ):
            self.target.clear()
            raise text_checks.nothing_left(self.config)
        total = sum(counts.values(), Counts())
        self._warn_of_counts(total, quality.Warner(console, strict=False))
        self.target.finish(manifest, shards, counts)
        return manifest, total

    def _warn_of_counts(self, counts, warn):
        """Warns of what the samples have not shown; too late for --strict, the shards are there."""
        if not self.has_warned_of_pairs:
            warn(text_checks.pair_warnings(self.config, counts))
        if self.has_warned_of_vocabulary:
            return
        unknown = counts.num_unknown / max(1, counts.num_tokens)
        if unknown > quality.UNKNOWN_SHARE:
            warn([f"{unknown:.0%} of the tokens are [UNK]; take another vocabulary"])
        num_documents = counts.num_dropped + counts.num_documents
        warn(text_checks.drop_warnings(self.config, counts.num_dropped, num_documents))

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
            **(both.pair_shares() if config.objective in PAIRS else {}),
            settings=self.settings,
            inputs=self.fingerprint,
        )

    def _write(self, shards, builder, console):
        """Writes shards by the workers of the job."""
        total = sum(shard.num_bytes for shard in shards if shard.split == "train")
        with ByteProgress(console, total, "writing") as progress:
            work_bytes = total * self.config.num_passes
            write_shards(builder, shards, self.workers, work_bytes, progress.add)


def existing_parent(path):
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def remove_empty(folder):
    """Removes a folder if it is empty."""
    if os.path.isdir(folder) and not os.listdir(folder):
        os.rmdir(folder)


def file_crc(path, name, report):
    """CRC-32C of a file's content, read in pieces. name: for messages. report: called with the
    bytes of each piece. Raises UserError.
    """
    crc = 0
    with corpus.readable(name), corpus.open_binary(path) as file:
        while piece := file.read(1 << 24):
            crc = google_crc32c.extend(crc, piece)
            report(len(piece))
    return crc
