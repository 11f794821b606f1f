"""Garbage in environment variables, and what is missing there, thrown at the commands as processes;
and outputs that are not on this machine. Law: the command works, or says in one line which variable
or output is wrong.
"""

import functools
import signal

from tests.faults import oracle
from tests.faults.machines import Case
from tests.faults.world import CLASSIFY_FLAGS, DATA_FLAGS, RUN_FLAGS

VARIABLES = {
    "XLA_FLAGS": ("garbage", "--garbage=1", "--xla_cpu_enable_fast_math=perhaps"),
    "TF_XLA_FLAGS": ("garbage", "--garbage"),
    "TF_CONFIG": ("garbage", "[]", '{"cluster": 5}', '{"cluster": {"worker": [7]}, "task": "x"}'),
    "HOME": (None, "", "/nonexistent"),
    "TMPDIR": ("/nonexistent",),
    "XDG_CACHE_HOME": ("/proc/nowhere",),
    "NUMBA_CACHE_DIR": ("/proc/nowhere",),
    "NUMBA_OPT": ("garbage",),
    "CUDA_VISIBLE_DEVICES": ("garbage", ""),
    "TF_NUM_INTRAOP_THREADS": ("garbage",),
    "TF_ENABLE_ONEDNN_OPTS": ("garbage",),
    "COLUMNS": ("garbage",),
    "LANG": ("garbage",),
    "LC_ALL": ("C",),
    "PYTHONIOENCODING": ("ascii",),
    "PATH": (None, ""),
    "TERM": ("garbage",),
}

FATAL = ("XLA_FLAGS", "TF_XLA_FLAGS")  # TensorFlow says what is wrong with them, and aborts

ELSEWHERE = "gs://", "s3://bucket/x", "x://y"  # outputs that are no path of this machine


def cases(world, seed, part=None):
    """Parts: the commands; None = all."""
    commands = dict(
        data=lambda out: [
            "data",
            f"--input_file={world.text}",
            f"--output_file={out}/x.tfrecord",
            *DATA_FLAGS,
        ],
        pretrain=lambda out: [
            "pretrain",
            f"--input_file={world.data}/*.tfrecord",
            f"--output_dir={out}",
            *RUN_FLAGS,
        ],
        classify=lambda out: [
            "classify",
            f"--init_checkpoint={world.run}/model",
            f"--data_dir={world.pairs}",
            f"--output_dir={out}",
            *CLASSIFY_FLAGS,
        ],
    )
    commands = {name: made for name, made in commands.items() if part in (None, name)}
    variables = [
        Case(
            f"{command} {name}={'(unset)' if value is None else value}",
            functools.partial(law, arguments, name, value),
        )
        for command, arguments in commands.items()
        for name, values in VARIABLES.items()
        for value in values
    ]
    return variables + [
        Case(f"{command} to {out}", functools.partial(refused, arguments, out))
        for command, arguments in commands.items()
        for out in ELSEWHERE
    ]


def law(arguments, name, value, folder):
    ended = oracle.run(*arguments(folder / "out"), "--quiet", watch=folder, **{name: value})
    if name in FATAL and ended.code == -signal.SIGABRT:
        return ended.changes() or ("" if name in ended.stderr else f"not named: {ended.stderr}")
    problem = ended.problem((0, 2))
    if problem or ended.code == 0:
        return problem
    return ended.refusal() or ("" if name in ended.stderr else f"not named: {ended.stderr}")


def refused(arguments, out, folder):
    ended = oracle.run(*arguments(out), "--quiet", watch=folder)
    return ended.refusal() or ("" if out in ended.stderr else f"not named: {ended.stderr}")
