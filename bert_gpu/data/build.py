"""The job behind create_pretraining_data.py: text -> shards of TFRecords, in parallel, resumable,
in bounded memory.

The corpus is cut at document boundaries into windows of about 8 MB. A shard
(shards.py) is made from several consecutive windows, and a worker holds one window in memory at a
time. The bytes written do not depend on the number of workers, and a killed job keeps its complete
shards.

The job has two steps. `open_job` reads the text once, for its checksums and its plan, and writes
nothing, except that it stores standard input in a file beside the output. `run_job` checks the
text, opens or learns the vocabulary, drops duplicates and writes the missing shards.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import google_crc32c
import numpy as np

from bert_gpu.base.console import LOG, Console, format_seconds
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import (
    check_writable,
    existing_parent,
    json_checksum,
    only_writer,
)
from bert_gpu.base.malloc import trim_heap
from bert_gpu.base.standard_input import STANDARD_INPUT
from bert_gpu.data import advice, examples
from bert_gpu.data.config import DataConfig
from bert_gpu.data.job import Job
from bert_gpu.data.manifest import Manifest, read_manifest
from bert_gpu.data.output_folder import LEARNT, OutputFolder
from bert_gpu.data.own_files import is_own
from bert_gpu.data.plan import CorpusPlan, plan_corpus
from bert_gpu.data.shards import (
    DROPPED,
    PAIRS,
    SCORED_ORDERS,
    VALIDATION,
    Counts,
    Shard,
    ShardBuilder,
    read_stats,
    unigram_loss,
)
from bert_gpu.data.summary import summary
from bert_gpu.data.workers import write_shards
from bert_gpu.text import clean, corpus, parallel, quality
from bert_gpu.text.config import AUTO, FILE_NAMES, TextFormat
from bert_gpu.text.formats import inputs
from bert_gpu.text.near_duplicates import disk_bytes, find_near_duplicates
from bert_gpu.text.progress import ByteProgress
from bert_gpu.text.ray_cluster import open_workers
from bert_gpu.text.tokenizers.hugging_face import SEPARATORS
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.text.vocabulary import learning
from bert_gpu.text.vocabulary.file import warn_of_blanks

NUM_LISTED = 10  # near duplicates that a dry run prints
LIST_HEADER = "file\tdocument\tsimilar_file\tsimilar_document\tsimilarity"
LARGE_TEXT_BYTES = 100_000_000  # reading this many bytes takes about a second


def build(
    config: DataConfig,
    text_format: TextFormat = AUTO,
    overwrite: bool = False,
    console: Console = LOG,
) -> Manifest:
    """Write the data set that the settings describe, or the shards that an interrupted job left
    unwritten, and return its Manifest. Raise UserError for a wrong setting or an unusable text.

    overwrite: whether to replace an earlier data set. console: prints messages and progress; by
    default they go to Python's logger "bert_gpu".
    """
    with open_workers(config.num_workers, config.ray_address, console) as workers:
        job = open_job(config, overwrite, text_format, workers, console)
        if job.status == "finished":
            if job.folder.has_temporary_files():  # the job was killed at its end
                with writing(job) as folder:
                    folder.remove_temporary_files()
            console.say(
                f"{config.folder}: this data set is finished; nothing to do "
                "(--overwrite starts over)"
            )
            return read_manifest(config.folder)  # type: ignore[return-value]  # dataset.json exists
        for text in job.inputs.without_effect():
            console.warn(text)
        started = time.monotonic()
        manifest, counts, num_duplicates = run_job(job)
        duration = format_seconds(time.monotonic() - started)
        console.say(summary(manifest, counts, num_duplicates, config, duration))
        return manifest


def dry_run(config: DataConfig, text_format: TextFormat = AUTO, console: Console = LOG) -> None:
    """Read and check the text and print what would be dropped, as `build` does, but write no data
    set. Temporary files are in a hidden folder beside the data set's.
    """
    check_writable(config.folder, "output_file", config.output_file)
    parent = existing_parent(config.folder)
    with (
        tempfile.TemporaryDirectory(prefix=".dry-run-", dir=parent) as folder,
        open_workers(config.num_workers, config.ray_address, console) as workers,
    ):
        config = dataclasses.replace(config, output_file=f"{folder}/{config.name}.tfrecord")
        job = open_job(config, False, text_format, workers, console)
        plan = job.plan or unpacked_plan(job)
        plan, _, tokenizer = check(job, plan)
        plan, num_duplicates, duplicates = drop_repeats(job, plan)
        advice.check_cleaned(job, plan, num_duplicates, tokenizer)
        for line in (duplicates or "").splitlines()[: 1 + NUM_LISTED]:
            console.say(line)
        console.say("dry run: no data set is written")


def open_job(
    config: DataConfig,
    overwrite: bool = False,
    text_format: TextFormat = AUTO,
    workers: parallel.Workers | None = None,
    console: Console | None = None,
) -> Job:
    """Check the settings, print a description of the input, read the input, and return the Job.
    Without a console nothing is printed; without workers, the cores of this machine do the work.
    Raise UserError for bad input.
    """
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
        settings = data_set_settings(config, text_format, text)
        status = OutputFolder(config, settings).status(overwrite)
        plan = None
        checksums: dict[str, int] = {}
        if status != "finished" and not text.needs_spool:
            plan = make_plan(config, console, text.paths, text.formats, text.names, checksums)
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
        folder.status(overwrite)  # raises if the folder's data set was made from another text
    except UserError:
        if standard_input is not None and is_new:
            os.remove(standard_input)
            for empty in (spool, config.folder):
                with contextlib.suppress(OSError):  # raised when the folder is not empty
                    os.rmdir(empty)
        raise
    warn = quality.Warner(console, config.strict)
    return Job(config, overwrite, workers, console, warn, text, folder, status, plan)


def data_set_settings(
    config: DataConfig, text_format: TextFormat, text: inputs.Inputs
) -> dict[str, object]:
    """Return {name: value} of the settings that decide the content of the data set, for
    dataset.json.
    """
    path = config.vocabulary_path
    if path is None and config.tokenization == "BPE":
        advice.check_pairs(config, SEPARATORS)
    identity = LEARNT if path is None else read_vocabulary(config)[1].identity
    kinds = sorted({each.input_format for each in text.formats})
    settings = config.fixed() | text_format.to_dict()
    return settings | dict(vocabulary=identity, input_format=",".join(kinds))


def make_plan(
    config: DataConfig,
    console: Console,
    paths: list[str],
    formats: list[TextFormat],
    names: list[str],
    checksums: dict[str, int],
) -> CorpusPlan:
    """Return the CorpusPlan of unpacked text files, and add the CRC-32C of each file to checksums,
    {path: CRC}, in one pass over the text. names: the files' names for messages.
    """
    with reading_progress(console, paths, names, "looking for documents") as progress:
        read = functools.partial(read_file, corpus.whole_lines, checksums, progress.add)
        plan = plan_corpus(config, paths, formats, names, read)
    return dataclasses.replace(
        plan, text=json_checksum(dict(files=sorted(checksums[path] for path in paths)))
    )


def add_checksums(console: Console, text: inputs.Inputs, checksums: dict[str, int]) -> None:
    """Add the CRC-32C of each input file's bytes as stored, compressed or not, to checksums, {path:
    CRC}.
    """
    with reading_progress(console, text.paths, text.names, "computing checksums") as progress:
        read = functools.partial(read_file, corpus.file_pieces, checksums, progress.add)
        for pieces in map(read, text.paths, text.names):
            collections.deque(pieces, 0)  # reads the file to its end


def read_file(
    read: Callable[[str, str], Iterable[bytes]],
    checksums: dict[str, int],
    report: Callable[[int], None],
    path: str,
    name: str,
) -> Iterator[bytes]:
    """Yield the pieces of bytes that read(path, name) yields, call report with the size of each,
    and at the end store the CRC-32C of all the bytes in checksums[path].
    """
    crc = 0
    for piece in read(path, name):
        crc = google_crc32c.extend(crc, piece)
        report(len(piece))
        yield piece
    checksums[path] = crc


def reading_progress(
    console: Console, paths: list[str], names: list[str], what: str
) -> ByteProgress:
    """Return a display of the progress of reading files once; it prints nothing for a text of less
    than LARGE_TEXT_BYTES. what: its label.
    """
    num_bytes = sum(map(inputs.file_bytes, paths, names))
    target = console if num_bytes >= LARGE_TEXT_BYTES else Console(quiet=True)
    return ByteProgress(target, num_bytes, what)


def run_job(job: Job) -> tuple[Manifest, Counts, int]:
    """Write the missing shards; return (the Manifest, the Counts of all shards, the number of
    duplicate documents dropped).

    Raise UserError for bad input; the new files are then removed if the folder was empty before and
    no shard is complete.
    """
    # Plain text is checked before a folder is created, so that bad text leaves nothing.
    checked = None if job.plan is None else check(job, job.plan)
    with writing(job) as folder:
        plan, vocabulary, tokenizer = checked or check(job, unpacked_plan(job))
        plan, num_duplicates, duplicates = drop_repeats(job, plan)
        # This is the last check that --strict can turn into an error; only after it is an earlier
        # data set removed.
        advice.check_cleaned(job, plan, num_duplicates, tokenizer)
        folder.begin(vocabulary, duplicates, job.overwrite)
        shards = plan.shards()
        write_missing(job, plan, shards)
        counts = {shard: read_stats(shard) for shard in shards}
        if not advice.are_enough(job.config, counts):
            folder.clear()
            raise advice.nothing_left(job.config)
        manifest = make_manifest(job, plan, tokenizer, counts)
        folder.finish(manifest, counts)
    return manifest, sum(counts.values(), Counts()), num_duplicates


def check(job: Job, plan: CorpusPlan) -> tuple[CorpusPlan, bytes, Tokenizer]:
    """Open or learn the vocabulary, and raise or print all that would make a poor data set. Return
    (the plan, the bytes of the vocabulary file, its tokenizer).
    """
    sample = advice.check_text(job, plan)
    vocabulary, tokenizer = open_vocabulary(job, plan.blocks)
    advice.check_vocabulary(job, sample, tokenizer)
    return plan, vocabulary, tokenizer


@contextlib.contextmanager
def writing(job: Job) -> Iterator[OutputFolder]:
    """Yield the output folder, created if needed and locked. After a UserError, a folder that was
    empty before and has no complete shard is emptied.
    """
    folder = job.folder
    with only_writer(job.config.folder, job.config.name, **folder.place):
        folder.check_unchanged(job.status, job.overwrite)
        was_empty = folder.is_empty()
        try:
            yield folder
        except UserError:
            if was_empty and not folder.has_shards():
                folder.undo()
            raise


def unpacked_plan(job: Job) -> CorpusPlan:
    """Unpack the text next to the output, because it may be as large, and return its plan."""
    paths, formats = inputs.unpack(job.inputs, job.folder.spool, job.console)
    return make_plan(job.config, job.console, paths, formats, job.inputs.names, {})


def open_vocabulary(job: Job, blocks: list[corpus.Block]) -> tuple[bytes, Tokenizer]:
    """Return (the bytes of the vocabulary file to write into the folder, its tokenizer): the file
    that the user named, the one of an interrupted job, or one that is learnt from the text.
    """
    config, folder = job.config, job.folder
    if config.vocabulary_path is not None:
        return read_vocabulary(config)
    if job.status == "resumed" and folder.has_vocabulary():
        with corpus.open_binary(folder.vocab_file) as file:
            return file.read(), folder.open_tokenizer()
    content = learning.learn(blocks, config, job.console, job.workers, config.word_mark)[0]
    with tempfile.TemporaryDirectory() as temporary:
        path = os.path.join(temporary, FILE_NAMES[config.tokenization])
        with open(path, "wb") as file:
            file.write(content)
        return content, open_tokenizer(path, config.do_lower_case, config.strip_accents)


def read_vocabulary(config: DataConfig) -> tuple[bytes, Tokenizer]:
    """Read the vocabulary file that the user named. Return (bytes of the vocabulary file to write
    into the data set's folder, its tokenizer).
    """
    path = config.vocabulary_path
    assert path is not None
    tokenizer = open_tokenizer(path, config.do_lower_case, config.strip_accents)
    advice.check_pairs(config, tokenizer.separators)
    warn_of_blanks(path, tokenizer.vocab)
    if path.endswith(".json"):
        (content,) = tokenizer.files().values()
        return content, tokenizer
    with corpus.open_binary(path) as file:
        return file.read(), tokenizer


def drop_repeats(job: Job, plan: CorpusPlan) -> tuple[CorpusPlan, int, str | None]:
    """Return (the plan without documents that equal or resemble an earlier document, and with the
    sentences to drop; the number of documents dropped; the content of NAME.duplicates.tsv, or None
    without --near_duplicates).
    """
    config = job.config
    is_dropped = np.zeros(plan.num_documents, bool)
    duplicates = None
    if config.near_duplicates is not None:
        needed = disk_bytes(plan.num_documents, plan.num_text_bytes, config.near_duplicates)
        advice.check_space(config, needed, ", or leave out --near_duplicates")
        removed = search(job, plan, "near duplicates", find_near_duplicates, config.near_duplicates)
        is_dropped[removed["document"]] = True
        duplicates = list_duplicates(plan, removed)
    elif config.drop_duplicates:
        is_dropped = search(job, plan, "duplicates", clean.find_duplicates, config.do_lower_case)
    if is_dropped.any():
        plan = plan.without(is_dropped)
    if config.drop_repeated_lines is not None:
        plan = dataclasses.replace(plan, repeated=find_repeated(job, plan))
    trim_heap()
    return plan, int(is_dropped.sum()), duplicates


def search(
    job: Job, plan: CorpusPlan, what: str, find: Callable[..., parallel.Result], *values: object
) -> parallel.Result:
    """Return the result of a search through all of the text, with a display of its progress. what:
    the things that find(blocks, folder, *values, ...) looks for.
    """
    with ByteProgress(job.console, plan.num_text_bytes, f"looking for {what}") as progress:
        return find(
            plan.blocks,
            job.folder.hashes,
            *values,
            workers=job.workers,
            report=progress.add,
        )


def list_duplicates(plan: CorpusPlan, removed: np.ndarray) -> str:
    """Return the content of NAME.duplicates.tsv: each removed document, and the first one that it
    resembles. removed: rows of near_duplicates.REMOVED.
    """
    columns = plan.places(removed["document"]), plan.places(removed["first"]), removed["similarity"]
    lines = [f"{own}\t{first}\t{value:.4f}" for own, first, value in zip(*columns, strict=True)]
    return "\n".join([LIST_HEADER, *lines, ""])


def find_repeated(job: Job, plan: CorpusPlan) -> str | None:
    """Return the file of the sentences that --drop_repeated_lines drops, or None if there are none;
    print how many they are, and one of them.
    """
    limit = job.config.drop_repeated_lines
    is_used = plan.split != DROPPED
    path, total = search(job, plan, "repeated lines", clean.find_repeated, limit, is_used)
    if not total:
        job.console.say(f"repeated lines: none is in more than {limit:,} documents")
        return None
    sample = quality.sample(plan.blocks)
    lines = [[line] for document in sample for line in document]
    others = {line for [line] in clean.drop_repeated(lines, path)}
    examples = [f", such as {quality.shorten(line)}" for [line] in lines if line not in others]
    job.console.say(
        f"repeated lines: {os.path.getsize(path) // 8:,} are in more than {limit:,} documents each "
        f"and are dropped, {total:,} times in all{''.join(examples[:1])}"
    )
    return path


def write_missing(job: Job, plan: CorpusPlan, shards: list[Shard]) -> None:
    """Write the shards that the folder lacks."""
    trim_heap()  # frees the memory that planning and counting used
    builder = ShardBuilder(job.config, job.folder.vocab_file, plan.split, plan.repeated)
    complete = job.folder.keep(shards)
    if complete:
        job.console.say(f"resuming from {len(complete)} of {len(shards)} shards")
    missing = [shard for shard in shards if shard not in complete]
    # Only the text of training shards counts as progress: together they cover the whole text.
    num_bytes = sum(shard.num_bytes for shard in missing if shard.split == "train")
    with ByteProgress(job.console, num_bytes, "writing") as progress:
        work_bytes = num_bytes * job.config.num_passes
        write_shards(builder, missing, job.workers, work_bytes, progress.add)


def make_manifest(
    job: Job, plan: CorpusPlan, tokenizer: Tokenizer, counts: dict[Shard, Counts]
) -> Manifest:
    """Return the Manifest, the content of dataset.json. counts: the Counts of each shard, training
    shards first.
    """
    config, folder = job.config, job.folder
    total = sum(counts.values(), Counts())
    shards = {
        split: [s for s in counts if s.split == split and counts[s].num_instances]
        for split in ("train", "validation")
    }
    content: dict[str, Any] = {
        f"{split}_shards": tuple(os.path.basename(shard.path) for shard in own)
        for split, own in shards.items()
    }
    content |= {
        f"num_{split}_instances": sum(counts[shard].num_instances for shard in own)
        for split, own in shards.items()
    }
    num_row_tokens = sum(counts[shard].num_row_tokens for shard in shards["train"])
    content |= folder.identity | (total.pair_shares() if config.objective in PAIRS else {})
    has_order = config.order in SCORED_ORDERS
    held_out = np.flatnonzero(plan.split == VALIDATION)
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
        text=f"{plan.text}:{json_checksum(dict(held_out=held_out.tolist()))}",
        unigram_loss=unigram_loss(counts),
        tokens_per_record=num_row_tokens / max(1, content["num_train_instances"]),
        **content,
    )
