"""Fine-tuning of sentence vectors, from the files to the metrics and the predictions."""

import io
import json

import numpy as np
import pytest

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.cli import classify, flags
from bert_gpu.finetune.config import FinetuneSettings
from bert_gpu.finetune.files.examples import Source
from bert_gpu.finetune.run import finetune
from bert_gpu.finetune.tasks.table import find_task
from bert_gpu.inference.config import EmbedConfig
from bert_gpu.inference.embeddings import Embedder
from bert_gpu.interop import models
from bert_gpu.interop.formats import Embedding
from bert_gpu.model.config import ModelConfig
from bert_gpu.runs.folder import RunFolder
from tests.finetune.evaluations import configured, task_of

MODEL = ModelConfig(
    vocab_size=45,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=24,
)


def words(count, seed):
    """A text of some words of the vocabulary."""
    return " ".join(f"w{word}" for word in np.random.default_rng(seed).integers(5, 40, count))


def pairs(count, first=0):
    """Pairs whose second text has the words of the first in another order."""
    texts = [words(5 + row % 9, first + row) for row in range(count)]
    return [(text, " ".join(reversed(text.split()))) for text in texts]


def write(path, header, rows):
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [header, *rows]))


@pytest.fixture
def folder(tmp_path):
    """The vocabulary and the shape of a model, and files of all kinds."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{word}" for word in range(5, 40))]
    pieces += ["query", "passage", ":", "!", "?"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "model.json").write_text(json.dumps(MODEL.to_dict()))
    train, dev = pairs(24), pairs(11, 100)
    write(tmp_path / "pairs.tsv", ["text_a", "text_b"], train)
    hard = [(*pair, words(6, 300 + row), words(4, 400 + row)) for row, pair in enumerate(train)]
    hard[3] = (*hard[3][:3], "")
    write(tmp_path / "hard.tsv", ["text_a", "text_b", "negative_1", "negative_2"], hard)
    write(tmp_path / "dev.tsv", ["text_a", "text_b"], dev)
    other = [(one, pair[1]) for (one, _), pair in zip(train, train[1:] + train[:1], strict=True)]
    mixed = [(*(train[row] if row % 3 else other[row]), int(row % 3 > 0)) for row in range(24)]
    write(tmp_path / "labelled.tsv", ["text_a", "text_b", "label"], mixed)
    scored = [(*(train[row] if row % 3 else other[row]), row % 3 * 2.5) for row in range(24)]
    write(tmp_path / "scored.tsv", ["text_a", "text_b", "label"], scored)
    (tmp_path / "raw.txt").write_text("\n\n".join(words(30, row) for row in range(20)) + "\nw5\n")
    return tmp_path


def settings_of(folder, name, train="pairs.tsv", dev="dev.tsv", **more):
    """The settings of a run in folder / name; `more` are fields of any class of settings."""
    kinds = FinetuneSettings.kinds()
    values = dict(
        task_name="similarity",
        train_file=str(folder / train),
        dev_file=str(folder / dev),
        data_dir=None,
        output_dir=str(folder / name),
        max_seq_length=24,
        init_checkpoint="none",
        bert_config_file=str(folder / "model.json"),
        vocab_file=str(folder / "vocab.txt"),
        num_gpus=0,
        train_batch_size=8,
        lr_scaling="none",
        num_train_steps=4,
        log_steps=2,
        learning_rate=1e-3,
    )
    values |= more
    return FinetuneSettings(
        **{
            name: kind(**{key: values[key] for key in values if key in kind.__dataclass_fields__})
            for name, kind in kinds.items()
        }
    )


def run(folder, name, *args, **more):
    """(Result, what was said) of a call; one space stands for several."""
    stream = io.StringIO()
    result = finetune(settings_of(folder, name, *args, **more), Console(stream=stream))
    return result, " ".join(stream.getvalue().split())


USED = dict(train_file=None, init_checkpoint=None, bert_config_file=None, vocab_file=None,
    max_seq_length=None)  # fmt: skip


def predictions(folder):
    """The cosines in predictions.tsv."""
    lines = (folder / "predictions.tsv").read_text().splitlines()
    assert lines[0].endswith("\tprediction")
    return [float(line.rpartition("\t")[2]) for line in lines[1:]]


def test_pairs_and_hard_negatives_train_a_sentence_model(folder):
    """Its predictions are the cosines of the vectors that the exported model makes."""
    more = dict(query_prefix="query: ", passage_prefix="passage: ", pooling="first")
    result, text = run(
        folder, "run", "hard.tsv", "labelled.tsv", **more,
        num_train_steps=2, test_file=str(folder / "labelled.tsv"))  # fmt: skip
    for line in (
        "24 positive pairs, hard negatives in 2 columns",
        "24 labelled pairs, 16 of them positive",
        "pooling: cls",
        "temperature: 0.05",
        "global batch 8 examples of up to 4 sequences",
    ):
        assert line in text
    assert set(result.metrics["dev"]) == {"accuracy", "threshold"}
    assert result.metrics["test"] == result.metrics["dev"]
    model = str(folder / "run" / "model")
    read = models.read_model(model)
    assert read.notes.embedding == Embedding("cls", True, "passage: ", "query: ", "passage: ")
    assert not {name for name in read.weights if name.startswith("pooler")}
    columns = [line.split("\t")[:2] for line in (folder / "labelled.tsv").read_text().split("\n")]
    first, second = zip(*columns[1:25], strict=True)
    embedder = Embedder(EmbedConfig(model=model))
    cosines = np.sum(embedder(first, "query") * embedder(second, "passage"), -1)
    np.testing.assert_allclose(predictions(folder / "run"), cosines, atol=2e-5)


@pytest.mark.long
def test_an_evaluation_finds_everything_again(folder):
    more = dict(max_score=5.0, query_prefix="query: ", best_metric="spearman", export_best=True)
    scored = dict(train="scored.tsv", dev="scored.tsv")
    result, _ = run(folder, "run", **scored, **more)
    assert set(result.metrics["dev"]) == {"spearman", "pearson", "loss"}
    again, text = run(folder, "run", dev="scored.tsv", do_eval=True, **USED)
    assert again.metrics["dev"] == pytest.approx(result.metrics["dev"])
    assert "query prefix: query:" in text and "pooling: mean" in text
    other, _ = run(folder, "run", dev="raw.txt", do_eval=True, **USED | dict(text_b=""))
    assert set(other.metrics["dev"]) == {"mrr@10", "recall@1", "recall@10", "ndcg@10"}
    (folder / "run" / "model" / "task.json").rename(folder / "task.json")
    foreign = dict(task_name="similarity", init_checkpoint=str(folder / "run" / "model"))
    other, _ = run(folder, "new", dev="scored.tsv", do_eval=True, **USED | foreign, max_score=5.0)
    assert other.metrics["dev"] == pytest.approx(result.metrics["dev"])
    with pytest.raises(UserError, match="query_prefix"):
        run(folder, "run", **scored, **more | dict(query_prefix="passage: ", num_train_steps=6))


@pytest.mark.long
def test_a_killed_run_with_crops_resumes_to_the_same_bits(folder, monkeypatch):
    class Killed(BaseException):
        pass

    def save_and_die(self, *arguments):
        save(self, *arguments)
        raise Killed

    save = RunFolder.save
    more = dict(train="raw.txt", gradient_accumulation_steps=2, train_batch_size=4,
        padding="uniform", num_train_steps=6)  # fmt: skip
    whole, _ = run(folder, "whole", **more)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "save", save_and_die)
        run(folder, "killed", **more, save_checkpoints_steps=3)
    resumed, text = run(folder, "killed", **more, save_checkpoints_steps=3)
    assert "resuming from step 3 of 6" in text and resumed.metrics == whole.metrics
    first, second = (
        (folder / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "killed")
    )
    assert first == second


@pytest.mark.long
def test_a_training_is_the_same_however_its_batches_are_divided(folder):
    more = dict(train="hard.tsv", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    plain = losses(folder, "plain", **more, padding="fixed")
    divided = losses(folder, "divided", **more, virtual_replicas=2, gradient_accumulation_steps=2,
        train_batch_size=2, steps_per_loop=2)  # fmt: skip
    np.testing.assert_allclose(divided, plain, rtol=1e-5)


def losses(folder, name, **more):
    run(folder, name, **more, do_train=True, do_eval=False)
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.long
def test_a_start_folder_gives_its_case_and_its_default_prefix(folder):
    """Texts in capitals are those in small letters behind the prefix."""
    run(folder, "run", do_train=True, do_eval=False, num_train_steps=1)
    start = models.open_model(str(folder / "run" / "model"), "model")[1]
    for name, rules in (("lower", dict(prefix="query ", lowers=True)), ("plain", {})):
        notes = start.notes._replace(embedding=Embedding("mean", True, **rules))
        models.write_own(start._replace(notes=notes, task=None), str(folder / name))
    rows = pairs(11, 100)
    capitals = [(one.upper(), two.upper()) for one, two in rows]
    write(folder / "capitals.tsv", ["text_a", "text_b"], capitals)
    prefixed = [(f"query {one}", f"query {two}") for one, two in rows]
    write(folder / "prefixed.tsv", ["text_a", "text_b"], prefixed)
    more = dict(task_name="similarity", do_predict=True)
    for name, file in (("lower", "capitals.tsv"), ("plain", "prefixed.tsv")):
        own = dict(init_checkpoint=str(folder / name), test_file=str(folder / file))
        run(folder, f"of {name}", **USED | more | own)
    assert predictions(folder / "of lower") == predictions(folder / "of plain")
    own = dict(bert_config_file=None, vocab_file=None, init_checkpoint=str(folder / "lower"))
    run(folder, "trained", **own, do_train=True, do_eval=False, num_train_steps=1)
    trained = models.read_model(str(folder / "trained" / "model")).notes.embedding
    assert trained == Embedding("mean", True, *["query "] * 3, lowers=True)


def test_a_training_on_scores_has_no_temperature(folder):
    task = task_of(find_task("similarity"))
    plain, settings = (settings_of(folder, "run", temperature=value) for value in (None, 0.1))
    scored, labelled = (
        task.read(Source("train", str(folder / name)), True)
        for name in ("scored.tsv", "labelled.tsv")
    )
    without = configured(task, scored, plain)
    assert without.temperature is None and "temperature" not in without.stored
    for value, own in ((0.05, plain), (0.1, settings)):
        trained = configured(task, labelled, own)
        assert trained.temperature == trained.stored["temperature"] == value
    with pytest.raises(UserError, match="temperature=0.1: applies to pairs without scores"):
        configured(task, scored, settings)


FLAGS = dict(temperature=0.1, query_prefix="query: ", passage_prefix="passage: ", max_score=5.0)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("task", ["pairs", "ner"])
def test_a_flag_of_similarity_is_refused_by_other_tasks(folder, flag, task, capsys):
    call = [f"--task_name={task}", f"--data_dir={folder}", f"--output_dir={folder}/run"]
    assert flags.exit_code(classify.main, ["classify", *call, f"--{flag}={FLAGS[flag]}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{flag}={FLAGS[flag]}: applies to similarity only, not to" in line
    assert not (folder / "run").exists()


def test_two_encoders_are_refused(folder):
    with pytest.raises(UserError, match="two towers are not supported"):
        run(folder, "run", init_checkpoint="one,other")
