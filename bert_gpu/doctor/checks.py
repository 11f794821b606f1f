"""Examines whether a training would work on this machine, and what to install where it would not;
the result is meant for a bug report.

Each check returns Findings, which are printed as a table or as JSON. Trials run in processes of
their own (probes.py), so that a crash or a hang becomes a Finding, too. Imports no TensorFlow.
"""

import dataclasses
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import bert_gpu
from bert_gpu.base.console import aligned, format_seconds
from bert_gpu.base.environment import OUR_FLAGS
from bert_gpu.base.errors import printable
from bert_gpu.doctor import machine, probes
from bert_gpu.doctor import processor as processors
from bert_gpu.runs.provenance import git_commit
from bert_gpu.train.memory_check import format_size

PACKAGES = ("tensorflow", "tensorflow-text", "tf-models-official", "numpy", "numba", "keras")
# variables of the environment that change how TensorFlow runs; none of them holds a secret
VARIABLES = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "XLA_FLAGS", "TF_XLA_FLAGS", "NCCL_DEBUG")
MIN_FREE_BYTES = 2 << 30
ALL_REDUCE_REMEDY = "try --all_reduce=ring or hierarchical, and NCCL_DEBUG=INFO"
INSTALL = "pip install bert-gpu"
INSTALL_GPU = "pip install 'bert-gpu[gpu]'"
OK = "ok"
PROBLEM = "problem"
NOTE = "note"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check. topic: its name, a word or two. state: OK, NOTE (a user should read
    it) or PROBLEM (a training would not work as it should). text: the result in words. remedy:
    advice to the user, "" = none. details: values for the JSON output.
    """

    topic: str
    state: str
    text: str
    remedy: str = ""
    details: Mapping[str, object] = dataclasses.field(default_factory=dict)


def examine(
    attempt: Callable[..., dict[str, Any]] = probes.attempt,
    say: Callable[[str], None] = lambda text: None,
) -> list[Finding]:
    """Run all checks and return the Findings. attempt: function that runs a trial, such as
    probes.attempt. say: function that prints the name of a check that takes long.
    """
    findings = [versions(), processor(), memory(), disks(), *environment()]
    driver = machine.gpus()
    findings.append(driver_finding(driver))
    say("importing TensorFlow")
    tensorflow = attempt("look")
    findings.append(tensorflow_finding(tensorflow))
    if "error" in tensorflow:
        return findings
    findings += cuda_findings(tensorflow, machine.libraries(tensorflow["cuda"]), driver)
    devices = [str(index) for index in range(len(tensorflow["gpus"]))] or ["CPU"]
    for device in devices:
        name = f"GPU {device}" if device != "CPU" else device
        say(f"trying {name}")
        findings.append(rate_finding(name, attempt("rate", device)))
        findings.append(step_finding(name, attempt("step", device)))
    if len(devices) > 1:
        say("trying two replicas")
        findings.append(step_finding("two replicas", attempt("step", "0,1"), True))
    return findings


def works(findings: Iterable[Finding]) -> bool:
    return not any(finding.state == PROBLEM for finding in findings)


def report(findings: Sequence[Finding], columns: int | None = None) -> list[str]:
    """Return the findings as the lines of a table that ends with a verdict. columns: width at which
    lines are broken.
    """
    marks = {OK: "", NOTE: "", PROBLEM: "PROBLEM: "}
    rows = [
        (
            finding.topic,
            marks[finding.state] + finding.text + (finding.remedy and f" -> {finding.remedy}"),
        )
        for finding in findings
    ]
    return [printable(line) for line in aligned([*rows, ("verdict", verdict(findings))], columns)]


def as_json(findings: Sequence[Finding]) -> dict[str, object]:
    return dict(
        works=works(findings),
        verdict=verdict(findings),
        findings=[dataclasses.asdict(finding) for finding in findings],
    )


def verdict(findings: Sequence[Finding]) -> str:
    problems = [finding.topic for finding in findings if finding.state == PROBLEM]
    if problems:
        return f"training would not work as it should: {', '.join(problems)}"
    steps = [finding.topic for finding in findings if finding.topic.startswith("step on")]
    where = ", ".join(topic.removeprefix("step on ") for topic in steps)
    return f"training would work, on {where}" if steps else "no problem found; nothing was run"


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
    return Finding(
        "versions", OK, text, details=releases | dict(commit=commit, path=sys.executable)
    )


def processor() -> Finding:
    details = processors.processor()
    features = details["features"]
    listed = "its features are not known" if features is None else ", ".join(features) or "no AVX2"
    absent = [
        name
        for name in processors.FEATURES.values()
        if features is not None and name not in features
    ]
    text = f"{details['name']}; {details['cores']} cores for this process; {listed}"
    return Finding("processor", OK, text + (f"; not {', '.join(absent)}" if absent else ""),
                   details=details)  # fmt: skip


def memory() -> Finding:
    details = machine.memory()
    total, available = (format_size(details[f"{name}_bytes"]) for name in ("total", "available"))
    return Finding("memory", OK, f"{total}, {available} of it available", details=details)


def disks() -> Finding:
    folders = machine.disks()
    full = [disk for disk in folders if disk["free_bytes"] < MIN_FREE_BYTES]
    texts = [
        f"{format_size(disk['free_bytes'])} in {disk['path']} ({disk['what']})" for disk in folders
    ]
    remedy = "make room: checkpoints of BERT base take 1.3 GB each" if full else ""
    return Finding("free disk", NOTE if full else OK, "; ".join(texts), remedy, dict(disks=folders))


def environment(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return a list with one Finding, on the VARIABLES that are set in the environment; [] when
    none is.
    """
    variables = {name: environ[name] for name in VARIABLES if environ.get(name)}
    if variables.get("XLA_FLAGS") == OUR_FLAGS:
        del variables["XLA_FLAGS"]
    text = "; ".join(f"{name}={value[:200]}" for name, value in variables.items())
    return [Finding("environment", OK, text, details=variables)] if variables else []


