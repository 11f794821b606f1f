"""Finds the record files that --input_file names and reads the dataset.json in their folders,
without reading a record.
"""

import fnmatch
import glob
import os
from collections.abc import Iterable, Mapping

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_local, check_regular, comma_hint
from bert_gpu.data.config import InputConfig
from bert_gpu.data.manifest import FILE_NAME, FOR_MASKING, Manifest, read_manifest
from bert_gpu.data.own_files import unfinished_job

# endings of the files in a data set's folder that hold no records
NO_RECORDS = (".index", ".json", ".model", ".order", ".txt")
# OF_ROWS: entries of dataset.json that must be equal in data sets read together. COMPARED: these
# and the settings of masking, which must be equal too.
OF_ROWS = ("schema", "max_seq_length", "max_predictions_per_seq", "tokenizer")
COMPARED = OF_ROWS + FOR_MASKING


def expand_globs(patterns: str, setting: str) -> list[str]:
    """Return the files that comma-separated names, globs and folders of data sets stand for,
    sorted, without repeats. Raise UserError when one of these matches nothing. setting: the flag,
    for messages.
    """
    paths = set()
    for pattern in split_patterns(patterns):
        matches = matching_files(pattern, setting)
        if not matches:
            raise UserError(
                "no file matches",
                f"write one with create_pretraining_data.py, or name another{comma_hint(patterns)}",
                setting=setting,
                value=pattern,
            )
        paths.update(matches)
    if not paths:
        raise UserError(
            "names no file", "name TFRecords, for example data/*.tfrecord", setting=setting
        )
    for path in paths:
        check_regular(path)
    return sorted(paths)


def split_patterns(patterns: str) -> list[str]:
    return [part.strip() for part in patterns.split(",") if part.strip()]


def matching_files(pattern: str, setting: str) -> list[str]:
    """Return the files that one name or glob matches; for a folder with a dataset.json, its
    *.tfrecord. Raise UserError for a folder without one. setting: the flag, for messages.
    """
    check_local(pattern, setting)
    if os.path.isdir(pattern) and not os.path.exists(os.path.join(pattern, FILE_NAME)):
        raise UserError(
            "is a folder without dataset.json",
            f"name the files in it, for example {pattern.rstrip('/')}/*.tfrecord",
            setting=setting,
            value=pattern,
        )
    if os.path.isdir(pattern):
        return glob_in_folder(os.path.join(pattern, "*.tfrecord"))
    return [pattern] if os.path.exists(pattern) else glob_in_folder(pattern)


def glob_in_folder(pattern: str) -> list[str]:
    """Return the files that match a glob and may hold records. Folders never match. Hidden files
    match only a glob whose name begins with a dot, and files with an ending in NO_RECORDS only a
    glob with the same ending. If the folder in the glob exists under its literal name, glob
    characters in this name have no effect.
    """
    folder, name = os.path.split(pattern)
    if folder and os.path.isdir(folder):
        paths = [
            os.path.join(folder, file)
            for file in os.listdir(folder)
            if fnmatch.fnmatchcase(file, name) and (name[0] == "." or file[0] != ".")
        ]
    else:
        paths = glob.glob(pattern)
    excluded = tuple(ending for ending in NO_RECORDS if not name.endswith(ending))
    return [path for path in paths if not path.endswith(excluded) and not os.path.isdir(path)]


def read_manifests(paths: Iterable[str]) -> dict[str, Manifest | None]:
    """Return {folder: its Manifest, or None without a dataset.json} of all folders that the files
    are in. Raise UserError for a folder whose data job is unfinished, because nothing in it shows
    which rows are for validation.
    """
    infos = {folder: read_manifest(folder) for folder in dict.fromkeys(map(os.path.dirname, paths))}
    for folder, info in infos.items():
        if info is None and (job := unfinished_job(folder or ".")):
            raise UserError(
                "the data job of this folder is unfinished",
                "repeat its command, which resumes it",
                where=os.path.join(folder, job),
            )
    return infos


def check_equal(infos: Mapping[str, Manifest | None]) -> None:
    """Raise UserError unless the data sets of all folders of --input_file were made with the same
    settings.
    """
    manifests = {folder: info for folder, info in infos.items() if info}
    if manifests and len(manifests) < len(infos):
        odd = next(folder for folder in infos if folder not in manifests)
        raise UserError(
            f"{odd} has no dataset.json, but {next(iter(manifests))} has one",
            "train on one kind of records",
            setting="input_file",
        )
    first, *others = infos.items()
    for other in others:
        check_pair(other, first, "input_file", "train on one")


def check_pair(
    second: tuple[str, Manifest | None],
    first: tuple[str, Manifest | None],
    setting: str,
    remedy: str,
) -> None:
    """Raise UserError when two folders hold data sets that were made with different settings. A
    folder without a dataset.json passes.

    second, first: (folder, its Manifest or None). setting, remedy: the flag and the advice in the
    message.
    """
    folder, info = second
    first_folder, first_info = first
    if info is None or first_info is None:
        return
    kinds = [f"{each.masking} {each.objective}" for each in (info, first_info)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{folder} holds {kinds[0]} data, and {first_folder} {kinds[1]}",
            f"{remedy}, or build both with the same --masking and --objective",
            setting=setting,
        )
    values = (compared_values(each) for each in (info, first_info))
    for name, own, other in zip(COMPARED, *values, strict=True):
        if own != other:  # the message shows 12 characters of each value, because some are hashes
            raise UserError(
                f"{folder} and {first_folder} differ in {name} "
                f"({str(own)[:12]} and {str(other)[:12]})",
                f"build both with the same settings, or {remedy}",
                setting=setting,
            )


def compared_values(info: Manifest) -> list[object]:
    """Return the values in a Manifest of the entries and settings in COMPARED; None for each
    setting of masking if the rows are static, that is, masked already.
    """
    values = [getattr(info, name) for name in OF_ROWS]
    is_static = info.masking == "static"
    return values + [None if is_static else info.settings[name] for name in FOR_MASKING]


def check_length(config: InputConfig, max_seq_length: int, path: str) -> None:
    """Raise UserError when --max_seq_length is given and differs from max_seq_length, the row
    length of the records. path: one of the record files, for the message.
    """
    if config.max_seq_length not in (None, max_seq_length):
        raise UserError(
            f"the records of {path} have rows of {max_seq_length} tokens",
            f"give --max_seq_length={max_seq_length}, or build the data again",
            setting="max_seq_length",
            value=config.max_seq_length,
        )
