#!/usr/bin/env python3
"""Compares 8-bit AdamW with AdamW: loss curves of a small BERT on real text, and bytes of both
states.

    python benchmarks/adamw8bit.py [--steps=500] [--text=corpus.txt]

Both train the same weights on the same batches with the same dropout; only the optimizer differs.
Curves are means of 25 steps.
"""

import os

import numpy as np
from helpers.command import benchmark_parser, work_folder
from helpers.report import origin, print_origin, print_table

from bert_gpu.base.environment import LazyModule
from bert_gpu.cli import data as data_command
from bert_gpu.data import pipeline
from bert_gpu.data.config import InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.model import heads
from bert_gpu.model.config import preset
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import initialize
from bert_gpu.optim import adamw8bit, optimizers
from bert_gpu.optim.config import OptimizerConfig, ScheduleConfig
from bert_gpu.optim.schedules import learning_rate_factor
from bert_gpu.text.tokenizers.open import open_tokenizer

# a plain import would be sorted before bert_gpu, which sets TensorFlow's environment
tf = LazyModule("tensorflow")

LENGTH, ROWS, PEAK_LEARNING_RATE, WINDOW, SEED = 64, 32, 1e-3, 25, 1


def read_batches(text, folder, num_steps):
    """(batches, vocabulary size): `num_steps` training batches of (ROWS, LENGTH), which the data
    script makes from the text.
    """
    files = [f"--input_file={text}", f"--output_file={folder}/text.tfrecord"]
    data_command.main(
        [
            "data",
            *files,
            f"--max_seq_length={LENGTH}",
            "--max_predictions_per_seq=10",
            "--vocab_size=4096",
            "--quiet",
        ]
    )
    dataset = Dataset(InputConfig(input_file=f"{folder}/*.tfrecord"))
    vocab = open_tokenizer(
        os.path.join(folder, dataset.info.vocab_file), dataset.info.do_lower_case
    )
    batches = pipeline.training_batches(
        dataset.reader("train", vocab, SEED), batch_size=ROWS, position=0, shuffle=True
    )
    return [next(batches) for _ in range(num_steps)], vocab.vocab_size


def train(model, batches, config):
    """The loss of every step; float64 (steps,)."""

    @tf.function(jit_compile=True)
    def update(weights, slots, batch, learning_rate, step):
        counts = heads.pretraining_counts(batch)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            sums = heads.pretraining_losses(
                weights, batch, BertEncoder(model), seed=tf.stack([SEED, step])
            )
            loss = tf.add_n([sums[name] / counts[name] for name in sums])
        gradients = {
            name: tf.convert_to_tensor(gradient)
            for name, gradient in tape.gradient(loss, weights).items()
        }
        factor, _ = optimizers.clip_factor(gradients, config.clip_norm)
        return loss, *optimizers.update(
            weights, gradients, slots, learning_rate, step, config, factor
        )

    weights = {
        name: tf.constant(value)
        for name, value in initialize(heads.pretraining_weights(BertEncoder(model)), SEED).items()
    }
    slots = {
        name: tf.constant(value)
        for name, value in optimizers.initial_slots(weights, config).items()
    }
    losses = []
    for step, batch in enumerate(batches, start=1):
        learning_rate = PEAK_LEARNING_RATE * learning_rate_factor(
            step - 1, len(batches), ScheduleConfig()
        )
        loss, weights, slots = update(
            weights, slots, batch, tf.constant(learning_rate, tf.float32), tf.constant(step)
        )
        losses.append(float(loss))
    return np.array(losses)


def make_parser():
    parser = benchmark_parser(__doc__, "text")
    parser.add_argument(
        "--steps",
        type=int,
        default=500,
        help=f"updates of each optimizer, rounded down to a multiple of {WINDOW}",
    )
    return parser


def main():
    options = make_parser().parse_args()
    num_steps = options.steps // WINDOW * WINDOW
    if num_steps < WINDOW:
        make_parser().error(
            f"--steps={options.steps}: the curves are "
            f"means of {WINDOW} steps; give at least as many"
        )
    print_origin(origin())
    with work_folder() as folder:
        batches, vocab_size = read_batches(options.text, folder, num_steps)
    model = preset("tiny", vocab_size=vocab_size)
    configs = {kind: OptimizerConfig(optimizer=kind) for kind in ("adamw", "adamw8bit")}
    losses = {kind: train(model, batches, config) for kind, config in configs.items()}
    curves = {kind: values.reshape(-1, WINDOW).mean(1) for kind, values in losses.items()}
    differences = curves["adamw8bit"] / curves["adamw"] - 1
    rows = [
        [
            f"{WINDOW * index + 1}-{WINDOW * (index + 1)}",
            f"{first:.4f}",
            f"{second:.4f}",
            f"{100 * difference:+.3f} %",
        ]
        for index, (first, second, difference) in enumerate(
            zip(*curves.values(), differences, strict=True)
        )
    ]
    print_table(["steps", "adamw", "adamw8bit", "difference"], rows)
    single = np.abs(losses["adamw8bit"] / losses["adamw"] - 1)
    print(
        f"largest difference: {100 * np.abs(differences).max():.3f} % of "
        f"{WINDOW}-step means, {100 * single.max():.3f} % of a single step"
    )

    for name, shape in (("this model", model), ("BERT-base", preset("base"))):
        weights = heads.pretraining_weights(BertEncoder(shape))
        quantized = {
            key: spec
            for key, spec in weights.items()
            if adamw8bit.traits(key, spec.shape, configs["adamw8bit"]).is_quantized
        }
        for label, some in (("all weights", weights), ("what is quantised", quantized)):
            full, small = (optimizers.state_bytes(some, config) for config in configs.values())
            print(
                f"{name}, state of {label}, from shapes: "
                f"{full:,} bytes -> {small:,}, a share of {small / full:.4f}"
            )


if __name__ == "__main__":
    main()
