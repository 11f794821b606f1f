"""The task type of texts whose vectors are to be close or far: positive pairs, pairs with hard
negatives, labelled pairs, pairs with scores, and single texts, of which two crops are a pair. One
encoder makes the vectors of both texts. interface.TaskType describes the functions of this module.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError
from bert_gpu.finetune import results
from bert_gpu.finetune.config import FinetuneSettings
from bert_gpu.finetune.files import crops, encoded
from bert_gpu.finetune.files.examples import Source
from bert_gpu.finetune.files.pairs import PairExamples
from bert_gpu.finetune.start import Start
from bert_gpu.finetune.tasks import problem_types, similarity_metrics
from bert_gpu.finetune.tasks.heads import SENTENCE, Head
from bert_gpu.finetune.tasks.interface import Evaluated
from bert_gpu.finetune.tasks.metrics import compute_metrics
from bert_gpu.finetune.tasks.similarity_metrics import LABELLED, METRICS, PAIRS, SCORED, TEXTS
from bert_gpu.finetune.tasks.table import TaskSpec
from bert_gpu.finetune.tasks.text_classification import labelled
from bert_gpu.interop.formats import Embedding

if TYPE_CHECKING:
    from tensorflow import Tensor

tf = LazyModule("tensorflow")

HEAD = SENTENCE


@dataclasses.dataclass(frozen=True)
class Similarity(problem_types.ProblemType):
    """Problem type of examples that are R texts, whose vectors are the outputs, (N, R, H). Without
    a temperature the loss is the squared difference of the cosine of the first two texts and a
    target, as in CosineSimilarityLoss of sentence-transformers.

    max_score: the score that stands for a cosine of 1, None for 1.
    """

    embedding: Embedding
    max_score: float | None = None
    positive_label: str | None = None
    temperature: float | None = None
    metrics = METRICS[PAIRS]

    @property
    def head(self) -> Head:
        return SENTENCE._replace(
            logits=functools.partial(SENTENCE.logits, pooling=self.embedding.pooling)
        )

    @property
    def notes(self) -> dict[str, Any]:
        rules = {name: getattr(self.embedding, name) for name in NOTED} | dict(
            max_score=self.max_score,
            temperature=self.temperature,
            positive_label=self.positive_label,
        )
        return {name: value for name, value in rules.items() if value}

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, float32 (B,), from vectors, (B, R, H), and targets,
        float32 (B,).
        """
        units = tf.math.l2_normalize(tf.cast(logits, tf.float32), -1, 1e-24)
        return tf.square(tf.reduce_sum(units[:, 0] * units[:, 1], -1) - targets)

    def join_rows(self, rows: Sequence[Any]) -> np.ndarray:
        return np.stack(rows)


NOTED = ("pooling", "query_prefix", "passage_prefix")  # fields of Embedding that task.json has


def open_examples(
    task: TaskSpec, source: Source, needs_label: bool, labels: tuple[str, ...] | None
) -> PairExamples:
    return PairExamples(task, source, needs_label)


def defaults(examples: PairExamples) -> dict[str, Any]:
    values = dict.fromkeys((*NOTED, "max_score")) | dict(pooling="mean")
    return values if examples.kind == SCORED else values | dict(temperature=0.05)


def make_problem_type(
    settings: FinetuneSettings,
    task: TaskSpec,
    labels: tuple[str, ...],
    examples: PairExamples | None,
) -> Similarity:
    run, tokens = settings.run, settings.tokens
    if examples and examples.kind == SCORED and tokens.temperature:
        raise UserError(
            f"applies to pairs without scores only, and {examples.path} has scores",
            "drop it",
            setting="temperature",
            value=tokens.temperature,
        )
    pooling = "mean" if settings.start.pooling == "mean" else "cls"
    query, passage = tokens.query_prefix or "", tokens.passage_prefix or ""
    embedding = Embedding(pooling, True, passage, query, passage)
    temperature = tokens.temperature if examples else None
    return Similarity(embedding, tokens.max_score, run.positive_label, temperature)