def driver_finding(driver: dict[str, Any]) -> Finding:
    if driver["problem"] and not driver["gpus"]:
        return Finding("GPUs", OK, f"none ({driver['problem']})", details=driver)
    texts = [
        f"{gpu['index']}: {gpu['name']}"
        + (f", {format_size(gpu['memory_bytes'])}" if gpu["memory_bytes"] else "")
        + (f" ({format_size(gpu['used_bytes'])} in use)" if gpu["used_bytes"] else "")
        + (f", compute capability {gpu['capability']}" if gpu["capability"] else "")
        for gpu in driver["gpus"]
    ]
    text = f"driver {driver['driver']}, for CUDA up to {driver['cuda'] or '?'}; "
    return Finding("GPUs", OK, text + ("; ".join(texts) or "no GPU"), details=driver)


def tensorflow_finding(trial: dict[str, Any]) -> Finding:
    if "error" in trial:
        text = f"{'its import' if trial.get('is_late') else 'cannot be imported:'} {trial['error']}"
        return Finding("TensorFlow", PROBLEM, text, INSTALL, details=trial)
    build = f"built for CUDA {trial['cuda']}, cuDNN {trial['cudnn']}"
    text = f"{trial['version']}, {build if trial['cuda'] else 'built without CUDA'}; it finds "
    return Finding("TensorFlow", OK, text + (", ".join(trial["gpus"]) or "no GPU"), details=trial)


def cuda_findings(
    tensorflow: dict[str, Any], libraries: list[dict[str, Any]] | None, driver: dict[str, Any]
) -> list[Finding]:
    """Return the Findings on the CUDA libraries, NCCL among them, and on GPUs that TensorFlow does
    not find. Without a GPU none of the libraries is needed.

    tensorflow: the result of the trial "look". libraries, driver: the results of machine.libraries
    and machine.gpus.
    """
    is_needed = bool(driver["gpus"]) and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
    details = dict(libraries=libraries)
    if libraries is None:
        text = f"this version of bert-gpu has no list of those of CUDA {tensorflow['cuda']}"
        findings = [Finding("CUDA libraries", NOTE, text)]
    else:
        missing = [library for library in libraries if library["path"] is None]
        text = f"{len(libraries) - len(missing)} of {len(libraries)} found"
        state = OK
        remedy = ""
        if missing and is_needed:
            packages = " ".join(sorted({library["package"] for library in missing}))
            state = PROBLEM
            remedy = f"{INSTALL_GPU}, or pip install {packages}"
            text += f"; missing: {', '.join(library['name'] for library in missing)}"
        elif missing:
            text += ", and none is needed without a GPU"
        findings = [Finding("CUDA libraries", state, text, remedy, details)]
        nccl = next(library for library in libraries if "nccl" in library["name"])
        findings.append(
            Finding("NCCL", OK, nccl["path"] or "missing; runs on several GPUs need it")
        )
    majors = [int(one.partition(".")[0]) for one in (driver["cuda"], tensorflow["cuda"]) if one]
    if is_needed and len(majors) == 2 and majors[0] < majors[1]:
        text = (
            f"it is for CUDA up to {driver['cuda']}, TensorFlow is built for {tensorflow['cuda']}"
        )
        remedy = "install a newer NVIDIA driver"
        findings.append(Finding("GPU driver", PROBLEM, text, remedy))
    if is_needed and not tensorflow["gpus"]:
        text = f"the driver reports {len(driver['gpus'])}, and TensorFlow finds none of them"
        findings.append(Finding("GPUs in TensorFlow", PROBLEM, text, INSTALL_GPU))
    return findings


def rate_finding(name: str, trial: dict[str, Any]) -> Finding:
    if "error" in trial:
        return Finding(f"rate of {name}", PROBLEM, trial["error"], details=trial)
    rates = [f"{value / 1e9:,.0f} GFLOP/s in {kind}" for kind, value in trial["flops"].items()]
    return Finding(f"rate of {name}", OK, f"{', '.join(rates)} (matrix product)", details=trial)


def step_finding(name: str, trial: dict[str, Any], is_joint: bool = False) -> Finding:
    if "error" in trial:
        remedy = ALL_REDUCE_REMEDY if is_joint else ""
        return Finding(f"step on {name}", PROBLEM, trial["error"], remedy, trial)
    seconds = trial["seconds"]
    duration = format_seconds(seconds) if seconds >= 60 else f"{seconds:.1f} s"
    text = (
        f"a tiny BERT in {trial['precision']}, XLA {'on' if trial['xla'] else 'off'}: "
        f"loss {trial['loss']:.3f} after {duration}, compiling included"
    )
    return Finding(f"step on {name}", OK, text, details=trial)
