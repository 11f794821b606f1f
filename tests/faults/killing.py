"""Checks that a run which is killed many times ends with the same bits as one that is not.

    python -m tests.faults.killing --kills=20 --signal=both [--optimizer=muon]

Trains a tiny BERT on the sample (two virtual replicas, accumulation, dropout, several steps a
call), first without interruption. Then it starts the same command again until it finishes, and
kills it `--kills` times on the way: at a random moment (start-up, restoring and training alike),
or, in two of five cases, while it writes a checkpoint, where it waits for that. At the end it
compares the weights, the last checkpoint and all losses of metrics.jsonl byte for byte. The exit
code is 1 when they differ.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from bert_gpu.runs.provenance import git_commit
from tests.faults.oracle import ROOT

MOMENTS = ("writing", "training", "writing", "training", "start")
# what may differ in metrics.jsonl: ends and starts of names
TIMES, SHARES = ("_per_second", "seconds", "input_wait"), "time_"


def script_command(name, *flags, **values):
    """The command of one of the project's scripts. values: flags by name."""
    named = [f"--{flag}={value}" for flag, value in values.items()]
    return [sys.executable, str(ROOT / name), "--quiet", *flags, *named]


def command(folder, data, steps, optimizer):
    return script_command(
        "run_pretraining_gpu.py",
        *(
            "--num_gpus=0 --model=tiny --virtual_replicas=2 "
            "--train_batch_size=4 --gradient_accumulation_steps=2"
        ).split(),
        *(
            "--steps_per_loop=3 --log_steps=6 --save_checkpoints_steps=6 "
            "--keep_checkpoint_max=2 --max_eval_steps=1"
        ).split(),
        input_file=f"{data}/*.tfrecord",
        output_dir=folder,
        num_train_steps=steps,
        optimizer=optimizer,
    )


def newest(folder):
    names = (
        sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
        if (folder / "checkpoints").exists()
        else []
    )
    return names[-1] if names else "nothing"


def is_writing(folder):
    """Whether a checkpoint is being written: its folder still has its hidden name."""
    return any((folder / "checkpoints").glob(".step-*"))


def kill(process, signum, moment, folder, generator):
    """Sends the signal at a moment; returns what it interrupted, or None when the run ended before.

    moment: "start" (start-up and restoring), "training" (some time after the first new checkpoint)
    or "writing" (of a checkpoint; killing_held.py waits there).
    """
    before = newest(folder)

    def wait(is_reached):
        while process.poll() is None and not is_reached():
            time.sleep(0.0005)

    if moment == "start":
        due = time.monotonic() + generator.uniform(1.0, 6.0)
        wait(lambda: time.monotonic() > due)
    elif moment == "training":
        wait(lambda: newest(folder) != before)
        due = time.monotonic() + generator.uniform(0.0, 1.0)
        wait(lambda: time.monotonic() > due)
    else:
        if not process.stdout.readline():
            process.wait()
    if process.poll() is not None:
        return None
    hit = (
        "writing a checkpoint"
        if is_writing(folder)
        else "training"
        if newest(folder) != before
        else "before the first new checkpoint"
    )
    process.send_signal(signum)
    return hit


def state(folder, signum):
    """{what: bytes} of a finished run. A run that SIGTERM stops logs its partial means, so later
    means cover other steps.
    """
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [
        line
        for line in lines
        if signum == signal.SIGKILL or ("eval_loss" in line and line["step"] % 6 == 0)
    ]
    kept = [
        {
            name: value
            for name, value in line.items()
            if not name.endswith(TIMES) and not name.startswith(SHARES)
        }
        for line in lines
    ]
    last = folder / "checkpoints" / newest(folder)
    return {
        "model.safetensors": (folder / "model" / "model.safetensors").read_bytes(),
        "last checkpoint": (last / "variables.safetensors").read_bytes(),
        "metrics.jsonl" if signum == signal.SIGKILL else "validation": json.dumps(kept).encode(),
    }


def interrupted_run(words, folder, signum, num_kills, seed, say):
    """Runs a command to its end, killed `num_kills` times; returns [what each kill interrupted].
    folder: of the run.
    """
    generator, hits = random.Random(seed), []
    while True:
        moment = MOMENTS[len(hits) % len(MOMENTS)] if len(hits) < num_kills else None
        started = list(words)
        if moment == "writing":
            started[1:2] = ["-m", "tests.faults.killing_held", words[1]]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process = subprocess.Popen(started, text=True, cwd=ROOT, **pipes)
        if moment is not None:
            hit = kill(process, signum, moment, folder, generator)
            if hit is not None:
                hits.append(hit)
        errors = process.communicate()[1]
        if len(hits) and process.returncode in (-signum, 128 + signum):
            say(f"  {signum.name} {len(hits):2}: {hits[-1]:<34} newest checkpoint {newest(folder)}")
            continue
        if process.returncode:
            sys.exit(f"the run ended with exit code {process.returncode}: {errors}")
        return hits


def make_parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--steps", type=int, default=None, help="steps of the run; default: enough for the kills"
    )
    parser.add_argument("--signal", choices=("kill", "term", "both"), default="both")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main():
    arguments = make_parser().parse_args()
    steps = arguments.steps or 24 * (arguments.kills + 2)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    print(f"revision {git_commit()}, {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        data_job = script_command(
            "create_pretraining_data.py",
            output_file=scratch / "data" / "sample.tfrecord",
            dupe_factor=2,
            vocab_size=1000,
        )
        subprocess.run(data_job, check=True)
        settings = scratch / "data", steps, arguments.optimizer
        since = time.monotonic()
        subprocess.run(command(scratch / "whole", *settings), check=True)
        print(f"never killed: {steps} steps in {time.monotonic() - since:.0f} s", flush=True)
        is_equal = True
        for name in ("kill", "term") if arguments.signal == "both" else (arguments.signal,):
            signum = signal.SIGKILL if name == "kill" else signal.SIGTERM
            folder = scratch / name
            hits = interrupted_run(
                command(folder, *settings),
                folder,
                signum,
                arguments.kills,
                arguments.seed,
                lambda text: print(text, flush=True),
            )
            expected, found = state(scratch / "whole", signum), state(folder, signum)
            same = {what: found[what] == value for what, value in expected.items()}
            counts = ", ".join(f"{hits.count(hit)} x {hit}" for hit in sorted(set(hits)))
            print(f"{signum.name}: {len(hits)} of {arguments.kills} kills ({counts})")
            print(
                "  "
                + ", ".join(
                    f"{what}: {'same bits' if equal else 'DIFFERENT'}"
                    for what, equal in same.items()
                ),
                flush=True,
            )
            is_equal &= all(same.values()) and len(hits) == arguments.kills
    sys.exit(0 if is_equal else 1)


if __name__ == "__main__":
    main()
