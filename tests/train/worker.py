"""A worker of test_workers.py: trains the tiny BERT of tiny.py, once for each of the trainings that
its arguments describe, and prints what came out of them.
"""

import hashlib
import json
import sys

import numpy as np

from bert_gpu.devices.config import DeviceConfig
from bert_gpu.devices.devices import join_workers
from tests.train.tiny import Trainer, batches


def train(training):
    """The losses, and a hash of the weights, of a training: {"steps_per_call", and arguments of
    Trainer}.
    """
    training = dict(training)
    steps_per_call = training.pop("steps_per_call")
    trainer = Trainer(**training)
    metrics = trainer.run(batches(10), steps_per_call=steps_per_call)
    weights = trainer.state.read_weights()
    content = b"".join(weights[name].tobytes() for name in sorted(weights))
    return dict(
        losses=[step["loss"] for step in metrics], weights=hashlib.sha256(content).hexdigest()
    )


def main(trainings):
    workers = join_workers(DeviceConfig(num_gpus=0))
    told = workers.from_chief(lambda: f"worker {workers.index} speaks")
    arrays = workers.from_chief(lambda: dict(x=np.full(5, workers.index, np.uint8)))
    results = [train(training) for training in trainings]
    found = dict(told=told, x=arrays["x"].tolist(), results=results)
    everyone = workers.gather(found)
    if workers.is_chief:
        print(json.dumps(everyone))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
