"""Examines whether a training would work on this machine, and what to install where it would not;
the result is meant for a bug report.

Each check returns a Finding; they are printed as a table. Trials run in processes of
their own (probes.py), so that a crash or a hang becomes a Finding, too. Imports no TensorFlow.
"""

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psutil
import pynvml

import bert_gpu
from bert_gpu.base.console import aligned, format_bytes
from bert_gpu.base.environment import cache_folder
from bert_gpu.base.errors import printable
from bert_gpu.base.files import existing_parent
from bert_gpu.devices.nvml import handle_of, machine_bytes, session
from bert_gpu.doctor import probes
from bert_gpu.runs.provenance import git_commit

PACKAGES = ("tensorflow", "tensorflow-text", "tf-models-official", "numpy", "numba", "keras")
MIN_FREE_BYTES = 2 << 30
ALL_REDUCE_REMEDY = "try --all_reduce=ring, and NCCL_DEBUG=INFO"
INSTALL = "pip install bert-gpu"
INSTALL_GPU = "pip install 'bert-gpu[gpu]'"
OK = "ok"
PROBLEM = "problem"
NOTE = "note"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check. topic: its name, a word or two. state: OK, NOTE (a user should read
    it) or PROBLEM (a training would not work as it should). text: the result in words. remedy:
    advice to the user, "" = none.
    """

    topic: str
    state: str
    text: str
    remedy: str = ""


def examine(
    attempt: Callable[..., dict[str, Any]] = probes.attempt,
    say: Callable[[str], None] = lambda text: None,
) -> list[Finding]:
    """Run all checks and return the Findings. attempt: function that runs a trial, such as
    probes.attempt. say: function that prints the name of a check that takes long.
    """
    driver = driver_report()
    say("importing TensorFlow")
    tensorflow = attempt("look")
    findings = [
        versions(),
        memory(),
        free_disk(),
        gpus_finding(driver),
        tensorflow_finding(tensorflow, driver),
    ]
    if "error" in tensorflow:
        return findings
    count = len(tensorflow["gpus"])
    for num_gpus in sorted({min(1, count), count}):
        name = f"{num_gpus} GPU{'s' if num_gpus > 1 else ''}" if num_gpus else "the CPU"
        say(f"trying {name}")
        findings.append(step_finding(name, attempt("step", str(num_gpus))))
    return findings


def works(findings: Iterable[Finding]) -> bool:
    return not any(finding.state == PROBLEM for finding in findings)


def report(findings: Sequence[Finding], columns: int | None = None) -> list[str]:
    """Return the findings as the lines of a table that ends with a verdict. columns: width at which
    lines are broken.
    """
    rows = [
        (
            finding.topic,
            "PROBLEM: " * (finding.state == PROBLEM)
            + finding.text
            + (finding.remedy and f" -> {finding.remedy}"),
        )
        for finding in findings
    ]
    return [printable(line) for line in aligned([*rows, ("verdict", verdict(findings))], columns)]


def verdict(findings: Sequence[Finding]) -> str:
    problems = [finding.topic for finding in findings if finding.state == PROBLEM]
    if problems:
        return f"training would not work as it should: {', '.join(problems)}"
    steps = [finding.topic for finding in findings if finding.topic.startswith("step on ")]
    return f"training would work, on {', '.join(step.removeprefix('step on ') for step in steps)}"


def versions() -> Finding:
    releases: dict[str, str | None] = {
        "bert-gpu": bert_gpu.__version__,
        "Python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            releases[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            releases[name] = None
    commit = git_commit()
    text = ", ".join(f"{name} {version or 'missing'}" for name, version in releases.items())
    text += f"; {platform.platform()}" + (f"; commit {commit}" if commit else "")
    return Finding("versions", OK, f"{text}; {sys.executable}")


def memory() -> Finding:
    """Return the Finding on the machine's memory, or the part of it that its container may use."""
    total = machine_bytes()
    available = min(total, psutil.virtual_memory().available)
    return Finding(
        "memory", OK, f"{format_bytes(total)}, {format_bytes(available)} of it available"
    )


