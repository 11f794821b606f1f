"""The doctor finds what is missing and says what to install, whatever is broken: also without a
GPU, without TensorFlow, and where a trial crashes or hangs.
"""

import json
import os
import signal
import subprocess
import sys

import pytest

from bert_gpu.__main__ import main
from bert_gpu.doctor import checks, machine, probes
from bert_gpu.doctor.processor import processor
from tests.cli.pretraining import ROOT

SEEN = dict(version="2.20.0", cuda="12.5.1", cudnn="9", gpus=[])
CARD = dict(
    name="NVIDIA H100 80GB HBM3",
    memory_bytes=85520809984,
    used_bytes=0,
    capability="9.0",
    celsius=31,
    power_limit_watts=700.0,
)
NO_GPU = dict(driver=None, cuda=None, gpus=[], problem="NVML Shared Library Not Found")
TWO_GPUS = dict(
    driver="550.54.15",
    cuda="12.4",
    gpus=[dict(CARD, index=0), dict(CARD, index=1)],
    problem=None,
)


class Machine:
    """What the doctor sees of a made-up machine, and which trials it makes."""

    def __init__(self, monkeypatch, driver, present=(), **seen):
        self.seen, self.trials, self.broken = SEEN | seen, [], {}
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(machine, "gpus", lambda: driver)
        monkeypatch.setattr(
            machine, "find_library", lambda name, *_: name if name in present else None
        )

    def attempt(self, kind, device=""):
        self.trials.append((kind, device))
        if (kind, device) in self.broken:
            return dict(error=self.broken[kind, device])
        if kind == "look":
            return self.seen
        if kind == "rate":
            return dict(flops=dict(float32=3e10))
        count = len(device.split(","))
        return dict(loss=6.9, seconds=12.0, num_replicas=count, precision="float32", xla=False)

    def findings(self):
        return checks.examine(self.attempt)


def problems(findings):
    return {finding.topic: finding for finding in findings if finding.state == checks.PROBLEM}


def test_without_a_gpu_training_works_on_the_cpu(monkeypatch):
    world = Machine(monkeypatch, NO_GPU)
    findings = world.findings()
    assert world.trials == [("look", ""), ("rate", "CPU"), ("step", "CPU")]
    assert checks.works(findings) and checks.verdict(findings) == "training would work, on CPU"
    text = "\n".join(checks.report(findings))
    for part in ("none (NVML Shared Library Not Found)", "none is needed", "30 GFLOP/s", "6.900"):
        assert part in text


def test_two_gpus_that_work(monkeypatch):
    present = machine.LIBRARIES["12"]
    world = Machine(monkeypatch, TWO_GPUS, present, gpus=["NVIDIA H100"] * 2)
    findings = world.findings()
    assert problems(findings) == {}
    assert [device for kind, device in world.trials if kind == "step"] == ["0", "1", "0,1"]
    assert checks.verdict(findings).endswith("on GPU 0, GPU 1, two replicas")
    assert "driver 550.54.15, for CUDA up to 12.4; 0: NVIDIA H100 80GB HBM3, 85.5 GB" in "\n".join(
        checks.report(findings)
    )


def test_missing_libraries_are_named_with_what_to_install(monkeypatch):
    present = set(machine.LIBRARIES["12"]) - {"libcudnn.so.9", "libnccl.so.2"}
    found = problems(Machine(monkeypatch, TWO_GPUS, present).findings())
    assert found["CUDA libraries"].text == "8 of 10 found; missing: libcudnn.so.9, libnccl.so.2"
    for part in ("bert-gpu[gpu]", "nvidia-cudnn-cu12", "nvidia-nccl-cu12"):
        assert part in found["CUDA libraries"].remedy
    assert "TensorFlow finds none" in found["GPUs in TensorFlow"].text


