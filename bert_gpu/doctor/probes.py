"""Trials of the doctor, the check of this machine. Each trial runs in a process of its own with a
time limit, because it may hang or crash.

`python -m bert_gpu.doctor.probes KIND NUM_GPUS` makes one trial and prints a JSON object; `attempt`
starts this command.
"""

import json
import os
import signal
import subprocess
import sys

from bert_gpu.base import environment

tf = environment.LazyModule("tensorflow")

OUTPUT = "trial: "  # prefix of the line with the JSON object


def attempt(kind: str, num_gpus: str = "", seconds: float = 300.0) -> dict[str, object]:
    """Run a trial and return its result, or {"error": a line of text} when the trial fails, hangs
    or crashes.

    Args:
      kind: "look" or "step". num_gpus: of a step, "0" for one on the CPU. seconds: time limit.
    """
    command = [sys.executable, "-m", "bert_gpu.doctor.probes", kind, num_gpus]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [root, os.environ.get("PYTHONPATH", "")]
    try:
        process = subprocess.run(
            command,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths))),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return dict(error=f"did not end within {seconds:g} seconds", is_late=True)
    results = [line for line in process.stdout.splitlines() if line.startswith(OUTPUT)]
    if results:
        return json.loads(results[-1].removeprefix(OUTPUT))
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        return dict(error=f"ended by {name}{last_line(process.stderr)}")
    return dict(error=f"ended with code {process.returncode}{last_line(process.stderr)}")


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return f": {lines[-1].strip()[:200]}" if lines else ""


def look() -> dict[str, object]:
    """Return TensorFlow's "version", its "cuda" and "cudnn" versions, and "gpus", the names of the
    GPUs that it finds.
    """
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


def step(num_gpus: int) -> dict[str, object]:
    """Run one step of a tiny BERT on a random batch, and return its loss, its seconds (compiling
    included) and its devices' settings. num_gpus: each of them has a replica; 0 = the CPU.
    """
    import math
    import time

    import numpy as np

    from bert_gpu.devices import devices as all_devices
    from bert_gpu.devices.config import DeviceConfig
    from bert_gpu.model.config import preset
    from bert_gpu.model.encoder import BertEncoder
    from bert_gpu.model.weights import column_blocks, initialize
    from bert_gpu.optim.config import OptimizerConfig
    from bert_gpu.pretrain.objectives.joint import open_objective
    from bert_gpu.train.state import TrainState
    from bert_gpu.train.step import TrainStep

    since = time.monotonic()
    devices = all_devices.set_up(DeviceConfig(num_gpus=num_gpus))
    vocab_size = 512
    length = 32
    num_masked = 4
    rows = 4 * devices.num_replicas
    objective = open_objective(("mlm", "nsp"), BertEncoder(preset("tiny", vocab_size=vocab_size)))
    specs = objective.weights()
    config = OptimizerConfig()
    state = TrainState(devices.strategy, initialize(specs, 0), config, (), column_blocks(specs))
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
    train_step = TrainStep(devices, state, objective, config, num_micro_batches=1, seed=0)
    loss = float(train_step([batch], [1e-4], 0).read()["loss"][0])
    if not math.isfinite(loss):
        raise ArithmeticError(f"the loss of the first step is {loss}")
    return dict(
        loss=loss,
        seconds=time.monotonic() - since,
        precision=devices.precision,
        xla=devices.xla,
    )


def main(kind: str, num_gpus: str) -> None:
    try:
        result = look() if kind == "look" else step(int(num_gpus))
    except Exception as error:  # the doctor prints errors of any kind
        reason = " ".join(str(error).split())[:200]
        result = dict(error=f"{type(error).__name__}: {reason}" if reason else repr(error))
    print(OUTPUT + json.dumps(result), flush=True)


if __name__ == "__main__":
    environment.prepare()
    main(*sys.argv[1:])
