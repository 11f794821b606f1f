"""What a fine-tuning takes over from the model it starts from: all that means the same there, and
nothing that does not.
"""

import dataclasses
import json

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.config import FinetuneConfig, StartConfig
from bert_gpu.finetune.notes import read_notes, write_notes
from bert_gpu.finetune.start import find_trained, is_same_task, start_training
from bert_gpu.finetune.tasks.opening import resolve_spec
from bert_gpu.finetune.tasks.table import GLUE, TASKS, TaskSpec
from bert_gpu.interop import huggingface, models
from bert_gpu.interop.formats import Notes
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.positions import interpolated
from bert_gpu.model.weights import initialize
from bert_gpu.pretrain.config import PretrainConfig, PretrainSettings, resolve_model
from tests import pretraining, task_heads
from tests.finetune.evaluations import task_of
from tests.interop import tensorflow_1
from tests.interop.test_huggingface import say_in_config

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green"]
MODEL = dict(
    vocab_size=len(VOCAB),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=16,
)
LABELS = ("no", "yes")
TASK = task_of(TASKS["pairs"], LABELS)
POOLER, CLASSIFIER = {"pooler/kernel", "pooler/bias"}, {"classifier/kernel", "classifier/bias"}


def save(folder, *, is_classifier, labels=LABELS, **head):
    """A model's folder; returns its weights."""
    model = ModelConfig(**MODEL, **head)
    specs = (
        task_heads.specs("classifier", BertEncoder(model), len(labels))
        if is_classifier
        else pretraining.weights(BertEncoder(model))
    )
    weights = initialize(specs, 7)
    kind = "BertForSequenceClassification" if is_classifier else "BertForPreTraining"
    vocab = {"vocab.txt": "".join(f"{word}\n" for word in VOCAB).encode()}
    huggingface.write_model(
        str(folder), model, weights, kind, labels if is_classifier else (), vocab
    )
    return weights


@pytest.mark.parametrize(
    "stored, asked, fresh",
    [
        (dict(is_classifier=False), dict(), CLASSIFIER),
        (dict(is_classifier=False), dict(pooling="first", pooler_size=16), CLASSIFIER),
        (dict(is_classifier=False), dict(pooling="mean"), POOLER | CLASSIFIER),
        (dict(is_classifier=False), dict(pooler_size=8), POOLER | CLASSIFIER),
        # as noted by pretraining
        (dict(is_classifier=False, pooling="mean", pooler_size=8), dict(), POOLER | CLASSIFIER),
        (
            dict(is_classifier=False, pooling="mean", pooler_size=8),
            dict(pooling="first", pooler_size=16),
            CLASSIFIER,
        ),
        (dict(is_classifier=True), dict(), set()),
        (dict(is_classifier=True, labels=("a", "b")), dict(), CLASSIFIER),
        (dict(is_classifier=True), dict(pooling="mean"), POOLER | CLASSIFIER),
        (dict(is_classifier=True, pooling="mean", pooler_size=8), dict(), set()),
        (
            dict(is_classifier=True, pooling="mean", pooler_size=8, labels=("a", "b")),
            dict(),
            CLASSIFIER,
        ),
        (
            dict(is_classifier=True, pooling="mean", pooler_size=8),
            dict(pooler_size=12),
            POOLER | CLASSIFIER,
        ),
        (
            dict(is_classifier=True, pooling="mean", pooler_size=16),
            dict(pooling="first"),
            POOLER | CLASSIFIER,
        ),
    ],
)
def test_a_head_is_taken_over_where_it_was_trained_alike(tmp_path, stored, asked, fresh):
    saved = save(tmp_path / "model", **stored)
    start = start_training(StartConfig(init_checkpoint=str(tmp_path / "model"), **asked), TASK, 1)
    assert set(start.fresh) == fresh
    assert {name: value.shape for name, value in start.weights.items()} == {
        name: spec.shape
        for name, spec in task_heads.specs("classifier", BertEncoder(start.model), 2).items()
    }
    assert all((start.weights[name] == saved[name]).all() for name in set(start.weights) - fresh)
    wanted = (
        {"pooling": "first", "pooler_size": None}
        | {k: v for k, v in stored.items() if k.startswith("pool")}
        | asked
    )
    assert (start.model.pooling, start.model.pooler_size) == (
        wanted["pooling"],
        wanted["pooler_size"],
    )


OWN = TaskSpec(name="single", text_a="text", text_b=None)
RENAMED = dataclasses.replace(OWN, label="stars")
TO_TRAIN = {**{name: TASKS[name] for name in GLUE}, "own": OWN, "renamed": RENAMED}


@pytest.mark.parametrize("labels", [("0", "1"), ("no", "yes")])
def test_a_classifier_is_taken_for_the_task_that_it_was_trained_for(tmp_path, labels):
    """For every pair of tasks, and for models whose files name a task in transformers' way or none.
    0 and 1 mean the same in one task alone, words in all but two that are known to differ.
    """
    save(tmp_path, is_classifier=True, labels=labels)
    for source in (*TO_TRAIN, "nothing", "finetuning_task"):
        origin = TO_TRAIN.get(source, TASKS["sst-2"])
        (tmp_path / "task.json").unlink(missing_ok=True)
        if source in TO_TRAIN:
            (tmp_path / "task.json").write_bytes(
                write_notes(task_of(origin), False, 8)["task.json"]
            )
        elif source == "finetuning_task":
            say_in_config(finetuning_task="sst2")(tmp_path)
        model = models.read_start(str(tmp_path))[1]
        for to in TO_TRAIN.values():
            is_glue = {origin.name, to.name} <= {*GLUE}
            has_kind = source not in TO_TRAIN or origin.kind == to.kind
            has_words = labels[0] == "no" and (origin.name == to.name or not is_glue)
            is_same = origin == to or has_words or source == "nothing"
            assert is_same_task(model, task_of(to, labels)) == (is_same and has_kind), (
                source,
                to.name,
            )
    for name in ("cola", "sst-2"):  # the log says whose classifier it is
        config = StartConfig(init_checkpoint=str(tmp_path), do_lower_case=True)
        start = start_training(config, task_of(TASKS[name], labels), 3)
        assert {*start.fresh} == (CLASSIFIER if name == "cola" else set())
        assert start.classifier == f"{'fresh, not ' * (name == 'cola')}that of {tmp_path}"


