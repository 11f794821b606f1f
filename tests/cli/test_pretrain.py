"""Pretraining as a user calls it: what a run leaves behind, resumes, and bad input."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_gpu.__main__ import main as command
from bert_gpu.files import only_writer
from bert_gpu.train.checkpoint import RunFolder

ROOT = pathlib.Path(__file__).parent.parent.parent
SMALL = ["--model=tiny", "--hidden_size=16", "--intermediate_size=32", "--train_batch_size=8", "--learning_rate=1e-3"]
TIMES = {"seconds", "steps_per_second", "sequences_per_second", "tokens_per_second", "padded_tokens_per_second"}


@pytest.fixture(scope="module")
def data(tmp_path_factory, sample_text):
    folder = tmp_path_factory.mktemp("data")
    flags = [f"--input_file={sample_text}", f"--output_file={folder}/x.tfrecord", "--vocab_size=500", "--dupe_factor=1"]
    assert command(["bert-gpu", "data", *flags, "--max_seq_length=32", "--quiet"]) == 0
    return folder


def pretrain(data, output, *flags, steps=12):
    fixed = [f"--input_file={data}/*.tfrecord", f"--output_dir={output}", f"--num_train_steps={steps}", "--log_steps=1", "--quiet"]
    return command(["bert-gpu", "pretrain", *fixed, *SMALL, *flags])


def weights(output):
    return load_file(output / "model" / "model.safetensors")


def lines(output):
    text = (output / "metrics.jsonl").read_text()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in text.splitlines()]


def same(first, second):
    return all(np.array_equal(first[name], second[name]) for name in first) and first.keys() == second.keys()


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A run of 12 steps that nobody disturbed."""
    output = tmp_path_factory.mktemp("run") / "run"
    assert pretrain(data, output, "--save_checkpoints_steps=5") == 0
    return output


def test_what_a_run_leaves_behind(data, finished):
    assert sorted(os.listdir(finished)) == ["checkpoints", "metrics.jsonl", "model", "run.json", "tensorboard"]
    assert RunFolder(str(finished)).steps() == [5, 10, 12]
    assert {"config.json", "model.safetensors", "vocab.txt"} <= set(os.listdir(finished / "model"))
    assert (finished / "model" / "vocab.txt").read_bytes() == (data / "vocab.txt").read_bytes()
    steps = [line for line in lines(finished) if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 13))
    assert {"mlm", "nsp", "learning_rate", "global_batch_size", "gradient_norm"} <= steps[0].keys()
    evaluations = [line for line in lines(finished) if "eval_loss" in line]
    assert [line["step"] for line in evaluations] == [0, 5, 10, 12]
    assert {"eval_mlm_loss", "eval_mlm_accuracy", "eval_nsp_accuracy"} <= evaluations[0].keys()
    assert "loss" not in evaluations[0]
    events = list((finished / "tensorboard").iterdir())
    assert events and events[0].stat().st_size > 1000


def test_killed_and_resumed_is_never_killed(data, finished, tmp_path):
    """kill -9 after a checkpoint, then the same command: the same bits, the same metrics."""
    output = tmp_path / "run"
    flags = [f"--input_file={data}/*.tfrecord", f"--output_dir={output}", "--num_train_steps=12", "--log_steps=1", *SMALL]
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")
    script = [sys.executable, str(ROOT / "run_pretraining_gpu.py"), *flags, "--save_checkpoints_steps=5"]
    process = subprocess.Popen(script, env=environment, stdout=subprocess.DEVNULL)
    while 5 not in RunFolder(str(output)).steps():
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not (output / "model").exists()
    assert pretrain(data, output, "--save_checkpoints_steps=5") == 0
    assert same(weights(output), weights(finished))
    assert lines(output) == lines(finished)


def test_killed_before_the_first_checkpoint(data, finished, tmp_path):
    output = tmp_path / "run"
    flags = [f"--input_file={data}/*.tfrecord", f"--output_dir={output}", "--num_train_steps=12", "--log_steps=1", *SMALL]
    script = [sys.executable, str(ROOT / "run_pretraining_gpu.py"), *flags, "--save_checkpoints_steps=12"]
    process = subprocess.Popen(script, env=dict(os.environ, CUDA_VISIBLE_DEVICES="-1"), stdout=subprocess.DEVNULL)
    while not (output / "metrics.jsonl").exists() or len(lines(output)) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert pretrain(data, output, "--save_checkpoints_steps=5") == 0
    assert lines(output) == lines(finished) and same(weights(output), weights(finished))


def test_sigterm_saves_and_exits_143(data, finished, tmp_path):
    output = tmp_path / "run"
    flags = [f"--input_file={data}/*.tfrecord", f"--output_dir={output}", "--num_train_steps=100000", "--log_steps=1", *SMALL]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run_pretraining_gpu.py"), *flags], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    while not (output / "metrics.jsonl").exists() or len(lines(output)) < 4:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 143
    assert "stopped by SIGTERM" in error and "Traceback" not in error
    stopped_at = RunFolder(str(output)).steps()[-1]
    assert lines(output)[-1]["step"] == stopped_at


