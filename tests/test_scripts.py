"""The three scripts as files: --help teaches and exits 0, an unknown flag exits 2."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


SCRIPTS = {"create_pretraining_data.py": "--input_file", "run_pretraining_gpu.py": "--num_gpus", "run_classifier.py": "--task_name"}


@pytest.mark.parametrize("script, flag", SCRIPTS.items())
def test_help(script, flag, tmp_path):
    result = subprocess.run([sys.executable, ROOT / script, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0 and result.stderr == ""
    assert flag in result.stdout and f"python {script}" in result.stdout
    assert not list(tmp_path.iterdir())


def test_commands():
    module = [sys.executable, "-m", "bert_gpu"]
    listed = subprocess.run(module, cwd=ROOT, capture_output=True, text=True)
    assert listed.returncode == 0 and "fill-mask" in listed.stdout
    unknown = subprocess.run([*module, "fly"], cwd=ROOT, capture_output=True, text=True)
    assert unknown.returncode == 2 and unknown.stderr.count("\n") == 1 and "'fly'" in unknown.stderr
