"""Which precision is chosen where none is given."""

import pytest
import tensorflow as tf

from bert_gpu.train import devices

CPUINFO = "processor\t: 0\nmodel name\t: a CPU\nflags\t\t: fpu avx2 avx512f {}\nbogomips\t: 1\n\nprocessor\t: 1\nflags\t\t: fpu\n"


@pytest.mark.parametrize("more, precision", [("avx512_bf16 amx_bf16", "bfloat16"), ("avx512_bf16", "bfloat16"), ("avx512_vnni", "float32")])
def test_cpus_that_multiply_bfloat16_do(tmp_path, monkeypatch, more, precision):
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(more))
    features = devices.read_cpu_features(tmp_path / "cpuinfo")
    assert {"avx2", *more.split()} <= features and ":" not in features
    monkeypatch.setattr(devices, "cpu_features", lambda: features)
    assert devices.best_precision([]) == precision
    assert devices.set_up(devices.DeviceConfig(num_gpus=0)).precision == precision
    assert devices.set_up(devices.DeviceConfig(num_gpus=0, precision="float32")).precision == "float32"


def test_other_systems_have_no_such_file(tmp_path):
    assert devices.read_cpu_features(tmp_path / "none") == set()


@pytest.mark.parametrize("capabilities, precision", [([(9, 0)], "bfloat16"), ([(8, 0), (7, 5)], "float16"), ([(6, 1)], "float32")])
def test_gpus_by_the_oldest_of_them(monkeypatch, capabilities, precision):
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: dict(compute_capability=gpu))
    assert devices.best_precision(capabilities) == precision
