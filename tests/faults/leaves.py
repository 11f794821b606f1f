"""Every leaf of every JSON file that is read, replaced by values of other types and out of range.

Law for a file with its checksum: refused with its name, and with the key where the type or the
range tells. Law without the checksum (an older file, or one that a user has edited): refused with
its name, or read as any other valid value; never another exception. One case of each file runs as a
process: exit code 2, and no file changed.
"""

import functools
import json
import pathlib

from bert_gpu.base.files import CHECKSUM
from tests.faults import oracle, reading
from tests.faults.machines import Case
from tests.faults.world import RUN_FLAGS, sorting

DEEP = functools.reduce(lambda inner, _: [inner], range(200), 0)
VALUES = dict(
    null=None, text="x", list=[], minus=-1, zero=0, huge=1e30, nan=float("nan"), deep=DEEP
)
KEPT, REMOVED = "with its checksum", "without a checksum"


def cases(world, seed, only=None):
    """Parts: data, run, model; None = all, and each file as a process too."""
    found = []
    for part, folder in reading.parts(world, only).items():
        for path in reading.files(folder):
            if path.suffix not in (".json", ".jsonl"):
                continue
            name = str(path.relative_to(folder))
            for leaf in leaves(load(path)):
                key = ".".join(map(str, leaf))
                found += [
                    Case(
                        f"{part}/{name} {key} {kind} {checksum}",
                        functools.partial(law, part, folder, path, leaf, value, checksum),
                    )
                    for kind, value in VALUES.items()
                    for checksum in ((KEPT,) if path.suffix == ".jsonl" else (KEPT, REMOVED))
                ]
            if only or path.name == "progress.json" and path.parent != newest_checkpoint(world):
                continue  # a resume reads the newest one alone
            found.append(
                Case(f"{part}/{name} process", functools.partial(refused, world, part, path))
            )
    return found


def newest_checkpoint(world):
    return max((world.run / "checkpoints").iterdir())


def load(path):
    """The JSON object of a file; for lines of JSON, a list of them."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return json.loads(path.read_text())


def dump(path, content):
    lines = content if path.suffix == ".jsonl" else [content]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def leaves(value, path=()):
    """The paths of the leaves of a JSON value, but the checksum."""
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for key, child in pairs for leaf in leaves(child, (*path, key))]
    return [] if path[-1] == CHECKSUM else [path]


def replaced(content, leaf, value):
    """A copy of a JSON value with another leaf; None when it has that value already."""
    content = json.loads(json.dumps(content))
    inside = functools.reduce(lambda parent, key: parent[key], leaf[:-1], content)
    if type(inside[leaf[-1]]) is type(value) and inside[leaf[-1]] == value:
        return None
    inside[leaf[-1]] = value
    return content


@functools.cache
def whole(part, folder):
    return reading.READERS[part](folder, lambda text: None)


def law(part, folder, path, leaf, value, checksum, scratch):
    content = replaced(load(path), leaf, value)
    if content is None:
        return ""
    if checksum == REMOVED and isinstance(content, dict):
        content.pop(CHECKSUM, None)
    copy = pathlib.Path(scratch) / "copy"
    changed = reading.copy_with(folder, copy, path, dump(path, content))
    ended = reading.outcome(part, copy, changed, whole(part, folder))
    allowed = {reading.REFUSED, reading.NO_EFFECT}
    if checksum == REMOVED:
        allowed.add(reading.SILENT)  # a valid value, as the user may give
    return "" if ended in allowed else ended


def refused(world, part, path, scratch):
    """One mutation, thrown at a command."""
    scratch = pathlib.Path(scratch)
    content = load(path)
    changed = dump(path, replaced(content, leaves(content)[0], DEEP))
    folders = dict(reading.parts(world))
    copy = reading.copy_with(folders[part], scratch / part, path, changed)
    folders[part] = scratch / part
    if part == "unfinished data":
        arguments = sorting(folders[part])
    elif part == "model":
        arguments = ["fill-mask", f"--model={folders['model']}", "a [MASK]"]
    else:
        arguments = [
            "pretrain",
            f"--input_file={folders['data']}/*.tfrecord",
            f"--output_dir={folders['run']}",
            *RUN_FLAGS,
            "--num_train_steps=5",
        ]
    ended = oracle.run(*arguments, watch=scratch)
    if path.name == "progress.json":  # then the checkpoint before it is taken
        is_named = path.name in ended.stderr
        return ended.problem((0,)) or ("" if is_named else f"not named: {ended.stderr}")
    return ended.refusal() or ("" if copy.name in ended.stderr else f"not named: {ended.stderr}")
