"""The type of task whose texts shall have vectors that are close or far: positive pairs, pairs with
hard negatives, labelled pairs, pairs with scores, and single texts, of which two crops are a pair.
One encoder makes the vectors of both texts.

Legend: N examples, B batch, R texts of an example, S sequence, H width of a vector.
"""

import dataclasses
import itertools
import typing
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.finetune import results
from bert_gpu.finetune.config import FinetuneSettings, first_set
from bert_gpu.finetune.files import crops, encoded
from bert_gpu.finetune.files.examples import Source
from bert_gpu.finetune.files.pairs import PairExamples
from bert_gpu.finetune.tasks import similarity_metrics
from bert_gpu.finetune.tasks.interface import Evaluated, RowFormat, TaskType
from bert_gpu.finetune.tasks.metrics import compute_metrics
from bert_gpu.finetune.tasks.similarity_metrics import LABELLED, METRICS, PAIRS, SCORED, TEXTS
from bert_gpu.finetune.tasks.text_classification import labelled
from bert_gpu.interop.formats import Embedding
from bert_gpu.model.encoders import Encoder
from bert_gpu.model.heads import mean_of_tokens
from bert_gpu.model.layers import sizes

ROW_FEATURES = ("input_ids", "input_mask", "segment_ids")
Vectors = Evaluated[PairExamples, np.ndarray]


