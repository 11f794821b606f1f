"""The three scripts on a terminal: bars and lines stay whole, and Ctrl-C saves. Elsewhere there are
plain lines.
"""

import re
import signal
import subprocess
import sys

import pytest

from bert_gpu.runs.folder import RunFolder
from tests.cli.pretraining import HANG_SECONDS, ROOT, SMALL
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.long

# starts of the lines that each script prints beside its bars
SAID = {
    "create_pretraining_data.py": (
        "input: 1 file",
        "learning a",
        "  documents",
        "  written",
    ),
    "run_pretraining_gpu.py": ("devices:", "batch:", "validation at step 4:", "model: "),
    "run_classifier.py": ("devices:", "batch:", "model: "),
}
BAR = r"(counting words|writing|training): +\d+%\|[ █▉▊▋▌▍▎▏]*\| [\d.]+/[\d.]+ \[\d\d:\d\d<"


def commands(folder):
    """{script: its command}: a tiny form of the whole path, in the folder."""
    for split in ("train", "dev"):
        rows = (ROOT / "examples" / "pairs" / f"{split}.tsv").read_text().splitlines()[:11]
        (folder / "pairs").mkdir(exist_ok=True)
        (folder / "pairs" / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    flags = {
        "create_pretraining_data.py": ["--vocab_size=500", "--dupe_factor=1"],
        "run_pretraining_gpu.py": [
            *("--num_train_steps=6 --log_steps=1 --save_checkpoints_steps=4").split(),
            *SMALL,
        ],
        "run_classifier.py": ["--data_dir=pairs", "--num_train_epochs=1", "--train_batch_size=4"],
    }
    length = "--max_seq_length=32"
    return {name: [sys.executable, str(ROOT / name), *flags[name], length] for name in flags}


def test_bars_and_lines_stay_whole(tmp_path):
    for script, command in commands(tmp_path).items():
        with Terminal(command, 60, tmp_path) as terminal:
            assert terminal.read() == 0, terminal.text
        lines = terminal.lines()
        for start in SAID[script]:
            assert any(line.startswith(start) for line in lines), (start, lines)
        bars = [line for line in lines if re.search(r"\d%\|", line)]
        assert bars and all(re.match(BAR, line) for line in bars), bars
        assert not [line for line in bars if re.search("validation|warning|model:", line)], bars
        assert "100%" in bars[-1]


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path):
    data, pretrain, _ = commands(tmp_path).values()
    subprocess.run([*data, "--quiet"], cwd=tmp_path, check=True)
    endless = [*pretrain, "--num_train_steps=1000000"]
    with Terminal(endless, 120, tmp_path) as terminal:
        terminal.read("validation at step 4")
        terminal.type(b"\x03")
        assert terminal.read() == 128 + signal.SIGINT
    (step,) = re.findall(r"stopped by SIGINT after step (\d+); the same command", terminal.text)
    assert RunFolder(str(tmp_path / "runs" / "pretrain")).steps()[-1] == int(step) >= 4
    with Terminal([*pretrain, f"--num_train_steps={int(step) + 1}"], 120, tmp_path) as terminal:
        assert terminal.read() == 0, terminal.text
    assert f"resuming from step {step} of {int(step) + 1}" in terminal.text


def test_without_a_terminal_there_are_plain_lines(tmp_path):
    for script, command in commands(tmp_path).items():
        result = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS
        )
        assert result.returncode == 0, result.stderr
        lines = (result.stdout + result.stderr).splitlines()
        assert not [line for line in lines if re.search(r"[\x00-\x08\x0b-\x1f]|\d%\|", line)]
        texts = [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", line) for line in lines]
        for start in SAID[script]:
            assert any(text.startswith(start) for text in texts), (start, lines)
        assert any(re.match(r"writing: |\d{4}-.*  step \d+/", line) for line in lines), lines
