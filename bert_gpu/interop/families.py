"""What a model is called in Hugging Face's folders: the names of classes, and their tensor for each
of our weights.

A family (BERT, our own, and those in relatives.py) is a table of names. Two differences matter:
torch keeps a linear layer's weight as (out, in), and our query, key and value projections are one
matrix (H, 3H), in this order. Imports no TensorFlow.
"""

import typing

import numpy as np

from bert_gpu.interop.heads import ARCHITECTURES, HEADS
from bert_gpu.model.config import OWN_TYPE

# {end of our names: end of theirs}; norm/ stands before those of a layer norm
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
    """The classes of one architecture in transformers.

    Attributes:
      model_type: in config.json. class_name: how the names of its classes begin. prefix: of the
        encoder's tensors in a class with heads; "" where they have none.
      parts: {stem of our names: stems of theirs, separated by spaces}; {} stands for the layer. A
        whole name stands for a table. None: their names are ours, and so are their layouts.
      decoder: stem of the scores of masked words, whose weight repeats the word embeddings.
      architectures: those of ARCHITECTURES that it has classes for.
      unused_positions: rows of the table of positions before that of the first token.
      zeros: {their name: function of the config -> shape} of tensors that are 0 in our models; in
        classes with a masked-word head.
      differing: {architecture: parts} that only that class calls so.
      leaves: as TORCH_LEAVES. transposed: ends of our names whose weights have their axes reversed.
    """

    def of(self, architecture):
        """The family with the names of one class."""
        changed = self.differing.get(architecture, {})
        return self._replace(parts=self.parts | changed) if changed else self

    model_type: str
    class_name: str
    prefix: str
    parts: dict | None
    decoder: str = "cls.predictions.decoder"
    architectures: tuple = tuple(ARCHITECTURES)
    unused_positions: int = 0
    zeros: dict = {}
    differing: dict = {}
    leaves: dict = TORCH_LEAVES
    transposed: tuple = ("/kernel",)

    def class_of(self, architecture):
        """The name of its class, such as BertForMaskedLM."""
        return architecture.replace("Bert", self.class_name, 1)

    def architecture_of(self, class_name):
        """The key of ARCHITECTURES of a class; None for one that we do not know."""
        found = (name for name in ARCHITECTURES if self.class_of(name) == class_name)
        return next(found, None)

    def names(self, name):
        """Their names of the tensors that make up one of our weights."""
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
        return [f"{part.format(layer)}{end}" for part in self.parts[stem].split()]

    def with_prefix(self, name):
        """A tensor's name in a class with heads, from that in the bare encoder, or itself."""
        if not self.prefix or name.startswith(self.prefix):
            return name
        start = f"{self.prefix}{name.partition('.')[0]}."
        stems = " ".join(self.parts.values()).split()
        inner = any(f"{stem}.".startswith(start) for stem in stems)
        return f"{self.prefix}{name}" if inner else name

    def layer_prefix(self, index):
        """How the names of a layer's tensors begin, with those of the classes with heads."""
        if self.parts is None:
            return f"layer_{index}/"
        start = self.parts["layer/attention/qkv"].partition("{}")[0]
        return f"{start}{index}{self.leaves['bias'][0]}"

    def to_theirs(self, name, array):
        """Our weight -> their tensors, in the order of `names`."""
        if name == "embeddings/position" and self.unused_positions:
            array = np.pad(array, [(self.unused_positions, 0), (0, 0)])
        parts = np.split(array, len(self.names(name)), axis=-1)
        return [np.ascontiguousarray(p.T if self._is_transposed(name) else p) for p in parts]

    def to_ours(self, name, tensors):
        """Their tensors of one weight -> ours."""
        if self._is_transposed(name):
            tensors = [tensor.T for tensor in tensors]
        array = np.concatenate(tensors, axis=-1) if len(tensors) > 1 else tensors[0]
        if name == "embeddings/position":
            array = array[self.unused_positions :]
        return np.ascontiguousarray(array)

    def shape(self, name, shape):
        """Shape of each of their tensors of one weight, from that of ours."""
        shape = (*shape[:-1], shape[-1] // len(self.names(name)))
        if name == "embeddings/position":
            shape = (shape[0] + self.unused_positions, *shape[1:])
        return shape[::-1] if self._is_transposed(name) else shape

    def _is_transposed(self, name):
        return name.endswith(self.transposed)

    def read_weights(self, specs, stored, read, is_expected):
        """Read our weights from tensors under a family's names.

        Args:
          specs: {our name: WeightSpec} of all that there may be. stored: set of their names that
            there are. read: function of (their name, its expected shape) -> array; may raise
            UserError. is_expected: function of our name -> whether a model should have it.

        Returns:
          ({our name: array}, [our names that are expected and lacking]).
        """
        weights, missing = {}, []
        for name, spec in specs.items():
            if stored.issuperset(theirs := self.names(name)):
                shape = self.shape(name, spec.shape)
                weights[name] = self.to_ours(name, [read(their, shape) for their in theirs])
            elif is_expected(name):
                missing.append(name)
        return weights, missing


BERT = Family("bert", "Bert", "bert.", BERT_PARTS)
OWN = Family(OWN_TYPE, "BertGpu", "", None, transposed=())


def family_of(config):
    """The family of our own folders: BERT's for a BERT, else ours."""
    return BERT if config.is_classic else OWN


def auto_class(architecture):
    """The class of transformers that opens a folder of an architecture, such as
    AutoModelForMaskedLM.
    """
    return architecture.replace("Bert", "AutoModel" if "For" in architecture else "Auto", 1)
