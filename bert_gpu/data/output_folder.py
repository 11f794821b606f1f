"""The output folder of a data job: whether it belongs to the job, which files to keep or remove.

An unfinished job has .NAME.building.json beside its shards, with its settings and its vocabulary. A
finished one has dataset.json. Without either file the folder's content is not ours and stays.
"""

import contextlib
import dataclasses
import glob
import json
import os
import re
import shutil

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_writable, read_json, write_json
from bert_gpu.base.settings import fields_of
from bert_gpu.data.manifest import FILE_NAME, Manifest, read_manifest, write_manifest
from bert_gpu.data.records import index_path
from bert_gpu.data.shards import read_scores, read_stats, stats_path
from bert_gpu.text.config import FILE_NAMES
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.vocabulary.wordpiece_learner import write_whole_file

# Files that a killed process may leave (files.atomic_file), those of shards first.
UNFINISHED = (".{name}-*.partial*", "..{name}*.partial", ".{name}.order.*.partial")
UNFINISHED += tuple(f".{name}.*.partial" for name in (FILE_NAME, *FILE_NAMES.values()))
# What a job needs until it is finished.
TEMPORARY = (".{name}-*.stats", ".{name}-*.scores", ".{name}.building.json", *UNFINISHED)
LEARNT = "learnt from the text"  # in the place of a vocabulary's identity
# after the name of the data set; see records.shard_path
SHARD = r"(-validation)?-\d{5,}-of-\d{5,}\.(tfrecord|index)"
BUILDING = fields_of(Manifest)  # of the entries in .NAME.building.json


