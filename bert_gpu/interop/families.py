"""Names of classes and tensors in the model folders of Hugging Face's transformers.

A family (BERT, bert-gpu's own, and those in relatives.py) maps bert-gpu's name of each weight to
the names of its tensors in a folder. Layouts differ in two ways: torch stores the weight of a
linear layer as (out, in), bert-gpu as (in, out); and bert-gpu joins the projections to query, key
and value, in this order, to one matrix (H, 3H). Imports no TensorFlow.
"""

import typing
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_gpu.interop.heads import ARCHITECTURES, HEADS
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.config_json import OWN_TYPE
from bert_gpu.model.weights import WeightSpec

# {end of bert-gpu's name of a weight: end of the name in torch}; norm/ marks those of a layer norm
TORCH_LEAVES = {
    "kernel": ".weight",
    "bias": ".bias",
    "norm/scale": ".weight",
    "norm/bias": ".bias",
}


_LAYER = "bert.encoder.layer.{}"
BERT_PARTS = {
    "embeddings/word": "bert.embeddings.word_embeddings.weight",
    "embeddings/position": "bert.embeddings.position_embeddings.weight",
    "embeddings/segment": "bert.embeddings.token_type_embeddings.weight",
    "embeddings/norm": "bert.embeddings.LayerNorm",
    "layer/attention/qkv": " ".join(
        f"{_LAYER}.attention.self.{name}" for name in ("query", "key", "value")
    ),
    "layer/attention/output": f"{_LAYER}.attention.output.dense",
    "layer/attention/norm": f"{_LAYER}.attention.output.LayerNorm",
    "layer/feed_forward/in": f"{_LAYER}.intermediate.dense",
    "layer/feed_forward/output": f"{_LAYER}.output.dense",
    "layer/feed_forward/norm": f"{_LAYER}.output.LayerNorm",
}
for head in HEADS.values():
    BERT_PARTS |= head.parts


