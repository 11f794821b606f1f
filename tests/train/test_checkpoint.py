"""Checkpoints are whole or not there, the right ones stay, and a save that fails costs
nothing but itself.
"""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import safetensors.numpy

from bert_gpu.base import run_names as run_files
from bert_gpu.base import tensor_files
from bert_gpu.base.errors import UserError
from bert_gpu.runs import folder as run_folder
from bert_gpu.runs.checkpoint_writer import CheckpointWriter, SaveFailed
from bert_gpu.runs.cost import COSTS
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.progress import Progress


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(str(tmp_path / "run"))
    folder.create(dict(settings={}, global_batch_size=8, learning_rate=1e-3))
    return folder


def values(step):
    """Arrays of the kinds a state has: matrices, a scalar, quantised bytes, and a view that is
    not contiguous.
    """
    random = np.random.default_rng(step)
    return {
        "weights/a": random.normal(size=(30, 20)).astype(np.float32),
        "slots/a": random.integers(0, 256, 600, dtype=np.uint8),
        "num_updates": np.int32(step),
        "weights/b": random.normal(size=(5, 7)).astype(np.float32).T,
    }


def same(first, second):
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name])
        and np.asarray(first[name]).dtype == second[name].dtype
        for name in first
    )


def names(folder):
    return sorted(os.listdir(folder.checkpoints))