class OutputFolder:
    """The output folder of one job.

    settings, inputs: JSON values that decide the data set. Without the inputs, before the text is
    read, only the settings are compared with those of a data set in the folder.
    """

    def __init__(self, config, settings, inputs=None):
        self.config = config
        self.named = dict(setting="output_file", value=config.output_file)
        self.wanted = json.loads(json.dumps(dict(settings=settings, inputs=inputs)))
        self.building = os.path.join(config.folder, f".{config.name}.building.json")
        self.vocab_file = os.path.join(config.folder, FILE_NAMES[config.tokenization])
        self.spool = os.path.join(config.folder, f".{config.name}.spool")  # unpacked input
        self.hashes = self.spool + ".hashes"  # of documents
        self.order_file = os.path.join(config.folder, f"{config.name}.order")

    def status(self, overwrite):
        """'new', 'resumed' or 'finished'; UserError when the folder has other content."""
        config = self.config
        check_writable(config.folder, **self.named)
        present = read_manifest(config.folder)
        if present is not None and present.name != config.name:
            raise UserError(
                f"{config.folder} holds the data set {present.name!r}",
                "choose another folder",
                **self.named,
            )
        if present is None and not os.path.exists(self.building):
            self._refuse_foreign()
            return "new"
        if overwrite:
            return "new"
        if present is None:
            self._compare(
                read_json(
                    self.building,
                    "the settings of an unfinished job; --overwrite starts again",
                    BUILDING,
                    ("settings", "inputs"),
                )
            )
            return "resumed"
        self._compare(dict(settings=present.settings, inputs=present.inputs))
        paths = [
            path
            for split in ("train", "validation")
            for path in present.paths(config.folder, split)
        ]
        if not all(map(os.path.exists, paths)):
            return "resumed"
        # an index, the file beside a shard, is made again when it is read
        for name in filter(None, (present.vocab_file, present.order_file)):
            if not os.path.exists(os.path.join(config.folder, name)):
                raise UserError(
                    f"its {name} is missing",
                    "put it back, or --overwrite builds the data set again",
                    where=config.folder,
                )
        return "finished"

    def _refuse_foreign(self):
        """UserError if this job would overwrite a file in a folder without a data set of ours."""
        in_the_way = self._find("{name}-*.tfrecord", "{name}-*.index")
        if os.path.exists(self.vocab_file) and not self._is_given(self.vocab_file):
            in_the_way.append(self.vocab_file)
        if in_the_way:
            raise UserError(
                "exists and was not written by this script",
                "move it, or choose another folder",
                where=in_the_way[0],
            )

    def _compare(self, stored):
        old, new = stored["settings"], self.wanted["settings"]
        names = sorted(set(old) | set(new))
        changed = [
            f"--{name}: {old.get(name)} -> {new.get(name)}"
            for name in names
            if old.get(name) != new.get(name)
        ]
        if not changed and self.wanted["inputs"] not in (None, stored["inputs"]):
            changed = ["the text itself"]
        if changed:
            raise UserError(
                f"holds a data set with other settings ({'; '.join(changed)})",
                "choose another folder, or --overwrite",
                **self.named,
            )

    def check_unchanged(self, status, overwrite):
        """UserError when the folder's status has changed since before its lock was taken."""
        if self.status(overwrite) != status:
            raise UserError(
                f"another process has just written to {self.config.folder}",
                "repeat the same command",
                **self.named,
            )

    def is_empty(self):
        """Whether the folder holds nothing but the lock and unpacked input."""
        own = {f".{self.config.name}.lock", *map(os.path.basename, (self.spool, self.hashes))}
        return set(os.listdir(self.config.folder)) <= own

    def _stored(self):
        """What dataset.json, or the file of an unfinished job, says of a data set."""
        present = read_manifest(self.config.folder)
        if present is not None:
            return dataclasses.asdict(present)
        return read_json(self.building, "the settings of an unfinished job", BUILDING)

    def kept_vocabulary(self):
        """Whether the vocabulary of the interrupted job still exists, unchanged."""
        identity = self._stored().get("tokenizer")
        if identity is None or not os.path.exists(self.vocab_file):
            return False
        return open_tokenizer(self.vocab_file, self.config.do_lower_case).identity == identity

    def has_shards(self):
        """Whether the folder holds a complete shard."""
        return any(path.endswith(".tfrecord") for path in self._shard_files())

    def clear(self, mark=False):
        """Removes an earlier data set of this name, or what an interrupted job left of it. With
        `mark`, also marks the folder as this job's.

        If it is killed, the folder holds either the earlier data set or this job, interrupted.
        """
        learnt = self._learnt_vocabulary()
        self._remove(".{name}-*.stats", ".{name}-*.scores", *UNFINISHED)
        if mark:
            write_json(self.building, self.wanted)
        else:
            self._remove(".{name}.building.json")
        self._remove(FILE_NAME, "{name}.order")
        for path in self._shard_files():
            os.remove(path)
        if mark and learnt not in (None, self.vocab_file) and not self._is_given(learnt):
            os.remove(learnt)

    def _learnt_vocabulary(self):
        """The vocabulary in the folder that the earlier data set learnt from its text, or None. One
        that was given to it may be the user's own file.
        """
        made = {}
        with contextlib.suppress(UserError):  # a damaged one is overwritten all the same
            made = self._stored().get("settings", {})
        name = FILE_NAMES.get(made.get("tokenization"))
        if made.get("vocabulary") != LEARNT or name is None:
            return None
        path = os.path.join(self.config.folder, name)
        return path if os.path.exists(path) else None

    def undo(self):
        """Removes all files of this job from a folder that was empty before; the lock stays."""
        self.clear()
        self.remove_temporary_files()
        self._remove(os.path.basename(self.vocab_file))

    def begin(self, content):
        """Marks the job as unfinished and writes the vocabulary file's `content`; None keeps the
        existing file.
        """
        self._remove(*UNFINISHED)  # from a killed process, since this one holds the lock
        if content is not None:
            write_json(self.building, self.wanted)
            if not (os.path.exists(self.vocab_file) and self._is_given(self.vocab_file)):
                write_whole_file(self.vocab_file, content, "the vocabulary")
        identity = open_tokenizer(self.vocab_file, self.config.do_lower_case).identity
        write_json(self.building, self.wanted | dict(tokenizer=identity))

    def keep(self, shards):
        """The job's complete shards. Removes other shards of this name, which an interrupted
        --overwrite or a power cut left.
        """
        complete = [
            shard
            for shard in shards
            if os.path.exists(shard.path)
            and os.path.exists(stats_path(shard))
            and os.path.getsize(shard.path) == read_stats(shard).num_bytes
        ]
        known = {path for shard in complete for path in (shard.path, index_path(shard.path))}
        for path in set(self._shard_files()) - known:
            os.remove(path)
        return complete

    def _shard_files(self):
        """The shards of this name and their indices; not what else begins with the name, such as
        NAME-backup.tfrecord.
        """
        shard = re.compile(re.escape(self.config.name) + SHARD)
        found = self._find("{name}-*.tfrecord", "{name}-*.index")
        return [path for path in found if shard.fullmatch(os.path.basename(path))]

    def _find(self, *patterns):
        """Files in the folder that match patterns, in which {name} is the name of the data set."""
        folder, name = glob.escape(self.config.folder), glob.escape(self.config.name)
        return [
            path
            for pattern in patterns
            for path in glob.glob(os.path.join(folder, pattern.format(name=name)))
        ]

    def _remove(self, *patterns):
        for path in self._find(*patterns):
            os.remove(path)

    def finish(self, manifest, shards, counts):
        """Removes shards without an instance, writes dataset.json, and removes temporary files."""
        if manifest.order_file:
            scores = [
                read_scores(shard)
                for shard in shards
                if shard.split == "train" and counts[shard].num_instances
            ]
            order = np.argsort(np.concatenate(scores), kind="stable").astype("<i8")
            write_whole_file(self.order_file, order.tobytes(), "the order of the rows")
        for shard in shards:
            if not counts[shard].num_instances:
                os.remove(shard.path)
                os.remove(index_path(shard.path))
        write_manifest(self.config.folder, manifest)
        self.remove_temporary_files()

    def has_temporary_files(self):
        """Whether temporary files exist."""
        return bool(self._find(*TEMPORARY)) or any(map(os.path.exists, (self.spool, self.hashes)))

    def remove_temporary_files(self):
        """Removes the temporary files of a finished data set, also those that a job killed at its
        end left.
        """
        self._remove(*TEMPORARY)
        for folder in (self.spool, self.hashes):
            shutil.rmtree(folder, ignore_errors=True)

    def _is_given(self, path):
        """Whether an existing file is the vocabulary that the user named."""
        own = self.config.vocabulary_path
        return own is not None and os.path.exists(own) and os.path.samefile(own, path)
