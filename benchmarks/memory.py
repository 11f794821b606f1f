"""What BERT-base needs in memory while training, with each technique that saves some.

    python benchmarks/memory.py [--model=base] [--quick]

Each figure says where it is from: [s] computed from shapes; [c] taken from the step as compiled for the CPU by XLA (size of its temporary
buffer: activations that wait for the backward pass, and scratch), not run. A GPU's compiler fuses and schedules otherwise, and on CPUs
XLA widens bfloat16 products, so [c] tells the techniques apart better than it tells gigabytes. No step is run.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from measure import print_table

ROWS = {  # technique: settings of `child`
    "nothing (float32)": {},
    "bfloat16": dict(precision="bfloat16"),
    "bfloat16, accumulation 4": dict(precision="bfloat16", accumulation=4),
    "bfloat16, embeddings frozen": dict(precision="bfloat16", freeze=["embeddings"]),
    "bfloat16, embeddings and half of the layers frozen": dict(precision="bfloat16", freeze=["embeddings", "layers:HALF"]),
    "bfloat16, recompute": dict(precision="bfloat16", recompute_every=1),
    "bfloat16, recompute every 3rd": dict(precision="bfloat16", recompute_every=3),
    "bfloat16, adamw8bit": dict(precision="bfloat16", optimizer="adamw8bit"),
    "bfloat16, recompute, adamw8bit, accumulation 4": dict(precision="bfloat16", recompute_every=1, optimizer="adamw8bit", accumulation=4),
}


def child(model, length, rows, precision="float32", accumulation=1, freeze=(), recompute_every=0, optimizer="adamw"):
    """Compiles the gradients of one step of `rows` rows of `length` tokens; prints the bytes as JSON."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import numpy as np
    import tensorflow as tf

    from bert_gpu.cli.pretrain import objective
    from bert_gpu.model import heads
    from bert_gpu.model.config import preset
    from bert_gpu.model.encoder import initialize
    from bert_gpu.optim.optimizers import OptimizerConfig, state_bytes
    from bert_gpu.train.devices import DeviceConfig, set_up
    from bert_gpu.train.memory import MemoryConfig
    from bert_gpu.train.state import TrainState, frozen_names
    from bert_gpu.train.step import TrainStep

    config = preset(model)
    devices = set_up(DeviceConfig(num_gpus=0, precision=precision, xla="on", deterministic=False))
    weights = initialize(heads.pretraining_weights(config), 1)
    freeze = [part.replace("HALF", str(config.num_hidden_layers // 2)) for part in freeze]
    settings = OptimizerConfig(optimizer=optimizer)
    state = TrainState(devices.strategy, weights, None, frozen_names(weights, freeze))
    memory = MemoryConfig(recompute_every=recompute_every or None)
    step = TrainStep(devices, state, objective(config, memory, devices), settings, num_micro_batches=accumulation, seed=1)
    shape, num_predictions = (accumulation, rows // accumulation), max(1, round(0.15 * length))
    wide, predicted = np.zeros((*shape, length), np.int32), np.zeros((*shape, num_predictions), np.int32)
    batch = dict(
        input_ids=wide,
        input_mask=wide,
        segment_ids=wide,
        masked_lm_positions=predicted,
        masked_lm_ids=predicted,
        masked_lm_weights=predicted.astype(np.float32),
        next_sentence_labels=np.zeros(shape, np.int32),
    )
    one = tf.constant(1.0)
    arguments = (
        {name: tf.constant(value) for name, value in weights.items()},
        {name: tf.constant(value) for name, value in batch.items()},
        tf.constant(accumulation),
        dict(mlm=one, nsp=one),
        one,
        tf.constant([1, 1]),
    )
    step.gradients.experimental_get_compiler_ir(*arguments)(stage="optimized_hlo")
    trained = {name: weights[name] for name in state.trained}
    size = sum(value.size for value in weights.values())
    print(
        json.dumps(
            dict(
                parameters=4 * size + (0 if precision == "float32" else 2 * size),
                gradients=4 * sum(value.size for value in trained.values()),
                optimizer=state_bytes(trained, settings),
            )
        )
    )


def temporary_bytes(dump):
    """Size of the temporary buffer of the largest program that XLA dumped into a folder."""
    reports = dump.glob("*buffer-assignment.txt")
    sizes = [[int(size) for size in re.findall(r"size (\d+), preallocated-temp", report.read_text())] for report in reports]
    return max(sum(found) for found in sizes)


def measure(model, length, rows, settings):
    with tempfile.TemporaryDirectory() as dump:
        # Code is not run: the least optimization of machine code compiles fastest, and comes after buffers are assigned.
        flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_backend_optimization_level=0"
        call = dict(settings, model=model, length=length, rows=rows)
        command = [sys.executable, __file__, "--child", json.dumps(call)]
        output = subprocess.run(command, check=True, env=os.environ | dict(XLA_FLAGS=flags), stdout=subprocess.PIPE, text=True).stdout
        return json.loads(output.splitlines()[-1]) | dict(temporary=temporary_bytes(pathlib.Path(dump)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="base")
    parser.add_argument("--tokens", type=int, default=4096, help="of a step; rows = tokens / length")
    parser.add_argument("--quick", action="store_true", help="S 128 only")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(**json.loads(arguments.child))
        return
    header = ["S", "rows", "technique", "parameters [s]", "gradients [s]", "optimizer [s]", "activations, scratch [c]", "sum", "share"]
    rows = []
    for length in (128,) if arguments.quick else (128, 512):
        first = None
        for name, settings in ROWS.items():
            found = measure(arguments.model, length, arguments.tokens // length, settings)
            # The compiled program holds the accumulated gradients as its results, not among its temporaries.
            total = sum(found.values())
            first = first or total
            cells = [f"{found[part] / 2**20:,.0f}" for part in ("parameters", "gradients", "optimizer", "temporary")]
            rows.append([length, arguments.tokens // length, name, *cells, f"{total / 2**20:,.0f}", f"{total / first:.2f}"])
            print(" ".join(map(str, rows[-1])), file=sys.stderr, flush=True)
    print(f"{arguments.model}, {arguments.tokens} tokens a step, MB")
    print_table(header, rows)


if __name__ == "__main__":
    main()
