"""The doctor finds what is missing and says what to install, whatever is broken: also without a
GPU, without TensorFlow, and where a trial crashes or hangs.
"""

import os
import signal
import subprocess
import sys
import types

import pynvml
import pytest

from bert_gpu.__main__ import main
from bert_gpu.doctor import checks, probes
from tests.cli.pretraining import ROOT

SEEN = dict(version="2.20.0", cuda="12.5.1", cudnn="9", gpus=[])
CARD = dict(name="NVIDIA H100 80GB HBM3", memory_bytes=85520809984, used_bytes=1000)
NO_GPU = dict(driver=None, cuda=None, gpus=[], problem="NVML Shared Library Not Found")
TWO_GPUS = dict(
    driver="550.54.15",
    cuda="12.4",
    gpus=[CARD, dict(name="NVIDIA GB10")],
    problem=None,
)


class Machine:
    """What the doctor sees of a made-up machine, and which trials it makes."""

    def __init__(self, monkeypatch, driver, **seen):
        self.seen, self.trials, self.broken = SEEN | seen, [], {}
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(checks, "driver_report", lambda: driver)

    def attempt(self, kind, device=""):
        self.trials.append((kind, device))
        if (kind, device) in self.broken:
            return dict(error=self.broken[kind, device])
        if kind == "look":
            return self.seen
        return dict(loss=6.9, seconds=12.0, precision="float32", xla=False)

    def findings(self):
        return checks.examine(self.attempt)


def problems(findings):
    return {finding.topic: finding for finding in findings if finding.state == checks.PROBLEM}


def test_without_a_gpu_training_works_on_the_cpu(monkeypatch):
    world = Machine(monkeypatch, NO_GPU)
    findings = world.findings()
    assert world.trials == [("look", ""), ("step", "0")]
    assert checks.works(findings) and checks.verdict(findings) == "training would work, on the CPU"
    text = "\n".join(checks.report(findings))
    for part in ("none (NVML Shared Library Not Found)", "it finds no GPU", "6.900"):
        assert part in text


@pytest.mark.parametrize("count", [1, 2, 8])
def test_gpus_work_when_one_and_all_together_make_a_step(monkeypatch, count):
    world = Machine(monkeypatch, TWO_GPUS, gpus=["NVIDIA H100"] * count)
    findings = world.findings()
    assert problems(findings) == {}
    together = [str(count)] if count > 1 else []
    assert [num_gpus for kind, num_gpus in world.trials if kind == "step"] == ["1", *together]
    names = ["1 GPU"] + [f"{count} GPUs"] * len(together)
    assert checks.verdict(findings) == f"training would work, on {', '.join(names)}"
    text = "\n".join(checks.report(findings))
    assert "driver 550.54.15, for CUDA up to 12.4; 0: NVIDIA H100 80GB HBM3, 85.5 GB" in text
    assert "85.5 GB (1.0 kB in use); 1: NVIDIA GB10" in text


def test_gpus_that_tensorflow_does_not_find_are_a_problem(monkeypatch):
    problem = problems(Machine(monkeypatch, TWO_GPUS).findings())["TensorFlow"]
    assert "it finds no GPU; the driver reports 2" in problem.text
    assert problem.remedy == "pip install 'bert-gpu[gpu]'"
    build = dict(cuda=None, cudnn=None)
    problem = problems(Machine(monkeypatch, TWO_GPUS, **build).findings())["TensorFlow"]
    assert "built without CUDA" in problem.text
    assert problem.remedy == "pip install 'bert-gpu[gpu]'"


def test_gpus_that_the_environment_hides_are_not_missed(monkeypatch):
    world = Machine(monkeypatch, TWO_GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    findings = world.findings()
    assert checks.verdict(findings) == "training would work, on the CPU"
    assert "CUDA_VISIBLE_DEVICES=-1" in "\n".join(checks.report(findings))


@pytest.mark.parametrize("gpus", [[], ["NVIDIA H100"]])
def test_an_old_driver_is_a_problem(monkeypatch, gpus):
    for cuda, is_old in [("11.4", True), ("9.2", True), ("12.0", False), ("13.0", False)]:
        world = Machine(monkeypatch, TWO_GPUS | dict(cuda=cuda), gpus=gpus)
        problem = problems(world.findings()).get("TensorFlow")
        assert (problem is not None) == (is_old or not gpus)
        if problem is not None:
            assert f"for CUDA up to {cuda}" in problem.text
            assert ("newer NVIDIA driver" in problem.remedy) == is_old


def test_replicas_that_hang_are_a_problem(monkeypatch):
    world = Machine(monkeypatch, TWO_GPUS, gpus=["NVIDIA H100"] * 2)
    world.broken["step", "2"] = "did not end within 300 seconds"
    (found,) = problems(world.findings()).values()
    assert found.topic == "step on 2 GPUs" and "--all_reduce=ring" in found.remedy


def test_the_driver_reports_its_gpus_also_without_their_memory(monkeypatch):
    def memory_of(handle):
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return types.SimpleNamespace(total=8, used=3)

    for name, function in dict(
        Init=lambda: None,
        Shutdown=lambda: None,
        SystemGetDriverVersion=lambda: "580.1",
        SystemGetCudaDriverVersion=lambda: 13010,
        DeviceGetCount=lambda: 2,
        DeviceGetHandleByIndex=int,
        DeviceGetName=lambda handle: f"GB{handle}",
        DeviceGetMemoryInfo=memory_of,
    ).items():
        monkeypatch.setattr(pynvml, f"nvml{name}", function)
    gpus = [dict(name="GB0", memory_bytes=8, used_bytes=3), dict(name="GB1")]
    expected = dict(driver="580.1", cuda="13.1", gpus=gpus, problem=None)
    assert checks.driver_report() == expected


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

    def interrupted(process, *_, **__):
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
        [sys.executable, "-m", "bert_gpu", "doctor"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert result.returncode == 2 and result.stderr == ""
    *findings, verdict = result.stdout.splitlines()
    assert verdict.startswith("verdict:") and verdict.endswith("TensorFlow")
    (problem,) = [line for line in findings if "PROBLEM" in line]
    assert problem.startswith("TensorFlow:") and problem.endswith("-> pip install bert-gpu")
    assert [line.partition(":")[0] for line in findings] == [
        *("versions", "memory", "free disk", "GPUs", "TensorFlow")
    ]


@pytest.mark.long
def test_this_machine(capsys):
    assert main(["bert-gpu", "doctor"]) == 0
    shown = capsys.readouterr().out
    assert "step on the CPU:" in shown
    assert shown.splitlines()[-1].startswith("verdict:") and "training would work" in shown
    assert 5 < probes.attempt("step", "0", 300.0)["loss"] < 8
    assert "did not end" in probes.attempt("step", "0", 0.5)["error"]


def test_flags_only(capsys):
    assert main(["bert-gpu", "doctor", "please"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