def test_resume_with_other_devices(data, finished, tmp_path):
    """Six steps on one replica, the rest on two with half the micro-batch: the records and the numbers stay the same."""
    output = tmp_path / "run"
    whole = tmp_path / "whole"
    calm = ["--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0", "--num_warmup_steps=0", "--curve=constant"]
    assert pretrain(data, whole, *calm) == 0
    assert pretrain(data, output, *calm, steps=6) == 0
    assert pretrain(data, output, *calm, "--virtual_replicas=2", "--train_batch_size=2") == 0
    stored = json.loads((output / "run.json").read_text())
    assert stored["global_batch_size"] == 8
    ours, theirs = ([line["loss"] for line in lines(folder) if "loss" in line] for folder in (output, whole))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_again_otherwise_and_more(data, tmp_path, capsys):
    output = tmp_path / "run"
    assert pretrain(data, output, steps=3) == 0
    before = weights(output)
    assert pretrain(data, output, steps=3) == 0
    assert same(before, weights(output))
    assert pretrain(data, output, "--adam_beta2=0.98", steps=3) == 2
    error = capsys.readouterr().err
    assert "--adam_beta2: 0.999 -> 0.98" in error and "--overwrite" in error and error.count("\n") == 1
    assert pretrain(data, output, steps=5) == 0
    assert [line["step"] for line in lines(output) if "loss" in line] == [1, 2, 3, 4, 5]
    assert pretrain(data, output, "--adam_beta2=0.98", "--overwrite", steps=2) == 0
    assert [line["step"] for line in lines(output) if "loss" in line] == [1, 2]


def test_do_eval_alone(data, finished):
    flags = [f"--input_file={data}/*.tfrecord", f"--output_dir={finished}", *SMALL]
    assert command(["bert-gpu", "pretrain", *flags, "--do_eval", "--quiet"]) == 0
    results = json.loads((finished / "eval_results.json").read_text())
    last = [line for line in lines(finished) if "eval_loss" in line][-1]
    assert results["mlm_loss"] == pytest.approx(last["eval_mlm_loss"]) and results["step"] == 12


def test_init_checkpoint(data, finished, tmp_path):
    output = tmp_path / "run"
    assert pretrain(data, output, f"--init_checkpoint={finished}/model", steps=1) == 0
    first = lines(output)[0]
    last = [line for line in lines(finished) if "eval_loss" in line][-1]
    assert first["eval_mlm_loss"] == pytest.approx(last["eval_mlm_loss"], rel=1e-6)


def test_records_of_model_garden_train_as_well(data, tmp_path, sample_text):
    """Files written by Model Garden's own script, under both sets of feature names."""
    from official.nlp.data import create_pretraining_data as garden
    from official.nlp.tools import tokenization

    tokenizer = tokenization.FullTokenizer(str(data / "vocab.txt"), do_lower_case=True)
    process = garden.get_processor_text_fn(False, True)
    made = garden.create_training_instances([sample_text], tokenizer, process, 32, 1, 0.1, 0.15, 5, random.Random(1))
    for v2_names in (False, True):
        path = tmp_path / f"{v2_names}.tf_record"
        garden.write_instance_to_example_files(made, tokenizer, 32, 5, [str(path)], False, v2_names)
        flags = [f"--input_file={path}", f"--vocab_file={data}/vocab.txt", f"--output_dir={tmp_path / str(v2_names)}-run"]
        assert command(["bert-gpu", "pretrain", *flags, *SMALL, "--num_train_steps=3", "--log_steps=1", "--quiet"]) == 0
    runs = [lines(tmp_path / f"{v2_names}-run") for v2_names in (False, True)]
    assert runs[0] == runs[1] and all(np.isfinite(line["loss"]) for line in runs[0])


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
        (["--gpus=0"], "--gpus=0"),
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
    assert command(["bert-gpu", "pretrain", f"--input_file={data}/*.tfrecord", f"--output_dir={output}", *SMALL, *flags]) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1 and len(error) <= 301
    assert not output.exists()


@pytest.mark.parametrize("how", ["truncated", "flipped"])
def test_corrupt_records_stop_the_run(data, tmp_path, capsys, how):
    path = corrupt(data, tmp_path, how)
    output = tmp_path / "run"
    flags = [f"--input_file={path}", f"--vocab_file={data}/vocab.txt", f"--output_dir={output}", "--num_train_epochs=1", *SMALL]
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


def test_show_config(data, capsys):
    assert pretrain(data, "nowhere", "--show_config", "--adam_beta2=0.98") == 0
    text = capsys.readouterr().out
    assert "--adam_beta2=0.98  # command line" in text and "--vocab_size=500  # derived" in text and "--adam_beta1=0.9  # default" in text
    assert not os.path.exists("nowhere")


def test_a_diverged_run_exits_3(data, tmp_path, capsys):
    output = tmp_path / "run"
    assert pretrain(data, output, "--learning_rate=1e30", steps=60) == 3
    error = capsys.readouterr().err
    assert "diverged" in error and "--learning_rate" in error and error.count("\n") == 1
    assert not (output / "model").exists()
    assert "NaN" not in (output / "metrics.jsonl").read_text()


