"""Examines whether a training would work on this machine, and what to install where it would not:
the first thing to put into a bug report.

What is looked at becomes Findings, which are printed as a table or as JSON. Trials run in processes
of their own (probes.py), so that a crash or a hang is a finding, too. No TensorFlow is imported
here.
"""

import dataclasses
import importlib.metadata
import os
import platform
import sys

import bert_gpu
from bert_gpu.base.console import aligned, format_seconds
from bert_gpu.base.environment import OUR_FLAGS
from bert_gpu.base.errors import printable
from bert_gpu.doctor import machine, probes
from bert_gpu.doctor import processor as processors
from bert_gpu.runs.provenance import git_commit
from bert_gpu.train.memory_check import format_size

PACKAGES = ("tensorflow", "tensorflow-text", "tf-models-official", "numpy", "numba", "keras")
# of the environment: what changes how TensorFlow runs; none of them holds a secret
VARIABLES = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "XLA_FLAGS", "TF_XLA_FLAGS", "NCCL_DEBUG")
LEAST_FREE_BYTES = 2 << 30
REDUCE_OTHERWISE = "try --all_reduce=ring or hierarchical, and NCCL_DEBUG=INFO"
INSTALL, INSTALL_GPU = "pip install bert-gpu", "pip install 'bert-gpu[gpu]'"
OK, PROBLEM, NOTE = "ok", "problem", "note"


@dataclasses.dataclass(frozen=True)
class Finding:
    """topic: in a word or two. state: OK, NOTE (worth knowing) or PROBLEM (a training would not
    work as it should). text: what was found. remedy: what to do, "" = nothing. details: JSON.
    """

    topic: str
    state: str
    text: str
    remedy: str = ""
    details: dict = dataclasses.field(default_factory=dict)


def examine(attempt=probes.attempt, say=lambda text: None):
    """The Findings on this machine. attempt: as probes.attempt. say: takes the text of what takes
    its time.
    """
    found = [versions(), processor(), memory(), disks(), *environment()]
    driver = machine.gpus()
    found.append(driver_finding(driver))
    say("importing TensorFlow")
    seen = attempt("look")
    found.append(tensorflow_finding(seen))
    if "error" in seen:
        return found
    found += cuda_findings(seen, machine.libraries(seen["cuda"]), driver)
    devices = [str(index) for index in range(len(seen["gpus"]))] or ["CPU"]
    for device in devices:
        name = f"GPU {device}" if device != "CPU" else device
        say(f"trying {name}")
        found.append(rate_finding(name, attempt("rate", device)))
        found.append(step_finding(name, attempt("step", device)))
    if len(devices) > 1:
        say("trying two replicas")
        found.append(step_finding("two replicas", attempt("step", "0,1"), True))
    return found


def works(findings):
    return not any(finding.state == PROBLEM for finding in findings)


def report(findings, columns=None):
    """The lines of the table, broken at `columns`, and a verdict at the end."""
    marks = {OK: "", NOTE: "", PROBLEM: "PROBLEM: "}
    rows = [
        (
            finding.topic,
            marks[finding.state] + finding.text + (finding.remedy and f" -> {finding.remedy}"),
        )
        for finding in findings
    ]
    return [printable(line) for line in aligned([*rows, ("verdict", verdict(findings))], columns)]


def as_json(findings):
    return dict(
        works=works(findings),
        verdict=verdict(findings),
        findings=[dataclasses.asdict(finding) for finding in findings],
    )


def verdict(findings):
    problems = [finding.topic for finding in findings if finding.state == PROBLEM]
    if problems:
        return f"training would not work as it should: {', '.join(problems)}"
    steps = [finding.topic for finding in findings if finding.topic.startswith("step on")]
    where = ", ".join(topic.removeprefix("step on ") for topic in steps)
    return f"training would work, on {where}" if steps else "no problem found; nothing was run"


