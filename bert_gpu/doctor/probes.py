"""Trials of the doctor: what may hang or end its process at once is tried in one of its own, with a
limit.

`python -m bert_gpu.doctor.probes KIND DEVICE` makes one trial and prints a JSON object; `attempt`
calls it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys

from bert_gpu.base import environment

tf = environment.LazyModule("tensorflow")

OUTPUT = "trial: "  # what the line with the JSON object begins with


def attempt(kind, device="", seconds=300.0):
    """What a trial found: a dict, or {"error": one line} when it fails, hangs or ends at once.

    Args:
      kind: of TRIALS. device: "CPU", or the indices of GPUs such as "0" or "0,1".
    """
    command = [sys.executable, "-m", "bert_gpu.doctor.probes", kind, device]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [root, os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        command,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths))),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(process)
        return dict(error=f"did not end within {seconds:g} seconds", is_late=True)
    except BaseException:  # a Ctrl-C does not reach the trial's session
        end(process)
        raise
    found = [line for line in output.splitlines() if line.startswith(OUTPUT)]
    if found:
        return json.loads(found[-1].removeprefix(OUTPUT))
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        return dict(error=f"ended by {name}{last_line(errors)}")
    return dict(error=f"ended with code {process.returncode}{last_line(errors)}")


def end(process):
    """Kills a process and what it has started, and waits for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return f": {lines[-1].strip()[:200]}" if lines else ""


def look(_):
    """What TensorFlow is and which devices it finds."""
    build = tf.sysconfig.get_build_info()
    return dict(
        version=tf.__version__,
        cuda=build.get("cuda_version"),
        cudnn=build.get("cudnn_version"),
        gpus=[
            tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
            for gpu in tf.config.list_physical_devices("GPU")
        ],
    )


def rate(device):
    """FLOP/s of a matrix product, in float32 and, on a GPU, in its 16 bits as well."""
    from bert_gpu.monitor.throughput import measured_matrix_rate

    devices = set_up(device)
    place = "CPU:0" if devices.kind == "CPU" else "GPU:0"
    dtypes = dict.fromkeys(["float32", devices.precision])
    rates = {name: measured_matrix_rate(tf.as_dtype(name), place, seconds=0.5) for name in dtypes}
    return dict(flops=rates)


def step(device):
    """One step of a tiny BERT on a made-up batch: its seconds, compiling included, and its loss.
    Several GPUs, or "CPU x 2", each get a replica.
    """
    import math
    import time

    import numpy as np

    from bert_gpu.model.config import preset
    from bert_gpu.model.encoder import BertEncoder
    from bert_gpu.model.weights import column_blocks, initialize
    from bert_gpu.optim.config import OptimizerConfig
    from bert_gpu.pretrain.objectives.joint import open_objective
    from bert_gpu.train.state import TrainState
    from bert_gpu.train.step import TrainStep

    since = time.monotonic()
    devices = set_up(device)
    vocab_size, length, num_masked, rows = 512, 32, 4, 4 * devices.num_replicas
    encoder = BertEncoder(preset("tiny", vocab_size=vocab_size))
    objective = open_objective(("mlm", "nsp"), encoder)
    specs, config = objective.weights(), OptimizerConfig()
    weights = initialize(specs, 0)
    state = TrainState(devices.strategy, weights, config, (), column_blocks(specs))
    draw = np.random.default_rng(0)
    batch = dict(
        input_ids=draw.integers(5, vocab_size, (rows, length), np.int32),
        input_mask=np.ones((rows, length), np.int32),
        segment_ids=np.zeros((rows, length), np.int32),
        masked_lm_positions=np.tile(np.arange(1, 1 + num_masked, dtype=np.int32), (rows, 1)),
        masked_lm_ids=draw.integers(5, vocab_size, (rows, num_masked), np.int32),
        masked_lm_weights=np.ones((rows, num_masked), np.float32),
        next_sentence_labels=np.zeros(rows, np.int32),
    )
    joint = objective.of_training()
    train_step = TrainStep(devices, state, joint, config, num_micro_batches=1, seed=0)
    loss = float(train_step([batch], [1e-4], 0).read()["loss"][0])
    if not math.isfinite(loss):
        raise ArithmeticError(f"the loss of the first step is {loss}")
    found = dict(loss=loss, seconds=time.monotonic() - since, num_replicas=devices.num_replicas)
    return found | dict(precision=devices.precision, xla=devices.xla)


def set_up(device):
    """devices.Devices for "CPU", "CPU x 2" or indices of GPUs."""
    from bert_gpu.devices import devices
    from bert_gpu.devices.config import DeviceConfig

    if device.startswith("CPU"):
        copies = int(device.partition(" x ")[2] or 1)
        return devices.set_up(DeviceConfig(num_gpus=0, virtual_replicas=copies))
    return devices.set_up(DeviceConfig(gpus=device))


TRIALS = dict(look=look, rate=rate, step=step)


def main(kind, device):
    try:
        found = TRIALS[kind](device)
    except Exception as error:  # whatever it is, the doctor shows it
        reason = " ".join(str(error).split())[:200]
        found = dict(error=f"{type(error).__name__}: {reason}" if reason else repr(error))
    print(OUTPUT + json.dumps(found), flush=True)


if __name__ == "__main__":
    environment.prepare()
    main(*sys.argv[1:])
