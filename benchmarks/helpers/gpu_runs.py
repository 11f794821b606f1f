"""The parts of the GPU benchmark that measure whole runs: input, attention, replicas, precisions
and runs of record, through the scripts as a user starts them.

A part of the benchmark is a dict of items, {name: function of a Clock -> result}, the most
important first.
"""

import functools
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
from .shapes import shape_of

# B, S, N, D: base, and large
ATTENTION_SHAPES = [(64, 128, 12, 64), (16, 512, 12, 64), (16, 512, 16, 64)]


def data_folder(setup, name, clock, **flags):
    """Return a folder of records made from the text, once."""
    folder = setup.work / "data" / name
    if not (folder / "dataset.json").exists():
        run_script(
            "create_pretraining_data.py",
            input_file=setup.text,
            output_file=f"{folder}/x.tfrecord",
            overwrite=True,
            limit_seconds=clock.left(),
            **flags,
        )
    return folder


def train(setup, data, run, clock, **flags):
    """Pretrain on a folder of records, from the beginning without overwrite=False; return the
    training and the validation lines of the run's log.
    """
    run_script(
        "run_pretraining_gpu.py",
        input_file=f"{data}/*.tfrecord",
        output_dir=run,
        limit_seconds=clock.left(),
        **dict(num_gpus=int(setup.gpu), overwrite=True) | flags,
    )
    return read_metrics(run)


def input_items(setup):
    """Return the items of how long the training loop waits for its data: sentence pairs in Google's
    format, and compact packed rows masked while reading.
    """
    kinds = {
        "nsp, static masking": dict(objective="nsp", masking="static"),
        "packed, dynamic masking": dict(objective="packed", masking="dynamic"),
    }
    return {name: functools.partial(input_wait, setup, flags) for name, flags in kinds.items()}


def input_wait(setup, flags, clock):
    steps, rows = (20, 4) if setup.small else (300, 256)
    name = f"input-{flags['objective']}"
    data = data_folder(setup, name, clock, max_seq_length=setup.length(128), **flags)
    lines, _ = train(
        setup,
        data,
        setup.work / "runs" / name,
        clock,
        model=setup.model("base"),
        train_batch_size=rows,
        num_train_steps=steps,
        log_steps=steps // 10,
        steps_per_loop=steps // 20,
        save_checkpoints_steps=steps,
        tensorboard=False,
    )
    lines = [line for line in lines[1:] if line["input_wait"] is not None]
    names = ("tokens_per_second", "padded_tokens_per_second", "input_wait")
    medians = {name: statistics.median(line[name] for line in lines) for name in names}
    return dict(rows=rows, steps=steps, **medians)


def attention_items(setup):
    """Return the items of cuDNN's attention against the plain one, without a model: padded and
    packed rows, time and error.
    """
    shapes = [(2, 32, 2, 16)] if setup.small else ATTENTION_SHAPES
    return {
        f"{kind}, {' x '.join(map(str, shape))}": functools.partial(attention_alone, kind, shape)
        for shape in shapes
        for kind in ("padding", "packed")
    }


def attention_alone(kind, shape, clock):
    command = [sys.executable, str(HERE / "gpu_attention.py"), kind, *map(str, shape)]
    environment, limit = tensorflow_environment(), max(1.0, clock.left())
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=environment
        )
    except subprocess.TimeoutExpired:
        raise Failed("not over when the time of the part was") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Failed(lines[-1][:300])
    return json.loads(done.stdout.strip().splitlines()[-1])


def replica_items(setup):
    losses = {
        f"losses of two and of one, {precision}": functools.partial(same_losses, setup, precision)
        for precision in ("float32", "bfloat16")
    }
    ways = {
        "two virtual replicas": dict(virtual_replicas=2),
        "one replica, NCCL": dict(all_reduce="nccl"),
    }
    return losses | {
        f"{name}: end, stop, resume": functools.partial(endings, setup, name.split(",")[0], flags)
        for name, flags in ways.items()
    }


def same_losses(setup, precision, clock):
    """Return the largest relative difference between the losses of two replicas of B rows and of
    one replica of 2 B rows. Dropout is off, because it draws by replica.
    """
    shape = shape_of(setup.model("small"))
    shape |= dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    rows, num_steps = (4, 3) if setup.small else (32, 20)
    settings = dict(shape=shape, length=setup.length(128), gpu=setup.gpu, precision=precision)
    losses = []
    for replicas in (1, 2):
        with Peer(OURS, settings | dict(virtual_replicas=replicas)) as peer:
            patience = clock.left()
            losses.append(peer.ask("losses", patience=patience, rows=rows, num_steps=num_steps))
    one, two = losses
    difference = max(abs(a / b - 1) for a, b in zip(one, two, strict=True))
    return dict(rows=rows, steps=len(one), largest_difference=difference, one=one, two=two)


