"""What training decided of a model's use travels with it: by every format the same labels and
numbers.
"""

import json
import types

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.config import FinetuneConfig, FinetuneSettings, StartConfig
from bert_gpu.finetune.notes import read_notes, write_notes
from bert_gpu.finetune.run import finetune
from bert_gpu.finetune.start import read_trained, with_rows_of
from bert_gpu.finetune.tasks.table import TASKS, TaskSpec
from bert_gpu.inference.config import EmbedConfig
from bert_gpu.inference.embeddings import Embedder
from bert_gpu.interop import models, savedmodel
from bert_gpu.interop.config import ExportConfig
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoders import open_encoder
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from bert_gpu.text.vocabulary.file import SPECIAL_PIECES
from tests import task_heads
from tests.finetune.evaluations import task_of
from tests.interop.test_huggingface import say_in_config

CLASSIFIER = task_of(TASKS["pairs"])
WORDS = [f"{first}{second}" for first in "bdfgk" for second in "aeiou"]
SETTINGS = dict(deadline=None, derandomize=True, max_examples=12)
LENGTH, POSITIONS = 12, 48
SEED = 23  # with which the answers differ, and depend on the length
MEANINGS = dict(
    classification="single_label_classification",
    regression="regression",
    multilabel="multi_label_classification",
)
TYPES = {  # {name: (kind, names of the classes)}
    "two": ("classification", ("no", "yes")),
    "many": ("classification", ("3", "1", "2", "five", "LABEL_0")),
    "several": ("multilabel", ("red", "green", "blue")),
    "one number": ("regression", ("score",)),
    "one sigmoid": ("multilabel", ("spam",)),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in [*SPECIAL_PIECES, *WORDS]))
    return WordPieceTokenizer(str(path))


@pytest.fixture(scope="module")
def texts():
    """100 of one to 60 words; half are longer than LENGTH, some than POSITIONS."""
    generator = np.random.default_rng(1)
    return [" ".join(generator.choice(WORDS, generator.integers(1, 60))) for _ in range(100)]


def model_of(tokenizer, kind, labels, seed=SEED):
    """A Model with a random classifier whose answers differ, and a task.json."""
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=POSITIONS,
        hidden_act="gelu_new",
    )
    generator = np.random.default_rng(seed)
    weights = {
        name: (0.5 * generator.standard_normal(spec.shape)).astype(np.float32)
        for name, spec in task_heads.specs("classifier", open_encoder(config), len(labels)).items()
    }
    weights |= {name: 0 * value for name, value in weights.items() if name.endswith("bias")}
    weights["embeddings/position"] *= 0.1
    notes = Notes([], [], "BertForSequenceClassification", labels, MEANINGS[kind])
    task = task_of(TaskSpec(name="single", kind=kind, text_a="text", text_b=None), labels)
    return Model(config, weights, notes, tokenizer, task=write_notes(task, False, LENGTH))


def scores(model, texts, length):
    """float64 (N, C): the classifier's, of rows framed here by hand."""
    ids = np.zeros((len(texts), length), np.int32)
    for row, text in zip(ids, texts, strict=True):
        pieces = ["[CLS]", *text.split()[: length - 2], "[SEP]"]
        row[: len(pieces)] = [model.tokenizer.vocab.index(piece) for piece in pieces]
    batch = dict(input_ids=ids, input_mask=(ids > 0).astype(np.int32), segment_ids=0 * ids)
    batch = {name: tf.constant(value) for name, value in batch.items()}
    weights = {name: tf.constant(value) for name, value in model.weights.items()}
    logits = CLASSIFIER.logits(weights, batch, open_encoder(model.config), tf.float32)
    return logits.numpy().astype(np.float64)


def answers(kind, labels, logits):
    """(answer of each text, numbers (N, C)), by the definition of each kind."""
    if kind == "regression":
        return [f"{value:.6g}" for value in logits[:, 0]], logits
    if kind == "multilabel":
        shares = 1 / (1 + np.exp(-logits))
        named = [[name for name, x in zip(labels, row, strict=True) if x > 0.5] for row in shares]
        return [",".join(names) for names in named], shares
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return [labels[index] for index in shares.argmax(-1)], shares


