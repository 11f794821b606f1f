"""The config: the files of three systems are read strictly, and what is written reads back the
same.
"""

import dataclasses
import json

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import ROLES, setting
from bert_gpu.model.config import PRESETS, ModelConfig, preset
from bert_gpu.model.config_json import config_bytes, labels_of, read_config
from tests.model.variants import SWITCHES, VARIANTS

GOOGLE = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 1024,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
HUGGING_FACE = {
    **GOOGLE,
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "torch_dtype": "float32",
    "dtype": "float32",
    "transformers_version": "5.0.0",
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "use_cache": True,
    "gradient_checkpointing": False,
    "classifier_dropout": None,
    "is_decoder": False,
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "layer_norm_eps": 1e-12,
}


def put(folder, values):
    path = folder / "config.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return str(path)


def test_defaults_are_bert_base_and_presets_have_googles_sizes():
    assert preset("base") == ModelConfig()
    google = [name for name in PRESETS if name not in ("crammed", "budget24h")]
    assert {
        name: (preset(name).num_hidden_layers, preset(name).hidden_size) for name in google
    } == {
        "tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512),
        "base": (12, 768), "large": (24, 1024),
    }  # fmt: skip
    assert all(preset(name).intermediate_size == 4 * preset(name).hidden_size for name in PRESETS)
    assert all(
        preset(name).hidden_size == 64 * preset(name).num_attention_heads for name in PRESETS
    )
    assert all(preset(name).is_classic == (name in google) for name in PRESETS)
    assert preset("tiny", vocab_size=99, hidden_size=256).hidden_size == 256


def test_unknown_preset_names_the_known_ones():
    with pytest.raises(UserError, match="tiny, mini, small, medium, base, large"):
        preset("huge")


@pytest.mark.parametrize("values", [GOOGLE, HUGGING_FACE])
def test_google_and_hugging_face_files_mean_the_same(tmp_path, values):
    assert read_config(put(tmp_path, values)) == preset("mini")


