"""A worker of benchmarks/workers.py: times the steps of all variants in turns, and prints them as
JSON where it is worker 0.

Arguments: JSON of {"shape", "length", "batch_size", "rounds", "packs" (megabytes)}.
"""

import dataclasses
import json
import sys
import time

import tensorflow as tf
from serve import VOCAB_SIZE, make_batch

from bert_gpu.devices.config import DeviceConfig
from bert_gpu.devices.devices import join_workers, set_up
from bert_gpu.model import heads
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import column_blocks, initialize
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.pretrain.objective import pretraining_objective
from bert_gpu.train.state import TrainState
from bert_gpu.train.step import TrainStep

WARM_UP = 2


class WithoutExchange(TrainStep):
    """Each worker keeps its own gradients."""

    def _all_reduce(self, context, gradients, losses):
        return gradients, losses


def make_steps(devices, state, objective, optimizer, packs):
    """{variant: TrainStep}: without an exchange, and with one in packs of so many megabytes."""

    def make(kind, packed):
        communication = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=packed)
        own = dataclasses.replace(devices, communication=communication)
        return kind(own, state, objective, optimizer, num_micro_batches=1, seed=1)

    found = {"none": make(WithoutExchange, 0)}
    return found | {str(megabytes): make(TrainStep, megabytes * 2**20) for megabytes in packs}


def main(settings):
    workers = join_workers(DeviceConfig(num_gpus=0))
    devices = set_up(DeviceConfig(num_gpus=0))
    encoder = BertEncoder(ModelConfig(vocab_size=VOCAB_SIZE, **settings["shape"]))
    specs, optimizer = heads.pretraining_weights(encoder), OptimizerConfig()
    weights = initialize(specs, 1)
    state = TrainState(devices.strategy, weights, optimizer, column_blocks=column_blocks(specs))
    objective = pretraining_objective(encoder)
    steps = make_steps(devices, state, objective, optimizer, settings["packs"])
    batch = make_batch(settings["batch_size"] * workers.count, settings["length"])
    seconds = {name: [] for name in steps}
    for turn in range(WARM_UP + settings["rounds"]):
        for name, step in steps.items():
            workers.gather(None)  # they begin together
            started = time.perf_counter()
            step([batch], [1e-4], turn).read()
            if turn >= WARM_UP:
                seconds[name].append(time.perf_counter() - started)
    if workers.is_chief:
        num_bytes = 4 * sum(weight.size for weight in weights.values())
        print(json.dumps(dict(seconds=seconds, gradient_bytes=num_bytes)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
