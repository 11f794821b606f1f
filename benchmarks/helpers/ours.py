"""Our own training step as a process for benchmarks: bert_gpu's engine, on a generated batch or on
records from the data script.
"""

import os
import sys
import tempfile
import time

import numpy as np
from kernels import kernels_of_trace, shares
from serve import VOCAB_SIZE, Trainer, make_batch, serve

LEARNING_RATE = 1e-4


class Ours(Trainer):
    """shape: fields of ModelConfig. length: S. precision, xla, device: of DeviceConfig. gpu:
    whether to train on the GPU. attention, recompute_every: of MemoryConfig. packed: rows of
    several sequences. data: folder of records, instead of a generated batch. optimizer: of
    OptimizerConfig. micro_batches: of a step. freeze: of MemoryConfig.
    steps_per_call: steps of one call into TensorFlow.
    """

    def __init__(
        self, shape, length, precision="float32", xla="auto", gpu=False, attention="auto",
        packed=False, data=None, recompute_every=None, optimizer="adamw", micro_batches=1,
        freeze=(), steps_per_call=1, seed=1, **device,
    ):  # fmt: skip
        if not gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        import tensorflow as tf

        from bert_gpu.devices.config import DeviceConfig
        from bert_gpu.devices.devices import set_up
        from bert_gpu.model.config import ModelConfig
        from bert_gpu.optim.config import OptimizerConfig
        from bert_gpu.train.config import MemoryConfig

        self.OUT_OF_MEMORY = (MemoryError, tf.errors.ResourceExhaustedError)
        self.tf = tf
        self.length = length
        self.gpu = gpu
        self.packed = packed
        self.data = data
        self.seed = seed
        self.steps_per_call = steps_per_call
        self.micro_batches = micro_batches
        self.num_done = 0
        devices = DeviceConfig(num_gpus=int(gpu), precision=precision, xla=xla, **device)
        self.devices = set_up(devices)
        vocab_size = self.open_data() if data else VOCAB_SIZE
        self.model = ModelConfig(**dict(vocab_size=vocab_size) | shape)
        self.memory = MemoryConfig(
            recompute_every=recompute_every, attention=attention, freeze=tuple(freeze)
        )
        self.optimizer = OptimizerConfig(optimizer=optimizer)
        self.make_state()

    def open_data(self):
        """Open the records; return the size of their vocabulary."""
        from bert_gpu.data.config import InputConfig
        from bert_gpu.data.dataset import Dataset
        from bert_gpu.text.tokenizers.open import open_tokenizer

        dataset = Dataset(InputConfig(input_file=f"{self.data}/*.tfrecord"))
        path = os.path.join(dataset.folder, dataset.info.vocab_file)
        tokenizer = open_tokenizer(path, dataset.info.do_lower_case)
        self.reader = dataset.reader("train", tokenizer, self.seed)
        self.packed = not dataset.schema.has_next_sentence_labels
        return tokenizer.vocab_size

    def open_objective(self, encoder):
        from bert_gpu.pretrain.objectives.joint import open_objective

        return open_objective(("mlm",) if self.packed else ("mlm", "nsp"), encoder)

    def make_state(self):
        from bert_gpu.model.encoder import BertEncoder
        from bert_gpu.model.weights import column_blocks, initialize
        from bert_gpu.train.state import TrainState, frozen_names

        specs = self.open_objective(BertEncoder(self.model)).weights()
        weights, blocks = initialize(specs, self.seed), column_blocks(specs)
        strategy, frozen = self.devices.strategy, frozen_names(weights, self.memory.freeze)
        self.state = TrainState(strategy, weights, self.optimizer, frozen, column_blocks=blocks)

    def make_step(self, num_micro_batches, **more):
        from bert_gpu.model.encoder import BertEncoder
        from bert_gpu.train.memory import training_encoder
        from bert_gpu.train.step import TrainStep

        encoder = training_encoder(BertEncoder(self.model), self.memory, self.devices)
        objective = self.open_objective(encoder)
        sizes = dict(num_micro_batches=num_micro_batches, seed=self.seed)
        return TrainStep(self.devices, self.state, objective, self.optimizer, **sizes, **more)

    def endless(self, rows):
        """Return endless global batches of `rows` rows."""
        if self.data:
            from bert_gpu.data.pipeline import prefetch, training_batches

            batches = training_batches(self.reader, batch_size=rows, position=0, shuffle=True)
            return prefetch(batches, 2 * self.steps_per_call)
        batch = make_batch(rows, self.length, self.packed)
        return iter(lambda: batch, None)

    def build(self, rows):
        self.step = self.make_step(self.micro_batches)
        self.batches = self.endless(rows)
        self.generated = None
        self.real_tokens = []
        if self.gpu:
            self.tf.config.experimental.reset_memory_stats("GPU:0")

    def run(self, num_steps):
        """Run calls of steps_per_call steps each; a shorter last call would be another program, so
        the number of steps is rounded up.
        """
        for _ in range(-(-num_steps // self.steps_per_call)):
            batches = [next(self.batches) for _ in range(self.steps_per_call)]
            rates = [LEARNING_RATE] * self.steps_per_call
            self.real_tokens += [int(batch["input_mask"].sum()) for batch in batches]
            if not self.data:  # a generated batch stays on the device, as that of the peers
                batches = self.generated = self.generated or self.step.put_on_devices(
                    batches, self.num_done, None, rates
                )
            metrics = self.step(batches, rates, self.num_done)
            self.num_done += self.steps_per_call
        return float(metrics.read()["loss"][-1])

    def prepare(self, rows, warm=2):
        answer = super().prepare(rows, warm)
        if answer["fits"]:
            # both for one call; the rest is tracing and compiling
            answer["first_seconds"] -= answer["step_seconds"]
            self.step_seconds /= self.steps_per_call
            answer["step_seconds"] = self.step_seconds
        return answer

    def turn(self, seconds=0.0):
        """Run whole calls only. Adds "real_tokens", the mean number of a step."""
        self.real_tokens = []
        num_calls = max(1, round(seconds / self.step_seconds / self.steps_per_call))
        num_steps = num_calls * self.steps_per_call
        answer = self.timed(num_steps)
        return answer | dict(real_tokens=float(np.mean(self.real_tokens)))

    def peak_bytes(self):
        if not self.gpu:
            return super().peak_bytes()
        return self.tf.config.experimental.get_memory_info("GPU:0")["peak"]

    def matrix_rate(self, precision, seconds=2.0):
        """Return the FLOP/s of a large product; the fastest call counts."""
        from bert_gpu.devices.devices import DTYPES

        tf = self.tf
        size, num_products = (8192, 4) if self.gpu else (1024, 4)
        with tf.device("GPU:0" if self.gpu else "CPU:0"):
            # divided by sqrt(size), repeated products keep their scale, and no number overflows
            values = np.random.default_rng(0).normal(0, size**-0.5, (size, size))
            matrix = tf.cast(tf.constant(values, tf.float32), DTYPES[precision])

            @tf.function(autograph=False)
            def multiply(x):
                for _ in range(num_products):
                    x = tf.matmul(matrix, x)
                return x, tf.reduce_sum(tf.cast(x[0], tf.float32))

            multiply(matrix)[1].numpy()
            best, end = float("inf"), time.perf_counter() + seconds
            while best == float("inf") or time.perf_counter() < end:
                started = time.perf_counter()
                multiply(matrix)[1].numpy()  # waits for the device
                best = min(best, time.perf_counter() - started)
        return 2.0 * size**3 * num_products / best

    def versions(self):
        config, details = self.tf.config, {}
        if self.gpu:
            gpu, *_ = config.list_physical_devices("GPU")
            details = config.experimental.get_device_details(gpu)
        build = self.tf.sysconfig.get_build_info()
        return dict(
            tensorflow=self.tf.__version__,
            gpu=details.get("device_name"),
            cuda=build.get("cuda_version"),
            cudnn=build.get("cudnn_version"),
        )

    def outside_products(self, num_steps=4):
        """Return `kernels.shares` of a few steps; None where the profiler sees no GPU."""
        with tempfile.TemporaryDirectory() as folder:
            self.tf.profiler.experimental.start(folder)
            started = time.perf_counter()
            self.run(num_steps)
            seconds = time.perf_counter() - started
            self.tf.profiler.experimental.stop()
            return shares(kernels_of_trace(folder), seconds)

    def fill(self, rows, global_batch_size=None):
        """Return the micro-batch that --train_batch_size=auto chooses, and the accumulation of its
        steps: {"micro_batch", "accumulation"}. rows: batch to use when there is no GPU to fill.
        """
        from bert_gpu.base.console import Console
        from bert_gpu.base.errors import UserError
        from bert_gpu.train.auto_batch import find_micro_batch

        accumulates = global_batch_size is not None
        if self.gpu:
            try:
                rows = find_micro_batch(
                    self.devices,
                    make_batch(8, self.length),
                    self.make_step,
                    Console(stream=sys.stderr).say,
                    global_batch_size,
                    accumulates=accumulates,
                )
            except UserError as error:
                return dict(micro_batch=None, error=str(error))
        self.micro_batches = global_batch_size // rows if accumulates else 1
        return dict(micro_batch=rows, accumulation=self.micro_batches)

    def losses(self, rows, num_steps):
        """Return the loss of each step from fresh weights, each on a different batch."""
        self.make_state()
        step, losses = self.make_step(self.micro_batches), []
        for index in range(num_steps):
            batch = make_batch(rows, self.length, self.packed, seed=index)
            losses.append(float(step([batch], [LEARNING_RATE], index).read()["loss"][0]))
        return losses


if __name__ == "__main__":
    serve(Ours)
