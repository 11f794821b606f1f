"""Finds the record files that --input_file names and reads the dataset.json in their folders,
without reading a record.
"""

import fnmatch
import glob
import os

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_local, check_regular, comma_hint
from bert_gpu.data.manifest import FILE_NAME, FOR_MASKING, read_manifest
from bert_gpu.data.own_files import unfinished_job

# what lies beside records in a data set's folder and is never one itself
NO_RECORDS = (".index", ".json", ".model", ".order", ".txt")
# in which data sets that are read together must be equal
OF_ROWS = ("schema", "max_seq_length", "max_predictions_per_seq", "tokenizer")
COMPARED = OF_ROWS + FOR_MASKING


def expand_globs(patterns, setting):
    """Files that match comma-separated names, globs and folders of data sets, sorted, without
    repeats; UserError when one matches nothing.
    """
    paths = set()
    for pattern in split_patterns(patterns):
        found = matching_files(pattern, setting)
        if not found:
            raise UserError(
                "no file matches",
                f"write one with create_pretraining_data.py, or name another{comma_hint(patterns)}",
                setting=setting,
                value=pattern,
            )
        paths.update(found)
    if not paths:
        raise UserError(
            "names no file", "name TFRecords, for example data/*.tfrecord", setting=setting
        )
    for path in paths:
        check_regular(path)
    return sorted(paths)


def split_patterns(patterns):
    return [part.strip() for part in patterns.split(",") if part.strip()]


def matching_files(pattern, setting):
    """Files of one name or glob, of a folder with a dataset.json its *.tfrecord; [] when there are
    none. UserError for another folder.
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


def glob_in_folder(pattern):
    """Files that match a glob and may hold records: folders, hidden files and those of NO_RECORDS
    match only a glob that says so itself. A folder that exists under its literal name is taken
    literally, even if the name has glob characters.
    """
    folder, name = os.path.split(pattern)
    if folder and os.path.isdir(folder):
        found = [
            os.path.join(folder, file)
            for file in os.listdir(folder)
            if fnmatch.fnmatchcase(file, name) and (name[0] == "." or file[0] != ".")
        ]
    else:
        found = glob.glob(pattern)
    left_out = tuple(ending for ending in NO_RECORDS if not name.endswith(ending))
    return [path for path in found if not path.endswith(left_out) and not os.path.isdir(path)]


def read_manifests(paths):
    """{folder: Manifest, or None without a dataset.json} for the folders of the files, in their
    order. UserError for a folder whose data job is unfinished: nothing says there which rows are
    for validation.
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


def check_equal(infos):
    """UserError unless the data sets of all folders of --input_file were made with the same
    settings.
    """
    described = {folder: info for folder, info in infos.items() if info}
    if described and len(described) < len(infos):
        odd = next(folder for folder in infos if folder not in described)
        raise UserError(
            f"{odd} has no dataset.json, but {next(iter(described))} has one",
            "train on one kind of records",
            setting="input_file",
        )
    first, *others = infos.items()
    for other in others:
        check_pair(other, first, "input_file", "train on one")


def check_pair(described, first, setting, remedy):
    """UserError when two data sets, (folder, Manifest or None), are known to be made with other
    settings: folders without a dataset.json pass.
    """
    (folder, info), (first_folder, first) = described, first
    if info is None or first is None:
        return
    kinds = [f"{each.masking} {each.objective}" for each in (info, first)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{folder} holds {kinds[0]} data, and {first_folder} {kinds[1]}",
            f"{remedy}, or build both with the same --masking and --objective",
            setting=setting,
        )
    for name, own, other in zip(COMPARED, compared(info), compared(first), strict=True):
        if own != other:  # shown in part, because some are hashes
            raise UserError(
                f"{folder} and {first_folder} differ in {name} "
                f"({str(own)[:12]} and {str(other)[:12]})",
                f"build both with the same settings, or {remedy}",
                setting=setting,
            )


def compared(info):
    """The values of COMPARED in a Manifest; None for how rows are masked if that is done
    already.
    """
    values = [getattr(info, name) for name in OF_ROWS]
    is_static = info.masking == "static"
    return values + [None if is_static else info.settings[name] for name in FOR_MASKING]


def check_length(config, max_seq_length, path):
    """UserError unless the length of the rows equals the one that an InputConfig asks for, if any.
    `path`, one of the files, is named in the message.
    """
    if config.max_seq_length not in (None, max_seq_length):
        raise UserError(
            f"the records of {path} have rows of {max_seq_length} tokens",
            f"give --max_seq_length={max_seq_length}, or build the data again",
            setting="max_seq_length",
            value=config.max_seq_length,
        )
