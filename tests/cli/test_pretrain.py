"""Pretraining as a user calls it: what a run leaves behind, resumes, other data."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.model.positions import interpolated
from bert_gpu.monitor.hardware import PER_GPU, READINGS
from bert_gpu.runs.folder import RunFolder
from tests.cli.pretraining import (
    HANG_SECONDS,
    ROOT,
    SMALL,
    copy_as_of,
    lines,
    pretrain,
    same,
    start_and_hold,
    wait_until,
    weights,
)


def num_lines(output):
    """Whole lines of metrics.jsonl so far."""
    path = output / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def test_what_a_run_leaves_behind(data, finished):
    assert sorted(os.listdir(finished)) == [
        ".run.lock",
        "checkpoints",
        "metrics.jsonl",
        "model",
        "run.json",
        "tensorboard",
    ]
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
    assert sorted(os.listdir(finished / "tensorboard")) == ["train", "validation"]
    for run in (finished / "tensorboard").iterdir():
        assert sum(events.stat().st_size for events in run.iterdir()) > 1000


def test_killed_and_resumed_is_never_killed(data, finished, tmp_path):
    """kill -9 after a checkpoint, then the same command: the same bits, the same metrics."""
    output = tmp_path / "run"
    with start_and_hold(data, output, "--save_checkpoints_steps=5", before_step=8) as process:
        wait_until(process, lambda: 5 in RunFolder(str(output)).steps())
        process.kill()
    assert not (output / "model").exists()
    assert pretrain(data, output, "--save_checkpoints_steps=5") == 0
    assert same(weights(output), weights(finished))
    assert lines(output) == lines(finished)


@pytest.mark.long
def test_killed_before_the_first_checkpoint(data, finished, tmp_path):
    output = tmp_path / "run"
    with start_and_hold(data, output, "--save_checkpoints_steps=12", before_step=6) as process:
        wait_until(process, lambda: num_lines(output) >= 3)
        process.kill()
    assert RunFolder(str(output)).steps() == []
    assert pretrain(data, output, "--save_checkpoints_steps=5") == 0
    assert lines(output) == lines(finished) and same(weights(output), weights(finished))


def test_sigterm_saves_and_exits_143(data, finished, tmp_path):
    output = tmp_path / "run"
    flags = [
        f"--input_file={data}/*.tfrecord",
        f"--output_dir={output}",
        "--num_train_steps=100000",
        "--log_steps=1",
        *SMALL,
    ]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run_pretraining_gpu.py"), *flags],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    wait_until(process, lambda: num_lines(output) >= 4)
    process.send_signal(signal.SIGTERM)
    error = process.communicate(timeout=HANG_SECONDS)[1]
    assert process.returncode == 143
    assert "stopped by SIGTERM" in error and "Traceback" not in error
    stopped_at = RunFolder(str(output)).steps()[-1]
    assert lines(output)[-1]["step"] == stopped_at


def test_resume_with_other_devices(data, finished, tmp_path, capsys):
    """Six steps on one replica, the rest on two with a quarter of the micro-batch: the records and
    the numbers stay the same. The division is said; of the rate, which is constant, nothing.
    """
    output = tmp_path / "run"
    whole = tmp_path / "whole"
    calm = [
        "--hidden_dropout_prob=0",
        "--attention_probs_dropout_prob=0",
        "--num_warmup_steps=0",
        "--curve=constant",
        "--save_checkpoints_steps=6",
    ]
    assert pretrain(data, whole, *calm) == 0
    copy_as_of(whole, output, 6)
    other = ["--virtual_replicas=2", "--train_batch_size=2", "--noquiet"]
    assert pretrain(data, output, *calm, *other) == 0
    said = capsys.readouterr().out
    now = "micro-batch 2 x accumulation 2 on 2 replicas on the CPU"
    assert f"on the CPU -> {now}: global batch (8 sequences), order" in said
    assert "learning rate of step" not in said
    stored = json.loads((output / "run.json").read_text())
    assert stored["global_batch_size"] == 8
    ours, theirs = (
        [line["loss"] for line in lines(folder) if "loss" in line] for folder in (output, whole)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_again_otherwise_and_more(data, tmp_path, capsys):
    output = tmp_path / "run"
    assert pretrain(data, output, steps=3) == 0
    before = weights(output)
    assert pretrain(data, output, "--noquiet", steps=3) == 0
    assert same(before, weights(output))
    assert capsys.readouterr().out == (
        f"{output}: this run is finished (3 steps); nothing to do "
        "(a larger --num_train_steps extends it, --overwrite starts over)\n"
        f"model: {output}/model\n"
    )
    assert pretrain(data, output, "--adam_beta2=0.98", steps=3) == 2
    error = capsys.readouterr().err
    assert (
        "--adam_beta2: 0.999 -> 0.98" in error and "--overwrite" in error and error.count("\n") == 1
    )
    assert pretrain(data, output, "--noquiet", steps=5) == 0
    jump = "the learning rate of step 4 goes from 0 (old plan) to 0.0004 (new plan)"
    assert f"\n5 steps instead of 3 steps: {jump}\n" in capsys.readouterr().out
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
    made = garden.create_training_instances(
        [sample_text], tokenizer, process, 32, 1, 0.1, 0.15, 5, random.Random(1)
    )
    for v2_names in (False, True):
        path = tmp_path / f"{v2_names}.tf_record"
        garden.write_instance_to_example_files(made, tokenizer, 32, 5, [str(path)], False, v2_names)
        flags = [
            f"--input_file={path}",
            f"--vocab_file={data}/vocab.txt",
            f"--output_dir={tmp_path / str(v2_names)}-run",
        ]
        assert (
            command(
                [
                    "bert-gpu",
                    "pretrain",
                    *flags,
                    *SMALL,
                    "--num_train_steps=3",
                    "--log_steps=1",
                    "--quiet",
                ]
            )
            == 0
        )
    runs = [lines(tmp_path / f"{v2_names}-run") for v2_names in (False, True)]
    assert runs[0] == runs[1] and all(np.isfinite(line["loss"]) for line in runs[0])


def test_next_sentences_may_be_left_out(data, finished, tmp_path, capsys):
    """Of the same records, in the order of the table, and named or not."""
    output, masked_words = tmp_path / "run", "--train_objective=mlm"
    assert pretrain(data, output, masked_words, steps=2) == 0
    steps = [line for line in lines(output) if "loss" in line]
    assert all(line["loss"] == line["mlm"] and "nsp" not in line for line in steps)
    config = json.loads((output / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    assert weights(output).keys() < weights(finished).keys()
    assert pretrain(data, output, masked_words, steps=3) == 0
    assert pretrain(data, output, steps=3) == 2
    assert "--train_objective: mlm -> none" in capsys.readouterr().err
    assert pretrain(data, output, "--nodo_train", "--do_eval") == 0  # of what it was trained for
    results = json.loads((output / "eval_results.json").read_text())
    assert {"loss", "mlm_loss", "step"} < results.keys() and "nsp_loss" not in results
    assert pretrain(data, output, "--nodo_train", "--do_eval", "--train_objective=nsp") == 2
    assert "train_objective" in capsys.readouterr().err
    assert pretrain(data, finished, "--train_objective=nsp,mlm", "--save_checkpoints_steps=5") == 0
    assert pretrain(data, output, "--train_objective=words") == 2
    assert "--train_objective=words: must be one of mlm, nsp" in capsys.readouterr().err


def test_show_config(data, capsys):
    assert pretrain(data, "nowhere", "--show_config", "--adam_beta2=0.98") == 0
    text = capsys.readouterr().out
    assert (
        "--adam_beta2=0.98  # command line" in text
        and "--vocab_size=500  # derived" in text
        and "--adam_beta1=0.9  # default" in text
    )
    assert not os.path.exists("nowhere")


def test_show_config_before_there_is_data(data, capsys, tmp_path):
    files = f"{data}/*.tfrecord,{tmp_path}/*.tfrecord"
    assert pretrain(data, "nowhere", "--show_config", f"--input_file={files}") == 0
    text = capsys.readouterr().out
    assert f"# {files}: no data yet; it determines vocab_size\n" in text


@pytest.mark.parametrize(
    "flag",
    [
        "--max_predictions_per_seq=3",
        "--max_seq_length=64",
        "--hidden_size=15",
        "--num_gpus=99",
        "--input_file=gs://data/x",
    ],
)
def test_show_config_refuses_what_the_run_would(data, capsys, flag):
    for more in (["--show_config"], []):
        assert pretrain(data, "nowhere", flag, *more) == 2
        assert flag in capsys.readouterr().err
    assert not os.path.exists("nowhere")


def test_the_fields_of_metrics_are_those_of_the_document(finished):
    text = (ROOT / "docs" / "watching.md").read_text().partition("## metrics.jsonl")[2]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    documented = {name.strip() for row in rows[1:] for name in row.split(",")}
    found = (finished / "metrics.jsonl").read_text().splitlines()
    written = {name for line in found for name in json.loads(line)}
    assert written <= documented
    assert {*READINGS, *(name.replace("gpu", "gpu_0", 1) for name in PER_GPU)} <= documented
    # absent without GPUs and without --input_weights
    rest = {name for name in documented - written if not name.startswith("gpu_")}
    shares = {"mfu", "mfu_real_tokens", "hfu"}
    assert rest == shares | {"energy_kwh", "eval_data_NAME_loss"}
    training = next(json.loads(line) for line in found if '"loss"' in line)
    shares = [value for name, value in training.items() if name.startswith("time_")]
    assert len(shares) == 5 and abs(sum(shares) - 1) < 1e-9
    assert not any(name.startswith(("gpu_", "mfu")) for name in written), "nothing is pretended"


def test_a_diverged_run_exits_3(data, tmp_path, capsys):
    output = tmp_path / "run"
    assert pretrain(data, output, "--learning_rate=1e30", steps=60) == 3
    error = capsys.readouterr().err
    assert "diverged" in error and "--learning_rate" in error and error.count("\n") == 1
    assert not (output / "model").exists()
    assert json.loads((output / "run.json").read_text())["ended"] == "diverged"
    assert "NaN" not in (output / "metrics.jsonl").read_text()


def test_an_unexported_model_is_exported(data, finished, tmp_path):
    """A run that was killed between its last checkpoint and the export has a stale
    model/, or none.
    """
    output = tmp_path / "run"
    assert pretrain(data, output, steps=3) == 0
    stale = weights(output)
    shutil.copytree(finished / "checkpoints", output / "checkpoints", dirs_exist_ok=True)
    assert pretrain(data, output, steps=12) == 0
    assert same(weights(output), weights(finished)) and not same(stale, weights(output))


def test_second_phase_with_longer_rows(data, finished, tmp_path, sample_text, capsys):
    longer = tmp_path / "data"
    flags = [
        f"--input_file={sample_text}",
        f"--output_file={longer}/x.tfrecord",
        f"--vocab_file={data}/vocab.txt",
        "--dupe_factor=1",
    ]
    assert command(["bert-gpu", "data", *flags, "--max_seq_length=64", "--quiet"]) == 0
    start = [f"--init_checkpoint={finished}", "--max_position_embeddings=600"]
    still = ["--learning_rate=1e-30", "--weight_decay_rate=0", "--noquiet"]
    assert pretrain(longer, tmp_path / "run", *start, *still, steps=1) == 0
    name = "bert.embeddings.position_embeddings.weight"
    before, after = weights(finished)[name], weights(tmp_path / "run")[name]
    assert after.tobytes() == interpolated(before, 600).tobytes()
    out = capsys.readouterr().out
    assert "; embeddings/position: 512 rows interpolated to 600" in out and "fresh:" not in out
    assert pretrain(longer, tmp_path / "other", *start, "--num_hidden_layers=2") == 2
    error = capsys.readouterr().err
    assert error.startswith("--num_hidden_layers=2: the weights in") and "=1; drop" in error


def test_dynamic_masks_and_padding(data, tmp_path, sample_text):
    """Compact packed records train, and resume, with masks drawn at reading and batches of
    like lengths.
    """
    packed = tmp_path / "data"
    flags = [
        f"--input_file={sample_text}",
        f"--output_file={packed}/x.tfrecord",
        f"--vocab_file={data}/vocab.txt",
        "--objective=packed",
    ]
    assert (
        command(["bert-gpu", "data", *flags, "--masking=dynamic", "--max_seq_length=32", "--quiet"])
        == 0
    )
    calm = ["--padding=uniform", "--save_checkpoints_steps=3"]
    assert pretrain(packed, tmp_path / "whole", *calm, steps=6) == 0
    copy_as_of(tmp_path / "whole", tmp_path / "parts", 3)
    assert pretrain(packed, tmp_path / "parts", *calm, steps=6) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert "cls.seq_relationship.weight" not in weights(tmp_path / "whole")
