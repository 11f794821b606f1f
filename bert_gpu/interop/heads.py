"""The heads that a model may have on its encoder, and the classes of transformers with them. A new
head is a row of HEADS, and a row of ARCHITECTURES where it makes a class. Imports no TensorFlow.
"""

import typing
from collections.abc import Callable, Iterable, Mapping

from bert_gpu.base.environment import LazyModule

heads = LazyModule("bert_gpu.model.heads")


class Head(typing.NamedTuple):
    """A head; the names of its weights begin with its key in HEADS.

    weights: function of (ModelConfig, number of classes) -> {name: WeightSpec}, with those of other
    heads that it computes through.
    parts: {stem of our names: stem of theirs in BERT's classes of transformers}.
    outputs: function of (weights, hidden (B, S, H), mask (B, S), ModelConfig) -> {name in
    transformers: tensor}.
    """

    weights: Callable
    parts: Mapping[str, str]
    outputs: Callable


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
        lambda config, num_classes: heads.token_classifier_weights(config, num_classes),
        {"token_classifier": "classifier"},
        lambda weights, hidden, mask, config: dict(logits=heads.token_logits(weights, hidden)),
    ),
    "span": Head(
        lambda config, _: heads.span_weights(config),
        {"span": "qa_outputs"},
        lambda weights, hidden, mask, config: dict(
            zip(("start_logits", "end_logits"), heads.span_logits(weights, hidden), strict=True)
        ),
    ),
}
OF_PRETRAINING = ("mlm", "nsp", "pooler")


class Architecture(typing.NamedTuple):
    """A class of transformers.

    heads: keys of HEADS. title, task: of its model card, in words and for Hugging Face's index.
    own: the head of its task, None for pretraining. has_labels: whether that has a row for each
    class.
    """

    heads: tuple[str, ...]
    title: str
    task: str
    own: str | None = None
    has_labels: bool = False

    @property
    def prefixes(self) -> tuple[str, ...]:
        """How the names of the weights of its heads begin."""
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
# {class: its head} of those with a row for each class of a task
LABELLED = {name: row.own for name, row in ARCHITECTURES.items() if row.has_labels}
PREFIXES = tuple(f"{head}/" for head in HEADS)
# (weights, the class that they make of a model that has none of those above them). The pooler tells
# classifiers of texts and of tokens apart, whose other names are the same in BERT's classes
SIGNS = (
    (("span/kernel",), "BertForQuestionAnswering"),
    (("classifier/kernel", "pooler/kernel"), "BertForSequenceClassification"),
    (("token_classifier/kernel",), "BertForTokenClassification"),
    (("classifier/kernel",), "BertForSequenceClassification"),
    (("nsp/kernel",), "BertForPreTraining"),
    (("mlm/bias",), "BertForMaskedLM"),
    ((), "BertModel"),
)


def architecture_of(names: Iterable[str]) -> str:
    """The class of transformers with the most of some heads and no others; BertModel, whose pooler
    may be absent, where no other has any.
    """
    fitting = [name for name, row in ARCHITECTURES.items() if set(row.heads) <= set(names)]
    ranks = {name: (len(ARCHITECTURES[name].heads), name != "BertModel") for name in fitting}
    return max(fitting, key=ranks.get, default="BertModel")


def guess_architecture(has: Callable[[str], bool]) -> str:
    """The class of transformers of a model that names none that we know. has: function of our name
    of a weight -> whether the model has it.
    """
    return next(name for weights, name in SIGNS if all(map(has, weights)))


def is_left_out(name: str, architecture: str) -> bool:
    """Whether a weight belongs to a head that an architecture does not have."""
    return name.startswith(PREFIXES) and not name.startswith(ARCHITECTURES[architecture].prefixes)


def specs_of(encoder, architecture: str, num_classes: int = 1) -> dict:
    """{name: WeightSpec} of every weight that a model of an Encoder and an architecture may have:
    the heads of pretraining, and its own.
    """
    specs = encoder.weights()
    for name in dict.fromkeys((*OF_PRETRAINING, *ARCHITECTURES[architecture].heads)):
        specs = {**specs, **HEADS[name].weights(encoder.config, num_classes)}
    return specs