def encode(
    examples: PairExamples,
    problem_type: Similarity,
    start: Start,
    settings: FinetuneSettings,
    max_seq_length: int,
    folder: str,
) -> encoded.EncodedExamples:
    tokenizer, padding = start.tokenizer, encoded.padding_of(settings, start.encoder)
    targets = examples.targets(problem_type.positive_label, problem_type.max_score or 1.0)
    change = str.lower if start.embedding.lowers else str
    rules = problem_type.embedding
    prefixes = change(rules.query_prefix), change(rules.passage_prefix)
    is_missing: list[bool] = []

    def chunks() -> Iterator[list[str]]:
        for texts in examples.texts():
            is_missing.extend(not text.strip() for text in texts)
            yield list(map(change, texts))

    if examples.kind == TEXTS:
        rows = crops.encode_crops(
            examples,
            chunks(),
            tokenizer,
            prefixes,
            max_seq_length,
            padding,
            settings.run.seed,
            folder,
        )
        return dataclasses.replace(rows, text_ids=np.repeat(rows.numbers, 2, 1))
    num_rows = examples.rows_per_example
    of_rows = [prefixes[0], *[prefixes[1]] * (num_rows - 1)]
    before = itertools.cycle(of_rows)
    pairs = (([next(before) + text for text in texts], None) for texts in chunks())
    num_before = [len(tokenizer.tokenize([prefix.rstrip()])[0]) for prefix in of_rows]
    whole = encoded.encode_examples(
        tokenizer, pairs, targets, max_seq_length, padding, folder, num_rows, num_before
    )
    numbers = np.where(np.reshape(is_missing, (-1, num_rows)), np.int32(-1), whole.numbers)
    return dataclasses.replace(whole, text_ids=numbers)


def describe(examples: PairExamples, rows: encoded.EncodedExamples) -> str:
    num_negatives = len(examples.columns_of_texts) - 2
    labels = np.zeros(0) if rows.labels is None else rows.labels
    details = {
        "two crops of each": examples.kind == TEXTS,
        f"{np.count_nonzero(labels):,} of them positive": examples.kind == LABELLED,
        f"hard negatives in {num_negatives} columns": num_negatives > 0,
        f"{len(rows.ids) / (len(rows.splits) - 1):.1f} tokens a text": True,
        f"{rows.num_truncated:,} texts cut to {rows.max_seq_length} tokens": rows.num_truncated,
        f"{rows.num_alike:,} texts the same as others only because they were cut": rows.num_alike,
    }
    parts = [f"{len(rows):,} {examples.kind}", *(text for text, is_so in details.items() if is_so)]
    return ", ".join(parts)


def judge(evaluated: Evaluated, names: Sequence[str]) -> dict[str, float | None]:
    kind, text_ids = evaluated.examples.kind, np.asarray(evaluated.rows.text_ids)
    if not np.isfinite(evaluated.outputs).all():  # a model that has overflowed
        return dict.fromkeys(names)
    if kind in (TEXTS, PAIRS):
        values = similarity_metrics.retrieval_metrics(evaluated.outputs, text_ids)
    else:
        vectors, targets = labelled(evaluated)
        similarities = similarity_metrics.cosines(vectors)
        values = (
            similarity_metrics.decision_metrics(similarities, targets > 0)
            if kind == LABELLED
            else compute_metrics(similarities[:, None], targets, METRICS[SCORED])
        )
    return {name: values.get(name) for name in names}


def write(output_dir: str, evaluated: Evaluated) -> str:
    """Write the cosine of each pair."""
    return results.write_predictions(
        output_dir,
        evaluated.examples,
        (),
        problem_types.Regression(),
        similarity_metrics.cosines(evaluated.outputs)[:, None],
        evaluated.settings.run.predictions_file,
    )
