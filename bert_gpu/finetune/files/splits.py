"""The rows of files that a fine-tuning trains on, evaluates and predicts."""

import dataclasses
import os
import typing
from collections.abc import Sequence

from bert_gpu.base import files
from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError, shortened, shortened_path
from bert_gpu.base.run_names import RUN
from bert_gpu.base.settings import fields_of
from bert_gpu.finetune.config import FILES, FinetuneConfig
from bert_gpu.finetune.files.encoded import EncodedExamples
from bert_gpu.finetune.files.examples import Loaded, Source, check_alike
from bert_gpu.finetune.files.parts import Part
from bert_gpu.finetune.tasks.interface import TaskType
from bert_gpu.finetune.tasks.table import TaskSpec, find_folder, find_tables

tf = LazyModule("tensorflow")
T = typing.TypeVar("T", bound=TaskType)

# {split: error} where other splits have a file, but this one has neither a file nor --data_dir
MISSING = dict(
    train="--train_file: there is no file to train on; name one, or its folder with --data_dir",
    dev="--dev_file: there is no file to evaluate on; name --dev_file or --dev_share, or the "
    "folder with --data_dir, or leave evaluation out (--nodo_eval)",
    test="--test_file: there is no file to predict; name --test_file or --predict_file",
)

NAMED = ("data_dir", "train_file", "dev_file", "test_file")  # settings that say where files are
SPLIT = ("columns", "dev_share", "test_share")  # settings that say how files are read and split


def with_data_of_run(config: FinetuneConfig, phases: Sequence[str], model: str) -> FinetuneConfig:
    """Return the config with the data files of the run that trained a model; return it unchanged
    where it names data of its own, or where the model's run is not known.

    Args:
      config: settings of an evaluation or a prediction. phases: its phases, from
        config.resolve_phases. model: folder of the fine-tuned model, beside which run.json lies.

    Raises:
      UserError: run.json cannot be read, or the data are not where the run read them.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(model)), RUN)
    has_all = any(getattr(config, name) for name in NAMED if name != "test_file") or (
        phases == ["predict"] and config.test_file
    )
    if has_all or not os.path.exists(path):
        return config
    fields = {name: fields_of(FinetuneConfig)[name] for name in (*NAMED, *SPLIT)}
    free = files.read_json(path, "a run's settings", dict(free=fields), ("free",))["free"]
    named = {name: free[name] for name in NAMED if free.get(name) and not getattr(config, name)}
    for split in (FILES[phase] for phase in phases):
        if getattr(config, f"{split}_file"):
            continue
        name = f"{split}_file" if f"{split}_file" in named else "data_dir"
        if name in named and not files.exists(named[name]):
            raise UserError(
                f"--{name} is needed: {shortened(os.path.dirname(model))} was trained "
                f"with --{name}={shortened(named[name])}, which is not there"
            )
    split_settings = {
        name: free[name] for name in SPLIT if free.get(name) and not getattr(config, name)
    }
    if "columns" in split_settings:
        split_settings["columns"] = tuple(split_settings["columns"])
    return dataclasses.replace(config, **named, **split_settings)


class EncodedFile(typing.NamedTuple):
    """The examples of a file, as read and as encoded rows."""

    examples: Loaded
    rows: EncodedExamples


Data = dict[str, list[EncodedFile]]  # {phase: the files that it reads}; MNLI has two dev files


def read_splits(
    task: T, config: FinetuneConfig, phases: Sequence[str]
) -> tuple[T, dict[str, list[Loaded]]]:
    """Return the task, with what its files have decided, and {phase: list with the examples of each
    file of the phase}. The labels of a training are those of the training file.

    Args:
      phases: from config.resolve_phases.

    Raises:
      UserError: a file is missing, or the task cannot read it as examples.
    """
    check_shares(config, phases)
    labels = task.labels
    files: dict[str, list[Loaded]] = {}
    for phase in phases:
        sources = find_sources(task.spec, config, FILES[phase])
        files[phase] = [task.read(source, phase != "predict") for source in sources]
        first = files[phase][0]
        task = dataclasses.replace(task, spec=first.task)
        if phase == "train":
            labels = task.find_labels(first)
            # of a regression, too, the labels in the file: they say whether -1 is a label
            task = dataclasses.replace(task, labels=task.spec.labels or first.labels)
    check_alike(task.spec, [part for parts in files.values() for part in parts])
    return dataclasses.replace(task, labels=labels), files


def find_sources(task: TaskSpec, config: FinetuneConfig, split: str) -> list[Source]:
    """Return the Source of each file of a split ("train", "dev" or "test"). Raises UserError when
    there are none.
    """
    shares = dict(dev=config.dev_share, test=config.test_share)
    train_from = config.test_share + config.dev_share
    part = Part(split, config.test_share, train_from) if train_from else Part()
    file = getattr(config, f"{split}_file")
    if shares.get(split) and not file:
        whole = find_sources(task, config, "train")
        return [Source(split, source.path, part) for source in whole]
    part = part if split == "train" else Part()
    if file:
        if not files.exists(file):
            where = dict(setting=f"{split}_file", value=shortened_path(file))
            raise UserError("no such file", "name one", **where)
        return [Source(split, file, part)]
    if config.data_dir is None:
        raise UserError(MISSING[split])
    check_folder(config.data_dir)
    stem = task.stems(split)[0]
    endings = " or .".join(task.endings)
    tables = find_tables(task, find_folder(task, config.data_dir), split)
    sources = [Source(stem, path, part) for stem, path in tables.items()]
    if not sources:
        share = ", or give a share of the training file, --dev_share=.1" if split == "dev" else ""
        raise UserError(
            f"has no {stem}.{endings}",
            f"add one, name another folder, name the file with --{split}_file{share}",
            setting="data_dir",
            value=shortened_path(config.data_dir),
        )
    return sources


def check_folder(path: str) -> None:
    if not tf.io.gfile.isdir(path):
        problem = "is a file, not a folder" if tf.io.gfile.exists(path) else "no such folder"
        raise UserError(
            problem,
            "name the one that holds train.tsv, dev.tsv and test.tsv, or name files (--train_file)",
            setting="data_dir",
            value=shortened_path(path),
        )


def check_shares(config: FinetuneConfig, phases: Sequence[str]) -> None:
    """Raise UserError for shares that leave nothing to train on, or that compete with a file.
    Without a training, a file to predict may take the place of the share that was set aside.
    """
    if config.dev_share + config.test_share >= 1:
        raise UserError(
            "leave nothing to train on",
            "give smaller ones",
            setting="dev_share",
            value=f"{config.dev_share:g} --test_share={config.test_share:g}",
        )
    for split in ("dev", "test") if "train" in phases else ("dev",):
        share = getattr(config, f"{split}_share")
        file = getattr(config, f"{split}_file")
        if share and file:
            raise UserError(
                f"--{split}_file={shortened_path(file)}: there is --{split}_share={share:g}, too",
                "give one of them",
            )