def endings(setup, name, flags, clock):
    """Return whether a run ends, stops at SIGTERM and resumes, and the seconds of each. A process
    that hangs is killed and counts as Failed.
    """
    data = data_folder(setup, "replicas", clock, max_seq_length=32, dupe_factor=1)
    run = setup.work / "runs" / name.replace(" ", "-")
    common = flags | dict(model="tiny", train_batch_size=4, tensorboard=False)
    long = common | dict(num_train_steps=400, log_steps=1)
    seconds = {}

    def timed(label, output, **more):
        started = time.monotonic()
        train(setup, data, output, Clock(min(150.0, clock.left())), **more)
        seconds[label] = time.monotonic() - started

    timed("end", f"{run}-end", num_train_epochs=2, **common)
    folder = pathlib.Path(f"{run}-stop")
    files = dict(input_file=f"{data}/*.tfrecord", output_dir=folder, num_gpus=int(setup.gpu))
    command = script_command("run_pretraining_gpu.py", "--overwrite", **files, **long)
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process = subprocess.Popen(command, start_new_session=True, **quiet)
    metrics, patience = folder / "metrics.jsonl", Clock(min(150.0, max(1.0, clock.left())))
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
    stopped_at = read_metrics(folder)[0][-1]["step"]
    timed("resume", folder, **long | dict(overwrite=False))
    steps = [line["step"] for line in read_metrics(folder)[0]]
    if code != 143 or steps != list(range(1, 401)):
        raise Failed(f"exit code {code} at SIGTERM; steps logged: {len(steps)}, last {steps[-1]}")
    return dict(seconds=seconds, stopped_at=stopped_at, steps=steps[-1])


def precision_items(setup):
    precisions = ("float16", "bfloat16", "float32")
    return {name: functools.partial(precision_run, setup, name) for name in precisions}


def precision_run(setup, precision, clock):
    """Return the loss of every fifth of 500 steps of base, the number of skipped steps, and the
    final loss scale.
    """
    steps, rows = (10, 4) if setup.small else (500, 64)
    lines, _ = train(
        setup,
        data_folder(setup, "precision", clock, max_seq_length=setup.length(128)),
        setup.work / "runs" / precision,
        clock,
        model=setup.model("base"),
        train_batch_size=rows,
        num_train_steps=steps,
        precision=precision,
        log_steps=5,
        steps_per_loop=5,
        tensorboard=False,
    )
    return dict(
        steps=[line["step"] for line in lines],
        losses=[line["loss"] for line in lines],
        skipped_steps=sum(line["skipped_steps"] for line in lines),
        loss_scale=lines[-1]["loss_scale"],
        tokens_per_second=statistics.median(line["tokens_per_second"] for line in lines[1:]),
        rows=rows,
    )


SHRUNK = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    train_batch_size=4,
    global_batch_size=16,
    max_seq_length=32,
)


def record_items(setup, recipe):
    minutes = min(setup.record_minutes, 0.2) if setup.small else setup.record_minutes
    item = functools.partial(record, setup, recipe, minutes)
    return {f"{recipe}, {minutes:g} minutes": item}


def record(setup, recipe, minutes, clock):
    """Run a recipe for some minutes on the text, then on the paraphrase pairs. Returns the curve,
    the tokens seen and the accuracy on the pairs.
    """
    small = dict(max_seq_length=32) if setup.small else {}
    less_data = small and small | dict(dupe_factor=1)
    data = data_folder(setup, f"record-{recipe}", clock, recipe=recipe, **less_data)
    run, pairs = (setup.work / "runs" / f"{kind}-{recipe}" for kind in ("record", "pairs"))
    budget = dict(total_training_time=minutes / 60, lr_schedule="time", log_steps=1)
    budget |= SHRUNK if setup.small else {}
    lines, validation = train(setup, data, run, clock, recipe=recipe, **budget)
    run_script(
        "run_classifier.py",
        "--overwrite",
        recipe=recipe,
        init_checkpoint=f"{run}/model",
        output_dir=pairs,
        do_train=True,
        do_eval=True,
        num_gpus=int(setup.gpu),
        limit_seconds=clock.left(),
        **(small and small | dict(num_train_epochs=1)),
    )
    length = load_json(data / "dataset.json")["max_seq_length"]
    seen, tokens = 0, []
    for before, line in itertools.pairwise([dict(step=0), *lines]):
        seen += (line["step"] - before["step"]) * line["global_batch_size"] * length
        tokens.append(seen / 1e6)
    last = validation[-1] if validation else {}
    return dict(
        minutes=[line["seconds"] / 60 for line in lines],
        losses=[line.get("mlm", line["loss"]) for line in lines],
        tokens=tokens,
        steps=lines[-1]["step"],
        validation={name: last[name] for name in last if name.startswith("eval_")} or None,
        pairs=load_json(pairs / "eval_results.json"),
    )
