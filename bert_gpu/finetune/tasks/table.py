"""The table of fine-tuning tasks, and the search for their files.

A row of the table names the columns of the files that a task reads, its type (interface.py) and its
metrics. The tasks of GLUE read the files that GLUE distributes.
"""

import dataclasses
import os
import re
import typing

from bert_gpu.base import files
from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError

tf = LazyModule("tensorflow")

TEXT_KINDS = ("classification", "regression", "multilabel")  # tasks on whole texts


class Kind(typing.NamedTuple):
    """A kind of task.

    type: module and class of its type, interface.py. has_classes: whether labels name classes, and
    are no numbers. has_label_lists: whether a cell may hold several labels. makes_vectors: whether
    each text of an example has a vector of its own.
    """

    type: str
    has_classes: bool = True
    has_label_lists: bool = False
    makes_vectors: bool = False


# Of the kinds that share a head, the first is that of a model whose folder names no task.
KINDS = dict(
    classification=Kind("text_classification.Classification"),
    regression=Kind("text_classification.Regression", has_classes=False),
    multilabel=Kind("text_classification.MultiLabel", has_label_lists=True),
    tagging=Kind("token_classification.TokenClassification"),
    answers=Kind("question_answering.QuestionAnswering"),
    similarity=Kind("similarity.Similarity", has_classes=False, makes_vectors=True),
)
ENDINGS = ("tsv", "csv", "jsonl", "parquet")  # endings of tables; of a .json the content decides
SHARD = "-00000-of-00001.parquet"  # end of the name of a one-file split on Hugging Face's hub
SPLITS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One task: the columns of its files, its labels and its metrics.

    Attributes:
      name: as for --task_name, in any case, with or without hyphens.
      kind: one of KINDS.
      text_a, text_b, label: names of the columns; text_b None means single texts.
      requires_text_b: whether a file must have the column text_b; otherwise a file without it holds
        single texts.
      labels: the labels in the order of the logits; None = the labels of the training file (see
        TaskType.find_labels).
      metrics: names from metrics.METRICS, the most important first; () = those of the type.
      reported: names of the metrics whose mean is the task's score, as in GLUE.
      folder: name of the task's folder in a folder with all of GLUE; None for other tasks.
      parts: {split: stems of its files} where these differ from the split's name.
      columns: {split: names of the columns} of files without a header line.
      skips_broken: whether rows with a wrong number of cells are left out.
      endings: endings of its files. stems_like: {split: regular expression} of the names of its
        files without ending, in any case, where they have no fixed ones.
      max_seq_length: default of --max_seq_length, the maximum tokens of a row.
      separator: text between several labels in a cell; None = the separator that the labels in the
        first file have.
    """

    name: str
    kind: str = "classification"
    text_a: str = "text_a"
    text_b: str | None = "text_b"
    label: str = "label"
    requires_text_b: bool = False
    labels: tuple[str, ...] | None = None
    metrics: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    folder: str | None = None
    parts: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    columns: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    skips_broken: bool = False
    endings: tuple[str, ...] = (*ENDINGS, "json")
    stems_like: dict[str, str] = dataclasses.field(default_factory=dict)
    max_seq_length: int = 128
    separator: str | None = None

    @property
    def facts(self) -> Kind:
        """The facts of the task's kind."""
        return KINDS[self.kind]

    def stems(self, split: str) -> tuple[str, ...]:
        """Return the names of a split's files, without their ending."""
        return self.parts.get(split, (split,))

    def split_of(self, stem: str) -> str:
        """Return the split that a file belongs to, by its name without ending."""
        return next((split for split in SPLITS if stem in self.stems(split)), stem)


# {split: regular expression of the names of a user's files}
STEMS = dict(train="train", dev="dev(el)?|valid(ation)?", test="test")
BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")


def _glue(
    folder: str,
    metrics: tuple[str, ...],
    text_a: str = "sentence",
    text_b: str | None = None,
    **more: typing.Any,
) -> TaskSpec:
    """Return a task of GLUE, with its files as GLUE distributes them (gluebenchmark.com/tasks)."""
    more = dict(labels=BINARY, reported=metrics) | more
    return TaskSpec(
        name=folder.lower(),
        folder=folder,
        metrics=(*metrics, "loss"),
        text_a=text_a,
        text_b=text_b,
        requires_text_b=text_b is not None,
        **more,
    )


