"""The job behind create_pretraining_data.py: text -> shards of TFRecords, in parallel, resumable,
in bounded memory.

The corpus is cut at document boundaries into windows of about --window_megabytes. A shard
(shards.py) is several consecutive windows, and a worker holds one window at a time. Any number of
workers writes the same bytes, and a killed job keeps its complete shards.

The steps are functions: `open_job` reads the text once, for its checksums and its plan, and writes
nothing but standard input, to a file beside the output. `run_job` checks the text, chooses the
vocabulary, drops duplicates and writes the missing shards.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import shutil
import tempfile
import time

import google_crc32c

from bert_gpu.base.console import LOG, Console, format_seconds
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_writable, existing_parent, only_writer
from bert_gpu.base.malloc import map_large_blocks, trim_heap
from bert_gpu.base.standard_input import STANDARD_INPUT
from bert_gpu.data import examples, text_checks, validation
from bert_gpu.data.config import DataConfig
from bert_gpu.data.manifest import Manifest, read_manifest
from bert_gpu.data.output_folder import LEARNT, OutputFolder
from bert_gpu.data.own_files import is_own
from bert_gpu.data.plan import CorpusPlan, plan_corpus, predict_bytes, predict_rows
from bert_gpu.data.shards import (
    DROPPED,
    PAIRS,
    SCORED_ORDERS,
    VALIDATION,
    Counts,
    ShardBuilder,
    count_pairs,
    drop_dense,
    read_stats,
)
from bert_gpu.data.summary import summary
from bert_gpu.data.workers import write_shards
from bert_gpu.text import clean, corpus, parallel, quality
from bert_gpu.text.config import AUTO, FILE_NAMES, TextFormat
from bert_gpu.text.formats import inputs
from bert_gpu.text.progress import ByteProgress, format_bytes
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.text.vocabulary import learning, letters
from bert_gpu.text.vocabulary.file import warn_of_blanks

LARGE_TEXT_BYTES = 100_000_000  # from which reading it takes a second


@dataclasses.dataclass(frozen=True)
class Job:
    """One data job, before it writes.

    Attributes:
      overwrite: whether it replaces an earlier data set. workers: who does the work.
      warn: function of a list of warnings and their topic, an error with --strict.
      status: "new", "resumed" or "finished".
      plan: of the text; None before compressed files and tables are unpacked, and of a finished
        data set.
    """

    config: DataConfig
    overwrite: bool
    workers: parallel.Workers
    console: Console
    warn: quality.Warner
    inputs: inputs.Inputs
    folder: OutputFolder
    status: str
    plan: CorpusPlan | None


def build(config, text_format=AUTO, overwrite=False, console=LOG):
    """Writes the data set of a DataConfig, or its missing shards; returns its Manifest. UserError
    for a setting or a text that is wrong.

    overwrite: replace an earlier data set. console: console.Console, by default Python's logger
      "bert_gpu".
    """
    with parallel.open_workers(config, console) as workers:
        job = open_job(config, overwrite, text_format, workers, console)
        if job.status == "finished":
            remove_leftovers(job)
            console.say(
                f"{config.folder}: this data set is finished; nothing to do "
                "(--overwrite starts over)"
            )
            return read_manifest(config.folder)
        for text in job.inputs.without_effect():
            console.warn(text)
        started = time.monotonic()
        manifest, counts, num_duplicates = run_job(job)
        duration = format_seconds(time.monotonic() - started)
        console.say(summary(manifest, counts, num_duplicates, config, duration))
        return manifest


def open_job(
    config: DataConfig,
    overwrite: bool = False,
    text_format: TextFormat = AUTO,
    workers: parallel.Workers | None = None,
    console: Console | None = None,
) -> Job:
    """Check the settings, say what the input is, and read it. Without a console it says nothing,
    without workers it takes those of this machine. Raises UserError.
    """
    map_large_blocks()
    console = console or Console(quiet=True)
    workers = workers or parallel.Workers(config.num_workers)
    if STANDARD_INPUT in map(str.strip, config.input_file.split(",")):
        check_writable(config.folder, "output_file", config.output_file)
    spool = OutputFolder(config, {}).spool
    standard_input, is_new = inputs.read_standard_input(config.input_file, spool)
    try:
        text = inputs.find_inputs(config.input_file, text_format, standard_input, is_own)
        for line in text.lines:
            console.say(line)
        settings = made_with(config, text_format, text)
        status = OutputFolder(config, settings).status(overwrite)
        plan, checksums = None, {}
        if status != "finished" and not text.needs_spool:
            plan = make_plan(
                config, console, text.paths, text.formats, text.names, checksums, status
            )
        else:
            add_checksums(console, text, checksums)
        fingerprint = [
            [
                "-" if path == standard_input else os.path.basename(path),
                inputs.file_bytes(path, name),
                checksums[path],
            ]
            for path, name in zip(text.paths, text.names, strict=True)
        ]
        folder = OutputFolder(config, settings, fingerprint)
        folder.status(overwrite)  # raises for another text
    except UserError:
        if is_new:
            os.remove(standard_input)
            for empty in (spool, config.folder):
                with contextlib.suppress(OSError):  # other files are in it
                    os.rmdir(empty)
        raise
    warn = quality.Warner(console, config.strict)
    return Job(config, overwrite, workers, console, warn, text, folder, status, plan)


def made_with(config: DataConfig, text_format: TextFormat, text: inputs.Inputs) -> dict:
    """Return the settings that decide the data set, for dataset.json."""
    named = config.vocabulary_path
    identity = LEARNT if named is None else open_tokenizer(named, config.do_lower_case).identity
    kinds = sorted({each.input_format for each in text.formats})
    settings = config.fixed() | text_format.to_dict()
    return settings | dict(vocabulary=identity, input_format=",".join(kinds))


def make_plan(
    config: DataConfig,
    console: Console,
    paths: list,
    formats: list,
    names: list,
    checksums: dict,
    status: str,
) -> CorpusPlan:
    """Return the plan of plain files, and add the CRC-32C of each to checksums, {path: it}, in one
    pass over the text. UserError when there is no room for a new data set (status, of a Job).
    """
    with reading_progress(console, paths, names, "looking for documents") as progress:
        read = functools.partial(read_file, corpus.whole_lines, checksums, progress.add)
        plan = plan_corpus(config, paths, formats, names, read)
    # gzip's ratio is not known yet; write_missing measures it on a sample
    if status == "new" and not config.gzip_compress:
        check_space(config, predict_bytes(config, plan.num_text_bytes))
    return plan


def add_checksums(console: Console, text: inputs.Inputs, checksums: dict) -> None:
    """Add the CRC-32C of each input as it is stored, {path: it}."""
    with reading_progress(console, text.paths, text.names, "computing checksums") as progress:
        read = functools.partial(read_file, corpus.file_pieces, checksums, progress.add)
        for pieces in map(read, text.paths, text.names):
            collections.deque(pieces, 0)  # reads to the end


def read_file(read, checksums, report, path, name):
    """Yield the pieces of bytes that read(path, name) does, report their sizes, and enter their
    CRC-32C for the path at the end.
    """
    crc = 0
    for piece in read(path, name):
        crc = google_crc32c.extend(crc, piece)
        report(len(piece))
        yield piece
    checksums[path] = crc


def reading_progress(console: Console, paths: list, names: list, what: str) -> ByteProgress:
    """Return the progress of reading files once; a small text gets no bar."""
    num_bytes = sum(map(inputs.file_bytes, paths, names))
    shown = console if num_bytes >= LARGE_TEXT_BYTES else Console(quiet=True)
    return ByteProgress(shown, num_bytes, what)


def check_space(config: DataConfig, num_bytes: float) -> None:
    """Raise UserError when the output folder's disk has no room for so many bytes."""
    parent = existing_parent(config.folder)
    named = dict(setting="output_file", value=config.output_file)
    usage = shutil.disk_usage(parent)
    if not usage.total:  # such as /proc
        raise UserError(f"files cannot be stored in {parent}", "choose another folder", **named)
    if num_bytes > usage.free:
        raise UserError(
            f"about {format_bytes(num_bytes)} will be written, but only "
            f"{format_bytes(usage.free)} are free",
            "make room, choose another disk, or take a smaller --dupe_factor, "
            "--gzip_compress or --masking=dynamic",
            **named,
        )


