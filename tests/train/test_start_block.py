"""What a run says before its first step: everything that decides it, and no number that has not
been measured or computed.
"""

import dataclasses
import types

import pytest

from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.train import start_block
from bert_gpu.train.batching import TrainingData
from bert_gpu.train.config import BatchConfig, CadenceConfig, RunSettings
from bert_gpu.train.plan import plan_batch

CPU = types.SimpleNamespace(
    kind="CPU",
    unit="replica",
    summary="no GPU: training on the CPU",
    precision="float32",
    xla=False,
    nvml=(),
)
GPUS = types.SimpleNamespace(
    kind="GPU", unit="GPU", summary="4 x NVIDIA H100", precision="bfloat16", xla=True, nvml=(0, 1)
)
SUMMARY = (("model", "base: 12 layers x 768"), ("data", "1,000 rows"))
DATA = TrainingData(
    open_batches=None, max_seq_length=128, length_axes={}, num_records=64_000, dupe_factor=None
)


def rows(
    devices=CPU,
    num_steps=1000,
    replicas=1,
    data=DATA,
    **schedule,
):
    settings = RunSettings(
        batch=BatchConfig(train_batch_size=32, gradient_accumulation_steps=2),
        schedule=ScheduleConfig(**schedule),
    )
    plan = plan_batch(settings.batch, settings.optimizer.learning_rate, replicas)
    plan = dataclasses.replace(plan, num_steps=num_steps, schedule=settings.schedule)
    return dict(start_block.rows(settings, data, plan, devices, SUMMARY))


def test_a_run_on_four_gpus(monkeypatch):
    monkeypatch.setattr(start_block, "gpu_bytes", lambda gpus, limit: 85_000_000_000)
    found = rows(GPUS, replicas=4)
    assert found == dict(
        found,
        devices="4 x NVIDIA H100, 85.0 GB each",
        precision="bfloat16; XLA on",
        model="base: 12 layers x 768",
        batch="micro-batch 32 x accumulation 2 x 4 GPUs = global batch 256 sequences",
        tokens="32,768 a step, padding included",
        length="1,000 steps = 4.0 epochs",
    )
    assert (
        "peak 0.0004 = 0.0001 x 4 (--lr_scaling=linear); linear, by steps"
        in (found["learning rate"])
    )
    assert "XLA compiles it" in found["first step"]


def test_the_length_in_passes_over_the_text():
    assert rows(num_steps=1)["length"] == "1 step = 0.0 epochs"
    data = dataclasses.replace(DATA, num_records=1778, dupe_factor=10)
    found = rows(num_steps=1_000_000, data=data)
    assert found["length"] == (
        "1,000,000 steps = 35,996 epochs = 359,955 passes over the text (--dupe_factor=10)"
    )


@pytest.mark.parametrize(
    "num_steps, settings, dupe_factor, words",
    [
        (1_000_000, dict(), 10, "are 10,000 passes over the text, which overfits; give fewer"),
        (1_000_000, dict(), None, None),
        (1_000_000, dict(schedule=ScheduleConfig(total_training_time=1.0)), 10, None),
        (100_000, dict(), 1, None),
        (100_000, dict(), 10, None),
        (None, dict(), 10, None),
        (1, dict(), 10, None),
        (1, dict(recipe="gpu8gb"), 10, "--recipe=gpu8gb: 1 step of 64 sequences"),
        (1, dict(recipe="gpu8gb", flexible=("num_train_steps",)), 1, "--recipe=gpu8gb: 1 step of"),
        (1, dict(recipe="gpu8gb", cadence=CadenceConfig(num_train_steps=1)), 1, None),
        (100, dict(recipe="gpu8gb"), 1, None),
    ],
)
def test_an_absurd_length_is_warned_of(num_steps, settings, dupe_factor, words):
    """Far too many passes over the text, or a recipe whose batch leaves hardly any steps."""
    data = dataclasses.replace(DATA, dupe_factor=dupe_factor)
    if settings.get("flexible"):
        settings = settings | dict(cadence=CadenceConfig(num_train_steps=num_steps))
    batch = BatchConfig(train_batch_size=32, gradient_accumulation_steps=2)
    config = RunSettings(batch=batch, **settings)
    plan = plan_batch(batch, config.optimizer.learning_rate, 1)
    plan = dataclasses.replace(plan, num_steps=num_steps, schedule=config.schedule)
    found = start_block.length_problem(plan, data, config)
    assert found is None if words is None else words in found


@pytest.mark.parametrize(
    "num_steps, hours, text",
    [
        (1000, None, ""),
        (1000, 12.0, "at most 12 hours (--total_training_time)"),
        (None, 0.5, "at most 30 min (--total_training_time)"),
    ],
)
def test_the_time_of_a_new_run_is_not_guessed(num_steps, hours, text):
    clock = "step" if num_steps else "time"
    found = rows(num_steps=num_steps, total_training_time=hours, lr_schedule=clock)
    assert found.get("time", "") == text
    assert ("epochs" in found["length"]) == (num_steps is not None)


def test_the_memory_that_was_used(monkeypatch):
    assert start_block.peak_memory(CPU) == ""
    device = dataclasses.make_dataclass("Device", ["name"])
    experimental = types.SimpleNamespace(
        get_memory_info=lambda name: dict(peak={"GPU:0": 3e9, "GPU:1": 4e9}[name])
    )
    config = types.SimpleNamespace(
        list_logical_devices=lambda kind: [device(f"/device:GPU:{index}") for index in (0, 1)],
        experimental=experimental,
    )
    monkeypatch.setattr(start_block.tf, "config", config)
    monkeypatch.setattr(start_block, "gpu_bytes", lambda gpus, limit: 85e9)
    assert start_block.peak_memory(GPUS) == "4.0 GB of a GPU's memory in use, which has 85.0 GB"

    def refuses(name):
        raise ValueError("allocator has no statistics")

    experimental.get_memory_info = refuses
    assert start_block.peak_memory(GPUS) == ""
