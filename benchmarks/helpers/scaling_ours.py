"""Our training step with and without its all-reduce, and the all-reduce alone, as a process for
benchmarks/scaling.py.
"""

import time

import numpy as np
from ours import LEARNING_RATE, Ours
from serve import make_batch, serve


class Scaled(Ours):
    def prepare_steps(self, rows, most):
        """Makes both steps and runs each once. rows: of a micro-batch. most: micro-batches."""
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
        batch = step.put_on_devices([make_batch(rows, self.length)], [accumulation])
        started = time.perf_counter()
        step(batch, [LEARNING_RATE], 0).read()
        return time.perf_counter() - started

    def all_reduce_seconds(self, fraction):
        """Of gradients that are each this fraction of what they are in training."""
        tf, devices = self.tf, self.devices
        names = [name for name in self.state.trained]
        sizes = [
            max(1, round(fraction * np.prod(self.state.weights[name].shape))) for name in names
        ]
        distribute = devices.strategy.experimental_distribute_values_from_function

        @tf.function(autograph=False)
        def program(parts):
            def replica(parts):
                context = tf.distribute.get_replica_context()
                total = tf.distribute.ReduceOp.SUM
                found = context.all_reduce(total, parts, devices.communication)
                return tf.add_n([part[0] for part in found])

            return devices.strategy.experimental_local_results(
                devices.strategy.run(replica, args=(parts,))
            )

        if fraction not in self.programs:
            parts = distribute(lambda context: [tf.ones([size]) for size in sizes])
            self.programs[fraction] = program, parts
            program(parts)
        program, parts = self.programs[fraction]
        started = time.perf_counter()
        [each.numpy() for each in program(parts)]
        return time.perf_counter() - started

    def measure(self, accumulations, fractions):
        """{name: seconds} of each step and each all-reduce, one after another."""
        self.programs = getattr(self, "programs", {})
        found = {}
        for accumulation in accumulations:
            for kind in self.steps:
                found[f"{kind} {accumulation}"] = self.step_seconds_of(kind, accumulation)
        for fraction in fractions:
            found[f"all-reduce {fraction}"] = self.all_reduce_seconds(fraction)
        return found


if __name__ == "__main__":
    serve(Scaled)