def predicted(model_folder, texts, folder, **run):
    """(titles, answers, numbers) of the test_results.tsv of --do_predict."""
    folder.mkdir()
    (folder / "in.tsv").write_text("\n".join(["text", *texts]) + "\n")
    where = dict(test_file=str(folder / "in.tsv"), output_dir=str(folder / "out"))
    start = StartConfig(init_checkpoint=str(model_folder))
    finetune(FinetuneSettings(run=FinetuneConfig(do_predict=True, **where, **run), start=start))
    lines = (folder / "out" / "test_results.tsv").read_text().splitlines()
    titles, *rows = (line.split("\t") for line in lines)
    return titles[2:], [row[1] for row in rows], np.array([row[2:] for row in rows], float)


def copy(source, folder, name):
    """Exports a folder in a format, imports that, and returns the warnings of the export."""
    said, last = [], str(folder)
    there = last if name == "huggingface" else f"{last}-{name}"
    config = ExportConfig(source=str(source), to=there, format=name)
    models.transfer(config, said.append, name)
    if there != last:
        models.transfer(types.SimpleNamespace(**vars(config) | dict(source=there, to=last)), print)
    return said


@pytest.mark.parametrize("name", ["two", "one number", "one sigmoid"])
def test_predictions_follow_the_kind_and_the_length_of_the_training(
    name, tokenizer, texts, tmp_path
):
    kind, labels = TYPES[name]
    model = model_of(tokenizer, kind, labels)
    models.write_own(model, str(tmp_path / "model"))
    titles, found, numbers = predicted(tmp_path / "model", texts, tmp_path / "predicted")
    expected, values = answers(kind, labels, scores(model, texts, LENGTH))
    assert titles == (["value"] if kind == "regression" else [f"probability_{x}" for x in labels])
    np.testing.assert_allclose(numbers, values, rtol=1e-4, atol=1e-5)
    if kind != "regression":
        assert found == expected and len(set(found)) > 1


NAMES = st.one_of(
    st.lists(st.sampled_from(["0", "1", "2", "3", "no", "yes", "LABEL_0", "LABEL_1"]), unique=True),
    st.integers(1, 4).map(lambda count: [str(index) for index in range(count)]),
)


@settings(**SETTINGS)
@given(
    kind=st.sampled_from(list(MEANINGS)),
    labels=NAMES.filter(bool),
    name=st.sampled_from(["huggingface", "google"]),
    says_kind=st.booleans(),
)
def test_a_copy_has_the_same_use_in_every_format(
    tokenizer, tmp_path_factory, kind, labels, name, says_kind
):
    folder = tmp_path_factory.mktemp("copy")
    labels = ("score",) if kind == "regression" else tuple(labels)
    if kind == "classification" and len(labels) < 2:
        return
    model = model_of(tokenizer, kind, labels)
    if not says_kind:  # task.json alone does
        model = model._replace(notes=model.notes._replace(problem_type=None))
    models.write_own(model, str(folder / "model"))
    said = copy(folder / "model", folder / "back", name)
    paths = [str(folder / part) for part in ("model", "back")]
    first, second = (read_trained(StartConfig(), path) for path in paths)
    assert not said and first.labels == second.labels == labels
    for weight, value in first.start.weights.items():
        np.testing.assert_array_equal(second.start.weights[weight], value)
    of_files = [models.read_model(path).notes._replace(missing=[]) for path in paths]
    assert of_files[0] == of_files[1] and of_files[0].problem_type == MEANINGS[kind]
    assert first.notes == second.notes and first.notes.task_kind == kind


@pytest.mark.parametrize("name", ["many", "one number", "one sigmoid"])
def test_a_copy_by_model_garden_answers_the_same(name, tokenizer, texts, tmp_path):
    kind, labels = TYPES[name]
    model = model_of(tokenizer, kind, labels)
    models.write_own(model, str(tmp_path / "model"))
    assert not copy(tmp_path / "model", tmp_path / "back", "garden")
    path, back = models.open_model(str(tmp_path / "back"), "from")
    trained = read_trained(StartConfig(), path)
    notes = trained.notes
    assert (notes.task_kind, trained.labels, notes.max_seq_length) == (kind, labels, LENGTH)
    numbers = scores(model, texts, LENGTH)
    np.testing.assert_array_equal(scores(back, texts, LENGTH), numbers)
    of_copy, _ = answers(kind, trained.labels, scores(back, texts, LENGTH))
    assert of_copy == answers(kind, labels, numbers)[0] and len(set(of_copy)) > 1


