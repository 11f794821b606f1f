"""The architecture of an encoder as settings, and its named sizes.

Field names and defaults are those of Google's bert_config.json (Devlin et al. 2018, BERT base), so
that a file means the same to Google's BERT, to Hugging Face's and here; fields that BERT lacks are
named as in Google's ALBERT or Cramming.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, fields_of, setting

GATED = ("geglu", "reglu", "swiglu")
ENCODER_PREFIX = "garden:"
# which tokens attend to which, and the angles of positions
ATTENTION = ("rotary_base", "local_attention", "global_attention_every", "local_rotary_base")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeConfig(Settings):
    """The shape and the function of the encoder.

    Every field is a command-line flag; ModelConfig adds fields that are not. Batch size, row length
    and the number of classes of a head are set elsewhere. A field has the role "bert" when BERT has
    the same setting, else "departure"; `is_classic` and the content of config.json follow from the
    roles.
    """

    vocab_size: int = setting(
        30522,
        "Number of entries of the vocabulary; the rows of the word embeddings.",
        low=1,
        role="bert",
    )
    hidden_size: int = setting(
        768,
        "Width H of the vectors that flow through the encoder; a multiple of the number of heads.",
        low=1,
        role="bert",
    )
    num_hidden_layers: int = setting(
        12,
        "Number of transformer layers: one attention and one feed-forward block each.",
        low=1,
        role="bert",
    )
    num_attention_heads: int = setting(
        12, "Number of attention heads N; each sees hidden_size / N dimensions.", low=1, role="bert"
    )
    intermediate_size: int = setting(
        3072,
        "Output width of the feed-forward block's first product, usually "
        "4 x hidden_size. A gated activation halves it: half of 3072 values "
        "gate the other half, and the second product takes 1536.",
        low=1,
        role="bert",
    )
    hidden_act: str = setting(
        "gelu",
        "Activation of the feed-forward block: gelu (exact, with erf), gelu_new (its "
        "tanh approximation) or relu; or a gate: geglu, reglu and swiglu multiply one "
        "half of the values by gelu, relu or silu of the other half (Shazeer 2020).",
        choices=("gelu", "gelu_new", "relu", *GATED),
        role="departure",
        bert_values=("gelu", "gelu_new", "relu"),
    )
    hidden_dropout_prob: float = setting(
        0.1,
        "Share of the hidden values dropped after the "
        "embeddings and after every block while training.",
        low=0.0,
        below=1.0,
        role="bert",
    )
    attention_probs_dropout_prob: float = setting(
        0.1,
        "Share of the attention probabilities dropped while training.",
        low=0.0,
        below=1.0,
        role="bert",
    )
    max_position_embeddings: int = setting(
        512, "Longest sequence, in tokens, that the model can take.", low=1, role="bert"
    )
    type_vocab_size: int = setting(
        2,
        "Number of segment types: with 2 the model can distinguish the "
        "first text of a pair from the second; 0 = no segment embeddings.",
        low=0,
        role="bert",
        bert_values=range(1, sys.maxsize),
    )
    initializer_range: float = setting(
        0.02,
        "Standard deviation of the truncated normal that kernels and embeddings start from.",
        above=0.0,
        role="bert",
    )
    layer_norm_eps: float = setting(
        1e-12,
        "Added to the variance (--norm_type=rms_norm: the mean square) in normalisation, "
        "against division by zero.",
        above=0.0,
        role="bert",
    )
    norm_type: str = setting(
        "layer_norm",
        "layer_norm subtracts the mean, divides by the standard deviation, scales and adds a "
        "bias (BERT); rms_norm divides by the root mean square and scales, which is less "
        "work (Zhang & Sennrich 2019).",
        choices=("layer_norm", "rms_norm"),
        role="departure",
    )
    norm_first: bool = setting(
        False,
        "Normalise the input of each block and the output of the last layer "
        "(pre-LN), instead of the sum after each block (post-LN, BERT). "
        "Pre-LN allows higher learning rates and more layers.",
        role="departure",
    )
    embedding_norm: bool = setting(True, "Normalise the sum of the embeddings.", role="departure")
    position_embedding_type: str = setting(
        "absolute",
        "How the model learns word order: absolute (a learnt vector for each position, "
        "BERT), scaled_sinusoidal (sines and cosines times one learnt scale, Cramming), "
        "rotary (queries and keys turned by an angle that grows with the position, RoFormer) or "
        "disentangled (a learnt vector for each distance, in the attention of all layers, "
        "DeBERTa; slower).",
        choices=("absolute", "scaled_sinusoidal", "rotary", "disentangled"),
        role="departure",
        bert_values=("absolute",),
    )
    rotary_base: float = setting(
        10000.0,
        "Base of the angles of rotary positions: the slowest pair of dimensions takes about 2 pi "
        "x this many positions to turn once. Higher bases suit longer rows (ModernBERT: 160000).",
        above=1.0,
        needs=("position_embedding_type", ("rotary",)),
        role="departure",
    )
    local_attention: int | None = setting(
        None,
        "Width of the window of local attention, in tokens: in local layers, a token attends to "
        "this many // 2 tokens on each side (ModernBERT: 128), which saves work in rows of "
        "1,024 tokens and more, but not with disentangled attention. Default: each token attends "
        "to all.",
        low=2,
        role="departure",
    )
    global_attention_every: int = setting(
        3,
        "Of this many layers the first attends to all tokens, and the others are local "
        "(ModernBERT: 3); 1 = no layer is local.",
        low=1,
        needs=("local_attention", None),
        role="departure",
    )
    local_rotary_base: float | None = setting(
        None,
        "Base of the angles of rotary positions in local layers (ModernBERT: 10000). "
        "Default: rotary_base.",
        above=1.0,
        needs=("local_attention", None),
        role="departure",
    )
    use_bias: bool = setting(
        True,
        "Biases in the dense layers of the encoder and of the masked-word head; "
        "layer normalisation, pooler and classifier keep theirs.",
        role="departure",
    )
    embedding_size: int | None = setting(
        None,
        "Width of the embeddings. When it is smaller than hidden_size, one "
        "product widens them (ALBERT), which saves about vocab_size x "
        "(hidden_size - embedding_size) weights. Default: hidden_size.",
        low=1,
        role="departure",
        none_means="hidden_size",
    )
    num_hidden_groups: int | None = setting(
        None,
        "Number of groups of consecutive layers that share one set of weights (ALBERT: 1). "
        "It saves weights and optimizer state, not time. Default: each layer has its own.",
        low=1,
        role="departure",
        none_means="num_hidden_layers",
    )
    mlm_transform: bool = setting(
        True,
        "A dense layer, activation and normalisation "
        "between the encoder and the scores of masked words.",
        role="departure",
    )
    decoder_bias: bool = setting(
        True,
        "A bias for each word of the vocabulary in the scores of masked words.",
        role="departure",
    )
    pooling: str = setting(
        "first",
        "Input of a classifier's sentence vector: cls or first = the first token, [CLS]; mean = "
        "the mean of all tokens. Pretraining only records it for fine-tuning; "
        "the next-sentence head always reads the first token.",
        choices=("cls", "mean"),
        words=("first",),  # the name in files
        role="departure",
    )
    pooler_size: int | None = setting(
        None,
        "Width of the tanh layer between the pooled tokens and the scores of a classifier; "
        "pretraining only records it for fine-tuning. Default: hidden_size.",
        low=1,
        role="departure",
        none_means="hidden_size",
    )
    encoder: str | None = setting(
        None,
        "Use an encoder of TF Model Garden instead of ours: garden:NAME with NAME bert, "
        "albert, bigbird, fnet, mobilebert and others. The other model flags set its "
        "shape; garden:bigbird,block_size=16 sets fields that only it has.",
        role="departure",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling == "cls":
            object.__setattr__(self, "pooling", "first")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"must be a multiple of --num_attention_heads={self.num_attention_heads}, "
                "so that every head gets the same share",
                setting=("hidden_size", "num_attention_heads"),
                value=self.hidden_size,
            )
        if (
            self.position_embedding_type == "rotary"
            and self.hidden_size // self.num_attention_heads % 2
        ):
            raise UserError(
                "turns pairs of dimensions, so a head must have an even number of "
                f"them, not --hidden_size={self.hidden_size} / "
                f"--num_attention_heads={self.num_attention_heads}",
                setting="position_embedding_type",
                value="rotary",
            )
        if self.position_embedding_type == "scaled_sinusoidal" and self.embedding_width % 2:
            raise UserError(
                f"needs embeddings of even width, not {self.embedding_width}",
                setting="position_embedding_type",
                value="scaled_sinusoidal",
            )
        if self.hidden_act in GATED and self.intermediate_size % 2:
            raise UserError(
                f"must be even, because --hidden_act={self.hidden_act} halves it",
                setting="intermediate_size",
                value=self.intermediate_size,
            )
        if self.num_hidden_layers % self.num_groups:
            raise UserError(
                f"must divide --num_hidden_layers={self.num_hidden_layers}, so that "
                "every group has the same number of layers",
                setting="num_hidden_groups",
                value=self.num_hidden_groups,
            )
        if not self.mlm_transform and self.embedding_width != self.hidden_size:
            raise UserError(
                "needs embeddings as wide as the encoder, not "
                f"--embedding_size={self.embedding_size} with --hidden_size={self.hidden_size}, "
                "because the transform is what makes them fit",
                setting=("mlm_transform", "embedding_size"),
                value=False,
            )
        if self.encoder is not None and not self.encoder.startswith(ENCODER_PREFIX):
            raise UserError(
                f"must be {ENCODER_PREFIX}NAME, such as {ENCODER_PREFIX}albert",
                "or drop it",
                setting="encoder",
                value=self.encoder,
            )

    @property
    def embedding_width(self) -> int:
        """Width E of the embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def num_groups(self) -> int:
        """Number of groups of layers; the layers of a group share one set of weights."""
        return self.num_hidden_groups or self.num_hidden_layers

    @property
    def pooled_size(self) -> int:
        """Width of a classifier's sentence vector."""
        return self.pooler_size or self.hidden_size

    @property
    def inner_size(self) -> int:
        """Input width of the feed-forward block's second product."""
        return self.intermediate_size // 2 if self.hidden_act in GATED else self.intermediate_size

    @property
    def reach(self) -> int | None:
        """Number of tokens on each side to which a token attends in local layers; None without
        them.
        """
        return self.local_attention and self.local_attention // 2

    def is_local(self, index: int) -> bool:
        """Return whether the attention of the layer at `index` is local."""
        return self.reach is not None and index % self.global_attention_every > 0

    @property
    def is_disentangled(self) -> bool:
        """Whether attention is disentangled (disentangled.py)."""
        return self.position_embedding_type == "disentangled"

    @property
    def has_own_encoder(self) -> bool:
        """Whether the encoder is this project's own, not one of TF Model Garden's."""
        return self.encoder is None

    @property
    def is_classic(self) -> bool:
        """Whether the model is a BERT as in Devlin et al. 2018, of any size and dropout rate, so
        that the BERT classes of `transformers` can open it.
        """
        return not self.departures()

    def departures(self) -> list[str]:
        """Return the names of the fields whose values no BERT has."""
        return [field.name for field in dataclasses.fields(self) if not self._is_berts(field)]

    def _is_berts(self, field: dataclasses.Field) -> bool:
        value = getattr(self, field.name)
        rules = field.metadata
        if rules["bert_values"] is not None:
            return value in rules["bert_values"]
        if rules["role"] != "departure" or value == field.default:
            return True
        return rules["none_means"] is not None and value == getattr(self, rules["none_means"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(ShapeConfig):
    """The settings of an encoder: those of ShapeConfig, which are flags, and fields that no flag
    sets, because they are read from the folder of a published model.
    """

    model_family: str = setting(
        "bert",
        "model_type, in transformers, of the model that this one began with; its folder is written "
        "as one of that type.",
        choices=(
            "bert",
            "roberta",
            "xlm-roberta",
            "distilbert",
            "electra",
            "modernbert",
            "deberta-v2",
        ),
        role="departure",
    )
    first_position: int = setting(
        0, "Row of the table of positions that the first token takes.", low=0, role="departure"
    )
    pooler_act: str = setting(
        "tanh",
        "Activation of a classifier's sentence vector.",
        choices=("tanh", "relu", "gelu"),
        role="departure",
    )
    norm_bias: bool = setting(True, "Biases in layer normalisation.", role="departure")
    first_norm: bool = setting(
        True,
        "With norm_first, normalise the input of the first attention block, too.",
        role="departure",
    )
    position_buckets: int = setting(
        256,
        "Disentangled attention: number of rows, in each direction, of the table of distances; "
        "half of them are for one distance each. 0 = one row for each distance.",
        low=0,
        role="departure",
    )
    max_relative_positions: int = setting(
        512, "Distances from this on share the last row of the table.", low=1, role="departure"
    )
    pos_att_type: str = setting(
        "c2p|p2c",
        "Terms of the scores that depend on distances: of content with positions (c2p), of "
        "positions with content (p2c), or both.",
        choices=("c2p|p2c", "c2p", "p2c"),
        role="departure",
    )
    legacy: bool = setting(
        True,
        "Whether a DeBERTa's head of masked words has the names cls.predictions, not "
        "lm_predictions.",
        role="departure",
    )
    head_transform: bool = setting(
        False,
        "Heads of tasks begin with a dense layer, activation and normalisation, as that of masked "
        "words does, in place of the tanh layer of a classifier.",
        role="departure",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_positions < 1:
            raise UserError(
                f"must be above {self.first_position}, because the table of positions begins with "
                f"{self.first_position} unused rows",
                setting="max_position_embeddings",
                value=self.max_position_embeddings,
            )
        if self.head_transform and self.pooled_size != self.hidden_size:
            raise UserError(
                f"the head of this model has the width {self.hidden_size}",
                "drop the flag",
                setting="pooler_size",
                value=self.pooler_size,
            )

    @property
    def num_terms(self) -> int:
        """Number of terms of attention scores that depend on distances."""
        return len(self.pos_att_type.split("|")) if self.is_disentangled else 0

    @property
    def num_distances(self) -> int:
        """Number of rows of the table of distances in each direction."""
        return self.position_buckets or self.max_relative_positions

    @property
    def takes_segments(self) -> bool:
        """Whether a row of the model comes with segment ids. BERT's classes take them also where
        the model has one segment for all tokens, those of its relatives do not.
        """
        return self.type_vocab_size > (self.model_family != "bert")

    @property
    def num_positions(self) -> int:
        """The most tokens that a row may have."""
        return self.max_position_embeddings - self.first_position

    def to_dict(self) -> dict[str, Any]:
        """Return {name: value} of the fields. Fields without a flag, and those of ATTENTION, are
        left out where they have BERT's values, so that files about other models do not change.
        """
        kept = fields_of(ShapeConfig).keys() - ATTENTION
        unset = {
            name
            for name, field in fields_of(ModelConfig).items()
            if name not in kept and getattr(self, name) == field.default
        }
        return {name: value for name, value in super().to_dict().items() if name not in unset}


# Fields that a training may set differently from the model whose weights it starts from: dropout,
# the initializer's range for new weights, the number of positions (positions.py adds rows), which
# tokens attend to which, the angles of positions, and the pooling, which only fine-tuning uses.
NOT_IN_WEIGHTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "max_position_embeddings",
    *ATTENTION,
    "pooling",
    "pooler_size",
)

# The sizes of BERT that Google published (Turc et al. 2019, "Well-Read Students Learn Better";
# Devlin et al. 2018), then the models of two published training recipes.
PRESETS: Mapping[str, Mapping[str, object]] = {
    name: dict(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    for name, layers, hidden, heads in [
        ("tiny", 2, 128, 2),
        ("mini", 4, 256, 4),
        ("small", 4, 512, 8),
        ("medium", 8, 512, 8),
        ("base", 12, 768, 12),
        ("large", 24, 1024, 16),
    ]
} | {
    # The final architecture of Geiping & Goldstein 2023 (cramming/config/arch/crammed-bert.yaml),
    # without dropout, as in their pretraining.
    "crammed": dict(
        num_hidden_layers=16,
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_act="geglu",
        norm_first=True,
        position_embedding_type="scaled_sinusoidal",
        type_vocab_size=0,
        use_bias=False,
        mlm_transform=False,
        decoder_bias=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    # The model of Izsak et al. 2021: BERT large with pre-LN.
    "budget24h": dict(
        num_hidden_layers=24,
        hidden_size=1024,
        num_attention_heads=16,
        intermediate_size=4096,
        norm_first=True,
    ),
}


def preset(name: str, **overrides: Any) -> ModelConfig:
    """Return the ModelConfig of the entry `name` of PRESETS, with the fields in `overrides`
    replaced.
    """
    if name not in PRESETS:
        raise UserError(
            "no such size", f"known are {', '.join(PRESETS)}", setting="model", value=name
        )
    return ModelConfig(**{**PRESETS[name], **overrides})