def test_gpus_that_the_environment_hides_are_not_missed(monkeypatch):
    world = Machine(monkeypatch, TWO_GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    findings = world.findings()
    assert checks.verdict(findings) == "training would work, on CPU"
    assert "CUDA_VISIBLE_DEVICES=-1" in "\n".join(checks.report(findings))


def test_an_old_driver_is_named(monkeypatch):
    world = Machine(monkeypatch, TWO_GPUS | dict(cuda="11.4"), machine.LIBRARIES["12"])
    assert "CUDA up to 11.4" in problems(world.findings())["GPU driver"].text


def test_replicas_that_hang_are_a_problem(monkeypatch):
    world = Machine(monkeypatch, TWO_GPUS, machine.LIBRARIES["12"], gpus=["NVIDIA H100"] * 2)
    world.broken["step", "0,1"] = "did not end within 300 seconds"
    (found,) = problems(world.findings()).values()
    assert found.topic == "step on two replicas" and "--all_reduce=ring" in found.remedy


def test_a_library_is_found_in_pips_folders_or_by_the_system(tmp_path):
    (tmp_path / "libcudnn.so.9").write_text("")

    def load(name):
        if name != "libcufft.so.11":
            raise OSError(name)

    found = machine.libraries("12.5.1", [str(tmp_path)], load)
    paths = {library["name"]: library["path"] for library in found if library["path"]}
    assert paths == {
        "libcudnn.so.9": str(tmp_path / "libcudnn.so.9"),
        "libcufft.so.11": "libcufft.so.11",
    }
    assert machine.libraries("13.0", [], load) is None


def test_features_of_a_processor(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor: 0\nmodel name\t: Xeon\nflags\t\t: fpu avx2 avx512f amx_tile\n")
    found = processor(str(info))
    assert found["name"] == "Xeon" and found["features"] == ["AVX2", "AVX512", "AMX"]
    assert processor(str(tmp_path / "missing"))["features"] is None


BROKEN = {
    "abort": ("import os; os.abort()", "ended by SIGABRT"),
    "hang": ("import time; time.sleep(600)", "did not end within 0.5 seconds"),
    "missing": ("raise ImportError('libfoo.so: no such file')", "ImportError: libfoo.so: no such"),
    "exit": ("import sys; sys.exit('no more')", "ended with code 1: no more"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_tensorflow_that_is_broken_is_a_finding(tmp_path, monkeypatch, name):
    code, problem = BROKEN[name]
    (tmp_path / "tensorflow.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probes.attempt("look", "", 0.5 if name == "hang" else 60.0)
    assert found["error"].startswith(problem)
    (told,) = problems(checks.examine(lambda *_: found)).values()
    assert told.topic == "TensorFlow" and told.remedy == "pip install bert-gpu"
    assert problem in told.text


def test_an_interrupt_ends_the_trial_too(tmp_path, monkeypatch):
    (tmp_path / "tensorflow.py").write_text(BROKEN["hang"][0])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = []

    def interrupted(process, timeout):
        monkeypatch.undo()
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        probes.attempt("look")
    (process,) = started
    with process:
        try:
            assert process.poll() == -signal.SIGKILL
        finally:
            process.kill()


def test_without_tensorflow_the_command_says_what_to_install(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('No module named tensorflow')")
    environment = dict(os.environ, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    result = subprocess.run(
        [sys.executable, "-m", "bert_gpu", "doctor", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert result.returncode == 2 and result.stderr == ""
    found = json.loads(result.stdout)
    assert not found["works"] and found["verdict"].endswith("TensorFlow")
    (problem,) = [one for one in found["findings"] if one["state"] == "problem"]
    assert problem["remedy"] == "pip install bert-gpu"
    assert {"versions", "processor", "memory", "free disk", "GPUs"} <= {
        one["topic"] for one in found["findings"]
    }


@pytest.mark.long
def test_this_machine(capsys):
    assert main(["bert-gpu", "doctor"]) == 0
    shown = capsys.readouterr().out
    assert "step on CPU:" in shown and "GFLOP/s in float32" in shown
    assert shown.splitlines()[-1].startswith("verdict:") and "training would work" in shown
    pair = probes.attempt("step", "CPU x 2", 300.0)
    assert pair["num_replicas"] == 2 and 5 < pair["loss"] < 8
    assert "did not end" in probes.attempt("step", "CPU", 0.5)["error"]


def test_flags_only(capsys):
    assert main(["bert-gpu", "doctor", "please"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
