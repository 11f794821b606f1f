"""Several workers train as one process with as many replicas does, agree on what only one of them
knows, and do not wait for ever.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.devices import devices, workers
from bert_gpu.devices import launch as launched
from bert_gpu.devices.cluster import Cluster
from bert_gpu.devices.config import DeviceConfig
from bert_gpu.pretrain.config import PretrainConfig, PretrainSettings
from bert_gpu.train import run
from bert_gpu.train.config import BatchConfig
from tests.train.tiny import Trainer, batches, fresh

ROOT = pathlib.Path(__file__).parent.parent.parent


ENVIRON = dict(os.environ, PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES="-1")


def run_workers(trainings, environs=None):
    """What each worker of worker.py has found. environs: of each; by default of two by
    TF_CONFIG.
    """
    command = [sys.executable, "-m", "tests.train.worker", json.dumps(trainings)]
    processes = [
        subprocess.Popen(command, env=own, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for own in environs or launched.environments(2, 0, ENVIRON)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return json.loads(outputs[0])


def check_laws(everyone, alone):
    """All workers have the same weights, and the losses of `alone`, lists of 10 of a training."""
    for index, losses in enumerate(alone):
        results = [worker["results"][index] for worker in everyone]
        for result in results:
            np.testing.assert_allclose(result["losses"], losses, rtol=1e-5)
        assert len({result["weights"] for result in results}) == 1


def losses_alone(trainer):
    return [step["loss"] for step in trainer.run(batches(10))]


def test_two_workers_with_8_rows_are_one_with_16():
    everyone = run_workers([dict(steps_per_call=5)])
    check_laws(everyone, [losses_alone(fresh())])
    assert [worker["told"] for worker in everyone] == ["worker 0 speaks"] * 2
    assert [worker["x"] for worker in everyone] == [[0] * 5] * 2


@pytest.mark.long
def test_accumulation_muon_and_lamb_hold_the_law_too():
    kinds = [
        dict(accumulation=2, clip_norm=0.1),
        dict(optimizer="muon", num_layers=2),
        dict(optimizer="lamb"),
    ]
    everyone = run_workers([dict(kind, steps_per_call=1) for kind in kinds])
    alone = [
        Trainer(2, 2, clip_norm=0.1),
        Trainer(2, optimizer="muon", num_layers=2),
        Trainer(1, optimizer="lamb"),
    ]
    check_laws(everyone, list(map(losses_alone, alone)))


@pytest.mark.long
def test_the_tasks_of_a_step_of_slurm_find_each_other():
    step = dict(
        SLURM_JOB_ID=str(os.getpid()),  # which decides the ports
        SLURM_STEP_NUM_TASKS="3",
        SLURM_STEP_NODELIST="localhost",
        SLURM_STEP_TASKS_PER_NODE="3",
    )
    everyone = run_workers([], [ENVIRON | step | dict(SLURM_PROCID=str(i)) for i in range(3)])
    assert [worker["told"] for worker in everyone] == ["worker 0 speaks"] * 3


def make_workers(index=0, **replaced):
    found = workers.Workers(Cluster(("a:1", "b:2"), index), 20.0)
    for name, value in replaced.items():
        setattr(found, name, value)
    return found


def test_the_clock_is_that_of_worker_0_and_a_signal_is_anybodys():
    sent, caught = [], []

    def maximum(values):
        sent.append(values)
        return np.maximum(values, [7.0, 15])  # what worker 0 has, and a signal there

    worker = make_workers(1, maximum=maximum, from_chief=lambda act, *arguments: 3.0)
    clock = workers.Clock(worker, lambda: 99.0, caught)
    assert (clock.seconds, clock.caught) == (3.0, [])
    clock.sync()
    assert (clock.seconds, clock.caught, caught) == (7.0, [15], [])
    caught.append(2)
    clock.sync()
    assert sent == [[0.0, 0], [0.0, 2]]
    assert clock.caught == [15]  # the first one stays


def test_workers_that_differ_are_told_in_one_line():
    worker = make_workers(gather=lambda facts: [facts, dict(facts, seed=2)])
    with pytest.raises(UserError, match=r"worker 1 \(b:2\): seed is 2, on worker 0 1; give all"):
        worker.check_alike(dict(seed=1, precision="float32"))


@pytest.mark.parametrize(
    "other, told",
    [
        (dict(overwrite=True), "overwrite is True, on worker 0 False"),
        (dict(run=PretrainConfig(do_train=False)), "do_train is False, on worker 0 None"),
        (dict(batch=BatchConfig(train_batch_size=3)), "train_batch_size is 3"),
        (dict(run=PretrainConfig(output_dir="elsewhere")), None),
    ],
)
def test_other_flags_are_told_but_for_places_of_files(other, told):
    settings = PretrainSettings()
    other = dataclasses.replace(settings, **other)
    sent = []
    run.check_same_command(types.SimpleNamespace(check_alike=sent.append), other)
    worker = make_workers(gather=lambda facts: [facts, *sent])
    with pytest.raises(UserError, match=told) if told else contextlib.nullcontext():
        run.check_same_command(worker, settings)


@pytest.mark.parametrize(
    "error, told",
    [
        (tf.errors.UnavailableError(None, None, "task:1 is down"), r"worker 1 \(b:2\) is gone"),
        (tf.errors.DeadlineExceededError(None, None, "late"), "not responded for 20 s"),
        (tf.errors.InternalError(None, None, "Collective ops is aborted"), "another worker is"),
    ],
)
def test_errors_of_collectives_mean_that_a_worker_is_lost(error, told):
    with pytest.raises(workers.WorkerLost, match=told) as raised, make_workers().watched():
        raise error
    assert raised.value.exit_code == 4 and len(str(raised.value)) < 300


@pytest.mark.parametrize("found", [(1, "nothing answers there (Connection refused)"), None])
def test_a_worker_that_never_comes_is_named(found, monkeypatch):
    lost = workers.WorkerLost("another worker is gone")

    def gather(value):
        raise lost

    monkeypatch.setattr(Cluster, "first_unreachable", lambda cluster: found)
    with pytest.raises(workers.WorkerLost) as raised:
        make_workers(gather=gather).connect()
    told = r"worker 1 (b:2) has not come: nothing answers there (Connection refused); start it, "
    assert str(raised.value).startswith(told) if found else raised.value is lost


def test_other_errors_stay():
    error = tf.errors.ResourceExhaustedError(None, None, "out of memory")
    with pytest.raises(tf.errors.ResourceExhaustedError), make_workers().watched():
        raise error


def test_a_wait_that_outlasts_its_limit_ends_the_process(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(workers, "exit_hung_process", ended.set)
    monkeypatch.setattr(workers, "GRACE_SECONDS", 0)
    with make_workers(timeout_seconds=0.0).waiting():
        assert ended.wait(60)
    ended.clear()
    with make_workers(timeout_seconds=60.0).waiting():
        (timer,) = (one for one in threading.enumerate() if isinstance(one, threading.Timer))
    timer.join(30)
    assert not timer.is_alive() and not ended.is_set()


def test_the_largest_micro_batch_is_not_tried_on_several_machines():
    settings = PretrainSettings(batch=BatchConfig(train_batch_size="auto"))
    data = types.SimpleNamespace(
        open_batches=lambda **given: iter([{}]), max_seq_length=8, length_axes={}
    )
    gpus = types.SimpleNamespace(kind="GPU", num_replicas=2, workers=make_workers())
    of_run = types.SimpleNamespace(settings=settings, run_json=None, console=Console(True))
    with pytest.raises(UserError, match="--train_batch_size=auto: works on a single machine only"):
        run.plan_run(of_run, data, gpus, None)


def test_what_is_for_one_machine_is_refused():
    with pytest.raises(UserError, match="--virtual_replicas=2: simulates several GPUs"):
        devices.check_all_reduce(DeviceConfig(virtual_replicas=2), "CPU", make_workers())