def test_a_run_that_is_cleared_leaves_what_others_put_there(folder, tmp_path):
    """Files of the run are those of docs/file-formats.md."""
    folder.save(Progress(step=1), values(1), keep=1)
    files = ("metrics.jsonl", "tensorboard/train/x", "model/x", "marks/0.5/x")
    for name in (*files, "results.txt", "notes.txt"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text("")
    folder.clear(lambda path: [os.path.join(path, "results.txt")])
    assert os.listdir(folder.path) == ["notes.txt"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_run_that_could_not_begin_can_begin_again(tmp_path, monkeypatch, call):
    """Also after a kill, which leaves a part of run.json."""

    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    folder = RunFolder(str(tmp_path / "run"))
    os.mkdir(folder.path)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError):
            folder.create({})
    assert os.listdir(folder.path) == []
    (tmp_path / "run" / ".run.json.123.partial").write_text("{")
    assert folder.read_run() is None
    folder.create({})
    assert set(os.listdir(folder.path)) == {"run.json", "checkpoints"}


def test_what_is_written_in_the_background_reads_back_the_same(folder):
    progress = Progress(
        step=7, records=56, seconds=1.25, best_step=5, best_metric=2.5, num_rollbacks=1
    )
    with CheckpointWriter(folder, keep=3) as writer:
        writer.save(progress, values(7))
        stored = dataclasses.replace(progress)
        progress.step, progress.best_metric = 8, 1.0  # the run goes on while it is written
    assert folder.newest_progress() == stored == folder.progress_of(7)
    assert same(values(7), folder.restore(7))
    assert names(folder) == ["step-00000007"]


def test_save_returns_before_it_is_written_and_the_next_waits_for_it(folder, monkeypatch):
    may_write, order, write = threading.Event(), [], run_folder.save_file

    def slow(tensors, path):
        assert may_write.wait(600)
        write(tensors, path)
        order.append(int(tensors["num_updates"]))

    monkeypatch.setattr(run_folder, "save_file", slow)
    with CheckpointWriter(folder, keep=3) as writer:
        writer.save(Progress(step=1), values(1))
        assert folder.steps() == []  # and yet we are here
        # the first is let go only when the second has begun to wait
        wait = writer.wait
        monkeypatch.setattr(writer, "wait", lambda: (may_write.set(), wait()))
        writer.save(Progress(step=2), values(2))
        assert order[0] == 1 and 1 in folder.steps()
        writer.wait()
        assert order == [1, 2] and folder.steps() == [1, 2]


def test_the_values_are_let_go_when_written_or_not(folder, monkeypatch):
    class Array(np.ndarray):  # one that can be watched
        pass

    for fails in (False, True):
        if fails:
            monkeypatch.setattr(run_folder, "save_file", no_space)
        array = np.ones(1000, np.float32).view(Array)
        watched = weakref.ref(array)
        writer = CheckpointWriter(folder, keep=1, warn=list)
        writer.save(Progress(step=1), {"weights/a": array})
        writer.wait()
        del array
        assert watched() is None
        assert (writer.failure is not None) == fails
        writer.thread.shutdown()


def keep(folder, step):
    """Marks a checkpoint as a user does."""
    open(os.path.join(folder.checkpoints, f"step-{step:08d}", run_files.KEEP), "w").close()


def test_the_newest_the_best_and_the_pinned_stay(folder):
    progress = Progress()
    losses = {10: 3.0, 20: 2.0, 30: 2.5, 40: float("nan"), 50: 2.25, 60: 2.75}
    with CheckpointWriter(folder, keep=2) as writer:
        for step, loss in losses.items():
            progress.step = step
            assert progress.improve(loss) == (step in (10, 20))
            writer.save(progress, values(step))
            if step == 30:
                writer.wait()
                keep(folder, step)
    assert (progress.best_step, progress.best_metric) == (20, 2.0)
    assert folder.steps() == [20, 30, 50, 60] and folder.best_step() == 20
    assert folder.is_pinned(30) and not folder.is_pinned(20)
    keep(folder, 50)
    for step in (70, 80):
        folder.save(Progress(step=step, best_step=70, best_metric=1.0), values(step), keep=1)
    assert folder.steps() == [30, 50, 70, 80] and folder.best_step() == 70


def test_the_checkpoint_to_return_to_stays(folder):
    """Those after it were saved by signals, in a row of bad steps."""
    bad = dict(num_bad=2, bad_since=22)
    for step in (10, 20, 24, 25):
        progress = Progress(step=step, health=bad if step > 22 else None)
        folder.save(progress, values(step), keep=1)
    assert folder.steps() == [20, 25] and progress.last_good_step == 22
    folder.remove_old(1, progress.last_good_step)
    assert folder.steps() == [20, 25]
    folder.save(Progress(step=30, health=dict(num_bad=0, bad_since=22)), values(30), keep=1)
    assert folder.steps() == [30]


def test_a_save_that_fails_at_its_end_leaves_the_one_before(folder, monkeypatch):
    """The disk fails when the new one is in place already; the next session tidies up."""
    folder.save(Progress(step=10), values(10), keep=1)
    whole = run_folder.sync

    def fail(*paths):
        if paths == (folder.checkpoints,):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        whole(*paths)

    monkeypatch.setattr(run_folder, "sync", fail)
    with pytest.raises(SaveFailed, match="step 20 .*the newest good one is step 10"):
        with CheckpointWriter(folder, keep=1) as writer:
            writer.save(Progress(step=20), values(20))
    assert folder.steps() == [10, 20]
    folder.remove_old(keep=1)
    assert folder.steps() == [20]


def test_a_best_that_was_not_saved_does_not_cost_the_one_before(folder, monkeypatch):
    folder.save(Progress(step=10, best_step=10, best_metric=2.0), values(10), keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "save_file", no_space)
        with pytest.raises(OSError):
            folder.save(Progress(step=20, best_step=20, best_metric=1.0), values(20), keep=1)
    folder.save(Progress(step=30, best_step=20, best_metric=1.0), values(30), keep=1)
    assert folder.steps() == [10, 30]


def test_a_rollback_removes_the_later_ones_and_is_recorded(folder):
    for step in (10, 20, 30):
        folder.save(Progress(step=step, records=8 * step), values(step), keep=5)
    folder.remove_after(10)
    progress = folder.newest_progress()
    assert progress.step == 10
    progress.records, progress.num_rollbacks = 8 * 30, 1
    folder.write_progress(progress)
    assert folder.newest_progress() == Progress(step=10, records=240, num_rollbacks=1)
    assert same(values(10), folder.restore(10)) and names(folder) == ["step-00000010"]


def test_a_step_saved_again_replaces_the_first(folder):
    folder.save(Progress(step=10, records=80), values(1), keep=2)
    folder.save(Progress(step=10, records=160), values(2), keep=2)
    assert (
        folder.newest_progress().records == 160
        and same(values(2), folder.restore(10))
        and names(folder) == ["step-00000010"]
    )


def test_progress_that_is_none_is_named(folder):
    folder.save(Progress(step=3), values(3), keep=1)
    path = os.path.join(folder.checkpoints, "step-00000003", run_files.PROGRESS)
    content = dataclasses.asdict(Progress(step=3))
    for text in (
        *(
            json.dumps({k: v for k, v in content.items() if k != name})
            for name in content.keys() - set(COSTS)
        ),
        "[]",
        json.dumps(content | dict(best_step="x")),
        "",
        json.dumps(content | dict(step=None)),
    ):
        with open(path, "w") as file:
            file.write(text)
        with pytest.raises(UserError, match="progress.json: .*--overwrite starts over"):
            folder.newest_progress()
        assert folder.best_step() is None  # and retention is not stopped by it


def no_space(tensors, path):
    with open(path, "wb") as file:
        file.write(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_good_ones_alone(folder, monkeypatch):
    told = []
    writer = CheckpointWriter(folder, keep=2, warn=told.append)
    for step in (10, 20):
        writer.save(Progress(step=step), values(step))
    writer.wait()
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "save_file", no_space)
        writer.save(Progress(step=30), values(30))
        writer.save(Progress(step=40), values(40))
        writer.wait()
    assert told[0] == (
        "checkpoint of step 30 could not be saved: "
        "No space left on device; the newest good one is step 20"
    )
    assert len(told) == 2
    assert names(folder) == ["step-00000010", "step-00000020"]
    assert all(same(values(step), folder.restore(step)) for step in (10, 20))
    writer.save(Progress(step=50), values(50))  # there is room again
    writer.close()
    assert folder.steps() == [20, 50]


def test_a_failed_last_save_is_never_silent(folder, monkeypatch):
    monkeypatch.setattr(run_folder, "save_file", no_space)
    told = []
    with pytest.raises(SaveFailed, match="step 5 .* there is no other one yet"):
        with CheckpointWriter(folder, keep=1, warn=told.append) as writer:
            writer.save(Progress(step=5), values(5))
    # what ended the run matters more, but the failure is told all the same
    with pytest.raises(KeyError):
        with CheckpointWriter(folder, keep=1, warn=told.append) as writer:
            writer.save(Progress(step=6), values(6))
            raise KeyError
    assert len(told) == 2 and names(folder) == []


def test_our_own_mistakes_are_not_taken_for_a_full_disk(folder):
    writer = CheckpointWriter(folder, keep=1, warn=list)
    writer.save(Progress(step=5), {"a": np.array([object()])})
    with pytest.raises(Exception) as caught:
        writer.wait()
    assert not isinstance(caught.value, SaveFailed)
    writer.thread.shutdown()
    assert names(folder) == []


LIMITED = """
import resource, sys
import numpy as np
from bert_gpu.runs.checkpoint_writer import CheckpointWriter, SaveFailed
from bert_gpu.runs.progress import Progress
from bert_gpu.runs.folder import RunFolder
folder = RunFolder(sys.argv[1])
folder.create(dict(settings={}, global_batch_size=8, learning_rate=1e-3))
writer = CheckpointWriter(folder, keep=1)
writer.save(Progress(step=1), {"a": np.ones(1000, np.float32)})
writer.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
writer.save(Progress(step=2), {"a": np.ones(1_000_000, np.float32)})
try:
    writer.close()
except SaveFailed:
    sys.exit(3)
"""


def test_the_kernel_refuses_to_write(tmp_path):
    """The same without a mock: a limit on file sizes makes the library's own write fail."""
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 3, result.stderr
    assert (
        "checkpoint of step 2 could not be saved: File too large; the newest good one is step 1"
        in result.stderr
    )
    assert "Traceback" not in result.stderr
    assert os.listdir(tmp_path / "run" / "checkpoints") == ["step-00000001"]


KILLED = """
import os, signal, sys
import numpy as np
from bert_gpu.runs.checkpoint_writer import CheckpointWriter
from bert_gpu.runs.progress import Progress
from bert_gpu.runs.folder import RunFolder

CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
left = None  # changes of the folder until the end

def count(event, args):
    global left
    if left is None or event not in CHANGES or sys.argv[1] not in os.fsdecode(args[0]):
        return
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1

def save(step):
    progress = Progress(step=step, records=8 * step, best_step=1, best_metric=1.0)
    writer.save(progress, {"a": np.full(1000, step, np.int32)})
    writer.wait()

sys.addaudithook(count)
for most in range(200):
    path = os.path.join(sys.argv[1], str(most))
    child = os.fork()
    if child == 0:
        folder = RunFolder(path)
        folder.create(dict(settings={}, global_batch_size=8, learning_rate=1e-3))
        writer = CheckpointWriter(folder, keep=2)
        for step in range(1, 5):
            save(step)
        left = most  # 5 is written, then 3 is removed; the same with 6 and 4
        save(5)
        save(6)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(most, code, flush=True)
    if code == 0:
        break
"""


def test_killed_while_it_saves_and_removes(tmp_path):
    """Killed before any change of the folder in turn: a folder with a checkpoint's name is
    complete, and what is left of the others goes with the next save.
    """
    result = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True
    )
    codes = [int(line.split()[1]) for line in result.stdout.splitlines()]
    assert codes[:-1] == [-signal.SIGKILL] * (len(codes) - 1) and codes[-1] == 0, result.stderr
    found = set()
    for most in range(len(codes)):
        folder = RunFolder(str(tmp_path / str(most)))
        steps = folder.steps()
        # the best, the newest two, and one that was about to go
        assert steps[0] == 1 and 3 <= len(steps) <= 4
        for step in steps:
            assert folder.progress_of(step).records == 8 * step
            assert (folder.restore(step)["a"] == step).all()
        left = [name.split(".")[1:3] for name in names(folder) if name.startswith(".")]
        found |= {(*map(tuple, left), *steps[1:])}
        folder.save(Progress(step=7), {"a": np.zeros(1)}, keep=1)
        assert names(folder) == ["step-00000001", "step-00000007"]
        with open(os.path.join(folder.checkpoints, "step-00000001", run_files.PROGRESS)) as file:
            assert json.load(file)["best_step"] == 1
    assert found == {
        state
        for old, new in ((3, 5), (4, 6))
        for state in (
            (old, new - 1),
            ((f"step-{new:08d}", "new"), old, new - 1),  # it is being written
            (old, new - 1, new),
            ((f"step-{old:08d}", "old"), new - 1, new),  # it is being removed
            (new - 1, new),
        )
    }