def remove_leftovers(job: Job) -> None:
    """Remove what a job killed at its end left of a finished data set."""
    folder = job.folder
    if folder.has_temporary_files():
        with only_writer(job.config.folder, job.config.name, **folder.named):
            folder.check_unchanged(job.status, job.overwrite)
            folder.remove_temporary_files()


def run_job(job: Job) -> tuple[Manifest, Counts, int]:
    """Write the missing shards; return what was written and the number of duplicate documents
    dropped.

    Raises UserError for bad input. If the folder was empty before and no shard is complete, its
    new files are removed.
    """
    config, folder, plan = job.config, job.folder, job.plan
    # Bad text fails here, before a folder is made or an earlier data set is removed.
    if plan is not None:
        content, tokenizer = check_text(job, plan)
    with only_writer(config.folder, config.name, **folder.named):
        folder.check_unchanged(job.status, job.overwrite)
        was_empty = folder.is_empty()
        try:
            if plan is None:
                # next to the output, because it may be as large
                paths, formats = inputs.unpack(job.inputs, folder.spool, job.console)
                plan = make_plan(
                    config, job.console, paths, formats, job.inputs.names, {}, job.status
                )
                content, tokenizer = check_text(job, plan)
            # The last that --strict may refuse; an earlier data set is removed after it.
            plan, num_duplicates = drop_duplicates(job, plan)
            if job.overwrite:
                text_checks.check_left(config, plan, tokenizer)
                folder.clear(mark=True)
            folder.begin(content)
            manifest, counts = write_missing(job, plan)
        except UserError:
            if was_empty and not folder.has_shards():
                folder.undo()
            raise
    return manifest, counts, num_duplicates


