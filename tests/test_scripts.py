"""The three scripts as files: --help teaches and exits 0, an unknown flag exits 2, and what needs
no data answers at once.
"""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


SCRIPTS = {
    "create_pretraining_data.py": "--input_file",
    "run_pretraining_gpu.py": "--num_gpus",
    "run_classifier.py": "--task_name",
}


@pytest.mark.parametrize("script, flag", SCRIPTS.items())
def test_help(script, flag, tmp_path):
    result = subprocess.run(
        [sys.executable, ROOT / script, "--help"], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0 and result.stderr == ""
    assert flag in result.stdout and f"python {script}" in result.stdout
    assert not list(tmp_path.iterdir())


def test_commands():
    module = [sys.executable, "-m", "bert_gpu"]
    listed = subprocess.run(module, cwd=ROOT, capture_output=True, text=True)
    assert listed.returncode == 0 and "fill-mask" in listed.stdout
    unknown = subprocess.run([*module, "fly"], cwd=ROOT, capture_output=True, text=True)
    assert unknown.returncode == 2 and unknown.stderr.count("\n") == 1 and "'fly'" in unknown.stderr


# Runs a command in a fresh process; its last line: what it has imported, and the exit code.
ASKED = """
import sys
from bert_gpu.__main__ import main
try:
    code = main(["bert-gpu", *sys.argv[1:]])
except SystemExit as end:
    code = end.code
print([name for name in ("tensorflow", "numba", "sklearn") if name in sys.modules], code)
"""


@pytest.mark.parametrize(
    "command, arguments, code",
    [
        *((command, ["--help"], 0) for command in ("data", "vocab")),
        *((command, ["--input_flie=a.txt"], 2) for command in ("data", "vocab")),
        *((command, ["--vocab_size=many"], 2) for command in ("data", "vocab")),
        *((command, ["--vocab_size=1"], 2) for command in ("data", "vocab")),
        ("data", ["--show_config"], 0),
        ("data", ["--show_config", "--recipe=crammed"], 0),
        ("data", ["--output_file=x"], 2),
        ("vocab", ["--sp_model_file=a.model"], 2),
    ],
)
def test_what_needs_no_data_needs_nothing_heavy(command, arguments, code, tmp_path):
    call = [sys.executable, "-c", ASKED, command, *arguments]
    result = subprocess.run(
        call,
        cwd=tmp_path,
        env=os.environ | dict(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == f"[] {code}" and result.stderr.count("\n") == (
        code == 2
    )
    assert not list(tmp_path.iterdir())