def flip(path, offset=-5):
    """Flips one bit of a file."""
    with open(path, "rb") as file:
        content = bytearray(file.read())
    content[offset] ^= 1
    with open(path, "wb") as file:
        file.write(content)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(folder):
    for step in (10, 20, 30):
        folder.save(Progress(step=step, records=8 * step), values(step), keep=5)
    paths = {step: os.path.join(folder.checkpoints, f"step-{step:08d}") for step in (10, 20, 30)}
    flip(os.path.join(paths[30], run_files.VARIABLES))
    flip(os.path.join(paths[20], run_files.PROGRESS), 40)
    with pytest.raises(UserError, match="step-00000030/variables.safetensors: is damaged"):
        folder.restore(30)
    told = []
    progress, restored = folder.newest_whole(told.append)
    assert progress == Progress(step=10, records=80) and same(values(10), restored)
    assert len(told) == 2 and all("the checkpoint of step 10 is taken" in text for text in told)
    assert "step-00000030/variables.safetensors: is damaged" in told[0]
    assert "step-00000020/progress.json" in told[1]
    folder.set_aside_after(10)
    assert folder.steps() == [10]
    assert names(folder)[1:] == ["step-00000020.damaged", "step-00000030.damaged"]
    folder.save(Progress(step=20), values(20), keep=1)  # keeps the newest that counts
    assert folder.steps() == [20] and "step-00000030.damaged" in names(folder)
    flip(os.path.join(paths[20], run_files.VARIABLES))
    with pytest.raises(UserError, match="is whole; --overwrite starts over"):
        folder.newest_whole(told.append)


