"""Bad input to pretraining: one line that says what to do, exit code 2, and nothing touched."""

import json
import os
import shutil

import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.base.files import only_writer
from bert_gpu.train import run
from tests.cli.pretraining import SMALL, lines, pretrain, same, weights


def corrupt(data, folder, how):
    """A copy of the data's training shard with one fault."""
    shard = next(data.glob("x-00000*.tfrecord"))
    content = bytearray(shard.read_bytes())
    if how == "truncated":
        content = content[:-20]
    else:
        content[len(content) // 2] ^= 1
    path = folder / f"{how}.tfrecord"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "flags, complaint",
    [
        (["--num_gpus=4"], "--num_gpus=4: TensorFlow found none here"),
        (["--input_file=nothing/*"], "--input_file=nothing/*"),
        (["--vocab_size=1000"], "--vocab_size=1000"),
        (["--max_position_embeddings=16"], "max_position_embeddings=16"),
        (["--max_seq_length=64"], "--max_seq_length=64"),
        (["--train_batch_size=0"], "--train_batch_size=0: must be at least 1"),
        (["--train_batch_size=8", "--global_batch_size=12"], "--global_batch_size=12"),
        (["--model=huge"], "--model=huge: must be one of"),
        (["--model=tiny", "--bert_config_file=x.json"], "give one of them"),
        (["--bert_config_file=x.json", "--nomodel"], "nomodel"),
        (["--num_attention_heads=3"], "hidden_size"),
        (["--learning_rte=1"], "learning_rte"),
        (["--init_checkpoint=nowhere"], "nowhere"),
        (["--virtual_replicas=0"], "--virtual_replicas=0"),
        (["--xla=perhaps"], "--xla=perhaps"),
    ],
)
def test_bad_input(data, tmp_path, capsys, flags, complaint):
    output = tmp_path / "run"
    assert (
        command(
            [
                "bert-gpu",
                "pretrain",
                f"--input_file={data}/*.tfrecord",
                f"--output_dir={output}",
                *SMALL,
                *flags,
            ]
        )
        == 2
    )
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1 and len(error) <= 301
    assert not output.exists()