def check_text(job: Job, plan: CorpusPlan) -> tuple[bytes | None, Tokenizer | None]:
    """Warn of what would make a poor data set, before anything is written; return the content of
    the vocabulary's file and its tokenizer, or None twice, which keeps an interrupted job's file.
    """
    config, blocks = job.config, plan.blocks
    sample = quality.sample(blocks, config.normalization, config.drop_duplicates)
    for line in quality.describe_empty(blocks):
        job.console.say(line)
    job.warn(job.inputs.warnings + quality.shape_warnings(blocks, sample, config.objective))
    plan.check_documents()
    if config.objective == "nsp":
        job.warn(text_checks.size_warnings(blocks))
    job.warn(letters.lower_case_warnings(sample, config))
    if not config.drop_duplicates:  # else once they are known
        say_validation(job, plan)
    if config.vocabulary_path is not None:
        content, tokenizer = given_vocabulary(config)
    elif job.status == "resumed" and job.folder.kept_vocabulary():
        return None, None
    else:
        content, tokenizer = learn_vocabulary(job, blocks)
    check_vocabulary(job, blocks, sample, tokenizer)
    return content, tokenizer


def say_validation(job: Job, plan: CorpusPlan) -> None:
    """Say what is held out, and warn if that is much of the text."""
    chosen, is_kept = plan.split == VALIDATION, plan.split != DROPPED
    most_bytes = validation.most_bytes(plan.blocks, plan.share)
    held_out = validation.bytes_of(plan.blocks, chosen, most_bytes)
    kept = validation.bytes_of(plan.blocks, is_kept)
    chosen, text_share = chosen[is_kept], held_out / kept
    num_rows = predict_rows(job.config, plan.num_text_bytes, plan.num_documents)
    rows = num_rows * kept / plan.num_text_bytes
    job.console.say(validation.describe(chosen, text_share, rows, job.config.validation_share))
    job.warn(validation.validation_warnings(chosen, text_share, plan.share))


def given_vocabulary(config: DataConfig) -> tuple[bytes, Tokenizer]:
    """Return the content of the file that the user named, as the data set has it, and its
    tokenizer.
    """
    path = config.vocabulary_path
    tokenizer = open_tokenizer(path, config.do_lower_case)
    warn_of_blanks(path, tokenizer.vocab)
    if path.endswith(".json"):
        return tokenizer.files()[FILE_NAMES["WordPiece"]], tokenizer
    with corpus.open_binary(path) as file:
        return file.read(), tokenizer


def learn_vocabulary(job: Job, blocks: list) -> tuple[bytes, Tokenizer]:
    """Return the content of a vocabulary file that is learnt from the text, and its tokenizer."""
    config = job.config
    content = learning.learn(blocks, config, job.console, job.workers).content
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, FILE_NAMES[config.tokenization])
        with open(path, "wb") as file:
            file.write(content)
        return content, open_tokenizer(path, config.do_lower_case)


def check_vocabulary(job: Job, blocks: list, sample: list, tokenizer: Tokenizer) -> None:
    """Warn of a vocabulary that does not fit a sample of the text, of documents that will be
    dropped, and of pairs that teach little; say what share of them is random. Raises UserError
    when the vocabulary finds no word in the text.
    """
    config = job.config
    tokens = tokenizer.tokenize([line for document in sample for line in document])
    if not len(tokens[0]):
        text_checks.check_words(config, blocks, tokenizer)
    job.warn(
        quality.vocabulary_warnings(
            tokenizer, sample, tokens[0], config.do_lower_case, config.vocabulary_path is not None
        ),
        "vocabulary",
    )
    kept = drop_dense(sample, *tokens, config.max_tokens_per_character)
    job.warn(text_checks.drop_warnings(config, kept.num_dropped, len(sample)), "vocabulary")
    if config.objective in PAIRS:
        counts = count_pairs(config, tokenizer, kept)
        if counts.num_documents > 1:
            job.console.say(text_checks.describe_pairs(config, counts))
            job.warn(text_checks.pair_warnings(config, counts), "pairs")


