"""What a job left, as {item: text} without times and places, and the comparison of two of them."""

import difflib
import fnmatch
import glob
import hashlib
import json
import os
import re
import struct

SHOWN_LINES = 24  # of a difference
SKIPPED = ("*.lock", "*.tfevents.*", "*.hlo.pb", "*.pyc")
# fields of JSON that differ from run to run, and those of run.json, whose settings have such names
TIMES = re.compile(r"seconds$|_per_second$|^time_|^input_wait$|memory|^(gpu|cpu|host)_|^crc32c$")
OF_RUN = re.compile(r"^(git_commit|crc32c)$")
TEXT_TIMES = (
    (re.compile(r"\b[IWEF]\d{4} \d\d:\d\d:[\d.]+ +\d+ "), "LOG "),  # of TensorFlow's log
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "DATE"),
    (re.compile(r"\b[0-9a-f]{40}(-dirty)?\b"), "COMMIT"),
    (re.compile(r"\bprocess \(\d+\)"), "process (PID)"),
    (re.compile(r"[\d.,]+ ?[kMG]?\w+/s\b"), "RATE"),
    (re.compile(r"RATE of step \d+"), "RATE"),  # of the checkpoint that a killed run left
    (re.compile(r"( +[\d,]+ +[\d.]+)? +\d+ \w+ ago\b"), "  AGO"),  # with a run's rate and hours
    (re.compile(r"input wait [\d.]+%"), "input wait SHARE"),
    (re.compile(r"time spent: .*"), "time spent: TIMES"),
    (re.compile(r"\btook [\d.:]+( s)?"), "took TIME"),
    (re.compile(r"\b\d+:\d\d(:\d\d)?\b"), "TIME"),
    (re.compile(r"^.*: [\d.]+/[\d.]+ [kMG]?B .*\n", re.M), ""),  # progress
)
LEAST_HLO = 5000  # characters
# of XLA's text: places in the source, numbers of traces
HLO = (
    (re.compile(r", metadata=\{[^}]*\}"), ""),
    (re.compile(r"(a_inference_|cluster_|__inference_)\w+"), "FUNCTION"),
)


def read_items(job, code, places):
    """{item: text} of a job that ended with an exit code. places: {path: what stands for it}."""
    name, items = job["name"], {}
    items[f"{name}: exit code"] = str(code)
    for stream in ("stdout", "stderr"):
        with open(f"{job['log']}.{stream}", errors="replace") as file:
            items[f"{name}: {stream}"] = clean(file.read(), places)
    modules = []
    for pattern in job.get("files", ()):
        for path in sorted(glob.glob(f"{job['folder']}/{pattern}", recursive=True)):
            hidden = any(fnmatch.fnmatch(os.path.basename(path), skip) for skip in SKIPPED)
            if path.endswith(".before_optimizations.txt"):
                text = read_file(path, places)
                modules += [text] if len(text) > LEAST_HLO else []  # others only try XLA's flags
            elif os.path.isfile(path) and not hidden:
                items[f"{name}: {os.path.relpath(path, job['folder'])}"] = read_file(path, places)
    for number, text in enumerate(sorted(modules, key=len)):
        items[f"{name}: HLO {number}"] = text
    return items


def clean(text, places=()):
    """Text without times, rates and the places of this machine."""
    for path in sorted(places, key=len, reverse=True):
        text = text.replace(path, places[path])
    for pattern, name in TEXT_TIMES:
        text = pattern.sub(name, text)
    return re.sub(" {2,}", "  ", text) if "  AGO" in text else text  # a table's columns


def read_file(path, places=()):
    """The text that stands for a file in a comparison: its bytes' hash, and, where it helps to see
    what differs, its content.
    """
    with open(path, "rb") as file:
        content = file.read()
    name = os.path.basename(path)
    if name.endswith((".json", ".jsonl")) and name != "dataset.json":
        fields = OF_RUN if name == "run.json" else TIMES
        return clean(
            "\n".join(
                json.dumps(without(json.loads(line), fields), indent=1, ensure_ascii=False)
                for line in (content.splitlines() if name.endswith("l") else [content])
            ),
            places,
        )
    if name.endswith(".before_optimizations.txt"):
        text = content.decode()
        for pattern, replacement in HLO:
            text = pattern.sub(replacement, text)
        return text
    digest = f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}\n"
    if name.endswith(".safetensors"):
        return digest + tensors(content)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return digest
    return clean(text, places) if name.endswith(".md") else digest + text[:100_000]


def without(value, pattern):
    """A value of JSON without the fields whose name a pattern finds."""
    if isinstance(value, dict):
        return {k: without(v, pattern) for k, v in value.items() if not pattern.search(k)}
    return [without(v, pattern) for v in value] if isinstance(value, list) else value


def tensors(content):
    """A line for each tensor of a safetensors file."""
    (size,) = struct.unpack("<Q", content[:8])
    header, data, lines = json.loads(content[8 : 8 + size]), content[8 + size :], []
    for name, tensor in header.items():
        if name != "__metadata__":
            start, end = tensor["data_offsets"]
            digest = hashlib.sha256(data[start:end]).hexdigest()[:16]
            lines.append(f"{name} {tensor['dtype']} {tensor['shape']} {digest}\n")
    return "".join(lines)


def compare(base, ours):
    """The differences of two {item: text}, one text for each item that differs."""
    differences = []
    for item in [*base, *(item for item in ours if item not in base)]:
        first, second = base.get(item), ours.get(item)
        if first == second:
            continue
        if first is None or second is None:
            differences.append(f"== {item}\n   only in {'this tree' if first is None else 'BASE'}")
            continue
        lines = list(
            difflib.unified_diff(
                first.splitlines(), second.splitlines(), "BASE", "this tree", "", "", 1, ""
            )
        )[2:]
        shown = [line[:300] for line in lines[:SHOWN_LINES]]
        if len(lines) > SHOWN_LINES:
            shown.append(f"... and {len(lines) - SHOWN_LINES} more lines")
        differences.append("\n".join([f"== {item}", *shown]))
    return differences
