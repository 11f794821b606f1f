"""The output folder of a data job: whether it belongs to the job, and which files to keep or
remove.

An unfinished job has .NAME.building.json beside its shards, with its settings and its vocabulary. A
finished one has dataset.json. In a folder without either file nothing is removed, because no data
job wrote it.
"""

import contextlib
import dataclasses
import glob
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_writable, read_json, write_json, write_text
from bert_gpu.base.settings import fields_of, without_removed
from bert_gpu.data.config import DataConfig
from bert_gpu.data.manifest import FILE_NAME, Manifest, read_manifest, write_manifest
from bert_gpu.data.records import index_path
from bert_gpu.data.shards import Counts, Shard, path_beside, read_arrays, read_stats
from bert_gpu.text.config import FILE_NAMES
from bert_gpu.text.tokenizers.open import open_tokenizer, read_stored
from bert_gpu.text.tokenizers.rules import needs_library
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.text.vocabulary.wordpiece_learner import write_whole_file

# Patterns of partial files that a killed process may leave (files.atomic_file).
UNFINISHED = (
    *(".{name}-*.partial*", "..{name}*.partial", ".{name}.order.*.partial"),
    *(f".{name}.*.partial" for name in (FILE_NAME, *FILE_NAMES.values())),
)
# Patterns of the files beside shards, and of all files, that a job removes when it is finished.
OF_SHARDS = (".{name}-*.stats", ".{name}-*.scores", ".{name}-*.held_out", *UNFINISHED)
TEMPORARY = (".{name}.building.json", *OF_SHARDS)
# in dataset.json, in place of the identity of a vocabulary that the user named
LEARNT = "learnt from the text"
# pattern of what follows the name of the data set in the name of a shard or its index
# (records.shard_path)
SHARD = r"(-validation)?-\d{5,}-of-\d{5,}\.(tfrecord|index)"
BUILDING = fields_of(Manifest)  # rules of the entries in .NAME.building.json


