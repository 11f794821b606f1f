"""Reads a data set, a run or a model wholly, as a training and a resume do, in this process: for
many quick cases. What is read can be compared; how a read of a damaged part ended is a word.
"""

import dataclasses
import os
import pathlib
import shutil
import tempfile

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.data.config import InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.interop import models
from bert_gpu.pretrain import start
from bert_gpu.pretrain.config import RUN_FIELDS, PretrainSettings
from bert_gpu.runs import metrics
from bert_gpu.runs.folder import RunFolder
from tests.faults import oracle
from tests.faults.world import TEXT, sorting

REFUSED, NO_EFFECT, SILENT = "refused", "no effect", "silent"


def read_data(folder, warn):
    """All that a data set holds."""
    settings = PretrainSettings(inputs=InputConfig(input_file=f"{folder}/*.tfrecord"))
    dataset = Dataset(settings.inputs)
    vocabulary = start.open_vocabulary(settings, dataset)
    records = {
        part: [set_.read(np.arange(len(set_)))]
        for part, set_ in (("train", dataset.train), ("validation", dataset.validation))
        if set_ is not None
    }
    return dataclasses.asdict(dataset.info), dataset.identity(), records, vocabulary.vocab


def read_unfinished(folder, warn):
    """What the same command makes of an interrupted data job, in a copy."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(shutil.copytree(folder, f"{scratch}/copy"))
        outcome = oracle.call(*sorting(copy), watch=copy)
        if outcome.code == 2:
            raise UserError(" ".join(outcome.messages()))
        assert outcome.code == 0, outcome
        return read_data(copy / "out", warn)


def read_run(folder, warn):
    """All of a run that a resume needs. It needs no value of metrics.jsonl, which only has to be
    sound.
    """
    run = RunFolder(str(folder))
    stored = run.read_run(RUN_FIELDS)
    metrics.read_lines(run.metrics)
    found = run.newest_whole(warn)
    return stored, found and (dataclasses.asdict(found[0]), digests(found[1]))


def read_model(folder, warn):
    """All of a model's folder that we use."""
    config, weights, notes, *_ = models.read_model(str(folder))
    tokenizer = models.load_tokenizer(str(folder))
    return config.to_dict(), digests(weights), notes, tokenizer.identity


READERS = {
    "data": read_data,
    "unfinished data": read_unfinished,
    "run": read_run,
    "model": read_model,
}


def digests(tensors):
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in tensors.items()}


def parts(world, part=None):
    """{part: folder} of what the readers read; of one part alone, only that is made."""
    folders = {
        "data": lambda: world.data,
        "unfinished data": lambda: world.unfinished,
        "run": lambda: world.run,
        "model": lambda: world.run / "model",
    }
    return {name: folder() for name, folder in folders.items() if part in (None, name)}


# what a model's folder holds for transformers and for people; nothing here reads it
FOR_OTHERS = ("tokenizer.json", "special_tokens_map.json", "modeling_bert_gpu.py", "README.md")


def files(folder):
    """The files of a folder that are read here, without those of a part inside it, a job's text,
    and locks.
    """
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - {"model"})
        found += [pathlib.Path(parent, name) for name in sorted(names)]
    return [path for path in found if path.stat().st_size and path.name not in (TEXT, *FOR_OTHERS)]


def copy_with(folder, target, path, content):
    """Copies a folder by links, with another content of one file; returns the file's new path."""
    shutil.copytree(folder, target, copy_function=os.link)
    changed = pathlib.Path(target, path.relative_to(folder))
    changed.unlink()
    changed.write_bytes(content)
    return changed


def outcome(part, folder, path, expected):
    """How reading ended, where `path` is the changed file: REFUSED (the message says where),
    NO_EFFECT, SILENT, or what else is wrong.
    """
    told = []
    try:
        found = READERS[part](folder, told.append)
    except UserError as error:
        text = str(error)
        if len(text) > 300 + len(str(folder)) or "\n" in text:
            return f"not one line of 300 characters: {text}"
        # a value that another command may write is refused by the folder and the setting
        named = path.name, "holds a data set with other settings"
        if any(name in text for name in named):
            return REFUSED
        return f"refused without the file's name: {text}"
    if any(path.name in text and "is taken instead" in text for text in told):
        return REFUSED
    return NO_EFFECT if found == expected else SILENT