@typing.final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Similarity(TaskType[PairExamples, np.ndarray, np.ndarray]):
    """A task whose examples are R texts; the outputs are their vectors, (N, R, H). Without a
    temperature the loss is the squared difference of the cosine of the first two texts and a
    target, as in CosineSimilarityLoss of sentence-transformers.

    max_score: the score that stands for a cosine of 1, None for 1.
    """

    head = "sentence"
    architecture = "BertModel"
    takes_whole_texts = True
    reads = frozenset(
        ("pooling", "positive_label", "temperature", "query_prefix", "passage_prefix", "max_score")
    )
    metrics = METRICS[PAIRS]

    max_score: float | None = None

    def read(self, source: Source, needs_label: bool) -> PairExamples:
        return PairExamples(self.spec, source, needs_label)

    def configured(
        self,
        settings: FinetuneSettings,
        holders: Sequence[object],
        examples: PairExamples,
        trains: bool,
    ) -> typing.Self:
        temperature: float | None = first_set("temperature", *holders, default=None)
        if trains and examples.kind == SCORED and settings.tokens.temperature:
            raise UserError(
                f"applies to pairs without scores only, and {examples.path} has scores",
                "drop it",
                setting="temperature",
                value=temperature,
            )
        is_contrastive = trains and examples.kind != SCORED
        passage = first_set("passage_prefix", *holders, default="")
        embedding = Embedding(
            pooling="mean" if first_set("pooling", *holders, default="mean") == "mean" else "cls",
            is_normalized=True,
            prefix=passage,
            query_prefix=first_set("query_prefix", *holders, default=""),
            passage_prefix=passage,
            lowers=first_set("lowers", *holders, default=False),
        )
        return dataclasses.replace(
            self,
            embedding=embedding,
            max_score=first_set("max_score", *holders, default=self.max_score),
            positive_label=first_set("positive_label", *holders, default=self.positive_label),
            temperature=(temperature or 0.05) if is_contrastive else None,
        )

    @property
    def stored(self) -> dict[str, object]:
        rules: dict[str, object] = dict(
            pooling=self.embedding.pooling,
            query_prefix=self.embedding.query_prefix,
            passage_prefix=self.embedding.passage_prefix,
            max_score=self.max_score,
        )
        return rules | (dict(temperature=self.temperature) if self.temperature else {})

    @property
    def details(self) -> dict[str, object]:
        rules = self.stored | dict(positive_label=self.positive_label)
        return {name: value for name, value in rules.items() if value}

    def encode(self, examples: PairExamples, form: RowFormat) -> encoded.EncodedExamples:
        tokenizer, rules = form.tokenizer, self.embedding
        targets = examples.targets(self.positive_label, self.max_score or 1.0)
        change = str.lower if rules.lowers else str
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
                form.max_seq_length,
                form.padding,
                form.seed,
                form.folder,
            )
            return dataclasses.replace(rows, text_ids=np.repeat(rows.numbers, 2, 1))
        num_rows = examples.rows_per_example
        of_rows = [prefixes[0], *[prefixes[1]] * (num_rows - 1)]
        before = itertools.cycle(of_rows)
        pairs = (([next(before) + text for text in texts], None) for texts in chunks())
        num_before = [len(tokenizer.tokenize([prefix.rstrip()])[0]) for prefix in of_rows]
        whole = encoded.encode_examples(
            tokenizer,
            pairs,
            targets,
            form.max_seq_length,
            form.padding,
            form.folder,
            num_rows,
            num_before,
        )
        numbers = np.where(np.reshape(is_missing, (-1, num_rows)), np.int32(-1), whole.numbers)
        return dataclasses.replace(whole, text_ids=numbers)

    def describe(self, examples: PairExamples, rows: encoded.EncodedExamples) -> str:
        num_negatives = len(examples.columns_of_texts) - 2
        num_cut, num_alike = rows.num_truncated, rows.num_alike
        labels = np.zeros(0) if rows.labels is None else rows.labels
        details = {
            "two crops of each": examples.kind == TEXTS,
            f"{np.count_nonzero(labels):,} of them positive": examples.kind == LABELLED,
            f"hard negatives in {num_negatives} columns": num_negatives > 0,
            f"{len(rows.ids) / (len(rows.splits) - 1):.1f} tokens a text": True,
            f"{num_cut:,} texts cut to {rows.max_seq_length} tokens": num_cut,
            f"{num_alike:,} texts the same as others only because they were cut": num_alike,
        }
        parts = [
            f"{len(rows):,} {examples.kind}",
            *(text for text, is_so in details.items() if is_so),
        ]
        return ", ".join(parts)

    def logits(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        encoder: Encoder,
        dtype: tf.DType,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Return the vectors of the texts of each example, (B, R, S) -> float32 (B, R, H): the
        hidden state of [CLS] with pooling "cls", else the mean over all tokens.
        """
        *shape, length = sizes(batch["input_ids"])
        rows = {name: tf.reshape(batch[name], [-1, length]) for name in ROW_FEATURES}
        is_first = self.embedding.pooling == "cls"
        positions = tf.zeros_like(rows["input_ids"][:, :1]) if is_first else None
        hidden = encoder.encode(weights, rows, dtype=dtype, seed=seed, positions=positions)
        hidden = tf.cast(hidden, tf.float32)
        vectors = hidden[:, 0] if is_first else mean_of_tokens(hidden, rows["input_mask"])
        return tf.reshape(vectors, [*shape, vectors.shape[-1]])

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example, float32 (B,), from vectors, (B, R, H), and targets,
        float32 (B,).
        """
        units = tf.math.l2_normalize(tf.cast(logits, tf.float32), -1, 1e-24)
        return tf.square(tf.reduce_sum(units[:, 0] * units[:, 1], -1) - targets)

    def row_outputs(self, logits: np.ndarray, batch: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return list(logits)

    def join_rows(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(rows)

    def judge(self, evaluated: Vectors) -> dict[str, float | None]:
        kind, text_ids = evaluated.examples.kind, np.asarray(evaluated.rows.text_ids)
        if not np.isfinite(evaluated.outputs).all():  # a model that has overflowed
            return dict.fromkeys(self.metric_names)
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
        return {name: values.get(name) for name in self.metric_names}

    def write(self, output_dir: str, evaluated: Vectors) -> str:
        """Write the cosine of each pair."""
        cosines = similarity_metrics.cosines(evaluated.outputs)[:, None]
        answers = [f"{value:.6g}" for value in cosines[:, 0]]
        return results.write_predictions(
            output_dir, evaluated.examples, ["value"], answers, cosines
        )