def test_overwrite_touches_runs_only(data, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").write_text("years of work")
    assert pretrain(data, tmp_path, "--overwrite") == 2
    assert "holds no run" in capsys.readouterr().err
    assert (tmp_path / "model" / "mine").read_text() == "years of work"


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_a_file_in_the_way(data, tmp_path, capsys, place):
    (tmp_path / "file").write_text("x")
    for flags in ([], ["--overwrite"]):
        assert pretrain(data, tmp_path / place, *flags) == 2
        assert "is a file, not a folder" in capsys.readouterr().err


def test_two_runs_at_once(data, tmp_path, capsys):
    with only_writer(str(tmp_path / "run"), "run", "--output_dir"):
        (tmp_path / "run" / "run.json").write_text("{}")
        assert pretrain(data, tmp_path / "run", "--overwrite") == 2
    assert "another process" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "{}", "nonsense"])
def test_a_broken_run_json_is_named(data, tmp_path, capsys, content):
    (tmp_path / "run.json").write_text(content)
    assert pretrain(data, tmp_path) == 2
    error = capsys.readouterr().err
    assert "run.json" in error and "--overwrite" in error and error.count("\n") == 1


def test_broken_metrics_and_progress(data, tmp_path, capsys):
    output = tmp_path / "run"
    assert pretrain(data, output, steps=2) == 0
    with open(output / "metrics.jsonl", "a") as file:
        file.write("garbage\n")
    assert pretrain(data, output, steps=3) == 0
    assert [line["step"] for line in lines(output) if "loss" in line] == [1, 2, 3]
    (output / "checkpoints" / "step-00000003" / "progress.json").write_text("{}")
    assert pretrain(data, output, steps=4) == 2
    assert "step-00000003" in capsys.readouterr().err


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
    assert "has done 12 steps" in capsys.readouterr().err


def test_other_data_is_noticed(data, finished, tmp_path, sample_text, capsys):
    other = tmp_path / "data"
    flags = [f"--input_file={sample_text}", f"--output_file={other}/x.tfrecord", f"--vocab_file={data}/vocab.txt", "--dupe_factor=1"]
    assert command(["bert-gpu", "data", *flags, "--max_seq_length=32", "--masked_lm_prob=0.2", "--quiet"]) == 0
    assert pretrain(other, finished, steps=20) == 2
    assert "--training_data" in capsys.readouterr().err


def test_an_unexported_model_is_exported(data, finished, tmp_path):
    """A run that was killed between its last checkpoint and the export has a stale model/, or none."""
    output = tmp_path / "run"
    assert pretrain(data, output, steps=3) == 0
    stale = weights(output)
    shutil.copytree(finished / "checkpoints", output / "checkpoints", dirs_exist_ok=True)
    assert pretrain(data, output, steps=12) == 0
    assert same(weights(output), weights(finished)) and not same(stale, weights(output))


def test_second_phase_with_longer_rows(data, finished, tmp_path, sample_text, capsys):
    longer = tmp_path / "data"
    flags = [f"--input_file={sample_text}", f"--output_file={longer}/x.tfrecord", f"--vocab_file={data}/vocab.txt", "--dupe_factor=1"]
    assert command(["bert-gpu", "data", *flags, "--max_seq_length=64", "--quiet"]) == 0
    start = [f"--init_checkpoint={finished}", "--max_position_embeddings=600"]
    assert pretrain(longer, tmp_path / "run", *start, steps=1) == 0
    assert weights(tmp_path / "run")["bert.embeddings.position_embeddings.weight"].shape[0] == 600
    assert pretrain(longer, tmp_path / "other", *start, "--num_hidden_layers=1") == 2
    assert "its num_hidden_layers is 2, that of the model 1" in capsys.readouterr().err


def test_ids_beyond_the_vocabulary(data, tmp_path, capsys):
    shard = tmp_path / "x.tfrecord"
    shard.write_bytes(next(data.glob("x-00000*.tfrecord")).read_bytes())
    flags = [f"--input_file={shard}", f"--output_dir={tmp_path}/run", "--num_train_steps=1", *SMALL]
    assert command(["bert-gpu", "pretrain", *flags, "--vocab_size=100"]) == 2
    assert "reaches beyond 99" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_dynamic_masks_and_padding(data, tmp_path, sample_text):
    """Compact packed records train, and resume, with masks drawn at reading and batches of like lengths."""
    packed = tmp_path / "data"
    flags = [f"--input_file={sample_text}", f"--output_file={packed}/x.tfrecord", f"--vocab_file={data}/vocab.txt", "--objective=packed"]
    assert command(["bert-gpu", "data", *flags, "--masking=dynamic", "--max_seq_length=32", "--quiet"]) == 0
    for name, parts in (("whole", [6]), ("parts", [3, 6])):
        for steps in parts:
            calm = ["--curve=constant", "--num_warmup_steps=0", "--padding=uniform", "--length_multiple=8"]
            assert pretrain(packed, tmp_path / name, *calm, steps=steps) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert "cls.seq_relationship.weight" not in weights(tmp_path / "whole")
