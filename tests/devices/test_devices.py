"""The precision that is chosen by default, and the memory of GPUs, as NVML tells it."""

import types

import pytest
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.devices import devices
from bert_gpu.devices.config import DeviceConfig


def test_cpus_have_float32():
    assert devices.set_up(DeviceConfig(num_gpus=0)).precision == "float32"


@pytest.mark.parametrize(
    "capabilities, precision",
    [([(9, 0)], "bfloat16"), ([(8, 0), (7, 5)], "float16"), ([(6, 1)], "float32")],
)
def test_gpus_by_the_oldest_of_them(monkeypatch, capabilities, precision):
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda gpu: dict(compute_capability=gpu)
    )
    assert devices.best_precision(capabilities) == precision


GPU = types.SimpleNamespace(name="/physical_device:GPU:1", device_type="GPU")


@pytest.fixture
def limits(monkeypatch):
    """The memory limits of logical GPUs that TensorFlow is given."""
    given = []

    def take(device, configurations):
        given.append([one.memory_limit for one in configurations])

    monkeypatch.setattr(tf.config, "set_logical_device_configuration", take)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    return given


def has_memory(monkeypatch, megabytes):
    """Makes NVML tell the memory of GPU 3, which is TensorFlow's 1."""
    sizes = {(3,): megabytes and megabytes << 20}
    monkeypatch.setattr(devices, "gpu_bytes", lambda gpus, limit: sizes[tuple(gpus)])


@pytest.mark.parametrize("megabytes", [81559, 24564, 8188])
def test_a_limit_is_refused_above_what_the_gpu_has(limits, monkeypatch, megabytes):
    has_memory(monkeypatch, megabytes)
    devices.limit_memory(GPU, megabytes - 100)
    assert limits == [[megabytes - 100]]
    with pytest.raises(UserError, match=f"the GPU has {megabytes} megabytes"):
        devices.limit_memory(GPU, megabytes + 1)
    has_memory(monkeypatch, None)  # not known: TensorFlow will say
    devices.limit_memory(GPU, 2 * megabytes)
    assert limits[1:] == [[2 * megabytes]]


def test_virtual_replicas_share_what_the_gpu_has(limits, monkeypatch):
    has_memory(monkeypatch, 8000)
    devices.split_device(GPU, 2)
    devices.split_device(GPU, 4, memory_limit=6000)
    assert limits == [[3600] * 2, [1500] * 4]
    has_memory(monkeypatch, None)
    devices.split_device(GPU, 2, memory_limit=6000)
    with pytest.raises(UserError, match="give --gpu_memory_limit"):
        devices.split_device(GPU, 2)
    assert limits[2:] == [[3000] * 2]


def test_a_gpu_stays_split_as_it_is(limits, monkeypatch):
    has_memory(monkeypatch, 8000)
    halves = [tf.config.LogicalDeviceConfiguration(memory_limit=3600)] * 2
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: halves)
    devices.split_device(GPU, 2)
    assert limits == []

    def refuse(device, configurations):
        raise RuntimeError("TensorFlow has started")

    monkeypatch.setattr(tf.config, "set_logical_device_configuration", refuse)
    for count, limit in ((2, 6000), (3, None)):
        with pytest.raises(UserError, match="ask for the devices of the first call"):
            devices.split_device(GPU, count, memory_limit=limit)
