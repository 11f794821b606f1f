"""The precision that is chosen by default."""

import pytest
import tensorflow as tf

from bert_gpu.train import devices
from bert_gpu.train.config import DeviceConfig


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
