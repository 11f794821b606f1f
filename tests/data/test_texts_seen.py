"""dataset.json and a model know the text and which of its documents were held out, so that a run
whose validation documents its model has trained on says so.
"""

import dataclasses
import gzip
import json
import shutil
import types

import pytest

import bert_gpu
from bert_gpu.data.dataset import Dataset
from bert_gpu.interop.sources import SEEN
from bert_gpu.pretrain import start

TRAINING = dict(num_hidden_layers=1, hidden_size=16, intermediate_size=32, num_attention_heads=2)
TRAINING |= dict(model="tiny", train_batch_size=8, num_train_steps=1)
WARNING = "held out, so eval_loss is too good"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two texts, one of them in several forms, and data sets {name: settings} of them."""
    folder = tmp_path_factory.mktemp("texts")
    one, other = (
        "\n".join(f"the {a} {i} saw .\nit was {i * 7} {b} .\n" for i in range(40))
        for a, b in (("cat", "birds"), ("dog", "hares"))
    )
    (folder / "one.txt").write_text(one)
    (folder / "renamed.txt").write_text(one)
    (folder / "other.txt").write_text(other)
    (folder / "one.txt.gz").write_bytes(gzip.compress(one.encode()))
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    bert_gpu.create_pretraining_data(
        input_file=f"{folder}/one.txt,{folder}/other.txt", output_dir=folder / "vocab"
    )
    return folder


def build(folder, name, text="one.txt", **more):
    """Build a data set once; return the hashes of its text and of the documents held out."""
    if (folder / name).exists():
        return json.loads((folder / name / "dataset.json").read_text())["text"].split(":")
    settings = dict(dupe_factor=1, max_seq_length=32, vocab_file=folder / "vocab" / "vocab.txt")
    made = bert_gpu.create_pretraining_data(
        input_file=",".join(str(folder / part) for part in text.split(",")),
        output_dir=folder / name,
        **settings | dict(validation_share=0.1) | more,
    )
    assert json.loads((folder / name / "dataset.json").read_text())["text"] == made.text
    return made.text.split(":")


SAME = dict(
    workers=dict(num_workers=2, num_shards=4),
    renamed=dict(text="renamed.txt"),
    unpacked=dict(text="one.txt.gz"),
    longer=dict(max_seq_length=64, masking="dynamic", objective="packed"),
)
OTHERS = dict(seed=dict(random_seed=1), share=dict(validation_share=0.2))


def test_the_hashes_are_those_of_the_text_and_of_the_documents_held_out(folder):
    text, held_out = build(folder, "data")
    for name, more in SAME.items():
        assert build(folder, name, **more) == [text, held_out], name
    for name, more in OTHERS.items():
        first, second = build(folder, name, **more)
        assert first == text and second != held_out, name
    other = build(folder, "other", "other.txt")
    both = build(folder, "both", "one.txt,other.txt")
    assert len({text, other[0], both[0]}) == 3 and other[1] == held_out != both[1]


def texts_of(folder, data, run_json=None, **settings):
    """(the texts that a run's model has seen, the warnings)."""
    warnings = []
    inputs = bert_gpu.InputConfig(input_file=",".join(str(folder / one) for one in data))
    begin = settings.pop("start", None)
    run = types.SimpleNamespace(
        settings=types.SimpleNamespace(run=types.SimpleNamespace(start=begin and str(begin))),
        run_json=run_json,
        console=types.SimpleNamespace(warn=warnings.append),
    )
    dataset = Dataset(dataclasses.replace(inputs, **settings))
    return start.seen_texts(run, dataset), warnings


@pytest.fixture(scope="module")
def model(folder):
    """The model of a run on the data set "data"."""
    build(folder, "data")
    bert_gpu.run_pretraining(input_file=folder / "data", output_dir=folder / "run", **TRAINING)
    return folder / "run" / "model"


def other_model(folder, model, name, content):
    """A copy of a model with other content in its texts.json."""
    shutil.copytree(model, folder / name)
    (folder / name / SEEN).write_text(content)
    return folder / name


def test_a_run_warns_of_validation_documents_that_its_model_has_trained_on(folder, model):
    [text] = json.loads((model / SEEN).read_text())["texts"]
    build(folder, "seed", **OTHERS["seed"])
    build(folder, "other", "other.txt")
    every = ":".join(build(folder, "none", validation_share=0))
    bert_gpu.export(source=folder / "run", to=folder / "copy", format="huggingface")
    bert_gpu.import_model(source=folder / "copy", to=folder / "back")
    all_seen = other_model(folder, model, "all", json.dumps(dict(texts=[every])))
    for data, begin, warns in (
        ("data", None, False),
        ("data", folder / "run", False),
        ("seed", folder / "run", True),
        ("other", model, False),
        ("seed", folder / "copy", True),
        ("seed", folder / "back", True),
        ("data", all_seen, True),
        ("none", model, False),  # without validation there is no eval_loss
    ):
        texts, warnings = texts_of(folder, [data], start=begin)
        assert [WARNING in one for one in warnings] == [True] * warns, (data, begin)
        assert len(texts) == 1 + (begin is not None and data != "data" or begin == all_seen)
    assert texts_of(folder, ["data", "seed"])[1]  # each trains on what the other holds out
    assert not texts_of(folder, ["data", "other"])[1]
    elsewhere = str(folder / "seed" / "*validation*.tfrecord")
    assert texts_of(folder, ["data"], eval_input_file=elsewhere)[1]
    resumed = dict(hashes=dict(texts=[text]))
    assert texts_of(folder, ["seed"], resumed, start="gone")[1]


@pytest.mark.long
def test_a_second_pretraining_remembers_the_first(folder, model, caplog):
    build(folder, "other", "other.txt")
    build(folder, "seed", **OTHERS["seed"])
    for data, begin, warns in (("other", "run", False), ("seed", "run_other", True)):
        bert_gpu.run_pretraining(
            input_file=folder / data,
            output_dir=folder / f"run_{data}",
            init_checkpoint=folder / begin,
            **TRAINING,
        )
        assert (WARNING in caplog.text) == warns
    texts = json.loads((folder / "run_seed" / "model" / SEEN).read_text())["texts"]
    assert len(texts) == 3 and set(json.loads((model / SEEN).read_text())["texts"]) < set(texts)


def test_what_does_not_name_its_texts_is_taken_silently(folder, model):
    """Records of other tools have no dataset.json."""
    shutil.copytree(folder / "data", folder / "plain")
    (folder / "plain" / "dataset.json").unlink()
    plain = dict(eval_input_file=str(folder / "plain" / "*validation*.tfrecord"))
    assert texts_of(folder, ["data"], start=model, **plain)[1] == []
    nothing = other_model(folder, model, "nothing", "{}")
    assert texts_of(folder, ["data"], start=nothing)[1] == []


def test_a_file_of_texts_that_is_none_is_one_line(folder, model):
    for index, content in enumerate(("5", '{"texts": 5}', '{"texts": [1]}', "", '{"texts"')):
        begin = other_model(folder, model, f"wrong {index}", content)
        with pytest.raises(bert_gpu.UserError, match=SEEN):
            texts_of(folder, ["data"], start=begin)