@pytest.mark.parametrize("how", ["truncated", "flipped"])
def test_corrupt_records_stop_the_run(data, tmp_path, capsys, how):
    path = corrupt(data, tmp_path, how)
    output = tmp_path / "run"
    flags = [
        f"--input_file={path}",
        f"--vocab_file={data}/vocab.txt",
        f"--output_dir={output}",
        "--num_train_epochs=1",
        *SMALL,
    ]
    assert command(["bert-gpu", "pretrain", *flags]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and "byte" in error and error.count("\n") == 1


def test_a_folder_that_is_no_run_is_left_alone(data, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert pretrain(data, tmp_path) == 2
    assert "is not empty and holds no run" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_data_of_another_vocabulary_is_refused(data, tmp_path, capsys):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    assert pretrain(data, tmp_path / "run", f"--vocab_file={vocab}") == 2
    assert "not the vocabulary" in capsys.readouterr().err


def test_overwrite_touches_runs_only(data, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").write_text("years of work")
    assert pretrain(data, tmp_path, "--overwrite") == 2
    assert "holds no run" in capsys.readouterr().err
    assert (tmp_path / "model" / "mine").read_text() == "years of work"


@pytest.mark.parametrize("output_dir", ["file", "file/run"])
def test_a_file_in_the_way(data, tmp_path, capsys, output_dir):
    (tmp_path / "file").write_text("x")
    for flags in ([], ["--overwrite"]):
        assert pretrain(data, tmp_path / output_dir, *flags) == 2
        assert "is a file, not a folder" in capsys.readouterr().err


def test_two_runs_at_once(data, tmp_path, capsys):
    with only_writer(str(tmp_path / "run"), "run", "output_dir"):
        (tmp_path / "run" / "run.json").write_text("{}")
        assert pretrain(data, tmp_path / "run", "--overwrite") == 2
    assert f"another process ({os.getpid()})" in capsys.readouterr().err


def test_a_run_is_reserved_before_it_is_read(data, tmp_path, capsys):
    """What another process is writing is not complained about."""
    with only_writer(str(tmp_path / "run"), "run", "output_dir"):
        (tmp_path / "run" / "run.json").write_text("half writ")
        assert pretrain(data, tmp_path / "run") == 2
    assert f"another process ({os.getpid()})" in capsys.readouterr().err


BEGUN = json.dumps(dict(settings={}, global_batch_size=8, learning_rate=0.1))


@pytest.mark.parametrize("content", [BEGUN, "{}"])
def test_a_run_that_another_process_has_begun_meanwhile_stays(
    data, tmp_path, capsys, monkeypatch, content
):
    """Between the look at a new folder and its lock, another process writes a run there."""
    output, plan_run = tmp_path / "run", run.plan_run

    def meanwhile(*arguments):
        output.mkdir()
        (output / "run.json").write_text(content)
        return plan_run(*arguments)

    monkeypatch.setattr(run, "plan_run", meanwhile)
    assert pretrain(data, output) == 2
    assert str(output) in capsys.readouterr().err
    assert {path.name for path in output.iterdir()} == {"run.json", ".run.lock"}
    assert (output / "run.json").read_text() == content


def test_overwrite_without_a_training_is_refused(data, finished, capsys):
    before = weights(finished)
    assert pretrain(data, finished, "--do_eval", "--overwrite") == 2
    assert "--overwrite: would remove" in capsys.readouterr().err
    assert same(before, weights(finished))


@pytest.mark.parametrize("content", ["[]", "{}", "nonsense"])
def test_a_broken_run_json_is_named(data, tmp_path, capsys, content):
    (tmp_path / "run.json").write_text(content)
    assert pretrain(data, tmp_path) == 2
    error = capsys.readouterr().err
    assert "run.json" in error and "--overwrite" in error and error.count("\n") == 1


def test_broken_metrics_and_progress(data, tmp_path, capsys):
    output = tmp_path / "run"
    assert pretrain(data, output, steps=2) == 0
    metrics = (output / "metrics.jsonl").read_text()
    for garbage, complaint in (
        ("garbage\n", "metrics.jsonl, line 5: not valid JSON"),
        ('{"step": -1}\n', "line 5: step=-1: must be at least 0"),
        ('{"step": 1, "loss": []}\n', "line 5: loss=[]: must be a number or null"),
    ):
        (output / "metrics.jsonl").write_text(metrics + garbage)
        assert pretrain(data, output, steps=3) == 2
        assert complaint in capsys.readouterr().err
    (output / "metrics.jsonl").write_text(metrics + '{"step": 2, "lo')  # killed
    assert pretrain(data, output, steps=3) == 0
    assert [line["step"] for line in lines(output) if "loss" in line] == [1, 2, 3]
    (output / "checkpoints" / "step-00000003" / "progress.json").write_text("{}")
    assert pretrain(data, output, steps=4) == 0
    error = capsys.readouterr().err
    assert "step-00000003/progress.json" in error and "step 2 is taken instead" in error
    assert [line["step"] for line in lines(output) if "loss" in line] == [1, 2, 3, 4]
    assert (output / "checkpoints" / "step-00000003.damaged").is_dir()


def test_what_a_finished_run_may_not_change(data, finished, tmp_path, capsys):
    output = tmp_path / "run"
    shutil.copytree(finished, output)
    for flags, complaint in (
        (["--lr_scaling=none"], "--lr_scaling: linear -> none"),
        (["--seed=1"], "--seed: 12345 -> 1"),
        (["--global_batch_size=16"], "--global_batch_size=16"),
        (["--nodo_train"], "--nodo_train: leaves nothing to do"),
        (["--num_attention_heads=1", "--do_eval"], "--num_attention_heads: 2 -> 1"),
    ):
        assert pretrain(data, output, *flags) == 2
        assert complaint in capsys.readouterr().err
    assert pretrain(data, output, steps=5) == 2
    asked = "has done 12 steps, more than the 5 asked for; raise --num_train_steps, name"
    assert asked in capsys.readouterr().err


def test_other_data_is_noticed(data, finished, tmp_path, sample_text, capsys):
    other = tmp_path / "data"
    flags = [
        f"--input_file={sample_text}",
        f"--output_file={other}/x.tfrecord",
        f"--vocab_file={data}/vocab.txt",
        "--dupe_factor=1",
    ]
    assert (
        command(
            ["bert-gpu", "data", *flags, "--max_seq_length=32", "--masked_lm_prob=0.2", "--quiet"]
        )
        == 0
    )
    assert pretrain(other, finished, steps=20) == 2
    assert "--training_data" in capsys.readouterr().err


def test_ids_beyond_the_vocabulary(data, tmp_path, capsys):
    shard = tmp_path / "x.tfrecord"
    shard.write_bytes(next(data.glob("x-00000*.tfrecord")).read_bytes())
    flags = [f"--input_file={shard}", f"--output_dir={tmp_path}/run", "--num_train_steps=1", *SMALL]
    assert command(["bert-gpu", "pretrain", *flags, "--vocab_size=100"]) == 2
    assert ", not 0 to 99; build the data again" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("script", ["pretrain", "classify"])
@pytest.mark.parametrize("flags", [[], ["--overwrite"]], ids=["", "overwrite"])
def test_the_model_to_start_from_does_not_lie_in_the_output(script, flags, data, finished, capsys):
    """Or --overwrite would remove it."""
    before = sorted(os.listdir(finished))
    for start in (finished, finished / "model"):
        own = [f"--input_file={data}/*.tfrecord"] if script == "pretrain" else []
        given = [f"--init_checkpoint={start}", f"--output_dir={finished}", *own, *flags]
        assert command(["bert-gpu", script, *given]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"--init_checkpoint={start}: ") and "another --output_dir" in error
    assert sorted(os.listdir(finished)) == before


def test_a_run_of_another_script_is_called_one(data, finished, tmp_path, capsys):
    before = sorted(os.listdir(finished))
    flags = [f"--init_checkpoint={data}", f"--output_dir={finished}"]
    assert command(["bert-gpu", "classify", *flags]) == 2
    error = capsys.readouterr().err
    assert f"--output_dir={finished}: holds a run of another script" in error
    assert sorted(os.listdir(finished)) == before
    (tmp_path / "run.json").write_text(json.dumps(json.loads(BEGUN) | dict(free={"data_dir": "x"})))
    assert pretrain(data, tmp_path) == 2
    assert "holds a run of another script (one with --data_dir)" in capsys.readouterr().err
