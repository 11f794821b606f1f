"""Garbage in environment variables, and what is missing there, thrown at the commands as processes.
Law: the command works, or says in one line which variable is wrong.
"""

import functools

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


def cases(world, seed, part=None):
    """Parts: the commands; None = all."""
    commands = dict(
        data=lambda folder: [
            "data",
            f"--input_file={world.text}",
            f"--output_file={folder}/out/x.tfrecord",
            *DATA_FLAGS,
        ],
        pretrain=lambda folder: [
            "pretrain",
            f"--input_file={world.data}/*.tfrecord",
            f"--output_dir={folder}/out",
            *RUN_FLAGS,
        ],
        classify=lambda folder: [
            "classify",
            f"--init_checkpoint={world.run}/model",
            f"--data_dir={world.pairs}",
            f"--output_dir={folder}/out",
            *CLASSIFY_FLAGS,
        ],
    )
    return [
        Case(
            f"{command} {name}={'(unset)' if value is None else value}",
            functools.partial(law, arguments, name, value),
        )
        for command, arguments in commands.items()
        if part in (None, command)
        for name, values in VARIABLES.items()
        for value in values
    ]


def law(arguments, name, value, folder):
    ended = oracle.run(*arguments(folder), "--quiet", watch=folder, **{name: value})
    problem = ended.problem((0, 2))
    if problem or ended.code == 0:
        return problem
    return ended.refusal() or ("" if name in ended.stderr else f"not named: {ended.stderr}")
