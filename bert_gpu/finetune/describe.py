"""What the log says of a fine-tuning before it starts: the model and the data, and warnings."""

from collections.abc import Sequence

import numpy as np

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.finetune.config import FinetuneSettings
from bert_gpu.finetune.files.encoded import EncodedExamples
from bert_gpu.finetune.files.examples import Loaded
from bert_gpu.finetune.files.splits import Data
from bert_gpu.finetune.start import CLASSIFIER, Start, Trained
from bert_gpu.finetune.tasks.interface import TaskType
from bert_gpu.interop import models
from bert_gpu.interop.sources import NONE
from bert_gpu.train.state import frozen_names


def describe(task: TaskType, start: Start, data: Data) -> tuple[tuple[str, str], ...]:
    """Return rows (title, text) that describe the model and the data in the log."""
    has_labels = task.labels and task.spec.facts.has_classes
    labels = f"; labels: {', '.join(task.labels)}" if has_labels else ""
    rows = [("model", f"{start.path}{labels}")]
    rows += [(name.replace("_", " "), str(value)) for name, value in task.details.items()]
    source = None if start.path == NONE else start.path
    rows.append(("vocabulary", models.describe_tokenizer(start.tokenizer, source)))
    if task.head == CLASSIFIER and start.model.pooling == "mean":
        rows.append(("pooling", "mean"))
    if weights := task.class_weights:
        parts = [f"{label} {x:.4g}" for label, x in zip(task.labels, weights, strict=True)]
        rows.append(("class weights", ", ".join(parts)))
    rows += [("classifier", start.classifier)] * bool(start.classifier)
    rows += [("left over", start.unused)] * bool(start.unused)
    rows += [("positions", text) for text in start.extensions]
    if start.fresh:
        names = ", ".join(start.fresh) if len(start.fresh) < 10 else "all"
        rows.append(("fresh weights", names))
    rows += [
        ("data", f"{examples.path}: {task.describe(examples, encoded)}")
        for files in data.values()
        for examples, encoded in files
    ]
    return tuple(rows)


def warn_of_data(data: Data, console: Console) -> None:
    """Warn of rows that are left out and of texts that are also trained on, and print the warnings
    from reading the files; a warning that several files share is printed once.
    """
    printed: set[str] = set()
    for phase, files in data.items():
        for examples, rows in files:
            if examples.num_skipped:
                skipped = f"{examples.num_skipped:,} {examples.why_skipped}"
                console.warn(f"{examples.path}: {skipped} are left out")
            warnings = examples.warnings
            if phase != "train" and "train" in data:
                warnings += describe_overlap(*data["train"][0], examples, rows)
            for warning in warnings:
                if warning not in printed:
                    console.warn(f"{examples.path}: {warning}")
            printed.update(warnings)


def describe_overlap(
    train: Loaded, train_rows: EncodedExamples, part: Loaded, rows: EncodedExamples
) -> tuple[str, ...]:
    """Return a tuple of one warning: how many examples have texts that are to the model those of a
    training example, and how many of these have another label there; () where no texts are the
    same. rows: the encoded examples.
    """
    known_texts, known_whole = np.sum(train_rows.text_hashes[..., :2], 2)
    texts, whole = np.sum(rows.text_hashes[..., :2], 2)
    is_same = np.isin(texts, known_texts)
    num_cut = np.sum(is_same & ~np.isin(whole, known_whole))
    of_cut = f", {num_cut:,} only because they are cut to {rows.max_seq_length} tokens"
    own, known = 3 * texts + part.label_hashes, 3 * known_texts + train.label_hashes
    num_others = np.sum(is_same & (part.label_hashes > 0) & ~np.isin(own, known))
    return bool(is_same.any()) * (
        f"{np.sum(is_same):,} of the {len(part):,} {part.source.stem} examples "
        f"({np.mean(is_same):.1%}) have the same texts as training examples"
        f"{of_cut if num_cut else ''}, {num_others:,} of them with another label; a model may have "
        "memorised them, so leave them out of one file",
    )


def describe_fitted(settings: FinetuneSettings, start: Start, num_examples: int) -> str:
    """Return a text on the settings that config.fitted has chosen, "" where it has none."""
    chosen = dict(
        learning_rate=f"learning rate {settings.optimizer.learning_rate:g} for a hidden_size of "
        f"{start.model.hidden_size}",
        num_train_epochs=f"{settings.cadence.num_train_epochs} epochs for {num_examples:,} examples"
        * (settings.cadence.num_train_steps is None),
    )
    return ", ".join(text for name, text in chosen.items() if name in settings.unset and text)


def warn_of_fresh(start: Start, expressions: Sequence[str], console: Console) -> None:
    """Warn of randomly initialised weights that --freeze keeps from being trained. expressions: the
    values of --freeze.
    """
    fresh = sorted(set(start.fresh) & frozen_names(start.weights, expressions))
    if fresh:
        console.warn(
            f"--freeze={shortened(','.join(expressions))}: {len(fresh)} of these weights are "
            f"fresh, such as {fresh[0]}, and stay as they were initialised; freeze less"
        )


def check_use(trained: Trained, task: TaskType, console: Console) -> None:
    """Raise UserError when a fine-tuned model has another head or another kind of task than the
    task to evaluate; warn when its classes have no names.
    """
    path, kind = trained.start.path, task.spec.kind
    if trained.task_type.head != task.head:
        raise UserError(
            f"needs a {task.architecture}, and {path} is a {trained.task_type.architecture}",
            "name another model, or drop the flag",
            setting="task_name",
            value=task.spec.name,
        )
    if trained.notes.task_kind not in (None, kind):
        raise UserError(
            f"is {kind} here, and {path[:120]} was trained for {trained.notes.task_kind}",
            "drop --task_name and --task_kind, or name another model",
            setting="task_name",
            value=task.spec.name,
        )
    if trained.labels and not trained.has_names and task.spec.facts.has_classes:
        console.warn(
            f"{path[:150]}: its classes have no names, so their numbers stand for them, 0 "
            f"to {len(trained.labels) - 1}; name them in id2label of its config.json"
        )