_SENTENCES = ("sentence1", "sentence2")
_COLA = ("source", "label", "star", "sentence")
TASKS = {
    task.name: task
    for task in [
        TaskSpec(name="pairs", reported=("accuracy",), stems_like=STEMS),
        TaskSpec(
            name="single", text_a="text", text_b=None, reported=("accuracy",), stems_like=STEMS
        ),
        TaskSpec(
            name="ner",
            kind="tagging",
            text_a="words",
            text_b=None,
            label="tags",
            reported=("f1",),
            endings=("txt", "conll", "bio", "iob", "iob2", *ENDINGS, "json"),
            stems_like=STEMS,
        ),
        TaskSpec(
            name="squad",
            kind="answers",
            reported=("f1",),
            endings=("json", "jsonl"),
            stems_like={split: rf"{split}([-_]?v?\d[\d.]*)?" for split in SPLITS},
            max_seq_length=384,
        ),
        TaskSpec(
            name="similarity",
            kind="similarity",
            reported=("spearman",),
            endings=("txt", *ENDINGS, "json"),
            stems_like=STEMS,
        ),
        _glue(
            "CoLA",
            ("matthews", "accuracy"),
            reported=("matthews",),
            columns=dict.fromkeys(SPLITS, _COLA),  # only the test file has a header
        ),
        _glue("SST-2", ("accuracy",)),
        _glue(
            "MRPC",
            ("f1", "accuracy"),
            "#1 String",
            "#2 String",
            label="Quality",
            skips_broken=True,
        ),
        _glue(
            "STS-B",
            ("pearson", "spearman"),
            *_SENTENCES,
            label="score",
            kind="regression",
            labels=None,
        ),
        _glue(
            "QQP",
            ("f1", "accuracy", "auc"),
            "question1",
            "question2",
            label="is_duplicate",
            reported=("f1", "accuracy"),
            skips_broken=True,
        ),
        _glue(
            "MNLI",
            ("accuracy",),
            *_SENTENCES,
            label="gold_label",
            labels=("contradiction", "entailment", "neutral"),
            parts={
                "dev": ("dev_matched", "dev_mismatched"),
                "test": ("test_matched", "test_mismatched"),
            },
        ),
        _glue(
            "QNLI",
            ("accuracy",),
            "question",
            "sentence",
            labels=ENTAILMENT,
        ),
        _glue("RTE", ("accuracy",), *_SENTENCES, labels=ENTAILMENT),
        _glue("WNLI", ("accuracy",), *_SENTENCES),
    ]
}
ALL = "all"  # the name for all tasks of GLUE that a folder holds
GLUE = tuple(name for name, task in TASKS.items() if task.folder)


def bare(name: str) -> str:
    """Return the name of a task or its folder without case and hyphens: stsb for STS-B."""
    return re.sub(r"[-_ ]", "", name).lower()


def find_task(name: str) -> TaskSpec:
    """Return the task called `name`, in any case, with or without hyphens. Raises UserError for an
    unknown one.
    """
    for known, task in TASKS.items():
        if bare(known) == bare(name):
            return task
    raise UserError(
        "no such task", f"known are {', '.join(TASKS)}, all", setting="task_name", value=name[:60]
    )


def find_folder(task: TaskSpec, data_dir: str) -> str:
    """Return the folder of a task's files: `data_dir`, or the task's folder in it (CoLA in a folder
    with all of GLUE).
    """
    if task.folder is None or any(
        find_table(task, data_dir, stem) for split in SPLITS for stem in task.stems(split)
    ):
        return data_dir
    names = [name.rstrip("/") for name in names_in(data_dir)]
    own = [name for name in names if bare(name) == bare(task.folder)]
    return os.path.join(data_dir, own[0]) if own else data_dir


def find_tables(task: TaskSpec, folder: str, split: str) -> dict[str, str]:
    """Return {stem: path} of the tables of a split that exist in the task's folder."""
    paths = {stem: find_table(task, folder, stem) for stem in task.stems(split)}
    return {stem: path for stem, path in paths.items() if path is not None}


def find_table(task: TaskSpec, folder: str, stem: str) -> str | None:
    """Return the path of the table in a folder whose name without ending is `stem`, or matches the
    task's stems_like for it; None when there is none. Raises UserError when there are two.
    """
    if task.stems_like:
        pattern = (
            rf"(?i)({task.stems_like[stem]})(-00000-of-00001(?=\.parquet))?"
            rf"\.({'|'.join(task.endings)})"
        )
        paths = [
            os.path.join(folder, name) for name in names_in(folder) if re.fullmatch(pattern, name)
        ]
    else:
        names = [f"{stem}.{kind}" for kind in task.endings]
        names.append(stem.replace("dev", "validation") + SHARD)
        paths = [path for name in names if files.exists(path := os.path.join(folder, name))]
    if len(paths) > 1:
        raise UserError(
            f"{paths[0]} and {paths[1]}: both exist; delete one of them, or name the file with "
            f"--{stem}_file"
            if task.stems_like
            else f"{paths[0]} and {paths[1]}: both exist; delete one of them"
        )
    return paths[0] if paths else None


def names_in(folder: str) -> list[str]:
    """Return the sorted names of a folder's entries, [] where the folder does not exist."""
    if "://" not in str(folder):  # a local folder needs no TensorFlow
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return sorted(tf.io.gfile.listdir(folder)) if tf.io.gfile.isdir(folder) else []
