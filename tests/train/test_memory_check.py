"""A training that cannot fit is refused before anything is allocated, with what it needs and the
flags that lower it; one that fits never is.
"""

import re
import types

import numpy as np
import pytest

from bert_gpu.base.console import format_bytes
from bert_gpu.base.errors import UserError
from bert_gpu.devices import nvml
from bert_gpu.devices.config import DeviceConfig
from bert_gpu.model.config import PRESETS, preset
from bert_gpu.model.encoders import open_encoder
from bert_gpu.optim import optimizers
from bert_gpu.pretrain.config import PretrainSettings
from bert_gpu.train import memory_check
from bert_gpu.train.config import BatchConfig, MemoryConfig
from tests import pretraining

CPU = types.SimpleNamespace(kind="CPU", num_replicas=1, precision="float32", nvml=())
GPU = types.SimpleNamespace(kind="GPU", num_replicas=8, precision="bfloat16", nvml=(0,))


def specs_of(config):
    return pretraining.weights(open_encoder(config))


def check(monkeypatch, available, model="base", settings=None, devices=CPU, **changes):
    monkeypatch.setattr(memory_check, "machine_bytes", lambda: available)
    config = preset(model, **changes)
    memory_check.check_size(settings or PretrainSettings(), config, specs_of, devices, 128)


@pytest.mark.parametrize("name", PRESETS)
def test_the_bytes_of_weights_are_exact_though_two_layers_are_looked_at(name):
    settings, config = PretrainSettings(), preset(name)
    specs = specs_of(config)
    num_parameters = sum(int(np.prod(spec.shape)) for spec in specs.values())
    state = optimizers.state_bytes(specs, settings.optimizer)
    found = memory_check.weight_bytes(settings, config, specs_of)
    assert found == 8 * num_parameters + state


@pytest.mark.parametrize(
    "changes, batch, flag",
    [
        (dict(num_hidden_layers=10**9), {}, "--model"),
        (dict(num_hidden_layers=10**9, num_hidden_groups=1), {}, "--recompute"),
        (dict(hidden_size=12 * 10**7), {}, "--hidden_size"),
        ({}, dict(train_batch_size=10**11), "--train_batch_size"),
        ({}, dict(gradient_accumulation_steps=10**11), "--gradient_accumulation_steps"),
        ({}, dict(global_batch_size=32 * 10**11), "--global_batch_size"),
    ],
)
@pytest.mark.parametrize("devices", [CPU, GPU], ids=["CPU", "GPU"])
def test_what_cannot_fit_is_refused(monkeypatch, devices, changes, batch, flag):
    monkeypatch.setattr(memory_check, "gpu_bytes", lambda *_: 64 * 10**9)
    settings = PretrainSettings(batch=BatchConfig(**batch))
    with pytest.raises(UserError) as caught:
        check(monkeypatch, 64 * 10**9, settings=settings, devices=devices, **changes)
    text = str(caught.value)
    assert re.search("(this machine|a GPU) has 64.0 GB", text)
    assert flag in text and len(text) <= 300


def test_what_the_remedies_save(monkeypatch):
    plain, recomputed = (
        PretrainSettings(memory=MemoryConfig(recompute_every=recompute), batch=BatchConfig())
        for recompute in (None, 1)
    )
    with pytest.raises(UserError):
        check(monkeypatch, 2 * 10**9, settings=plain)
    check(monkeypatch, 2 * 10**9, settings=recomputed)
    small = PretrainSettings(batch=BatchConfig(train_batch_size=1))
    check(monkeypatch, 2 * 10**9, settings=small)
    check(monkeypatch, None, settings=plain)  # unknown memory


def test_gpus_are_looked_at_one_by_one(monkeypatch):
    monkeypatch.setattr(memory_check, "gpu_bytes", lambda gpus, limit: limit and limit << 20)
    for limit, fits in ((256, False), (16000, True), (None, True)):
        settings = PretrainSettings(devices=DeviceConfig(gpu_memory_limit=limit))
        if fits:
            check(monkeypatch, 10**9, settings=settings, devices=GPU)
        else:
            with pytest.raises(UserError, match="a GPU has 268.4 MB"):
                check(monkeypatch, 10**9, settings=settings, devices=GPU)


def test_this_machine_has_memory():
    assert 10**8 < nvml.machine_bytes() < 10**15
    sizes = (0, 999, 1500, 999_600_000, 25 * 10**9)
    texts = ["0 bytes", "999 bytes", "1.5 kB", "999.6 MB", "25.0 GB"]
    assert list(map(format_bytes, sizes)) == texts