def versions():
    found = {"bert-gpu": bert_gpu.__version__, "Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    commit = git_commit()
    text = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
    text += f"; {platform.platform()}" + (f"; commit {commit}" if commit else "")
    return Finding("versions", OK, text, details=found | dict(commit=commit, path=sys.executable))


def processor():
    found = processors.processor()
    features = found["features"]
    shown = "its features are not known" if features is None else ", ".join(features) or "no AVX2"
    absent = [
        name
        for name in processors.FEATURES.values()
        if features is not None and name not in features
    ]
    text = f"{found['name']}; {found['cores']} cores for this process; {shown}"
    return Finding("processor", OK, text + (f"; not {', '.join(absent)}" if absent else ""),
                   details=found)  # fmt: skip


def memory():
    found = machine.memory()
    total, available = (format_size(found[f"{name}_bytes"]) for name in ("total", "available"))
    return Finding("memory", OK, f"{total}, {available} of it available", details=found)


def disks():
    found = machine.disks()
    full = [disk for disk in found if disk["free_bytes"] < LEAST_FREE_BYTES]
    shown = [
        f"{format_size(disk['free_bytes'])} in {disk['path']} ({disk['what']})" for disk in found
    ]
    remedy = "make room: checkpoints of BERT base take 1.3 GB each" if full else ""
    return Finding("free disk", NOTE if full else OK, "; ".join(shown), remedy, dict(disks=found))


def environment(environ=os.environ):
    """A Finding on the variables that are set, none without any."""
    found = {name: environ[name] for name in VARIABLES if environ.get(name)}
    if found.get("XLA_FLAGS") == OUR_FLAGS:
        del found["XLA_FLAGS"]
    text = "; ".join(f"{name}={value[:200]}" for name, value in found.items())
    return [Finding("environment", OK, text, details=found)] if found else []


def driver_finding(found):
    if found["problem"] and not found["gpus"]:
        return Finding("GPUs", OK, f"none ({found['problem']})", details=found)
    shown = [
        f"{gpu['index']}: {gpu['name']}"
        + (f", {format_size(gpu['memory_bytes'])}" if gpu["memory_bytes"] else "")
        + (f" ({format_size(gpu['used_bytes'])} in use)" if gpu["used_bytes"] else "")
        + (f", compute capability {gpu['capability']}" if gpu["capability"] else "")
        for gpu in found["gpus"]
    ]
    text = f"driver {found['driver']}, for CUDA up to {found['cuda'] or '?'}; "
    return Finding("GPUs", OK, text + ("; ".join(shown) or "no GPU"), details=found)


def tensorflow_finding(seen):
    if "error" in seen:
        text = f"{'its import' if seen.get('is_late') else 'cannot be imported:'} {seen['error']}"
        return Finding("TensorFlow", PROBLEM, text, INSTALL, details=seen)
    built = f"built for CUDA {seen['cuda']}, cuDNN {seen['cudnn']}"
    text = f"{seen['version']}, {built if seen['cuda'] else 'built without CUDA'}; it finds "
    return Finding("TensorFlow", OK, text + (", ".join(seen["gpus"]) or "no GPU"), details=seen)


def cuda_findings(seen, libraries, driver):
    """Findings on the CUDA libraries, NCCL among them, and on GPUs that TensorFlow does not find.
    Without a GPU nothing of this is needed.
    """
    is_needed = bool(driver["gpus"]) and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
    details = dict(libraries=libraries)
    if libraries is None:
        text = f"those of CUDA {seen['cuda']} are not known to this version"
        found = [Finding("CUDA libraries", NOTE, text)]
    else:
        missing = [library for library in libraries if library["path"] is None]
        text, state, remedy = f"{len(libraries) - len(missing)} of {len(libraries)} found", OK, ""
        if missing and is_needed:
            packages = " ".join(sorted({library["package"] for library in missing}))
            state, remedy = PROBLEM, f"{INSTALL_GPU}, or pip install {packages}"
            text += f"; missing: {', '.join(library['name'] for library in missing)}"
        elif missing:
            text += ", and none is needed without a GPU"
        found = [Finding("CUDA libraries", state, text, remedy, details)]
        nccl = next(library for library in libraries if "nccl" in library["name"])
        found.append(Finding("NCCL", OK, nccl["path"] or "missing; runs on several GPUs need it"))
    majors = [int(one.partition(".")[0]) for one in (driver["cuda"], seen["cuda"]) if one]
    if is_needed and len(majors) == 2 and majors[0] < majors[1]:
        text = f"it is for CUDA up to {driver['cuda']}, TensorFlow is built for {seen['cuda']}"
        remedy = "install a newer NVIDIA driver"
        found.append(Finding("GPU driver", PROBLEM, text, remedy))
    if is_needed and not seen["gpus"]:
        text = f"the driver knows {len(driver['gpus'])}, and TensorFlow finds none of them"
        found.append(Finding("GPUs in TensorFlow", PROBLEM, text, INSTALL_GPU))
    return found


def rate_finding(name, found):
    if "error" in found:
        return Finding(f"rate of {name}", PROBLEM, found["error"], details=found)
    rates = [f"{value / 1e9:,.0f} GFLOP/s in {kind}" for kind, value in found["flops"].items()]
    return Finding(f"rate of {name}", OK, f"{', '.join(rates)} (matrix product)", details=found)


def step_finding(name, found, is_joint=False):
    if "error" in found:
        remedy = REDUCE_OTHERWISE if is_joint else ""
        return Finding(f"step on {name}", PROBLEM, found["error"], remedy, found)
    seconds = found["seconds"]
    taken = format_seconds(seconds) if seconds >= 60 else f"{seconds:.1f} s"
    text = (
        f"a tiny BERT in {found['precision']}, XLA {'on' if found['xla'] else 'off'}: "
        f"loss {found['loss']:.3f} after {taken}, compiling included"
    )
    return Finding(f"step on {name}", OK, text, details=found)
