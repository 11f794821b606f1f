"""What a model's tokenizer_config.json says travels with the model, and an exported tokenizer makes
the inputs that the exported graph takes.
"""

import json
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.interop import onnx, sources
from bert_gpu.interop.tokenizers import for_training, load_tokenizer, tokenizer_files
from bert_gpu.model.config import ModelConfig
from tests.interop.test_any_tokenizer import FORMS, LINES, put, text_lines
from tests.interop.test_huggingface import needs_oracle, oracle_environment, oracle_python
from tests.interop.test_leaving import DEPARTED, OF_RELATIVES, model_of
from tests.model.variants import SMALL
from tests.test_architecture import ROOT

POSITIONS = 64
TYPES = dict(  # fields of ModelConfig of the model whose tokenizer a row of FORMS is
    roberta=dict(model_family="roberta", first_position=2, type_vocab_size=1),
    modernbert=dict(OF_RELATIVES["ModernBert"].to_dict(), vocab_size=30522),
)
TYPES["xlm-roberta"] = dict(TYPES["roberta"], model_family="xlm-roberta")
SETTINGS = dict(  # {key: values to try}
    truncation_side=["left", "right"],
    padding_side=["left", "right"],
    model_max_length=[8, 33, POSITIONS],
    clean_up_tokenization_spaces=[True, False],
    split_special_tokens=[True, False],
    extra_special_tokens=[[]],
    tokenize_chinese_chars=[True],
    errors=["replace", "strict"],
    trim_offsets=[True, False],
    sp_model_kwargs=[{}],
    pad_to_multiple_of=[None, 8],
    stride=[0, 4],
    truncation_strategy=["longest_first"],
    chat_template=["{{ messages }}"],
    processor_class=["AnyProcessor"],
    my_own_note=["", "of mine", 3],
)
SOME = st.fixed_dictionaries(
    {}, optional={key: st.sampled_from(values) for key, values in SETTINGS.items()}
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """{name of a family: folder of its tokenizer}, also one with a vocab.txt alone."""
    work = tmp_path_factory.mktemp("settings")
    lines = [*LINES, *text_lines(60)]
    found = {name: work / name for name in FORMS}
    for name, folder in found.items():
        put(folder, name, lines)
    found["bert"] = work / "bert"
    found["bert"].mkdir()
    (found["bert"] / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\na\n##t\n")
    (found["bert"] / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    (found["bert"] / "config.json").write_text('{"model_type": "bert"}')
    return found


def with_settings(folder, to, more):
    """A copy of a tokenizer's folder with more settings; returns all of them."""
    to.mkdir(exist_ok=True)
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    values = json.loads((folder / "tokenizer_config.json").read_text()) | more
    (to / "tokenizer_config.json").write_text(json.dumps(values))
    return values


def copied(folder, to, name, by_google):
    """Write the tokenizer of a folder to another, as each format does; by_google: first as beside a
    checkpoint of Google's, which is then read.
    """
    config = ModelConfig(**dict(max_position_embeddings=POSITIONS + 2 * (name in TYPES)))
    config = ModelConfig(**dict(config.to_dict()) | TYPES.get(name, {}))
    config = ModelConfig(
        **config.to_dict() | dict(max_position_embeddings=POSITIONS + config.first_position)
    )
    for step in [None, config] if by_google else [config]:
        files = tokenizer_files(load_tokenizer(str(folder)), step)
        to.mkdir(exist_ok=True)
        for file, content in files.items():
            (to / file).write_bytes(content)
        folder = to
    model_type = dict(model_type=config.model_family or "bert")
    (to / "config.json").write_text(json.dumps(model_type))


@pytest.mark.parametrize("name", [*FORMS, "bert"])
@settings(max_examples=2, deadline=None, derandomize=True)
@given(more=SOME, by_google=st.booleans())
def test_settings_of_a_tokenizer_are_those_of_its_copy(
    folders, name, more, by_google, tmp_path_factory
):
    work = tmp_path_factory.mktemp("one")
    values = with_settings(folders[name], work / "from", more)
    copied(work / "from", work / "to", name, by_google and name == "bert")
    found = json.loads((work / "to" / "tokenizer_config.json").read_text())
    assert found.items() >= {key: values[key] for key in values if key != "tokenizer_class"}.items()
    # a training decides where and at which length texts are cut
    tokenizer = for_training(load_tokenizer(str(work / "to")), sources.tokenizer_notes(work / "to"))
    trained = json.loads(tokenizer_files(tokenizer, ModelConfig())["tokenizer_config.json"])
    assert trained["model_max_length"] == 512 and "truncation_side" not in trained
    kept = values.keys() & {"padding_side", "errors", "my_own_note"}
    assert trained.items() >= {key: values[key] for key in kept}.items()


def test_a_length_above_the_positions_and_rules_that_a_flag_replaces_do_not_travel(
    folders, tmp_path
):
    more = dict(model_max_length=10**30, strip_accents=False, tokenize_chinese_chars=True)
    with_settings(folders["bert"], tmp_path / "from", more)
    for lowers, strips in ((None, False), (True, None)):
        tokenizer = load_tokenizer(str(tmp_path / "from"), None, lowers)
        found = json.loads(tokenizer_files(tokenizer, ModelConfig())["tokenizer_config.json"])
        assert found["model_max_length"] == 512 and found.get("strip_accents") is strips


@needs_oracle
def test_transformers_has_the_same_settings_before_and_after(folders, tmp_path):
    """By its own reader; the inputs are those of the class of the model."""
    draws = np.random.default_rng(2)
    pairs, number = [], 0
    for name in folders:
        for _ in range(8):
            keys = draws.choice([*SETTINGS], 6, replace=False)
            more = {key: SETTINGS[key][draws.integers(len(SETTINGS[key]))] for key in keys}
            number += 1
            source, to = tmp_path / f"{number}-from", tmp_path / f"{number}-to"
            with_settings(folders[name], source, more)
            copied(source, to, name, number % 2 and name == "bert")
            pairs.append((name, str(source), str(to), more))
    script = [oracle_python(), str(ROOT / "tests" / "interop" / "settings_oracle.py")]
    names = [path for _, source, to, _ in pairs for path in (source, to)]
    done = subprocess.run(
        [*script, str(tmp_path / "out.json"), *names],
        env=oracle_environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "out.json").read_text())
    for name, source, to, more in pairs:
        before, after = found[source]["settings"], found[to]["settings"]
        if "model_max_length" not in more:
            before["model_max_length"] = POSITIONS
        assert before.pop("special").items() <= after["special"].items()
        attributes = ("truncation_side", "padding_side", "model_max_length", "split_special_tokens")
        different = {key for key in (*more, *attributes) if after.get(key) != before.get(key)}
        assert not different, (source, different)
        if name in ("roberta", "xlm-roberta", "bert"):
            assert found[source]["inputs"] == found[to]["inputs"]


PUBLISHED = dict(  # whether tokenizers of a family make token_type_ids, by transformers' classes
    Roberta=False, XLMRoberta=False, DistilBert=False, ModernBert=False, Electra=True
)
MODELS = {name: OF_RELATIVES[name] for name in PUBLISHED} | dict(
    Bert=ModelConfig(**SMALL),
    OneSegment=ModelConfig(**SMALL | dict(type_vocab_size=1)),
    NoSegment=ModelConfig(**SMALL | dict(type_vocab_size=0)),
    Departed=DEPARTED,
)
MODELS["XLMRoberta"] = ModelConfig(**MODELS["XLMRoberta"].to_dict() | dict(type_vocab_size=1))


@pytest.mark.parametrize("name", MODELS)
def test_a_tokenizer_makes_what_its_class_takes(folders, name):
    files = tokenizer_files(load_tokenizer(str(folders["bert"])), MODELS[name])
    names = json.loads(files["tokenizer_config.json"])["model_input_names"]
    expected = PUBLISHED.get(name, name in ("Bert", "OneSegment"))
    assert ("token_type_ids" in names) == expected


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_takes_what_its_tokenizer_makes(folders, name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    config = ModelConfig(**MODELS[name].to_dict() | dict(num_hidden_layers=1))
    model = model_of(config, "BertForMaskedLM")
    tokenizer = load_tokenizer(str(folders["bert"]))
    onnx.write(model._replace(tokenizer=tokenizer), str(tmp_path / "out"), None)
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "onnx" / "model.onnx"))
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert {one.name for one in session.get_inputs()} == {*written["model_input_names"]}
    session.run(None, {name: np.ones((2, 3), np.int64) for name in written["model_input_names"]})