class Family(typing.NamedTuple):
    """Names of the classes and tensors of a family of classes in transformers, such as BERT's.

    In this list, "our name" is bert-gpu's name of a weight, "their name" the family's name of a
    tensor. A stem is a name without its end, such as /kernel or .weight.

    Attributes:
      model_type: the value of model_type in config.json.
      class_name: beginning of the names of the classes, such as "Bert".
      prefix: beginning of the names of the encoder's tensors in a class with heads; "" for none.
      parts: {stem of our name: stems of their names, separated by spaces}; {} stands for the
        layer's index. A weight whose stem is no key does not exist in the family. A key that is a
        whole name maps to a whole name. None: the family has our names and layouts.
      decoder: stem of the layer that scores masked words; its weight repeats the word embeddings.
      architectures: the keys of ARCHITECTURES that the family has classes for.
      unused_positions: number of rows in the table of positions before the row of the first token.
      zeros: {their name: function of the ModelConfig that returns the shape} of tensors that
        bert-gpu writes as zeros, in classes with a masked-word head, and has no weights for.
      differing: {architecture: entries that replace those of `parts` in that class only}.
      leaves: {end of our name: end of their name}, as TORCH_LEAVES.
      transposed: ends of our names of the weights whose axes the family stores in reverse order.
      gate_first: whether the gate is the first half of a feed-forward block's inner values, in
        bert-gpu the second.
    """

    def of(self, architecture: str) -> "Family":
        """Return a copy of the family in which `parts` are those of the class for `architecture`
        (see `differing`).
        """
        changed = self.differing.get(architecture, {})
        return self._replace(parts=(self.parts or {}) | changed) if changed else self

    model_type: str
    class_name: str
    prefix: str
    parts: dict[str, str] | None
    decoder: str = "cls.predictions.decoder"
    architectures: tuple[str, ...] = tuple(ARCHITECTURES)
    unused_positions: int = 0
    zeros: Mapping[str, Callable[[ModelConfig], tuple[int, ...]]] = {}
    differing: Mapping[str, dict[str, str]] = {}
    leaves: Mapping[str, str] = TORCH_LEAVES
    transposed: tuple[str, ...] = ("/kernel",)
    gate_first: bool = False

    def class_of(self, architecture: str) -> str:
        """Return the name of the family's class for an architecture, such as BertForMaskedLM."""
        return architecture.replace("Bert", self.class_name, 1)

    def architecture_of(self, class_name: str | None) -> str | None:
        """Return the key of ARCHITECTURES for the name of a class of the family; None for any other
        name, also for a class whose heads differ from BERT's: ElectraForPreTraining finds replaced
        tokens.
        """
        return next(
            (name for name in self.architectures if self.class_of(name) == class_name), None
        )

    def names(self, name: str) -> list[str]:
        """Return the family's names of the tensors that make up a bert-gpu weight; [] where the
        family has no such weight.
        """
        if self.parts is None:
            return [name]
        if name in self.parts:
            return [self.parts[name]]
        stem, leaf = name.rsplit("/", 1)
        first, _, rest = stem.partition("/")
        layer = first.removeprefix("layer_")
        if layer != first:
            stem = f"layer/{rest}"
        end = self.leaves[f"norm/{leaf}" if stem.endswith("norm") else leaf]
        return [f"{part.format(layer)}{end}" for part in self.parts.get(stem, "").split()]

    def with_prefix(self, name: str) -> str:
        """Return the name that a tensor has in a class with heads: `name` with the family's prefix,
        which names in the bare encoder lack.
        """
        if not self.prefix or self.parts is None or name.startswith(self.prefix):
            return name
        start = f"{self.prefix}{name.partition('.')[0]}."
        stems = " ".join(self.parts.values()).split()
        is_encoders = any(f"{stem}.".startswith(start) for stem in stems)
        return f"{self.prefix}{name}" if is_encoders else name

    def layer_prefix(self, index: int) -> str:
        """Return the beginning of the names of the tensors of layer `index`, in classes with
        heads.
        """
        if self.parts is None:
            return f"layer_{index}/"
        start = self.parts["layer/attention/qkv"].partition("{}")[0]
        return f"{start}{index}{self.leaves['bias'][0]}"

    def to_theirs(self, name: str, array: np.ndarray) -> list[np.ndarray]:
        """Return the family's tensors for `array`, the bert-gpu weight `name`: in the family's
        layout, and in the order of `names`.
        """
        if name == "embeddings/position" and self.unused_positions:
            array = np.pad(array, [(self.unused_positions, 0), (0, 0)])
        array = self._swap_gate(name, array)
        parts = np.split(array, len(self.names(name)), axis=-1)
        return [np.ascontiguousarray(p.T if self._is_transposed(name) else p) for p in parts]

    def to_ours(self, name: str, tensors: Sequence[np.ndarray]) -> np.ndarray:
        """Return the bert-gpu weight `name`, made from the family's tensors for it in the order of
        `names`.
        """
        if self._is_transposed(name):
            tensors = [tensor.T for tensor in tensors]
        array = np.concatenate(tensors, axis=-1) if len(tensors) > 1 else tensors[0]
        if name == "embeddings/position":
            array = array[self.unused_positions :]
        return np.ascontiguousarray(self._swap_gate(name, array))

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of each of the family's tensors for the bert-gpu weight `name`, whose
        own shape is `shape`.
        """
        shape = (*shape[:-1], shape[-1] // len(self.names(name)))
        if name == "embeddings/position":
            shape = (shape[0] + self.unused_positions, *shape[1:])
        return shape[::-1] if self._is_transposed(name) else shape

    def _swap_gate(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return a weight in bert-gpu's layout with its halves exchanged if `gate_first` applies to
        it.
        """
        is_swapped = self.gate_first and "/feed_forward/in/" in name
        return np.roll(array, array.shape[-1] // 2, -1) if is_swapped else array

    def _is_transposed(self, name: str) -> bool:
        return name.endswith(self.transposed)

    def read_weights(
        self,
        specs: Mapping[str, WeightSpec],
        their_names: set[str],
        read: Callable[[str, tuple[int, ...]], np.ndarray],
        is_expected: Callable[[str], bool],
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        """Return bert-gpu's weights, read from tensors under the family's names.

        Args:
          specs: {bert-gpu's name: WeightSpec} of all weights that the model may have.
          their_names: names of the tensors in the file.
          read: function of (name of a tensor, expected shape) that returns the tensor; may raise
            UserError.
          is_expected: function of bert-gpu's name of a weight that returns whether the model should
            have it.

        Returns:
          ({name: array} of the weights, [name of each weight that is expected and missing]), both
            with bert-gpu's names.
        """
        weights = {}
        missing = []
        for name, spec in specs.items():
            theirs = self.names(name)
            if theirs and their_names.issuperset(theirs):
                shape = self.shape(name, spec.shape)
                weights[name] = self.to_ours(name, [read(their, shape) for their in theirs])
            elif theirs and is_expected(name):
                missing.append(name)
        return weights, missing


BERT = Family("bert", "Bert", "bert.", BERT_PARTS)
OWN = Family(OWN_TYPE, "BertGpu", "", None, transposed=())


def family_of(config: ModelConfig) -> Family:
    """Return the family under whose names bert-gpu writes its own folders: BERT for a classic BERT,
    else OWN.
    """
    return BERT if config.is_classic else OWN


def auto_class(architecture: str) -> str:
    """Return the Auto class of transformers that opens a folder of an architecture, such as
    AutoModelForMaskedLM for BertForMaskedLM.
    """
    return architecture.replace("Bert", "AutoModel" if "For" in architecture else "Auto", 1)