@settings(**SETTINGS | dict(max_examples=60))
@given(data=st.data(), names=st.lists(st.text(min_size=1, max_size=3), unique=True, min_size=2))
def test_a_head_of_the_same_names_keeps_their_rows_and_another_starts_anew(tokenizer, data, names):
    labels = tuple(data.draw(st.permutations(names)))
    if data.draw(st.booleans()):
        labels = data.draw(st.sampled_from([labels[1:], (*labels, "more"), ("more", *labels[1:])]))
    generator = np.random.default_rng(len(names))
    kernel, bias = generator.standard_normal((4, len(names))), np.arange(len(names))
    weights = {"classifier/kernel": kernel, "classifier/bias": bias, "pooler/bias": np.ones(2)}
    notes = Notes([], [], "BertForSequenceClassification", tuple(names))
    source = Model(None, weights, notes, task={"task.json": b""})
    found = with_rows_of(task_of(TASKS["pairs"], labels), source)
    assert found["pooler/bias"] is weights["pooler/bias"]
    if set(labels) != set(names):
        assert found.keys() == {"pooler/bias"}
        return
    for index, label in enumerate(labels):
        own = names.index(label)
        assert found["classifier/bias"][index] == own
        np.testing.assert_array_equal(found["classifier/kernel"][:, index], kernel[:, own])


CLASS_NAMES = st.sampled_from(["Bert", "BertGpu", "My", "TFBert", "MegatronBert"]).flatmap(
    lambda start: st.sampled_from(
        [
            *("ForMultipleChoice", "ForNextSentencePrediction", "LMHeadModel", "ForRegression"),
            *("ForSequenceClassification", "ForMultiLabelSequenceClassification", "Classifier"),
        ]
    ).map(lambda end: start + end)
)


