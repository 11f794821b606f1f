"""Pretraining as a user calls it: what a run leaves behind, resumes, and bad input."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_gpu.__main__ import main as command
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
