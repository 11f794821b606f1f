"""BERT's relatives in transformers: families of classes, such as RoBERTa's, that compute the same
as bert-gpu's encoder with some of its options set. bert-gpu's models with these options open in
transformers without bert-gpu's code, and bert-gpu opens models of these classes.

A relative consists of its family's names and of the entries of its config.json that stand for
bert-gpu's options. Imports no TensorFlow.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_values, read_json
from bert_gpu.interop.families import BERT, BERT_PARTS, Family, family_of
from bert_gpu.interop.heads import ARCHITECTURES
from bert_gpu.model import config as model_config
from bert_gpu.model import config_json
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.config_json import CONFIG_FIELDS, OWN_TYPE
from bert_gpu.model.weights import TRANSFORMS

SHARED = (  # fields of ModelConfig that a relative's config.json has too
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("max_position_embeddings", "type_vocab_size", "initializer_range", "layer_norm_eps"),
)


class Relative(typing.NamedTuple):
    """A family, and the bert-gpu models that its classes compute.

    Attributes:
      switches: {field of ModelConfig: value} that all models of the family have.
      free: fields of ModelConfig, beyond BERT's, that may have any value and have the same name in
        the family's config.json.
      activations: {hidden_act: its name in the family's config.json}.
      constants: {key of the family's config.json: value} that is written for every
        bert-gpu model, and required of a model that is read.
      is_supported: function of a ModelConfig that returns whether the family computes its other
        fields.
      names: {field of ModelConfig: its key in the family's config.json} where the two differ.
      to_theirs: function of {key: value} that returns the content of config.json: entries that
        stand for several fields in place of entries that are named as fields. to_ours: its inverse,
        a function of (path of the file, content).
      has_token_ids: whether config.json names the ids of the special tokens.
    """

    family: Family
    switches: dict[str, object]
    activations: dict[str, str]
    constants: dict[str, object]
    free: tuple[str, ...] = ()
    is_supported: Callable[[ModelConfig], bool] = lambda config: True
    names: Mapping[str, str] = {}
    to_theirs: Callable[[dict[str, object]], dict[str, object]] = lambda values: values
    to_ours: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda path, values: values
    has_token_ids: bool = False

    @property
    def keys(self) -> dict[str, str]:
        """Return {field of ModelConfig: its key in the family's config.json} of the fields that
        vary between models.
        """
        varying = (name for name in (*SHARED, *self.free) if name not in self.switches)
        return {name: self.names.get(name, name) for name in varying}

    def fits(self, config: ModelConfig, architecture: str) -> bool:
        """Return whether the family computes the same as a model with a ModelConfig and the heads
        of `architecture`. The next-sentence head may be left out where the family has no class with
        it.
        """
        varied = {
            name: getattr(ModelConfig(), name)
            for name in (*self.switches, *self.free, "hidden_act")
        }
        return (
            all(getattr(config, name) == value for name, value in self.switches.items())
            and config.hidden_act in self.activations
            and dataclasses.replace(config, **varied).is_classic
            and self.is_supported(config)
            and self.architecture_for(architecture) is not None
        )

    def architecture_for(self, architecture: str) -> str | None:
        """Return the architecture with the same heads if the family has a class for it, else the
        one without next sentences; None where the family has neither.
        """
        names = (architecture, {"BertForPreTraining": "BertForMaskedLM"}.get(architecture))
        return next((name for name in names if name in self.family.architectures), None)

    def config_bytes(
        self,
        config: ModelConfig,
        architecture: str,
        labels: tuple[str, ...],
        more: dict[str, Any],
    ) -> bytes:
        """Return the bytes of the family's config.json for a ModelConfig that `fits`. more: further
        entries, {key: value}.
        """
        changed = dict(
            hidden_act=self.activations[config.hidden_act],
            max_position_embeddings=config.max_position_embeddings + self.family.unused_positions,
            intermediate_size=config.inner_size,
            num_hidden_groups=config.num_groups,
            embedding_size=config.embedding_width,
        )
        values = {
            key: changed[name] if name in changed else getattr(config, name)
            for name, key in self.keys.items()
        }
        values |= self.constants | more | dict(model_type=self.family.model_type)
        values = self.to_theirs(values)
        return config_json.json_bytes(values, self.family.class_of(architecture), labels)

    def read_config(self, path: str, values: dict[str, Any]) -> ModelConfig:
        """Return the ModelConfig for `values`, the content of the family's config.json at `path`.
        Raise UserError for settings that bert-gpu's encoder does not compute.
        """
        values = self.to_ours(path, values)
        own = {key: (value, "all models here have that") for key, value in self.constants.items()}
        if values.get("position_embedding_type") is not None:
            positions = self.switches.get("position_embedding_type", "absolute")
            own["position_embedding_type"] = (positions, "attention is computed with no other")
        keys = self.keys
        known = {*keys.values(), *IGNORED_KEYS, "model_type", "position_embedding_type"}
        config_json.check_keys(path, values, known, own)
        if lacking := [key for key in keys.values() if key not in values]:
            raise UserError(
                f"has no {lacking[0]}, which {self.family.class_name} needs", where=path
            )
        acts = {theirs: ours for ours, theirs in self.activations.items()}
        act = values[keys["hidden_act"]]
        if str(act) not in acts:
            raise UserError(
                f"{keys['hidden_act']}={act!r:.40} is not supported, only {', '.join(acts)}",
                where=path,
            )
        ours = {name: values[key] for name, key in keys.items()} | self.switches
        with config_json.naming(path):
            shape = ModelConfig(**ours | dict(hidden_act="gelu"))  # checks types and ranges
            return dataclasses.replace(
                shape,
                hidden_act=acts[act],
                intermediate_size=shape.intermediate_size
                * (2 if acts[act] in model_config.GATED else 1),
                max_position_embeddings=shape.max_position_embeddings
                - self.family.unused_positions,
                embedding_size=(
                    None if shape.embedding_size == shape.hidden_size else shape.embedding_size
                ),
                num_hidden_groups=(
                    None if shape.num_groups == shape.num_hidden_layers else shape.num_groups
                ),
            )


# keys of relatives' config.json, beside BERT's keys, that do not change the computation
IGNORED_KEYS = frozenset(
    "classifier_dropout_prob head_dim net_structure_type num_memory_blocks gap_size "
    "down_scale_factor seq_classif_dropout qa_dropout tie_weights_ summary_type summary_use_proj "
    "summary_activation summary_first_dropout summary_last_dropout embedding_dropout "
    "deterministic_flash_attn initializer_cutoff_factor reference_compile sparse_prediction "
    "sparse_pred_ignore_index repad_logits_with_grad pooler_dropout cls_dropout".split()
)
_PLAIN = {name: name for name in ("gelu", "gelu_new", "relu")}


def _parts(prefix: str, changes: dict[str, str]) -> dict[str, str]:
    """Return BERT_PARTS with `prefix` in place of "bert." and with the entries `changes`."""
    return {ours: theirs.replace("bert.", prefix) for ours, theirs in BERT_PARTS.items()} | changes


_MEGATRON = Family(
    "megatron-bert",
    "MegatronBert",
    "bert.",
    _parts(
        "bert.",
        {
            "layer/attention/norm": "bert.encoder.layer.{}.attention.ln",
            "layer/feed_forward/norm": "bert.encoder.layer.{}.ln",
            "final_norm": "bert.encoder.ln",
        },
    ),
)

# RoBERTa's names in the masked-word head, and in the two layers of a classifier of texts
_LM_HEAD = {
    "mlm/transform": "lm_head.dense",
    "mlm/norm": "lm_head.layer_norm",
    "mlm/bias": "lm_head.bias",
}
_TWO_LAYERS = {
    "BertForSequenceClassification": {
        "pooler": "classifier.dense",
        "classifier": "classifier.out_proj",
    }
}
_WITHOUT_NEXT_SENTENCES = tuple(name for name in ARCHITECTURES if name != "BertForPreTraining")
_ROBERTA, _XLM_ROBERTA = (
    Family(
        model_type,
        class_name,
        "roberta.",
        _parts("roberta.", _LM_HEAD),
        "lm_head.decoder",
        _WITHOUT_NEXT_SENTENCES,
        differing=_TWO_LAYERS,
    )
    for model_type, class_name in (("roberta", "Roberta"), ("xlm-roberta", "XLMRoberta"))
)

_DISTIL_LAYER = "distilbert.transformer.layer.{}"
_DISTIL_PARTS = _parts(
    "distilbert.",
    {
        "layer/attention/qkv": " ".join(f"{_DISTIL_LAYER}.attention.{x}_lin" for x in "qkv"),
        "layer/attention/output": f"{_DISTIL_LAYER}.attention.out_lin",
        "layer/attention/norm": f"{_DISTIL_LAYER}.sa_layer_norm",
        "layer/feed_forward/in": f"{_DISTIL_LAYER}.ffn.lin1",
        "layer/feed_forward/output": f"{_DISTIL_LAYER}.ffn.lin2",
        "layer/feed_forward/norm": f"{_DISTIL_LAYER}.output_layer_norm",
        "mlm/transform": "vocab_transform",
        "mlm/norm": "vocab_layer_norm",
        "mlm/bias": "vocab_projector.bias",
    },
)
_DISTILBERT = Family(
    "distilbert",
    "DistilBert",
    "distilbert.",
    {ours: names for ours, names in _DISTIL_PARTS.items() if ours not in ("pooler", "nsp")},
    "vocab_projector",
    _WITHOUT_NEXT_SENTENCES,
    differing={"BertForSequenceClassification": {"pooler": "pre_classifier"}},
)

_ELECTRA_PARTS = _parts(
    "electra.",
    {
        "embeddings/projection": "electra.embeddings_project",
        "mlm/transform": "generator_predictions.dense",
        "mlm/norm": "generator_predictions.LayerNorm",
        "mlm/bias": "generator_lm_head.bias",
    },
)
_ELECTRA = Family(
    "electra",
    "Electra",
    "electra.",
    {ours: names for ours, names in _ELECTRA_PARTS.items() if ours not in ("pooler", "nsp")},
    "generator_lm_head",
    _WITHOUT_NEXT_SENTENCES,
    differing=_TWO_LAYERS,
)

_PRE = "roberta_prelayernorm."
_ROBERTA_PRE_LAYER_NORM = Family(
    "roberta-prelayernorm",
    "RobertaPreLayerNorm",
    _PRE,
    _parts(
        _PRE,
        {
            "layer/attention/norm": f"{_PRE}encoder.layer.{{}}.attention.LayerNorm",
            "layer/feed_forward/norm": f"{_PRE}encoder.layer.{{}}.intermediate.LayerNorm",
            "final_norm": f"{_PRE}LayerNorm",
            **_LM_HEAD,
        },
    ),
    "lm_head.decoder",
    _WITHOUT_NEXT_SENTENCES,
    unused_positions=1,  # the first token has position 1, because padding has 0
    differing=_TWO_LAYERS,
)

_ALBERT_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.0"
_ALBERT = Family(
    "albert",
    "Albert",
    "albert.",
    _parts(
        "albert.",
        {
            "embeddings/projection": "albert.encoder.embedding_hidden_mapping_in",
            "layer/attention/qkv": " ".join(
                f"{_ALBERT_LAYER}.attention.{name}" for name in ("query", "key", "value")
            ),
            "layer/attention/output": f"{_ALBERT_LAYER}.attention.dense",
            "layer/attention/norm": f"{_ALBERT_LAYER}.attention.LayerNorm",
            "layer/feed_forward/in": f"{_ALBERT_LAYER}.ffn",
            "layer/feed_forward/output": f"{_ALBERT_LAYER}.ffn_output",
            "layer/feed_forward/norm": f"{_ALBERT_LAYER}.full_layer_layer_norm",
            "pooler": "albert.pooler",
            "mlm/transform": "predictions.dense",
            "mlm/norm": "predictions.LayerNorm",
            "mlm/bias": "predictions.bias",
            "nsp": "sop_classifier.classifier",
        },
    ),
    "predictions.decoder",
)

_NOMIC_LAYER = "nomic_bert.encoder.layers.{}"
_NOMIC = Family(
    "nomic_bert",
    "NomicBert",
    "nomic_bert.",
    _parts(  # the names in weights files; transformers renames the tensors when it loads them
        "nomic_bert.",
        {
            "embeddings/norm": "nomic_bert.emb_ln",
            "layer/attention/qkv": f"{_NOMIC_LAYER}.attn.Wqkv",
            "layer/attention/output": f"{_NOMIC_LAYER}.attn.out_proj",
            "layer/attention/norm": f"{_NOMIC_LAYER}.norm1",
            "layer/feed_forward/in": f"{_NOMIC_LAYER}.mlp.fc11 {_NOMIC_LAYER}.mlp.fc12",
            "layer/feed_forward/output": f"{_NOMIC_LAYER}.mlp.fc2",
            "layer/feed_forward/norm": f"{_NOMIC_LAYER}.norm2",
            "mlm/norm": "cls.predictions.transform.layer_norm",
        },
    ),
    # NomicBERT has no class for a bare encoder with a pooler, and none for question answering
    architectures=(
        *("BertForMaskedLM", "BertForSequenceClassification", "BertForTokenClassification"),
    ),
    zeros={"cls.predictions.transform.dense.bias": lambda config: (config.hidden_size,)},
)

_MODERN_LAYER = "model.layers.{}"
_MODERN_HEAD = ("head.dense", "head.norm")  # of all tasks
_NO_TRANSFORM = dict.fromkeys(TRANSFORMS["mlm"], "")


def _modern_head(head: str) -> dict[str, str]:
    """Return the entries of `Family.differing` for the class of a task with the head `head`."""
    transform = dict(zip(TRANSFORMS[head], _MODERN_HEAD, strict=True))
    return _NO_TRANSFORM | transform | {head: "classifier"}


_MODERNBERT = Family(
    "modernbert",
    "ModernBert",
    "model.",
    {
        "embeddings/word": "model.embeddings.tok_embeddings.weight",
        "embeddings/norm": "model.embeddings.norm",
        "layer/attention/norm": f"{_MODERN_LAYER}.attn_norm",
        "layer/attention/qkv": f"{_MODERN_LAYER}.attn.Wqkv",
        "layer/attention/output": f"{_MODERN_LAYER}.attn.Wo",
        "layer/feed_forward/norm": f"{_MODERN_LAYER}.mlp_norm",
        "layer/feed_forward/in": f"{_MODERN_LAYER}.mlp.Wi",
        "layer/feed_forward/output": f"{_MODERN_LAYER}.mlp.Wo",
        "final_norm": "model.final_norm",
        **dict(zip(TRANSFORMS["mlm"], _MODERN_HEAD, strict=True)),
        "mlm/bias": "decoder.bias",
        "classifier": "classifier",
    },
    "decoder",
    _WITHOUT_NEXT_SENTENCES,
    differing={
        name: _modern_head(row.own) if row.own else _NO_TRANSFORM
        for name, row in ARCHITECTURES.items()
        if row.own or name == "BertModel"
    },
    gate_first=True,
)
_DEBERTA_LAYER = "deberta.encoder.layer.{}"
_DEBERTA_PARTS = _parts(
    "deberta.",
    {
        "embeddings/relative": "deberta.encoder.rel_embeddings.weight",
        "embeddings/relative/norm": "deberta.encoder.LayerNorm",
        "layer/attention/qkv": " ".join(
            f"{_DEBERTA_LAYER}.attention.self.{name}_proj" for name in ("query", "key", "value")
        ),
    },
)
del _DEBERTA_PARTS["pooler"], _DEBERTA_PARTS["nsp"]
_DEBERTA = Family(
    "deberta-v2",
    "DebertaV2",
    "deberta.",
    _DEBERTA_PARTS,
    architectures=_WITHOUT_NEXT_SENTENCES,
    differing={"BertForSequenceClassification": {"pooler": "pooler.dense"}},
)
# the masked-word head as Microsoft's code names it, with "legacy": false
_OTHER_HEAD = {
    "mlm/transform": "lm_predictions.lm_head.dense",
    "mlm/norm": "lm_predictions.lm_head.LayerNorm",
    "mlm/bias": "lm_predictions.lm_head.bias",
}
_DEBERTA_HEADS = {
    True: _DEBERTA,
    False: _DEBERTA._replace(parts=_DEBERTA_PARTS | _OTHER_HEAD, decoder="lm_predictions.decoder"),
}
_DEBERTA_ATTENTION: dict[str, object] = dict(
    relative_attention=True,
    position_biased_input=False,
    share_att_key=True,
    norm_rel_ebd="layer_norm",
)
_DEBERTA_DEFAULTS: dict[str, Any] = dict(  # transformers', for keys that files may leave out
    hidden_act="gelu",
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    max_position_embeddings=512,
    type_vocab_size=0,
    initializer_range=0.02,
    layer_norm_eps=1e-7,
    max_relative_positions=-1,
    position_buckets=-1,
    pooler_hidden_act="gelu",
    legacy=True,
)


def _to_deberta(values: dict[str, Any]) -> dict[str, Any]:
    farthest = values["max_relative_positions"]
    return values | dict(
        position_buckets=values["position_buckets"] or -1,
        max_relative_positions=-1 if farthest == values["max_position_embeddings"] else farthest,
        pos_att_type=values["pos_att_type"].split("|")[::-1],
        pooler_hidden_size=values["hidden_size"],
    )


def _from_deberta(path: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a DeBERTa's config.json with defaults for those that are left out, and
    in bert-gpu's words. Raise UserError for a width that no field of bert-gpu's stands for.
    """
    for key in _DEBERTA_ATTENTION:
        if key not in values:
            raise UserError(f"has no {key}; transformers' default is not supported", where=path)
    values = _DEBERTA_DEFAULTS | values
    hidden = values.get("hidden_size")
    heads = values.get("num_attention_heads")
    widths = dict(pooler_hidden_size=hidden, embedding_size=hidden)
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        widths["attention_head_size"] = hidden // heads
    for key, width in widths.items():
        if (found := values.pop(key, width)) != width:
            problem = f"{key}={found!r:.40} is not supported, only {width} is"
            raise UserError(problem, where=path)
    terms: Any = values.get("pos_att_type") or ""
    terms = terms if isinstance(terms, list) else str(terms).lower().split("|")
    changed: dict[str, Any] = dict(
        pos_att_type="|".join(sorted({str(term).strip() for term in terms})) or "none"
    )
    for key, default in (
        ("position_buckets", 0),
        ("max_relative_positions", values["max_position_embeddings"]),
    ):
        if isinstance(values[key], int) and values[key] < 1:
            changed[key] = default
    if "layer_norm" in str(values["norm_rel_ebd"]).lower().split("|"):
        changed["norm_rel_ebd"] = "layer_norm"
    return values | changed


# {type of a layer in ModernBERT: (field of its rotary base, its key in older files, default)}
_MODERN_BASES = {
    "full_attention": ("rotary_base", "global_rope_theta", 160000.0),
    "sliding_attention": ("local_rotary_base", "local_rope_theta", 10000.0),
}


def _modern_layers(every: int, num_layers: int) -> list[str]:
    """Return the types of ModernBERT's layers, of which each `every`-th has global attention."""
    return [list(_MODERN_BASES)[index % every > 0] for index in range(num_layers)]


def _to_modern(values: dict[str, Any]) -> dict[str, Any]:
    every = values.pop("global_attention_every")
    bases = {kind: values.pop(field) for kind, (field, *_) in _MODERN_BASES.items()}
    # transformers before 5 reads only these keys and global_attn_every_n_layers
    older = {
        old: bases[kind] or bases["full_attention"] for kind, (_, old, _) in _MODERN_BASES.items()
    }
    return values | dict(
        **older,
        global_attn_every_n_layers=every,
        layer_types=_modern_layers(every, values["num_hidden_layers"]),
        rope_parameters={
            kind: dict(rope_type="default", rope_theta=older[old])
            for kind, (_, old, _) in _MODERN_BASES.items()
        },
        classifier_pooling=values["classifier_pooling"].replace("first", "cls"),
        embedding_dropout=values["mlp_dropout"],
    )


def _from_modern(path: str, values: dict[str, object]) -> dict[str, object]:
    """Return the entries of a ModernBERT's config.json with those of bert-gpu's fields in place of
    layer_types and rope_parameters, or of the keys of older files. Raise UserError where no fields
    stand for them.
    """
    # ModernBERT reads neither of the two that are left out, which published files have
    values = {
        name: value
        for name, value in values.items()
        if name not in ("position_embedding_type", "layer_norm_eps")
    }
    every = values.pop("global_attn_every_n_layers", 3)
    kinds = values.pop("layer_types", None)
    if kinds is not None:
        num_layers = len(kinds) if isinstance(kinds, list) else 0
        candidates = (3, *range(1, num_layers + 1))
        fitting = [n for n in candidates if kinds == _modern_layers(n, num_layers)]
        if not fitting or num_layers != values.get("num_hidden_layers"):
            raise UserError(
                f"layer_types={kinds!r:.60} is not supported, only full_attention in each n-th "
                "layer, from the first on",
                where=path,
            )
        every = fitting[0]
    rope = values.pop("rope_parameters", None) or {}
    scaling = values.pop("rope_scaling", None)
    for kind, (field, old, default) in _MODERN_BASES.items():
        rules = rope.get(kind) or {} if isinstance(rope, dict) else {"rope_type": rope}
        if scaling or rules.get("rope_type", "default") != "default":
            raise UserError(
                f"rope_parameters={scaling or rope!r:.60} is not supported, only default is",
                where=path,
            )
        base = values.pop(old, default)
        values[field] = rules.get("rope_theta", base) or values["rotary_base"]
    return values | dict(global_attention_every=every)


# several relatives may fit a model: the first of them is used
RELATIVES = (
    *(
        Relative(
            family,
            dict(model_family=family.model_type, first_position=2),
            {"gelu": "gelu"},  # RoBERTa's masked-word head always computes gelu
            dict(pad_token_id=1),  # the first token has position pad_token_id + 1
        )
        for family in (_ROBERTA, _XLM_ROBERTA)
    ),
    Relative(
        _DISTILBERT,
        dict(
            model_family="distilbert",
            pooler_act="relu",
            type_vocab_size=0,
            layer_norm_eps=ModelConfig().layer_norm_eps,
        ),
        _PLAIN,
        dict(sinusoidal_pos_embds=False),
        names=dict(
            hidden_size="dim",
            num_hidden_layers="n_layers",
            num_attention_heads="n_heads",
            intermediate_size="hidden_dim",
            hidden_act="activation",
            hidden_dropout_prob="dropout",
            attention_probs_dropout_prob="attention_dropout",
        ),
    ),
    Relative(
        _ELECTRA,
        dict(model_family="electra", pooler_act="gelu"),
        {"gelu": "gelu"},  # the heads for masked words and classes of texts always compute gelu
        {},
        ("embedding_size",),
    ),
    Relative(_MEGATRON, dict(norm_first=True, embedding_norm=False), _PLAIN, {}),
    Relative(
        _ROBERTA_PRE_LAYER_NORM,
        dict(norm_first=True),
        {"gelu": "gelu"},  # the family's masked-word head always computes gelu
        dict(pad_token_id=0),
    ),
    Relative(
        _ALBERT,
        {},
        _PLAIN,
        dict(inner_group_num=1),
        ("embedding_size", "num_hidden_groups"),
        # ALBERT always projects embeddings, bert-gpu only to another size
        lambda config: config.embedding_width != config.hidden_size,
    ),
    Relative(
        _NOMIC,
        dict(position_embedding_type="rotary", use_bias=False),
        dict(geglu="gelu", reglu="relu", swiglu="silu"),
        dict(rope_parameters=dict(rope_theta=10000.0, rope_type="default")),
    ),
    *(
        Relative(
            family,
            dict(position_embedding_type="disentangled", legacy=legacy),
            _PLAIN,
            _DEBERTA_ATTENTION | dict(legacy=legacy),
            (
                *("position_buckets", "max_relative_positions", "pos_att_type", "pooler_act"),
                *("type_vocab_size", "model_family"),
            ),
            names=dict(pooler_act="pooler_hidden_act", model_family="model_type"),
            to_theirs=_to_deberta,
            to_ours=_from_deberta,
        )
        for legacy, family in _DEBERTA_HEADS.items()
    ),
    Relative(
        _MODERNBERT,
        dict(
            model_family="modernbert",
            norm_first=True,
            first_norm=False,
            norm_bias=False,
            head_transform=True,
            use_bias=False,
            type_vocab_size=0,
            position_embedding_type="rotary",
        ),
        dict(geglu="gelu"),
        dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False)
        | dict(classifier_activation="gelu"),
        ("decoder_bias", "pooling", *model_config.ATTENTION),
        names=dict(
            hidden_act="hidden_activation",
            hidden_dropout_prob="mlp_dropout",
            attention_probs_dropout_prob="attention_dropout",
            layer_norm_eps="norm_eps",
            pooling="classifier_pooling",
        ),
        to_theirs=_to_modern,
        to_ours=_from_modern,
        has_token_ids=True,
    ),
)


def relative_of(config: ModelConfig, architecture: str) -> Relative | None:
    """Return the relative that computes the same as a model with a ModelConfig and the heads of
    `architecture`; None for a classic BERT, and where no relative does.
    """
    if config.is_classic:
        return None
    return next((one for one in RELATIVES if one.fits(config, architecture)), None)


def own_relative(config: ModelConfig, architecture: str) -> Relative | None:
    """Return the relative that a model was first read from, if the relative still computes the same
    with the heads of `architecture`; then a training writes the relative's class. None for a model
    that bert-gpu made.
    """
    return None if config.model_family == "bert" else relative_of(config, architecture)


class FolderConfig(typing.NamedTuple):
    """A model's config.json: its Family, its ModelConfig, and all values in the file."""

    family: Family
    config: ModelConfig
    values: dict[str, Any]


def read_shape(path: str) -> FolderConfig:
    """Return the FolderConfig of the config.json at `path`, of a BERT, a bert-gpu model or a
    relative.
    """
    values = read_json(path, config_json.A_CONFIG)
    model_type = values.get("model_type")
    known = dict.fromkeys((BERT.model_type, *(row.family.model_type for row in RELATIVES)))
    if model_type not in (None, OWN_TYPE, *known):
        raise UserError(
            f"model_type={model_type!r:.60} is not supported, only {', '.join(known)} are",
            "name the folder of a BERT or a relative",
            where=path,
        )
    rows = [row for row in RELATIVES if row.family.model_type == model_type]
    # DeBERTa has two rows, which differ in the names of the masked-word head
    named = [row for row in rows if row.constants.get("legacy") == values.get("legacy", True)]
    relative = next(iter(named + rows), None)
    check_values(path, values, config_json.NOTES_FIELDS if relative else CONFIG_FIELDS)
    config = (relative.read_config if relative else config_json.config_of)(path, values)
    family = relative.family if relative else family_of(config)
    return FolderConfig(family, config, values)
