"""A model card says what the run's files say, and nothing that they do not."""

import itertools
import json
import re
import shutil
import types

import pynvml
import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.devices import devices, nvml
from bert_gpu.interop import models
from bert_gpu.monitor import hardware
from bert_gpu.runs.card_facts import facts_beside, facts_while_training
from tests.cli.pretraining import pretrain


def read(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A run with validation, and a model of the middle of it."""
    output = tmp_path_factory.mktemp("facts") / "run"
    flags = ["--log_steps=2", "--eval_steps=6", "--finetune_time_markers=0.5"]
    assert pretrain(data, output, *flags) == 0
    return output


def test_the_facts_are_those_of_the_files(run, data):
    facts, stored = facts_beside(str(run / "model")), read(run / "run.json")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    made = read(data / "dataset.json")
    assert facts["Training"]["steps"] == f"{stored['exported_step']} of {stored['num_steps']}"
    assert facts["Training"]["optimizer"] == stored["settings"]["optimizer"]
    assert facts["Training"]["global batch"] == f"{stored['global_batch_size']} sequences"
    sequences = stored["exported_step"] * stored["global_batch_size"]
    assert facts["Training"]["tokens"].startswith(
        f"{sequences * made['max_seq_length']:,} in {sequences:,} sequences"
    )
    assert f"{made['num_documents']:,} documents" in facts["Data"]["text"]
    # the sizes of compressed files and the asked size of a vocabulary are none of the model's
    assert " MB" not in facts["Data"]["text"] and "vocab_size" not in facts["Data"]
    assert facts["Data"]["records"].startswith(f"{made['num_train_instances']:,} of ")
    trained = [line for line in lines if "loss" in line][-1]
    assert facts["Results"]["training at step 12"] == f"loss {trained['loss']:.4g}"
    validated = [line for line in lines if "eval_loss" in line][-1]
    assert f"eval_loss {validated['eval_loss']:.4g}" in facts["Results"]["validation at step 12"]
    assert facts["Made with"].items() >= stored["versions"].items()
    card = (run / "model" / "README.md").read_text()
    for name, text in (facts["Data"] | facts["Training"] | facts["Made with"]).items():
        assert f"| {name} | {text} |" in card, name


def test_a_model_of_the_middle_tells_of_its_own_step(run):
    card = (run / "marks" / "0.5" / "README.md").read_text()
    assert "| steps | 6 of 12 |" in card and "| training at step 6 |" in card
    assert "at step 12" not in card
    later = facts_beside(str(run / "marks" / "0.5"))
    assert later["Training"]["steps"] == "0.5 of the run of 12" and len(later["Results"]) == 1


def test_a_run_by_the_clock_tells_its_time(run, tmp_path):
    """And not the number of steps that it would have ended at."""
    shutil.copytree(run, tmp_path / "run")
    stored = read(tmp_path / "run" / "run.json")
    stored["free"] |= dict(lr_schedule="time", total_training_time=0.75)
    stored.pop("crc32c")
    (tmp_path / "run" / "run.json").write_text(json.dumps(stored))
    facts = facts_beside(str(tmp_path / "run" / "model"))["Training"]
    assert (facts["steps"], facts["time budget"]) == ("12", "0.75 hours, by the clock")


def test_the_energy_of_the_last_log_line_up_to_the_model(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    unknown = "unknown (only GPUs from Volta on count it)"
    assert facts_beside(str(run / "model"))["Training"]["energy"] == unknown
    path = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(
        "".join(json.dumps(line | dict(energy_kwh=line["step"] / 8)) + "\n" for line in lines)
    )
    facts = facts_beside(str(tmp_path / "run" / "model"))["Training"]
    assert facts["energy"].startswith("1.5 kWh of its GPUs, all of their processes counted")
    facts = facts_while_training(str(tmp_path / "run"), 6, pytest.fail)["Training"]
    assert facts["energy"].startswith("0.75 kWh")
    assert "energy" not in facts_beside(str(run / "marks" / "0.5"))["Training"]


@pytest.mark.long
def test_the_energy_of_a_run_that_was_resumed(data, tmp_path, monkeypatch, capsys):
    """0.001 kWh pass from one reading of the counter to the next."""
    readings = itertools.count(step=3_600_000)
    fake = types.SimpleNamespace(nvmlInit=int, nvmlShutdown=int, NVMLError=pynvml.NVMLError)
    fake.nvmlDeviceGetHandleByIndex = fake.nvmlDeviceGetPowerUsage = int
    fake.nvmlDeviceGetTotalEnergyConsumption = lambda gpu: next(readings)
    power = "gpu_power_watts"
    monkeypatch.setattr(hardware, "READINGS", {power: hardware.READINGS[power]})
    monkeypatch.setattr(devices, "visible_gpus", lambda indices: [0])
    for module in (hardware, nvml):
        monkeypatch.setattr(module, "pynvml", fake)
    kwh = {}
    for steps in (3, 6):
        assert pretrain(data, tmp_path / "run", "--noquiet", steps=steps) == 0
        text = (tmp_path / "run" / "metrics.jsonl").read_text()
        kwh[steps] = [json.loads(line)["energy_kwh"] for line in text.splitlines()]
        end = re.findall(
            r"^energy: (.*) kWh of its GPUs, all of their", capsys.readouterr().out, re.M
        )
        assert len(end) == 1 and float(end[0]) > kwh[steps][-1]  # closing the log is one more
        card = (tmp_path / "run" / "model" / "README.md").read_text()
        assert f"| energy | {kwh[steps][-1]:.3g} kWh of its GPUs" in card
    assert kwh[3] == sorted(kwh[3]) == kwh[6][: len(kwh[3])] and kwh[6] == sorted(kwh[6])
    # each session begins with the reading of its thread or of its first line
    assert kwh[6][len(kwh[3])] - kwh[3][-1] < 0.0025


def test_a_data_set_that_changed_is_not_described(run, data, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    stored = read(tmp_path / "run" / "run.json")
    stored["hashes"]["dataset"] = "0" * 64
    stored.pop("crc32c")
    (tmp_path / "run" / "run.json").write_text(json.dumps(stored))
    facts = facts_beside(str(tmp_path / "run" / "model"))
    assert facts["Data"]["text"] == "its dataset.json is not where the run found it"


def test_an_evaluation_counts_when_it_was_of_this_model(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    results = tmp_path / "run" / "eval_results.json"
    for said in (dict(step=12), dict(step=None), {}):  # a classifier evaluated alone: None
        results.write_text(json.dumps(dict(loss=6.25, positive_label="yes", data={}, **said)))
        facts = facts_beside(str(tmp_path / "run" / "model"))
        assert facts["Results"]["evaluation"] == "loss 6.25, positive_label yes"
    results.write_text(json.dumps(dict(loss=6.25, step=6)))
    assert "evaluation" not in facts_beside(str(tmp_path / "run" / "model"))["Results"]


def test_no_model_is_lost_for_its_card(tmp_path):
    told = []
    (tmp_path / "run.json").write_text("{")
    assert facts_while_training(str(tmp_path), 3, told.append) is None
    assert len(told) == 1 and "the model card has no facts about the training" in told[0]


def test_an_export_says_what_it_holds(run, tmp_path, capsys):
    """From a run, with its facts; from a copy of a model, that nothing is known."""
    assert command(["bert-gpu", "export", f"--from={run}", f"--to={tmp_path}/there"]) == 0
    card = (tmp_path / "there" / "README.md").read_text()
    assert "| steps | 12 of 12 |" in card and "AutoModelForPreTraining" in card
    assert command(["bert-gpu", "import", f"--from={tmp_path}/there", f"--to={tmp_path}/b"]) == 0
    card = (tmp_path / "b" / "README.md").read_text()
    assert "Nothing beside the model says how it was trained." in card
    model = models.read_model(str(tmp_path / "there"))
    num_weights = sum(value.size for value in model.weights.values())
    assert f"| Weights | {num_weights:,} |" in card