def drop_duplicates(job: Job, plan: CorpusPlan) -> tuple[CorpusPlan, int]:
    """Return the plan without documents that equal an earlier one, and the number of these."""
    if not job.config.drop_duplicates:
        return plan, 0
    with ByteProgress(job.console, plan.num_text_bytes, "looking for duplicates") as progress:
        is_duplicate = clean.find_duplicates(
            plan.blocks,
            job.folder.hashes,
            normalization=job.config.normalization,
            workers=job.workers,
            report=progress.add,
        )
    trim_heap()
    num_dropped = int(is_duplicate.sum())
    job.console.say(text_checks.describe_copies(num_dropped, plan.num_documents))
    job.warn(text_checks.copy_warnings(num_dropped, plan.num_documents))
    plan = plan.without(is_duplicate)
    plan.check_documents()
    say_validation(job, plan)
    return plan, num_dropped


def write_missing(job: Job, plan: CorpusPlan) -> tuple[Manifest, Counts]:
    """Write the shards that the folder lacks, and dataset.json. Raises UserError when nothing is
    left to train on.
    """
    config, folder, console = job.config, job.folder, job.console
    trim_heap()  # frees what planning and counting used
    builder, shards = ShardBuilder(config, folder.vocab_file, plan.split), plan.shards()
    kept = folder.keep(shards)
    if kept:
        console.say(f"resuming from {len(kept)} of {len(shards)} shards")
    missing = [shard for shard in shards if shard not in kept]
    # The training shards cover all blocks; the validation shard reads them again.
    num_bytes = sum(shard.num_bytes for shard in missing if shard.split == "train")
    if missing:
        predicted = num_bytes * builder.bytes_per_text_byte(plan.windows)
        check_space(config, predicted)
        console.say(f"about {format_bytes(predicted)} will be written to {config.folder}/")
    with ByteProgress(console, num_bytes, "writing") as progress:
        work_bytes = num_bytes * config.num_passes
        write_shards(builder, missing, job.workers, work_bytes, progress.add)
    counts = {shard: read_stats(shard) for shard in shards}
    manifest = make_manifest(job, builder.tokenizer, counts)
    trained = sum(counts[shard].num_documents for shard in shards if shard.split == "train")
    least = validation.least_documents(config.objective)
    if not manifest.num_train_instances or trained < least:
        folder.clear()
        raise text_checks.nothing_left(config)
    total = sum(counts.values(), Counts())
    warn_of_counts(job, total)
    folder.finish(manifest, shards, counts)
    return manifest, total


def warn_of_counts(job: Job, counts: Counts) -> None:
    """Warn of what the samples have not shown; too late for --strict, the shards are there."""
    config, warn = job.config, quality.Warner(job.console, strict=False)
    if "pairs" not in job.warn.topics:
        warn(text_checks.pair_warnings(config, counts))
    if "vocabulary" in job.warn.topics:
        return
    unknown = counts.num_unknown / max(1, counts.num_tokens)
    if unknown > quality.UNKNOWN_SHARE:
        warn([f"{unknown:.0%} of the tokens are [UNK]; take another vocabulary"])
    num_documents = counts.num_dropped + counts.num_documents
    warn(text_checks.drop_warnings(config, counts.num_dropped, num_documents))


def make_manifest(job: Job, tokenizer: Tokenizer, counts: dict) -> Manifest:
    """Return the content of dataset.json. counts: {shard: Counts}, training shards first."""
    config, folder, total = job.config, job.folder, sum(counts.values(), Counts())
    shards = {
        split: [s for s in counts if s.split == split and counts[s].num_instances]
        for split in ("train", "validation")
    }
    names = {
        f"{split}_shards": tuple(os.path.basename(shard.path) for shard in own)
        for split, own in shards.items()
    }
    num_instances = {
        f"num_{split}_instances": sum(counts[shard].num_instances for shard in own)
        for split, own in shards.items()
    }
    has_order = config.order in SCORED_ORDERS
    return Manifest(
        name=config.name,
        schema=examples.STATIC if config.masking == "static" else examples.COMPACT,
        objective=config.objective,
        masking=config.masking,
        max_seq_length=config.max_seq_length,
        max_predictions_per_seq=config.num_predictions,
        vocab_file=os.path.basename(folder.vocab_file),
        vocab_size=tokenizer.vocab_size,
        tokenizer=tokenizer.identity,
        do_lower_case=config.do_lower_case,
        order_file=os.path.basename(folder.order_file) if has_order else "",
        seed=config.random_seed,
        num_documents=total.num_documents,
        num_sentences=total.num_sentences,
        num_tokens=total.num_tokens,
        **names,
        **num_instances,
        **(total.pair_shares() if config.objective in PAIRS else {}),
        **folder.wanted,
    )
