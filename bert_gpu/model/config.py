"""The architecture of an encoder as settings, its named sizes, and the config.json files of Google
and Hugging Face.

Field names and defaults are those of Google's bert_config.json (Devlin et al. 2018, BERT base), so
that a file means the same to Google's BERT, to Hugging Face's and here; fields that BERT lacks are
named as in Google's ALBERT or Cramming. A key of a file that needs a computation which our encoder
does not have is an error; a key that is neither ours nor in the lists of known keys gets a warning.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import CHECKSUM, json_checksum, read_json
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
        "BERT), scaled_sinusoidal (sines and cosines times one learnt scale, Cramming) "
        "or rotary (queries and keys turned by an angle that grows with the position, RoFormer).",
        choices=("absolute", "scaled_sinusoidal", "rotary"),
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
        "1,024 tokens and more. Default: each token attends to all.",
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
        choices=("bert", "roberta", "xlm-roberta", "distilbert", "electra", "modernbert"),
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


# Keys of config.json that Hugging Face and others write beside the architecture's. CHECKED_KEYS,
# {key: (accepted value, why other values are refused)}, change what the network computes, so only
# the value that our encoder implements is accepted, or null; IGNORED_KEYS concern serving,
# training, tokenizing or generating, not the weights.
A_CONFIG = "a model's shape, like Google's bert_config.json"
OWN_TYPE = "bert_gpu"  # model_type of models that `transformers` has no class for
CHECKED_KEYS: dict[str, tuple[object, str]] = {
    "is_decoder": (False, "a token of a decoder sees only those before it"),
    "is_encoder_decoder": (False, "the model is an encoder alone"),
    "add_cross_attention": (False, "an encoder reads one sequence"),
    "tie_word_embeddings": (True, "masked words are scored with the word embeddings"),
    "pruned_heads": ({}, "all layers have the same heads"),
    "alibi_starting_size": (None, "MosaicBERT's attention is biased by distance"),
    "feed_forward_type": ("original", "JinaBERT's feed-forward blocks are gated"),
}
IGNORED_KEYS = frozenset(
    (
        # keys that Google's BERT and transformers 2 and 3 write
        """
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type output_past eos_token_ids xla_device use_return_dict
    _num_labels name language cls_token_id mask_token_id
    """
        # keys of PretrainedConfig and BertConfig in transformers 4.57.1, and similar keys
        """
    architectures torch_dtype dtype transformers_version use_cache gradient_checkpointing
    classifier_dropout id2label label2id num_labels problem_type finetuning_task output_attentions
    _output_attentions output_hidden_states return_dict torchscript chunk_size_feed_forward
    attn_implementation _attn_implementation _attn_implementation_autoset
    _attn_implementation_internal attention_implementation _name_or_path name_or_path _commit_hash
    task_specific_params tokenizer_class prefix use_bfloat16 tf_legacy_loss pad_token_id
    bos_token_id eos_token_id sep_token_id decoder_start_token_id cross_attention_hidden_size
    tie_encoder_decoder quantization_config auto_map gelu_form
    """
        # keys of GenerationConfig in transformers 4.57.1, which were once part of PretrainedConfig
        """
    max_length max_new_tokens min_length min_new_tokens early_stopping max_time stop_strings
    do_sample num_beams cache_implementation cache_config return_legacy_cache prefill_chunk_size
    temperature top_k top_p min_p typical_p epsilon_cutoff eta_cutoff repetition_penalty
    encoder_repetition_penalty length_penalty no_repeat_ngram_size bad_words_ids renormalize_logits
    forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty
    suppress_tokens begin_suppress_tokens sequence_bias token_healing guidance_scale
    watermarking_config num_return_sequences output_scores output_logits return_dict_in_generate
    encoder_no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule
    assistant_confidence_threshold prompt_lookup_num_tokens max_matching_ngram_size
    assistant_early_exit assistant_lookbehind target_lookbehind compile_config disable_compile
    low_memory penalty_alpha dola_layers diversity_penalty num_beam_groups constraints
    force_words_ids _from_model_config
    """
    ).split()
)


PROBLEM_TYPES = ("single_label_classification", "regression", "multi_label_classification")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigNotes(Settings):
    """The entries of a config.json that are read beside the fields of ModelConfig.
    position_embedding_type is in both, because it may be null here: transformers writes null when
    it was not set.
    """

    architectures: tuple[str, ...] | None = setting(None, "Classes of transformers.")
    id2label: dict | None = setting(None, "{index: name} of a classifier's classes.")
    problem_type: str | None = setting(
        None, "What its scores mean; None = one of the classes.", choices=PROBLEM_TYPES
    )
    position_embedding_type: str | None = setting(None, "How the model learns word order.")


NOTES_FIELDS = fields_of(ConfigNotes)
CONFIG_FIELDS = fields_of(ConfigNotes, ModelConfig)


def read_config(path: str) -> ModelConfig:
    """Read a bert_config.json of Google's BERT, or a config.json of Hugging Face's BERT or of this
    project, and return its ModelConfig; absent keys get the values of BERT base.

    Raises:
      UserError: the file is not a strict JSON object, has a value of the wrong type or range, or
        describes a model that our encoder cannot compute.
    """
    return config_of(path, read_json(path, A_CONFIG, CONFIG_FIELDS))


def config_of(path: str, values: dict[str, Any]) -> ModelConfig:
    """Return the ModelConfig for the entries of a config.json, {key: value}, whose types and ranges
    have been checked. Raises UserError as `read_config` does. path: the file, for messages.
    """
    fields = fields_of(ModelConfig)
    if values.get("model_type") not in (None, "bert", OWN_TYPE):
        raise UserError(
            f"model_type={values['model_type']!r:.60} is not supported, only 'bert' is",
            "name the folder of a BERT",
            where=path,
        )
    check_keys(path, values, {*fields, "model_type"})
    settings = {key: value for key, value in values.items() if key in fields}
    if settings.get("position_embedding_type", "") is None:
        del settings["position_embedding_type"]  # transformers writes null for not set
    with naming(path):
        config = ModelConfig(**settings)
    if values.get("model_type") == "bert" and not config.is_classic:
        departures = ", ".join(f"{name}={getattr(config, name)!r}" for name in config.departures())
        raise UserError(
            f"model_type='bert' has no {departures}",
            f"remove model_type, or make it '{OWN_TYPE}'",
            where=path,
        )
    return config


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Make a UserError that is raised inside the context name the file `path` instead of flags."""
    try:
        yield
    except UserError as error:
        raise error.within(path) from None