def free_disk() -> Finding:
    """Return the Finding on the free disk space in the folders to which the commands write."""
    folders = {
        "current folder": os.getcwd(),
        "cache": cache_folder("numba"),
        "temporary": tempfile.gettempdir(),
    }
    texts = []
    is_full = False
    for what, path in folders.items():
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(existing_parent(path)).free
            texts.append(f"{format_bytes(free)} in {path} ({what})")
            is_full |= free < MIN_FREE_BYTES
    remedy = "make room: checkpoints of BERT base take 1.3 GB each" if is_full else ""
    return Finding("free disk", NOTE if is_full else OK, "; ".join(texts), remedy)


def driver_report() -> dict[str, Any]:
    """Return the report of the GPUs' driver: {"driver" (its version), "cuda" (the highest CUDA
    version), "gpus", "problem"}. gpus: for each GPU {"name", "memory_bytes", "used_bytes"}, without
    the bytes where NVML does not report them. problem: why there is no report, or None.
    """
    report: dict[str, Any] = dict(driver=None, cuda=None, gpus=[], problem=None)
    try:
        with session():
            report["driver"] = pynvml.nvmlSystemGetDriverVersion()
            version = pynvml.nvmlSystemGetCudaDriverVersion()
            report["cuda"] = f"{version // 1000}.{version % 1000 // 10}"
            for handle in map(handle_of, range(pynvml.nvmlDeviceGetCount())):
                gpu = dict(name=pynvml.nvmlDeviceGetName(handle))
                report["gpus"].append(gpu)
                with contextlib.suppress(pynvml.NVMLError):
                    bytes_of = pynvml.nvmlDeviceGetMemoryInfo(handle)
                    gpu.update(memory_bytes=bytes_of.total, used_bytes=bytes_of.used)
    except pynvml.NVMLError as error:
        report["problem"] = str(error)
    return report


def gpus_finding(driver: dict[str, Any]) -> Finding:
    if driver["problem"] and not driver["gpus"]:
        return Finding("GPUs", OK, f"none ({driver['problem']})")
    texts = [f"driver {driver['driver']}, for CUDA up to {driver['cuda']}"]
    for index, gpu in enumerate(driver["gpus"]):
        sizes = [format_bytes(gpu[key]) for key in ("memory_bytes", "used_bytes") if key in gpu]
        texts.append(
            f"{index}: {gpu['name']}" + (", {} ({} in use)".format(*sizes) if sizes else "")
        )
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        texts.append(f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES'][:200]}")
    return Finding("GPUs", OK, "; ".join(texts))


def tensorflow_finding(trial: dict[str, Any], driver: dict[str, Any]) -> Finding:
    """Return the Finding on TensorFlow and the GPUs that it finds. trial: the result of the trial
    "look". driver: from `driver_report`.
    """
    if "error" in trial:
        text = f"{'its import' if trial.get('is_late') else 'cannot be imported:'} {trial['error']}"
        return Finding("TensorFlow", PROBLEM, text, INSTALL)
    build = f"built for CUDA {trial['cuda']}, cuDNN {trial['cudnn']}"
    text = f"{trial['version']}, {build if trial['cuda'] else 'built without CUDA'}; it finds "
    text += ", ".join(trial["gpus"]) or "no GPU"
    majors = [int(version.split(".")[0]) for version in (driver["cuda"], trial["cuda"]) if version]
    is_old = majors != sorted(majors)[::-1]
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if not driver["gpus"] or is_hidden or (trial["gpus"] and not is_old):
        return Finding("TensorFlow", OK, text)
    text += f"; the driver reports {len(driver['gpus'])}, for CUDA up to {driver['cuda']}"
    remedy = "install a newer NVIDIA driver" if is_old else INSTALL_GPU
    return Finding("TensorFlow", PROBLEM, text, remedy)


def step_finding(name: str, trial: dict[str, Any]) -> Finding:
    """Return the Finding on the trial "step" of the CPU or of GPUs together."""
    if "error" in trial:
        remedy = ALL_REDUCE_REMEDY if name.endswith("GPUs") else ""
        return Finding(f"step on {name}", PROBLEM, trial["error"], remedy)
    text = (
        f"a tiny BERT in {trial['precision']}, XLA {'on' if trial['xla'] else 'off'}: "
        f"loss {trial['loss']:.3f} after {trial['seconds']:.1f} s, compiling included"
    )
    return Finding(f"step on {name}", OK, text)