def test_random_weights_get_the_head_asked_for(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCAB))
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    files = dict(
        bert_config_file=str(tmp_path / "config.json"), vocab_file=str(tmp_path / "vocab.txt")
    )
    start = start_training(
        StartConfig(init_checkpoint="none", pooling="mean", pooler_size=8, **files), TASK, 1
    )
    assert (
        start.weights["classifier/kernel"].shape == (8, 2)
        and start.model.pooling == "mean"
        and set(start.fresh) == set(start.weights)
    )


def test_random_weights_are_no_model_to_evaluate(tmp_path):
    save(tmp_path / "run" / "model", is_classifier=True)
    trained = find_trained(StartConfig(init_checkpoint="none"), str(tmp_path / "run"))
    assert trained.start.path == str(tmp_path / "run" / "model") and trained.labels == LABELS
    with pytest.raises(UserError, match="no fine-tuned classifier there"):
        find_trained(StartConfig(init_checkpoint="none"), str(tmp_path / "new"))


def test_a_file_of_googles_agrees_with_the_checkpoint_beside_it(tmp_path):
    """Its gelu is their name of gelu_new; its dropout is taken over. A file of Hugging Face's means
    the exact one.
    """
    tensorflow_1.write(tmp_path)
    file, prefix = tmp_path / "named.json", str(tmp_path / "bert_model.ckpt")
    named = dict(init_checkpoint=prefix, bert_config_file=str(file))
    named |= dict(vocab_file=str(tmp_path / "vocab.txt"))
    file.write_text(json.dumps(tensorflow_1.SETTINGS | dict(hidden_dropout_prob=0.3)))
    start = start_training(StartConfig(**named), TASK, 1)
    assert (start.model.hidden_act, start.model.hidden_dropout_prob) == ("gelu_new", 0.3)
    settings = PretrainSettings(
        run=PretrainConfig(init_checkpoint=prefix, bert_config_file=str(file))
    )
    assert resolve_model(settings, 8, None, "CPU") == start.model
    for more in (dict(model_type="bert"), dict(gelu_form="erf"), dict(hidden_act="relu")):
        file.write_text(json.dumps(tensorflow_1.SETTINGS | more))
        with pytest.raises(UserError, match="hidden_act"):
            start_training(StartConfig(**named), TASK, 1)
        with pytest.raises(UserError, match="hidden_act"):
            resolve_model(settings, 8, None, "CPU")


def test_classes_that_are_called_as_nameless_ones_keep_their_names(tmp_path):
    labels = ("LABEL_0", "LABEL_1")
    save(tmp_path / "theirs", is_classifier=True, labels=labels)
    config = StartConfig(init_checkpoint=str(tmp_path / "theirs"))
    assert find_trained(config, str(tmp_path)).labels == ("0", "1")
    save(tmp_path / "ours", is_classifier=True, labels=labels)
    task = task_of(TASKS["pairs"], labels)
    (tmp_path / "ours" / "task.json").write_bytes(write_notes(task, True, 8)["task.json"])
    config = StartConfig(init_checkpoint=str(tmp_path / "ours"))
    assert find_trained(config, str(tmp_path)).labels == labels
    assert not start_training(config, task, 1).fresh


@pytest.mark.parametrize("columns", [None, ("id", "words", "tags", "inner")])
def test_the_columns_of_a_tagging_are_those_of_its_model(tmp_path, columns):
    task = task_of(FinetuneConfig(task_name="ner", columns=columns))
    (tmp_path / "task.json").write_bytes(write_notes(task, False, 16)["task.json"])
    notes = read_notes(str(tmp_path), type(task), Notes([], [], task.architecture, ()))
    assert resolve_spec(FinetuneConfig(), notes).columns == task.spec.columns
    other = FinetuneConfig(columns=("words", "tags"))
    assert set(resolve_spec(other, notes).columns.values()) == {("words", "tags")}


def test_rows_longer_than_the_model_get_positions_from_the_learned_ones(tmp_path):
    """Memory is estimated for the longer table. Rows that fit change nothing."""
    saved, estimated = save(tmp_path / "model", is_classifier=True), []
    config = StartConfig(init_checkpoint=str(tmp_path / "model"))
    check = lambda model, specs_of: estimated.append(  # noqa: E731
        (model.max_position_embeddings, specs_of(model)["embeddings/position"].shape)
    )
    for length, num_rows in ((None, 16), (8, 16), (16, 16), (20, 20)):
        start = start_training(config, TASK, 1, check, max_seq_length=length)
        assert estimated.pop() == (num_rows, (num_rows, 16)) and not start.fresh
        assert start.model == ModelConfig(**MODEL | dict(max_position_embeddings=num_rows))
        table = start.weights.pop("embeddings/position")
        assert table.tobytes() == interpolated(saved["embeddings/position"], num_rows).tobytes()
        assert start.extensions == (
            ("embeddings/position: 16 rows interpolated to 20",) * (num_rows == 20)
        )
        assert all((value == saved[name]).all() for name, value in start.weights.items())