def test_a_checkpoint_without_checksums_is_read(folder):
    folder.save(Progress(step=10, records=80), values(10), keep=5)
    path = os.path.join(folder.checkpoints, "step-00000010")
    safetensors.numpy.save_file(folder.restore(10), os.path.join(path, run_files.VARIABLES))
    with open(os.path.join(path, run_files.PROGRESS), "w") as file:
        json.dump(dataclasses.asdict(Progress(step=10, records=80)), file)
    told = []
    progress, restored = folder.newest_whole(told.append)
    assert progress == Progress(step=10, records=80) and same(values(10), restored)
    assert told == []


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o027, 0o077])
def test_the_umask_says_who_may_read_a_checkpoint(tmp_path, umask):
    before = os.umask(umask)
    try:
        RunFolder(str(tmp_path)).save(Progress(step=10), values(10), keep=1)
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~umask} and len(files) == 2


def test_a_checksum_covers_name_type_shape_and_bytes(tmp_path):
    tensors = {"a": np.arange(6, dtype=np.float32), "b": np.zeros((2, 3), np.float32)}
    others = [
        {"a": tensors["a"], "c": tensors["b"]},
        {"a": tensors["a"], "b": tensors["b"].T},
        {"a": tensors["a"].view(np.int32), "b": tensors["b"]},
        {"a": tensors["a"] + 1e-7, "b": tensors["b"]},
        {"a": tensors["b"].reshape(-1), "b": tensors["a"].reshape(2, 3)},
        {"a": tensors["a"]},
    ]
    sums = {tensor_files.checksum(each) for each in [tensors, *others]}
    assert len(sums) == len(others) + 1
    assert tensor_files.checksum({"a": np.asfortranarray(np.eye(3, 4))}) == (
        tensor_files.checksum({"a": np.eye(3, 4)})
    )


def test_equal_tensors_make_equal_files():
    """Whatever order the library has for the metadata; what it writes is otherwise kept."""
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(1, np.int32)}
    some = [
        safetensors.numpy.save(tensors, metadata=dict.fromkeys(keys, "x"))
        for keys in (["format", "crc32c"], ["crc32c", "format"])
        for _ in range(10)
    ]
    (content,) = {tensor_files.with_sorted_metadata(each) for each in some}
    assert tensor_files.with_sorted_metadata(content) == content
    assert same(safetensors.numpy.load(content), tensors) and len(content) == len(some[0])
    assert list(tensor_files.metadata_of(content)) == ["crc32c", "format"]