def check_keys(
    path: str,
    values: Mapping[str, object],
    known: Collection[str],
    own: Mapping[str, tuple[object, str]] | None = None,
) -> None:
    """Raise UserError for the first value in a config.json that our encoder does not implement;
    warn, once, of keys that are neither in `known` nor in the lists of this module.

    own: additional checked keys, in the form of CHECKED_KEYS, for which null is not accepted unless
    it is the accepted value.
    """
    checked = {**CHECKED_KEYS, **(own or {})}
    for key, (accepted, reason) in checked.items():
        value = values.get(key, accepted)
        if value != accepted and (value is not None or key not in CHECKED_KEYS):
            problem = f"{key}={value!r:.60} is not supported, only {accepted!r} is"
            raise UserError(f"{problem}, because {reason}", where=path)
    if unknown := sorted({*values} - {*known, *checked} - IGNORED_KEYS):
        console.warn_once(
            f"{path}: unknown keys are ignored, as if they did not change what the model computes: "
            f"{', '.join(unknown)}"
        )


def read_config_of(path: str, model: ModelConfig) -> ModelConfig:
    """Return the ModelConfig of a file, as `read_config` does. The user has named the file beside a
    model, whose own config is `model`.

    Google and TF Model Garden write "gelu" for the activation that is gelu_new here. So gelu in the
    file is read as gelu_new if the model has gelu_new, unless the file says which gelu it means, by
    model_type (as Hugging Face's files) or by gelu_form.
    """
    values = read_json(path, A_CONFIG, CONFIG_FIELDS)
    config = config_of(path, values)
    is_stated = {"model_type", "gelu_form"} & values.keys()
    if is_stated or (config.hidden_act, model.hidden_act) != ("gelu", "gelu_new"):
        return config
    return dataclasses.replace(config, hidden_act=model.hidden_act)


def labels_of(path: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a classifier's classes, in the order of its logits, from "id2label" in
    `values`, the entries of a config.json of Hugging Face's form; () without them. Raises UserError
    for an index that is not an integer or a name that is not valid Unicode.
    """
    labels = values.get("id2label") or {}
    try:
        names = tuple(str(labels[key]) for key in sorted(labels, key=int))
    except (TypeError, ValueError):
        raise UserError("id2label must map class indices to names", where=path) from None
    if any("\ud800" <= character <= "\udfff" for name in names for character in name):
        raise UserError(
            "id2label has a name that is not valid Unicode", "rename the class", where=path
        )
    return names


def config_bytes(
    config: ModelConfig,
    architecture: str,
    labels: Sequence[str] = (),
    more: Mapping[str, object] | None = None,
) -> bytes:
    """Return the content of a config.json from which `read_config` reads the same config;
    `transformers` can open the model if it is a classic BERT.

    Args:
      architecture: class of `transformers` that opens the folder, such as "BertForPreTraining". A
        model that `transformers` has no class for gets our own model_type, so that `transformers`
        refuses it instead of building a BERT with other weights.
      labels: names of the classes, in the order of the logits; transformers derives the width of
        the classifier from them.
      more: further entries, {key: value}, which do not describe the shape of the model.
    """
    fields = config.to_dict()
    if config.is_classic:
        fields = {
            field.name: fields[field.name]
            for field in dataclasses.fields(config)
            if field.metadata["role"] != "departure" or field.metadata["bert_values"]
        }
    name = architecture if config.is_classic else architecture.replace("Bert", "BertGpu", 1)
    return json_bytes(
        {"model_type": "bert" if config.is_classic else OWN_TYPE, **fields, **(more or {})},
        name,
        labels,
    )


def json_bytes(values: Mapping[str, object], class_name: str, labels: Sequence[str]) -> bytes:
    """Return the content of a config.json in Hugging Face's form. values: entries, {key: value}.
    class_name: the class of transformers that opens the model. labels: names of a classifier's
    classes, in the order of its logits; empty for other models.
    """
    content = {
        "architectures": [class_name],
        "pad_token_id": 0,
        "torch_dtype": "float32",
        **values,
    }
    content |= label_entries(labels)
    content[CHECKSUM] = json_checksum(content)
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode("utf-8")


def label_entries(labels: Sequence[str]) -> dict[str, dict[str, object]]:
    """Return the entries of a config.json for names of classes, which `labels_of` reads; {} for no
    names.
    """
    return (
        dict(
            id2label={str(index): label for index, label in enumerate(labels)},
            label2id={label: index for index, label in enumerate(labels)},
        )
        if labels
        else {}
    )
