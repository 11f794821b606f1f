"""The parts of the GPU benchmark that measure whole runs: input, replicas, precisions and runs of
record, through the scripts as a user starts them.

A part of the benchmark is a list of items, (name, function of a Clock -> result), the most
important first.
"""

import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

from .command import Failed, load_json, read_metrics, run_script, script_command
from .gpu_steps import OURS, Clock
from .process import HERE, Peer, tensorflow_environment

# B, S, N, D: base, and large
ATTENTION_SHAPES = [(64, 128, 12, 64), (16, 512, 12, 64), (16, 512, 16, 64)]


def data_folder(setup, name, *flags, clock):
    """A folder of records made from the text, once."""
    folder = setup.work / "data" / name
    if not (folder / "dataset.json").exists():
        flags = [
            f"--input_file={setup.text}",
            f"--output_file={folder}/x.tfrecord",
            "--overwrite",
            *flags,
        ]
        run_script("create_pretraining_data.py", *flags, limit_seconds=clock.left())
    return folder


def device_flags(setup):
    return ["--num_gpus=1"] if setup.gpu else ["--num_gpus=0"]


def input_items(setup):
    """How long the training loop waits for its data: sentence pairs in Google's format, and compact
    packed rows masked while reading.
    """
    objectives = {
        "nsp, static masking": ("nsp", ["--objective=nsp", "--masking=static"]),
        "packed, dynamic masking": ("packed", ["--objective=packed", "--masking=dynamic"]),
    }
    return [
        (name, lambda clock, folder=folder, flags=flags: input_wait(setup, folder, flags, clock))
        for name, (folder, flags) in objectives.items()
    ]


def input_wait(setup, name, flags, clock):
    steps, rows = (20, 4) if setup.small else (300, 256)
    data = data_folder(
        setup, f"input-{name}", f"--max_seq_length={setup.length(128)}", *flags, clock=clock
    )
    run = setup.work / "runs" / f"input-{name}"
    common = [
        f"--input_file={data}/*.tfrecord",
        f"--output_dir={run}",
        "--overwrite",
        *device_flags(setup),
    ]
    sizes = [
        f"--model={'tiny' if setup.small else 'base'}",
        f"--train_batch_size={rows}",
        f"--num_train_steps={steps}",
    ]
    cadence = [
        f"--log_steps={steps // 10}",
        f"--steps_per_loop={steps // 20}",
        f"--save_checkpoints_steps={steps}",
        "--notensorboard",
    ]
    run_script("run_pretraining_gpu.py", *common, *sizes, *cadence, limit_seconds=clock.left())
    lines = [line for line in read_metrics(run)[0][1:] if line["input_wait"] is not None]
    names = ("tokens_per_second", "padded_tokens_per_second", "input_wait")
    return dict(
        rows=rows,
        steps=steps,
        **{name: statistics.median(line[name] for line in lines) for name in names},
    )


def attention_items(setup):
    """cuDNN's attention against the plain one, without a model: padded and packed rows, time and
    error.
    """
    shapes = [(2, 32, 2, 16)] if setup.small else ATTENTION_SHAPES
    return [
        (
            f"{kind}, {' x '.join(map(str, shape))}",
            lambda clock, kind=kind, shape=shape: attention_alone(kind, shape, clock),
        )
        for shape in shapes
        for kind in ("padding", "packed")
    ]


def attention_alone(kind, shape, clock):
    command = [sys.executable, str(HERE / "gpu_attention.py"), kind, *map(str, shape)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=max(1.0, clock.left()),
            env=tensorflow_environment(),
        )
    except subprocess.TimeoutExpired:
        raise Failed("not over when the time of the part was") from None
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode:
        raise Failed(lines[-1][:300] if lines else f"exit code {done.returncode}")
    return json.loads(lines[-1])


def replica_items(setup):
    ways = {
        "two virtual replicas": ["--virtual_replicas=2"],
        "one replica, NCCL": ["--all_reduce=nccl"],
    }
    losses = [
        (f"losses of two and of one, {precision}", precision)
        for precision in ("float32", "bfloat16")
    ]
    return [
        (name, lambda clock, precision=precision: same_losses(setup, precision, clock))
        for name, precision in losses
    ] + [
        (
            f"{name}: end, stop, resume",
            lambda clock, flags=flags, name=name: endings(setup, name.split(",")[0], flags, clock),
        )
        for name, flags in ways.items()
    ]


def same_losses(setup, precision, clock, num_steps=20):
    """Largest relative difference between the losses of two replicas of B rows and of one replica
    of 2 B rows. Dropout is off, because it draws by replica.
    """
    shape = setup.shape("small") | dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    length, rows = setup.length(128), 4 if setup.small else 32
    losses = []
    for replicas in (1, 2):
        settings = dict(
            shape=shape,
            length=length,
            gpu=setup.gpu,
            precision=precision,
            virtual_replicas=replicas,
        )
        with Peer(OURS, settings) as peer:
            losses.append(
                peer.ask(
                    "losses",
                    patience=clock.left(),
                    rows=rows,
                    num_steps=3 if setup.small else num_steps,
                )
            )
    difference = max(abs(one / two - 1) for one, two in zip(*losses, strict=True))
    return dict(
        rows=rows, steps=len(losses[0]), largest_difference=difference, one=losses[0], two=losses[1]
    )


