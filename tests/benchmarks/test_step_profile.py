"""benchmarks/step_profile.py: seconds of a thread's events, of oneDNN's primitives, and a real
step's.
"""

import subprocess
import sys

import pytest

from tests.cli.pretraining import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from helpers import cpu_profile

EVENTS = [  # (name, begin, end)
    ("ExecutorState::Process", 0.0, 10.0),
    ("model/a:MatMul", 1.0, 4.0),
    ("model/b:MatMul", 6.0, 7.0),
    ("cluster:_XlaRun", 7.0, 9.5),
    ("add_fusion.1", 7.5, 9.0),
    ("function", 10.0, 12.0),
]


def test_an_event_counts_without_what_it_calls():
    assert cpu_profile.own_seconds(EVENTS[::-1])[0] == ("ExecutorState::Process", 3.5)
    ops, passes = cpu_profile.op_seconds(EVENTS)
    assert ops == {"MatMul": 4.0, "_XlaRun": 1.0} and passes == {"add_fusion.1": 1.5}


def test_primitives_of_what_onednn_printed():
    lines = [
        "onednn_verbose,v1,info,oneDNN v3.7.3",
        "onednn_verbose,v1,primitive,exec,cpu,matmul,brg:avx2,undef,src:f32::blocked,,,8x8:8x8,0.5",
        "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked,,,8x8,1e-3",
        "onednn_verbose,v1,primitive,exec,cpu,matmul,brg:avx2,undef,src:f32::blocked,,,8x8:8x8,1.5",
        "something else",
    ]
    found = cpu_profile.primitive_seconds("\n".join(lines))
    assert found == pytest.approx({"matmul": 2e-3, "reorder": 1e-6})


@pytest.mark.long
def test_the_parts_of_a_real_step_add_up():
    flags = ["--models=tiny", "--lengths=32", "--tokens=512", "--precisions=float32"]
    command = [sys.executable, str(ROOT / "benchmarks" / "step_profile.py"), *flags]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.strip("| ").split("|") for line in found.splitlines() if " % " in line]
    shares = {name.strip(): float(share.strip(" %")) for name, _, share in rows}
    parts = [share for name, share in shares.items() if not name.startswith("of ")]
    assert sum(parts) == pytest.approx(100, abs=0.1 * len(parts)) and min(parts) > -5
    assert shares["compiled passes"] > 0 and shares["op others"] > 0