@settings(**SETTINGS)
@given(name=CLASS_NAMES)
def test_a_head_of_another_class_is_refused_by_its_name(tokenizer, tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("foreign")
    models.write_own(model_of(tokenizer, *TYPES["one number"]), str(folder))
    say_in_config(architectures=[name])(folder)
    if name == "BertForSequenceClassification":
        assert read_trained(StartConfig(), str(folder)).labels == ("score",)
        return
    with pytest.raises(UserError, match=f"is a {name}, whose head bert-gpu does not have") as error:
        read_trained(StartConfig(), str(folder))
    assert len(str(error.value)) <= 300
    start = models.read_start(str(folder))[1]  # its encoder is a start
    assert "classifier/kernel" not in start.weights and "classifier.weight" in start.notes.unused


@pytest.mark.parametrize(
    "kind, labels, word",
    [
        ("regression", ("x", "y"), "has 2 scores and the problem_type regression; only"),
        ("classification", ("x",), "has 1 scores and the problem_type single_label_cl"),
    ],
)
def test_scores_without_a_meaning_are_refused(kind, labels, word, tokenizer, tmp_path):
    model = model_of(tokenizer, kind, labels)
    models.write_own(model, str(tmp_path / "model"))
    with pytest.raises(UserError, match=word):
        read_trained(StartConfig(), str(tmp_path / "model"))
    with pytest.raises(UserError, match=word):
        savedmodel.write(model, str(tmp_path / "served"))


@pytest.mark.parametrize("asked", [dict(task_kind="classification"), dict(task_name="sts-b")])
def test_a_model_is_not_used_for_another_kind(asked, tokenizer, tmp_path):
    models.write_own(model_of(tokenizer, *TYPES["several"]), str(tmp_path / "model"))
    with pytest.raises(UserError, match="was trained for multilabel"):
        more = {} if "task_kind" in asked else dict(text_a="text", text_b="")
        predicted(tmp_path / "model", ["ba be"], tmp_path / "out", **asked, **more)


SWITCHES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")


def sentence_folder(folder, pooling, kinds=("Transformer", "Pooling"), **files):
    """Makes a model's folder one of sentence-transformers."""
    names = [kind if index else "" for index, kind in enumerate(kinds)]
    modules = [
        dict(idx=i, name=str(i), path=f"{i}_{name}" if name else "", type=f"a.models.{kind}")
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def encoder_folder(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder") / "model"
    notes = Notes([], [], "BertModel", ())
    model = model_of(tokenizer, *TYPES["two"])._replace(notes=notes, task=None)
    models.write_own(model, str(folder))
    return folder


@settings(**SETTINGS)
@given(
    switches=st.dictionaries(st.sampled_from(SWITCHES), st.booleans()),
    mode=st.sampled_from([None, None, "cls", "mean", "max", "weightedmean"]),
    more=st.lists(st.sampled_from(["Normalize", "Dense", "LSTM"]), unique=True),
    length=st.sampled_from([None, 5, 20]),
)
def test_a_pooling_is_taken_over_or_refused_by_its_name_and_so_by_a_copy(
    encoder_folder, tmp_path_factory, switches, mode, more, length
):
    folder = tmp_path_factory.mktemp("sentences")
    for path in encoder_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    pooling = {f"pooling_mode_{name}": is_on for name, is_on in switches.items()}
    pooling |= {} if mode is None else dict(pooling_mode=mode)
    pooling |= dict(word_embedding_dimension=16)
    texts = dict(sentence_bert_config=dict(max_seq_length=length, do_lower_case=False))
    sentence_folder(folder, pooling, ("Transformer", "Pooling", *more), **texts)
    on = [name for name, is_on in (dict(mean_tokens=True) | switches).items() if is_on]
    expected = {("cls_token",): "cls", ("mean_tokens",): "mean"}.get(tuple(on))
    expected = expected if mode is None else dict(cls="cls", mean="mean").get(mode)
    warnings = copy(folder, folder / "copy", "huggingface")
    first, second = (models.read_model(str(part)).notes for part in (folder, folder / "copy"))
    assert first.embedding == second.embedding and first.embedding.pooling == expected
    assert first.max_seq_length == second.max_seq_length == length
    foreign = [name for name in more if name != "Normalize"]
    foreign += [] if expected else [mode] if mode else on
    lacking = first.embedding.lacking
    assert all(name in lacking for name in foreign) and bool(lacking) == (
        expected is None or bool(foreign)
    )
    assert bool(lacking) == any("sentence vectors" in warning for warning in warnings)


@pytest.mark.parametrize("folder", ["1_Pooling", None])
def test_pooling_that_no_file_names_is_not_called_none(encoder_folder, tmp_path, folder):
    """ "none" is a value of --pooling, which the message recommends."""
    for path in encoder_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    modules = [dict(type="Transformer", path="")]
    modules += [dict(type="Pooling", path=folder)] if folder else []
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    place = folder or "modules.json"
    with pytest.raises(UserError, match=f"need pooling of a kind that {place} does not name, "):
        Embedder(EmbedConfig(model=str(tmp_path)))
    Embedder(EmbedConfig(model=str(tmp_path), pooling="mean"))


def test_modules_that_are_none_are_one_line_and_none_is_written_elsewhere(encoder_folder, tmp_path):
    folder = tmp_path / "in" / "sentences"
    folder.mkdir(parents=True)
    for path in encoder_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for content in ("{}", "[1]", '[{"type": 1, "path": ""}]', '[{"type": "x"}]', "no"):
        (folder / "modules.json").write_text(content)
        if content != "{}":
            with pytest.raises(UserError, match="is no list of modules of sentence-transformers"):
                models.read_model(str(folder))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    modules = [dict(type="Transformer", path=""), dict(type="Pooling", path="../../1_Pooling")]
    (folder / "modules.json").write_text(json.dumps(modules))
    copy(folder, tmp_path / "in" / "copy", "huggingface")
    assert models.read_model(str(tmp_path / "in" / "copy")).notes.embedding.pooling == "cls"
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.long
def test_embed_does_what_a_folder_of_sentence_transformers_says(encoder_folder, texts, tmp_path):
    for path in encoder_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    prompts = dict(prompts=dict(query="ba be ", other="x"), default_prompt_name="query")
    sentence_folder(
        tmp_path,
        dict(pooling_mode_cls_token=False, pooling_mode_mean_tokens=True),
        ("Transformer", "Pooling", "Normalize"),
        sentence_bert_config=dict(max_seq_length=9, do_lower_case=True),
        config_sentence_transformers=prompts,
    )
    embedder = Embedder(EmbedConfig(model=str(tmp_path)))
    assert embedder.describe() == "pooling mean, of length 1, prefix 'ba be ', modules.json: mean"
    hidden = Embedder(EmbedConfig(model=str(encoder_folder), pooling="none", max_seq_length=9))
    states, splits = hidden([f"ba be {text}" for text in texts])
    means = np.array([part.mean(0) for part in np.split(states, splits[1:-1])])
    means /= np.linalg.norm(means, axis=-1, keepdims=True)
    np.testing.assert_allclose(embedder(texts), means, rtol=0, atol=1e-5)
    served = savedmodel.Served(models.open_model(str(tmp_path), "model")[1])
    found = served.embed(tf.constant(texts))["embedding"]
    np.testing.assert_allclose(found, means, rtol=0, atol=1e-5)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken"}')
    with pytest.raises(UserError, match="need pooling lasttoken, which bert-gpu does not have"):
        Embedder(EmbedConfig(model=str(tmp_path)))
    asked = Embedder(EmbedConfig(model=str(tmp_path), pooling="mean"))
    np.testing.assert_allclose(np.linalg.norm(asked(texts[:1])) > 1.1, True)


@pytest.fixture(scope="module")
def tokenizer_ops(tokenizer):
    """Made once, because it takes long."""
    return savedmodel.open_ops(tokenizer)


@pytest.mark.long
@pytest.mark.parametrize("name", TYPES)
def test_graphs_give_the_labels_and_numbers_of_the_training(
    name, tokenizer, tokenizer_ops, texts, tmp_path, monkeypatch
):
    """SavedModel and ONNX, written and opened again."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    monkeypatch.setattr(savedmodel, "open_ops", lambda _: tokenizer_ops)
    ids = np.zeros((len(texts), LENGTH), np.int64)
    for row, text in zip(ids, texts, strict=True):
        pieces = tokenizer.tokenize([text])[0][: LENGTH - 2]
        framed = [tokenizer.cls_id, *pieces, tokenizer.sep_id]
        row[: len(framed)] = framed
    feed = dict(input_ids=ids, attention_mask=np.sign(ids), token_type_ids=ids * 0)
    kind, labels = TYPES[name]
    models.write_own(model_of(tokenizer, kind, labels), str(tmp_path / "model"))
    model = models.open_model(str(tmp_path / "model"), "from")[1]
    logits = scores(model, texts, LENGTH)
    expected, values = answers(kind, labels, logits)
    for form in ("savedmodel", "onnx"):
        there, said = str(tmp_path / form), []
        config = ExportConfig(source=str(tmp_path / "model"), to=there, format=form)
        models.transfer(config, said.append, form)
        first, second = (
            read_notes(path, type(CLASSIFIER), model.notes)
            for path in (str(tmp_path / "model"), there)
        )
        assert not said and first == second and first.max_seq_length == LENGTH
    served = tf.saved_model.load(str(tmp_path / "savedmodel")).signatures
    found = served["classify"](text=tf.constant(texts))
    key = "score" if kind == "regression" else "probabilities"
    numbers = found[key].numpy().reshape(len(texts), -1)
    np.testing.assert_allclose(numbers, values, rtol=1e-4, atol=1e-5)
    others = dict(regression=set(), multilabel={"labels"}, classification={"label"})[kind]
    assert set(found) == {key} | others
    if kind == "classification":
        assert [label.decode() for label in found["label"].numpy()] == expected
    if kind == "multilabel":
        assert tuple(label.decode() for label in found["labels"].numpy()) == labels
    folder = tmp_path / "onnx"
    session = onnxruntime.InferenceSession(str(*folder.rglob("*.onnx")))
    (numbers,) = session.run(["logits"], feed)
    np.testing.assert_allclose(numbers, logits, atol=1e-4)
    said = json.loads((folder / "config.json").read_text())
    assert said["problem_type"] == MEANINGS[kind]
    names = tuple(said["id2label"].values())
    assert kind == "regression" or answers(kind, names, numbers)[0] == expected
    said = json.loads((folder / "tokenizer_config.json").read_text())
    assert said["model_max_length"] == LENGTH