class OutputFolder:
    """The output folder of one job.

    settings, inputs: JSON values that decide the content of the data set. inputs is None before the
    text is read; then only the settings are compared with those of a data set in the folder.
    """

    def __init__(
        self,
        config: DataConfig,
        settings: Mapping[str, object],
        inputs: list[list[object]] | None = None,
    ) -> None:
        self.config = config
        self.place = dict(setting="output_file", value=config.output_file)
        self.identity: dict[str, Any] = json.loads(
            json.dumps(dict(settings=settings, inputs=inputs))
        )
        self.building = os.path.join(config.folder, f".{config.name}.building.json")
        kind = "BPE" if needs_library(read_stored(config.vocabulary_path)) else config.tokenization
        self.vocab_file = os.path.join(config.folder, FILE_NAMES[kind])
        # folder of unpacked input files
        self.spool = os.path.join(config.folder, f".{config.name}.spool")
        self.hashes = self.spool + ".hashes"  # folder of hashes, to find duplicates
        self.list_file = os.path.join(config.folder, f"{config.name}.duplicates.tsv")
        self.order_file = os.path.join(config.folder, f"{config.name}.order")

    def status(self, overwrite: bool) -> str:
        """Return the status of the job in the folder: "new", "resumed" (its data set is there,
        unfinished) or "finished". Raise UserError when the folder has other content.
        """
        config = self.config
        check_writable(config.folder, **self.place)
        present = read_manifest(config.folder)
        if present is not None and present.name != config.name:
            raise UserError(
                f"{config.folder} holds the data set {present.name!r}",
                "choose another folder",
                **self.place,
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
        # a shard's index may be missing: readers scan the shard instead
        for name in filter(None, (present.vocab_file, present.order_file)):
            if not os.path.exists(os.path.join(config.folder, name)):
                raise UserError(
                    f"its {name} is missing",
                    "put it back, or --overwrite builds the data set again",
                    where=config.folder,
                )
        return "finished"

    def _refuse_foreign(self) -> None:
        """Raise UserError if this job would overwrite a file in a folder that holds no data set."""
        in_the_way = self._find("{name}-*.tfrecord", "{name}-*.index", "{name}.duplicates.tsv")
        if os.path.exists(self.vocab_file) and not self._is_users(self.vocab_file):
            in_the_way.append(self.vocab_file)
        if in_the_way:
            raise UserError(
                "exists and was not written by this script",
                "move it, or choose another folder",
                where=in_the_way[0],
            )

    def _compare(self, content: Mapping[str, Any]) -> None:
        old = without_removed(content["settings"], self.config.folder)
        new = self.identity["settings"]
        changed = [
            f"--{name}: {old.get(name)} -> {new.get(name)}"
            for name in sorted(set(old) | set(new))
            if old.get(name) != new.get(name)
        ]
        if not changed and self.identity["inputs"] not in (None, content["inputs"]):
            changed = ["the text itself"]
        if changed:
            raise UserError(
                f"holds a data set with other settings ({'; '.join(changed)})",
                "choose another folder, or --overwrite",
                **self.place,
            )

    def check_unchanged(self, status: str, overwrite: bool) -> None:
        """Raise UserError when the folder's status is no longer `status`, which was read before the
        folder was locked.
        """
        if self.status(overwrite) != status:
            raise UserError(
                f"another process has just written to {self.config.folder}",
                "repeat the same command",
                **self.place,
            )

    def is_empty(self) -> bool:
        """Return whether the folder holds nothing but this job's lock, unpacked input and document
        hashes.
        """
        own = {f".{self.config.name}.lock", *map(os.path.basename, (self.spool, self.hashes))}
        return set(os.listdir(self.config.folder)) <= own

    def _read_content(self) -> dict[str, Any]:
        """Return the content of dataset.json or, without one, of the unfinished job's
        .NAME.building.json.
        """
        present = read_manifest(self.config.folder)
        if present is not None:
            return dataclasses.asdict(present)
        return read_json(self.building, "the settings of an unfinished job", BUILDING)

    def has_vocabulary(self) -> bool:
        """Return whether the vocabulary of the interrupted job still exists, unchanged."""
        identity = self._read_content().get("tokenizer")
        if identity is None or not os.path.exists(self.vocab_file):
            return False
        return self.open_tokenizer().identity == identity

    def open_tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the vocabulary in the folder."""
        return open_tokenizer(self.vocab_file, self.config.do_lower_case, self.config.strip_accents)

    def has_shards(self) -> bool:
        """Return whether the folder holds a complete shard."""
        return any(path.endswith(".tfrecord") for path in self._shard_files())

    def clear(self, mark: bool = False) -> None:
        """Remove an earlier data set of this name, or the files of an interrupted job. With `mark`,
        also write .NAME.building.json, which marks the folder as this job's.

        If the process is killed meanwhile, the folder holds either the earlier data set or an
        interrupted job that can be resumed.
        """
        learnt = self._learnt_vocabulary()
        self._remove(*OF_SHARDS)
        if mark:
            write_json(self.building, self.identity)
        else:
            self._remove(".{name}.building.json")
        self._remove(FILE_NAME, "{name}.order", "{name}.duplicates.tsv")
        for path in self._shard_files():
            os.remove(path)
        if mark and learnt and learnt != self.vocab_file and not self._is_users(learnt):
            os.remove(learnt)

    def _learnt_vocabulary(self) -> str | None:
        """Return the path of the vocabulary file that the earlier job in the folder learnt from its
        text, or None. A vocabulary that the user named is not returned: the file may be the user's
        own.
        """
        settings = {}
        with contextlib.suppress(UserError):  # a damaged data set is overwritten all the same
            settings = self._read_content().get("settings", {})
        name = FILE_NAMES.get(settings.get("tokenization", ""))
        if settings.get("vocabulary") != LEARNT or name is None:
            return None
        path = os.path.join(self.config.folder, name)
        return path if os.path.exists(path) else None

    def undo(self) -> None:
        """Remove all files of this job from a folder that was empty before; the lock stays."""
        self.clear()
        self.remove_temporary_files()
        self._remove(os.path.basename(self.vocab_file))

    def begin(self, vocabulary: bytes, duplicates: str | None, overwrite: bool) -> None:
        """Mark the job as unfinished, in place of an earlier data set with `overwrite`, and write
        the vocabulary file and the list of near duplicates, if there is one.
        """
        if overwrite:
            self.clear(mark=True)
        self._remove(*UNFINISHED)  # left by a killed process, since this process holds the lock
        write_json(self.building, self.identity)
        if not (os.path.exists(self.vocab_file) and self._is_users(self.vocab_file)):
            write_whole_file(self.vocab_file, vocabulary, "the vocabulary")
        write_json(self.building, self.identity | dict(tokenizer=self.open_tokenizer().identity))
        if duplicates is not None:
            write_text(self.list_file, duplicates)

    def keep(self, shards: Iterable[Shard]) -> list[Shard]:
        """Return the job's complete shards. Remove all other shards of this data set's name, which
        an interrupted --overwrite or a power cut left.
        """
        complete = [
            shard
            for shard in shards
            if os.path.exists(shard.path)
            and os.path.exists(path_beside(shard, "stats"))
            and (shard.split == "validation" or os.path.exists(path_beside(shard, "held_out")))
            and os.path.getsize(shard.path) == read_stats(shard).num_bytes
        ]
        known = {path for shard in complete for path in (shard.path, index_path(shard.path))}
        for path in set(self._shard_files()) - known:
            os.remove(path)
        return complete

    def _shard_files(self) -> list[str]:
        """Return the paths of the data set's shards and their indices, but of no other file whose
        name begins the same way, such as NAME-backup.tfrecord.
        """
        shard = re.compile(re.escape(self.config.name) + SHARD)
        paths = self._find("{name}-*.tfrecord", "{name}-*.index")
        return [path for path in paths if shard.fullmatch(os.path.basename(path))]

    def _find(self, *patterns: str) -> list[str]:
        """Return the paths of the folder's files that match any of the patterns, in which {name}
        stands for the name of the data set.
        """
        folder = glob.escape(self.config.folder)
        name = glob.escape(self.config.name)
        return [
            path
            for pattern in patterns
            for path in glob.glob(os.path.join(folder, pattern.format(name=name)))
        ]

    def _remove(self, *patterns: str) -> None:
        for path in self._find(*patterns):
            os.remove(path)

    def finish(self, manifest: Manifest, counts: Mapping[Shard, Counts]) -> None:
        """Write the order of the rows, if the manifest names a file for it, and dataset.json.
        Remove shards without a record, and temporary files.
        """
        if manifest.order_file:
            scores = [
                read_arrays(shard)["scores"]
                for shard in counts
                if shard.split == "train" and counts[shard].num_instances
            ]
            order = np.argsort(np.concatenate(scores), kind="stable").astype("<i8")
            write_whole_file(self.order_file, order.tobytes(), "the order of the rows")
        for shard in counts:
            if not counts[shard].num_instances:
                os.remove(shard.path)
                os.remove(index_path(shard.path))
        write_manifest(self.config.folder, manifest)
        self.remove_temporary_files()

    def has_temporary_files(self) -> bool:
        """Return whether the folder holds temporary files of a data job."""
        return bool(self._find(*TEMPORARY)) or any(map(os.path.exists, (self.spool, self.hashes)))

    def remove_temporary_files(self) -> None:
        """Remove the temporary files of a finished data set, also those of a job that was killed at
        its end.
        """
        self._remove(*TEMPORARY)
        for folder in (self.spool, self.hashes):
            shutil.rmtree(folder, ignore_errors=True)

    def _is_users(self, path: str) -> bool:
        """Return whether an existing file is the vocabulary that the user named."""
        users = self.config.vocabulary_path
        return users is not None and os.path.exists(users) and os.path.samefile(users, path)
