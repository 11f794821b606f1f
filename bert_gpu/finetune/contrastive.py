"""The contrastive loss (InfoNCE, van den Oord et al. 2018, arXiv 1807.03748) in both directions,
and its gradient at the vectors of all texts of a global batch.

In one direction each query is to find its positive among all positives and hard negatives, in the
other each positive its query among all queries; the loss is the mean of the two cross-entropies. A
score is a cosine divided by the temperature; a block of them is in memory at a time.

Legend: N examples, n of them the own ones, b of a block; V vectors an example (query, positive,
hard negatives), of width H; C candidates.
"""

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow as tf

from bert_gpu.model.encoders import Encoder
from bert_gpu.model.heads import cross_entropy
from bert_gpu.train.vector_losses import VectorObjective

LOSS = "contrastive"
FEATURES = ("text_ids", "row_weights", "labels")  # what the loss reads beside the vectors
NO_TEXT = -1  # the id of a text that is missing, such as the second negative of an example
EXCLUDED = -1e9  # the score of a text that is no candidate
BLOCK_ROWS = 1024  # rows of scores in memory at a time
SQUARED_EPSILON = 1e-24  # a vector shorter than 1e-12 does not get length 1, as in PyTorch


@dataclasses.dataclass(frozen=True)
class ContrastiveObjective(VectorObjective):
    """The contrastive loss, whose sum is divided by the number of pairs. logits: function of
    (weights, batch, encoder=, dtype=, seed=) that returns the vectors, (B, V, H).
    """

    encoder: Encoder
    logits: Callable[..., tf.Tensor]
    temperature: float
    losses = (LOSS,)
    features = FEATURES

    def counts(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {LOSS: tf.reduce_sum(batch["labels"] * batch["row_weights"])}

    def vectors(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
        seed: tf.Tensor,
    ) -> tf.Tensor:
        return self.logits(weights, batch, encoder=self.encoder, dtype=dtype, seed=seed)

    def at_vectors(
        self,
        vectors: tf.Tensor,
        features: Mapping[str, tf.Tensor],
        own: tf.Tensor,
        counts: Mapping[str, tf.Tensor],
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        return losses_of_pairs(vectors, features, own, counts, self.temperature)


def losses_of_pairs(
    vectors: tf.Tensor,
    features: Mapping[str, tf.Tensor],
    own: tf.Tensor,
    counts: Mapping[str, tf.Tensor],
    temperature: float,
    block_rows: int = BLOCK_ROWS,
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Return the sum of the losses of the own examples, and the gradient of this sum, divided by
    its count, at all vectors, float32 (N, V, H); see `VectorObjective.at_vectors`.

    features: text_ids int32 (N, V), equal for equal texts; row_weights float32 (N,), 0 for an
    example that is padding; labels float32 (N,), 1 where query and positive are a pair, 0 where
    they have no loss, and are candidates for other examples only.
    """
    weights = features["labels"] * features["row_weights"]
    texts = tf.where(features["row_weights"][:, None] > 0, features["text_ids"], NO_TEXT)
    partners = tf.where(weights[:, None] > 0, texts[:, 1::-1], NO_TEXT)
    partners = tf.pad(partners, [[0, 0], [0, texts.shape[1] - 2]], constant_values=NO_TEXT)
    size = min(block_rows, own.shape[0])
    missing = [[0, -own.shape[0] % size]]  # examples without a weight, which fill the last block
    examples = tf.reshape(tf.pad(own, missing), [-1, size])
    own_weights = tf.reshape(tf.pad(tf.gather(weights, own), missing), [-1, size])

    def add_block(
        sums: tuple[tf.Tensor, tf.Tensor], block: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(vectors)
            units = tf.math.l2_normalize(vectors, -1, SQUARED_EPSILON)
            losses = losses_of_block(units, texts, partners, block[0], temperature)
            loss = tf.reduce_sum(losses * block[1])
        return sums[0] + loss, sums[1] + tape.gradient(loss, vectors)

    start = (tf.constant(0.0), tf.zeros_like(vectors))
    loss, gradient = tf.foldl(add_block, (examples, own_weights), start, parallel_iterations=1)
    return {LOSS: loss}, gradient / tf.maximum(counts[LOSS], 1.0)


def losses_of_block(
    units: tf.Tensor,
    texts: tf.Tensor,
    partners: tf.Tensor,
    examples: tf.Tensor,
    temperature: float,
) -> tf.Tensor:
    """Return the losses of some examples, float32 (b,), whose indices are `examples`, int32 (b,).

    A copy of either text of the example is no candidate, nor is another text that forms a pair with
    the text that searches.

    Args:
      units: vectors of length 1, (N, V, H). texts: their ids, (N, V), NO_TEXT for what is no
        candidate. partners: id of the other text of the pair, (N, V), NO_TEXT without one.
    """
    losses = []
    for side, others in ((0, slice(1, None)), (1, slice(0, 1))):  # query, documents; then reversed
        candidates = tf.reshape(units[:, others], [-1, units.shape[-1]])
        candidate_texts = tf.reshape(texts[:, others], [-1])
        candidate_partners = tf.reshape(partners[:, others], [-1])
        targets = examples * (candidate_texts.shape[0] // texts.shape[0])
        own_texts = tf.gather(texts[:, :2], examples)
        is_excluded = (
            (candidate_texts == NO_TEXT)
            | (candidate_texts == own_texts[:, 1 - side, None])
            | (candidate_texts == own_texts[:, side, None])
            | (candidate_partners == own_texts[:, side, None])
        ) & (tf.range(candidate_texts.shape[0]) != targets[:, None])
        scores = tf.matmul(tf.gather(units[:, side], examples), candidates, transpose_b=True)
        scores = tf.where(is_excluded, EXCLUDED, scores / temperature)
        losses.append(cross_entropy(scores, targets))
    return (losses[0] + losses[1]) / 2
