"""A pretraining in tmux, as a user leaves it: its screen is recorded while a bar is drawn, a
validation is said, a warning comes, and Ctrl-C ends it.
"""

import os
import re
import shlex
import subprocess
import sys
import time

import pytest

from bert_gpu.runs.folder import RunFolder
from tests.cli.pretraining import HANG_SECONDS, ROOT, SMALL

pytestmark = pytest.mark.long

BAR = re.compile(r"training: +\d+%\|.*\| \d+/\d+ \[\d\d:\d\d(:\d\d)?<[\d:?]+(, .*)?\]$")


class Tmux:
    """A session of a tmux server of its own, which runs a command; a context manager."""

    def __init__(self, command, columns, folder):
        self.socket, self.folder = str(folder / "tmux"), folder
        environment = f"CUDA_VISIBLE_DEVICES=-1 PYTHONPATH={shlex.quote(str(ROOT))}"
        line = f"env {environment} {shlex.join(command)}; echo ended with $?; sleep 600"
        size = ["-x", str(columns), "-y", "40"]
        self.call("-f", os.devnull, "new-session", "-d", *size, "-c", str(folder), line)

    def call(self, *arguments):
        return subprocess.run(
            ["tmux", "-S", self.socket, *arguments], check=True, capture_output=True, text=True
        ).stdout

    def screen(self):
        """The lines of the screen, and those that have scrolled away."""
        return self.call("capture-pane", "-p", "-S", "-").rstrip().splitlines()

    def wait_for(self, pattern, last=""):
        """The lines of the screen as soon as one of them matches, and the last one `last`."""
        end = time.monotonic() + HANG_SECONDS
        while time.monotonic() < end:
            lines = self.screen()
            if any(re.search(pattern, line) for line in lines) and re.search(last, lines[-1]):
                return lines
            time.sleep(0.05)
        pytest.fail(f"{pattern} does not come:\n" + "\n".join(lines))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory, sample_text):
    folder = tmp_path_factory.mktemp("tmux")
    command = [sys.executable, str(ROOT / "create_pretraining_data.py"), "--quiet"]
    flags = ["--vocab_size=500", "--dupe_factor=1", "--max_seq_length=32"]
    subprocess.run([*command, f"--input_file={sample_text}", *flags], cwd=folder, check=True)
    return folder / "data"


def put_a_file_in_place_of(folder):
    """Moves a folder away in which a run may be writing, and puts a file there instead. The run may
    have made the folder anew before the file comes; then that one moves away, too.
    """
    file = folder.with_name("a file")
    file.write_text("a file where the folder of checkpoints was")
    for turn in range(1000):
        folder.rename(folder.with_name(f"{folder.name} {turn}"))
        try:
            file.rename(folder)
        except (IsADirectoryError, FileExistsError):
            continue
        return
    pytest.fail(f"{folder} is made anew each time that it is moved away")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_run_in_tmux(data, tmp_path, columns):
    command = [
        *(sys.executable, str(ROOT / "run_pretraining_gpu.py"), f"--input_file={data}/*.tfrecord"),
        *("--num_train_steps=1000000", "--log_steps=1", "--save_checkpoints_steps=10"),
        *SMALL,
    ]
    run = tmp_path / "runs" / "pretrain"
    with Tmux(command, columns, tmp_path) as tmux:
        start = tmux.wait_for("validation at step 10:", last=BAR)
        labels = [line.partition(":")[0] for line in start if re.match(r"[a-z ]+: {2,}\S", line)]
        assert labels[:4] == ["devices", "precision", "model", "data"] and "batch" in labels
        texts = {re.match(r"[a-z ]+: +", line).end() for line in start if line[:5] == "batch"}
        starts = [len(line) - len(line.lstrip()) for line in start if line.startswith("    ")]
        assert set(starts) <= texts, "what goes on in the next line stands below its text"
        bars = [line for line in start if "training:" in line]
        assert bars == [start[-1]] and "loss" in bars[0]
        assert ("tokens/s" in bars[0]) and ("mlm_accuracy" in bars[0]) == (columns == 120)

        put_a_file_in_place_of(run / "checkpoints")
        warned = tmux.wait_for("warning: checkpoint of step", last=BAR)
        assert sum("training:" in line for line in warned) == 1
        (run / "checkpoints").unlink()

        tmux.call("send-keys", "C-c")
        end = tmux.wait_for("ended with 130")
    (step,) = re.findall(r"stopped by SIGINT after step (\d+)", "".join(end))
    assert RunFolder(str(run)).steps()[-1] == int(step)
    assert all(len(line) <= columns for line in end)
    # the terminal itself shows ^C, behind the bar
    bars = [line.removesuffix("^C") for line in end if "%|" in line]
    assert len(bars) <= 2 and all(BAR.match(bar) for bar in bars), bars
    said = [line.split(":")[0] for line in end if line.startswith("validation at step")]
    assert said[:2] == ["validation at step 0", "validation at step 10"]
