"""Tables of the heads that a model may have on its encoder, and of the classes of transformers that
have these heads. A new head needs a row in HEADS, and a row in ARCHITECTURES where transformers has
a class for it. Imports no TensorFlow.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping

from bert_gpu.base.environment import LazyModule

if typing.TYPE_CHECKING:
    import tensorflow as tf

    from bert_gpu.model.config import ModelConfig
    from bert_gpu.model.encoders import Encoder
    from bert_gpu.model.weights import WeightSpec
heads = LazyModule("bert_gpu.model.heads")


class Head(typing.NamedTuple):
    """A head; the names of its weights begin with its key in HEADS.

    Attributes:
      weights: function of (ModelConfig, number of classes) that returns {name: WeightSpec},
        including the weights of other heads whose output this head takes.
      parts: {bert-gpu's name of a layer: its name in transformers' BERT}, without ends such as
        /kernel and .weight.
      outputs: function of (weights, hidden (B, S, H), mask (B, S), ModelConfig) that returns {name
        of the output in transformers: tensor}.
    """

    weights: Callable[[ModelConfig, int], dict[str, WeightSpec]]
    parts: Mapping[str, str]
    outputs: Callable[
        [Mapping[str, tf.Tensor], tf.Tensor, tf.Tensor, ModelConfig], dict[str, tf.Tensor]
    ]


HEADS = {
    "mlm": Head(
        lambda config, _: heads.mlm_weights(config),
        {
            "mlm/transform": "cls.predictions.transform.dense",
            "mlm/norm": "cls.predictions.transform.LayerNorm",
            "mlm/bias": "cls.predictions.bias",
        },
        lambda weights, hidden, mask, config: dict(
            logits=heads.chosen_mlm_logits(weights, hidden, config)
        ),
    ),
    "nsp": Head(
        lambda config, _: heads.nsp_weights(config),
        {"nsp": "cls.seq_relationship"},
        lambda weights, hidden, mask, config: dict(
            seq_relationship_logits=heads.nsp_logits(weights, heads.pool(weights, hidden))
        ),
    ),
    "pooler": Head(
        lambda config, _: heads.pooler_weights(config),
        {"pooler": "bert.pooler.dense"},
        lambda weights, hidden, mask, config: dict(pooler_output=heads.pool(weights, hidden)),
    ),
    "classifier": Head(
        lambda config, num_classes: heads.classifier_weights(config, num_classes),
        {"classifier": "classifier"},
        lambda weights, hidden, mask, config: dict(
            logits=heads.classifier_logits(
                weights, heads.sentence_vector(weights, hidden, mask, config)
            )
        ),
    ),
    "token_classifier": Head(
        lambda config, num_classes: heads.each_token_weights(
            config, "token_classifier", num_classes
        ),
        {"token_classifier": "classifier"},
        lambda weights, hidden, mask, config: dict(
            logits=heads.token_logits(weights, hidden, config)
        ),
    ),
    "span": Head(
        lambda config, _: heads.each_token_weights(config, "span", 2),
        {"span": "qa_outputs"},
        lambda weights, hidden, mask, config: dict(
            zip(
                ("start_logits", "end_logits"),
                heads.span_logits(weights, hidden, config),
                strict=True,
            )
        ),
    ),
}
PRETRAINING_HEADS = ("mlm", "nsp", "pooler")


class Architecture(typing.NamedTuple):
    """A class of transformers.

    Attributes:
      heads: keys in HEADS of the heads that the class has.
      title: description of the model, for its model card.
      task: name of the class's task in Hugging Face's index.
      own: key in HEADS of the head for that task; None for pretraining.
      has_labels: whether the head `own` has an output for each label of the task.
    """

    heads: tuple[str, ...]
    title: str
    task: str
    own: str | None = None
    has_labels: bool = False

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Return the beginnings of the names of the weights in the class's heads, such as
        "mlm/".
        """
        return tuple(f"{head}/" for head in self.heads)


ARCHITECTURES = {
    "BertModel": Architecture(("pooler",), "A text encoder", "feature-extraction"),
    "BertForPreTraining": Architecture(
        ("pooler", "mlm", "nsp"),
        "A language model, pretrained on masked words and next sentences",
        "fill-mask",
    ),
    "BertForMaskedLM": Architecture(
        ("mlm",), "A language model, pretrained on masked words", "fill-mask"
    ),
    "BertForSequenceClassification": Architecture(
        ("pooler", "classifier"),
        "A classifier of texts",
        "text-classification",
        own="classifier",
        has_labels=True,
    ),
    "BertForTokenClassification": Architecture(
        ("token_classifier",),
        "A classifier of words",
        "token-classification",
        own="token_classifier",
        has_labels=True,
    ),
    "BertForQuestionAnswering": Architecture(
        ("span",), "A model that finds answers in texts", "question-answering", own="span"
    ),
}
# {class of transformers: key of its task's head} where the head has an output for each label
LABELLED = {name: row.own for name, row in ARCHITECTURES.items() if row.has_labels}
PREFIXES = tuple(f"{head}/" for head in HEADS)
# (names of weights, class of transformers): the first row whose weights a model all has gives its
# class. The pooler distinguishes classifiers of texts from classifiers of tokens, whose other
# weights have the same names in BERT's classes. ModernBERT's heads have one name for all tasks; a
# head of no named class counts as a classifier of texts.
ARCHITECTURES_BY_WEIGHTS = (
    (("classifier/kernel", "pooler/kernel"), "BertForSequenceClassification"),
    (("span/kernel",), "BertForQuestionAnswering"),
    (("token_classifier/kernel",), "BertForTokenClassification"),
    (("classifier/kernel",), "BertForSequenceClassification"),
    (("nsp/kernel",), "BertForPreTraining"),
    (("mlm/bias",), "BertForMaskedLM"),
    ((), "BertModel"),
)


def architecture_of(names: Iterable[str]) -> str:
    """Return the class of transformers that has the most of the heads `names` and no other head;
    BertModel where no class fits, because its pooler may be absent.
    """
    fitting = [name for name, row in ARCHITECTURES.items() if set(row.heads) <= set(names)]
    ranks = {name: (len(ARCHITECTURES[name].heads), name != "BertModel") for name in fitting}
    return max(fitting, key=ranks.__getitem__, default="BertModel")


def guess_architecture(has: Callable[[str, str], bool]) -> str:
    """Return the class of transformers for a model whose files name no known class. has: function
    of (weight, class) that returns whether the model has the weight under the name that the class
    gives it.
    """
    rows = ARCHITECTURES_BY_WEIGHTS
    return next(name for weights, name in rows if all(has(weight, name) for weight in weights))


def is_left_out(name: str, architecture: str) -> bool:
    """Return whether the weight `name` belongs to a head that the class `architecture` lacks."""
    return name.startswith(PREFIXES) and not name.startswith(ARCHITECTURES[architecture].prefixes)


def specs_of(encoder: Encoder, architecture: str, num_classes: int = 1) -> dict[str, WeightSpec]:
    """Return {name: WeightSpec} of every weight that a model of the class `architecture` may have:
    the weights of the encoder, of the pretraining heads, and of the class's own heads.
    """
    specs = encoder.weights()
    for name in dict.fromkeys((*PRETRAINING_HEADS, *ARCHITECTURES[architecture].heads)):
        specs = {**specs, **HEADS[name].weights(encoder.config, num_classes)}
    return specs