def test_what_is_written_reads_back_the_same(tmp_path):
    config = preset(
        "tiny",
        vocab_size=77,
        hidden_act="gelu_new",
        layer_norm_eps=1e-7,
        hidden_dropout_prob=0.0,
        initializer_range=0.013,
    )
    path = tmp_path / "config.json"
    path.write_bytes(
        config_bytes(
            config, "BertForSequenceClassification", labels=[f"name {index}" for index in range(12)]
        )
    )
    assert read_config(path) == config
    assert labels_of("", json.loads(path.read_text())) == tuple(
        f"name {index}" for index in range(12)
    )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hidden_size": "256"}, "hidden_size=256: must be of type int"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True: must be of type int"),
        ({"hidden_size": 254}, "multiple of --num_attention_heads=4"),
        ({"hidden_act": "swish"}, "gelu, gelu_new, relu"),
        (
            {"activation": "gelu", "model_type": "distilbert"},
            "model_type='distilbert' is not supported, only 'bert' is; name the folder of a BERT",
        ),
        (
            {"position_embedding_type": "relative_key"},
            "relative_key: must be one of absolute, scaled_sinusoidal, rotary",
        ),
        (
            {"position_embedding_type": "rotary"},
            "model_type='bert' has no position_embedding_type='rotary'; remove model_type",
        ),
        (
            {"norm_first": True, "hidden_act": "geglu"},
            "model_type='bert' has no hidden_act='geglu', norm_first=True",
        ),
        ({"norm_type": "rms_norm"}, "model_type='bert' has no norm_type='rms_norm'; remove"),
        ({"norm_type": "batch"}, "batch: must be one of layer_norm, rms_norm"),
        ({"type_vocab_size": 0}, "model_type='bert' has no type_vocab_size=0; remove"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_bad_values_name_file_and_key(tmp_path, change, message):
    path = put(tmp_path, {**change, **HUGGING_FACE, **change})
    with pytest.raises(UserError, match=message) as caught:
        read_config(path)
    assert (
        str(caught.value).startswith(path)
        and len(str(caught.value)) <= 300
        and "\n" not in str(caught.value)
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_every_architecture_reads_back_and_only_berts_are_called_so(tmp_path, name):
    path = tmp_path / "config.json"
    path.write_bytes(config_bytes(VARIANTS[name], "BertForPreTraining"))
    assert read_config(str(path)) == VARIANTS[name]
    written = json.loads(path.read_text())
    if VARIANTS[name].is_classic:
        assert (written["model_type"], written["architectures"]) == ("bert", ["BertForPreTraining"])
        assert set(written) == {
            *GOOGLE,
            "layer_norm_eps",
            "architectures",
            "model_type",
            "pad_token_id",
            "crc32c",
            "torch_dtype",
        } | {"position_embedding_type"}
    else:
        assert (written["model_type"], written["architectures"]) == (
            "bert_gpu",
            ["BertGpuForPreTraining"],
        )
    assert VARIANTS[name].is_classic == (
        set(SWITCHES[name]) <= {"hidden_act"}
        and VARIANTS[name].hidden_act not in ("geglu", "reglu", "swiglu")
    )


def test_switches_said_without_a_model_type_are_taken(tmp_path):
    path = put(tmp_path, {**GOOGLE, "norm_first": True, "embedding_size": 128})
    assert read_config(path) == preset("mini", norm_first=True, embedding_size=128)


def test_what_transformers_leaves_open_is_berts(tmp_path):
    assert read_config(put(tmp_path, {**HUGGING_FACE, "position_embedding_type": None})) == preset(
        "mini"
    )
    assert preset("mini", embedding_size=256, num_hidden_groups=4).is_classic


def test_every_field_has_a_role():
    """None stands for a field that BERT has, and no default is a departure."""
    fields = {field.name: field.metadata for field in dataclasses.fields(ModelConfig)}
    assert {
        name: rules["role"] for name, rules in fields.items() if rules["role"] not in ROLES
    } == {}
    assert all(
        fields[rules["none_means"]]["role"] == "bert"
        for rules in fields.values()
        if rules["none_means"]
    )
    assert ModelConfig().departures() == []


@pytest.mark.parametrize("value", [3, True, 0.5, "wide"])
def test_a_new_departure_of_any_type_is_no_bert_and_is_written(value):
    default = type(value)()

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Wider(ModelConfig):
        new_field: type(value) = setting(default, "Something new.", role="departure")

    plain, wider = Wider(), Wider(new_field=value)
    assert plain.is_classic and config_bytes(plain, "BertModel") == config_bytes(
        ModelConfig(), "BertModel"
    )
    assert wider.departures() == ["new_field"] and not wider.is_classic
    written = json.loads(config_bytes(wider, "BertModel"))
    assert (
        written["new_field"] == value
        and written["model_type"] == "bert_gpu"
        and set(wider.to_dict()) < set(written)
    )


@pytest.mark.parametrize("name", ["embedding_size", "num_hidden_groups", "pooler_size"])
def test_a_size_given_at_its_default_is_berts(name):
    size = getattr(preset("mini"), ModelConfig.__dataclass_fields__[name].metadata["none_means"])
    assert preset("mini", **{name: size}).is_classic and preset(
        "mini", **{name: size // 2}
    ).departures() == [name]


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            dict(hidden_size=36, num_attention_heads=4, position_embedding_type="rotary"),
            "position_embedding_type=rotary.*even",
        ),
        (dict(embedding_size=7, position_embedding_type="scaled_sinusoidal"), "even width, not 7"),
        (dict(intermediate_size=99, hidden_act="swiglu"), "intermediate_size=99: must be even"),
        (dict(num_hidden_groups=3), "num_hidden_groups=3: must divide --num_hidden_layers=4"),
        (dict(num_hidden_groups=8), "num_hidden_groups=8: must divide"),
        (dict(embedding_size=64, mlm_transform=False), "nomlm_transform.*embedding_size=64"),
        (dict(embedding_size=0), "embedding_size=0: must be at least 1"),
    ],
)
def test_inconsistent_settings_are_named(overrides, message):
    with pytest.raises(UserError, match=message) as caught:
        preset("mini", **overrides)
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize(
    "text, message",
    [
        ("{'a': 1}", "not valid JSON"),
        ("[1]", "JSON object"),
        ('{"vocab_size": 3, "vocab_size": 4}', "given twice"),
        ('{"layer_norm_eps": NaN}', "NaN"),
        ("", "not valid JSON"),
    ],
)
def test_only_strict_json_is_read(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_config(put(tmp_path, text))


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="none.json: no such file"):
        read_config(str(tmp_path / "none.json"))