def endings(setup, name, flags, clock):
    """Whether a run ends, stops at SIGTERM and resumes, and the seconds of each. A process that
    hangs is killed and counts as Failed.
    """
    data = data_folder(setup, "replicas", "--max_seq_length=32", "--dupe_factor=1", clock=clock)
    run = setup.work / "runs" / name.replace(" ", "-")
    common = [
        f"--input_file={data}/*.tfrecord",
        *device_flags(setup),
        *flags,
        "--model=tiny",
        "--train_batch_size=4",
        "--notensorboard",
    ]
    seconds = {}

    def timed(what, *more):
        started = time.monotonic()
        run_script("run_pretraining_gpu.py", *common, *more, limit_seconds=min(150.0, clock.left()))
        seconds[what] = time.monotonic() - started

    short = [
        f"--output_dir={run}-end",
        "--overwrite",
        "--num_train_epochs=2",
    ]
    timed("end", *short)
    long = [
        f"--output_dir={run}-stop",
        "--num_train_steps=400",
        "--log_steps=1",
    ]
    command = script_command("run_pretraining_gpu.py", *common, *long, "--overwrite")
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    metrics, patience = (
        pathlib.Path(f"{run}-stop") / "metrics.jsonl",
        Clock(min(150.0, max(1.0, clock.left()))),
    )
    try:
        while not (metrics.exists() and metrics.read_text().count('"loss"') > 5):
            if process.poll() is not None or not patience.left():
                raise Failed("the run that was to be stopped did not get to its sixth step")
            time.sleep(0.1)
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
        seconds["stop"] = time.monotonic() - started
    except subprocess.TimeoutExpired:
        raise Failed("hangs after SIGTERM") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    stopped_at = read_metrics(metrics.parent)[0][-1]["step"]
    timed("resume", *long)
    steps = [line["step"] for line in read_metrics(metrics.parent)[0]]
    if code != 143 or steps != list(range(1, 401)):
        raise Failed(f"exit code {code} at SIGTERM; steps logged: {len(steps)}, last {steps[-1]}")
    return dict(seconds=seconds, stopped_at=stopped_at, steps=steps[-1])


def precision_items(setup):
    return [
        (name, lambda clock, name=name: precision_run(setup, name, clock))
        for name in ("float16", "bfloat16", "float32")
    ]


def precision_run(setup, precision, clock):
    """500 steps of base: the loss of every fifth step, the number of skipped steps, and the final
    loss scale.
    """
    steps, rows = (10, 4) if setup.small else (500, 64)
    data = data_folder(setup, "precision", f"--max_seq_length={setup.length(128)}", clock=clock)
    run = setup.work / "runs" / precision
    common = [
        f"--input_file={data}/*.tfrecord",
        f"--output_dir={run}",
        "--overwrite",
        *device_flags(setup),
        "--notensorboard",
    ]
    sizes = [
        f"--model={'tiny' if setup.small else 'base'}",
        f"--train_batch_size={rows}",
        f"--num_train_steps={steps}",
    ]
    cadence = [f"--precision={precision}", "--log_steps=5", "--steps_per_loop=5"]
    run_script("run_pretraining_gpu.py", *common, *sizes, *cadence, limit_seconds=clock.left())
    lines = read_metrics(run)[0]
    return dict(
        steps=[line["step"] for line in lines],
        losses=[line["loss"] for line in lines],
        skipped_steps=sum(line["skipped_steps"] for line in lines),
        loss_scale=lines[-1]["loss_scale"],
        tokens_per_second=statistics.median(line["tokens_per_second"] for line in lines[1:]),
        rows=rows,
    )


SHRUNK = (
    "--hidden_size=32 --num_hidden_layers=2 --num_attention_heads=2 "
    "--intermediate_size=64 --train_batch_size=4 --global_batch_size=16 --max_seq_length=32"
).split()


def record_items(setup, recipe):
    minutes = min(setup.record_minutes, 0.2) if setup.small else setup.record_minutes
    return [(f"{recipe}, {minutes:g} minutes", lambda clock: record(setup, recipe, minutes, clock))]


def record(setup, recipe, minutes, clock):
    """Runs a recipe for some minutes on the text, then on the paraphrase pairs: curve, tokens seen,
    accuracy on the pairs.
    """
    chosen, small = f"--recipe={recipe}", setup.small
    data = data_folder(
        setup,
        f"record-{recipe}",
        chosen,
        *(["--max_seq_length=32", "--dupe_factor=1"] if small else []),
        clock=clock,
    )
    run = setup.work / "runs" / f"record-{recipe}"
    common = [
        f"--input_file={data}/*.tfrecord",
        f"--output_dir={run}",
        "--overwrite",
        *device_flags(setup),
        "--log_steps=1",
    ]
    budget = [
        f"--total_training_time={minutes / 60}",
        "--lr_schedule=time",
        *(SHRUNK if small else []),
        *setup.record_flags,
    ]
    run_script("run_pretraining_gpu.py", chosen, *common, *budget, limit_seconds=clock.left())
    lines, validation = read_metrics(run)
    pairs = setup.work / "runs" / f"pairs-{recipe}"
    run_script(
        "run_classifier.py", chosen, f"--init_checkpoint={run}/model", f"--output_dir={pairs}",
        "--overwrite", "--do_train", "--do_eval", *device_flags(setup),
        *(["--num_train_epochs=1", "--max_seq_length=32"] if small else []),
        limit_seconds=clock.left(),
    )  # fmt: skip
    length = load_json(data / "dataset.json")["max_seq_length"]
    seen, tokens = 0, []
    for before, line in itertools.pairwise([dict(step=0), *lines]):
        seen += (line["step"] - before["step"]) * line["global_batch_size"] * length
        tokens.append(seen / 1e6)
    return dict(
        minutes=[line["seconds"] / 60 for line in lines],
        losses=[line.get("mlm", line["loss"]) for line in lines],
        tokens=tokens,
        steps=lines[-1]["step"],
        validation={
            name: value for name, value in validation[-1].items() if name.startswith("eval_")
        }
        if validation
        else None,
        pairs=load_json(pairs / "eval_results.json"),
    )
