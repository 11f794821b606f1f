"""Our training step with and without its all-reduce, and the all-reduce alone, as a process for
benchmarks/scaling.py: with virtual replicas, or as one of the workers that TF_CONFIG names.
"""

import os
import time

import numpy as np
from ours import LEARNING_RATE, Ours
from serve import make_batch, serve


class Scaled(Ours):
    def __init__(self, **settings):
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        from bert_gpu.devices.config import DeviceConfig
        from bert_gpu.devices.devices import join_workers

        join_workers(DeviceConfig(num_gpus=0, precision="float32"))
        super().__init__(**settings)

    def prepare_steps(self, rows, most):
        """Make both steps and run each once. rows: of a micro-batch. most: micro-batches."""
        self.rows = rows
        alone = self.make_step(most, is_ramped=True)
        alone._all_reduce = lambda context, gradients, losses: (gradients, losses)
        self.steps = dict(step=self.make_step(most, is_ramped=True), alone=alone)
        for kind in self.steps:
            self.step_seconds_of(kind, 1)
        return {}

    def step_seconds_of(self, kind, accumulation):
        step = self.steps[kind]
        rows = self.rows * accumulation * self.devices.num_replicas
        batch = step.put_on_devices([make_batch(rows, self.length)], 0, [accumulation])
        started = time.perf_counter()
        step(batch, [LEARNING_RATE], 0).read()
        return time.perf_counter() - started

    def all_reduce_seconds(self, share):
        """Return the seconds of an all-reduce of gradients of this share of their sizes in
        training.
        """
        tf, devices = self.tf, self.devices
        sizes = {
            name: max(1, round(share * np.prod(self.state.weights[name].shape)))
            for name in self.state.trained
        }
        distribute = devices.strategy.experimental_distribute_values_from_function

        @tf.function(autograph=False)
        def program(parts):
            def replica(parts):
                context = tf.distribute.get_replica_context()
                total = tf.distribute.ReduceOp.SUM
                # computed here, as gradients are; arguments of a function have no device
                parts = {name: tf.identity(part) for name, part in parts.items()}
                sums = context.all_reduce(total, parts, devices.communication)
                return tf.add_n([part[0] for part in sums.values()])

            return devices.strategy.experimental_local_results(
                devices.strategy.run(replica, args=(parts,))
            )

        if share not in self.programs:
            parts = distribute(lambda _: {name: tf.ones([size]) for name, size in sizes.items()})
            self.programs[share] = program, parts
            program(parts)
        program, parts = self.programs[share]
        started = time.perf_counter()
        [each.numpy() for each in program(parts)]
        return time.perf_counter() - started

    def measure(self, accumulations, shares):
        """Return {name: seconds} of each step and each all-reduce, one after another."""
        self.programs = getattr(self, "programs", {})
        seconds = {}
        for accumulation in accumulations:
            for kind in self.steps:
                seconds[f"{kind} {accumulation}"] = self.step_seconds_of(kind, accumulation)
        for share in shares:
            seconds[f"all-reduce {share}"] = self.all_reduce_seconds(share)
        return seconds


if __name__ == "__main__":
    serve(Scaled)
