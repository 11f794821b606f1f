"""The memory that a benchmark tells of a command."""

import subprocess
import sys

import pytest

MEGABYTE = 10**6
WAIT = "import time; time.sleep(2)"


@pytest.fixture
def peaks():
    """The function: program -> (peak, its part that belongs to no file) in megabytes."""
    from helpers import measure

    def peaks(program):
        found = measure.run([sys.executable, "-c", program])
        return found.peak_bytes / MEGABYTE, found.peak_anonymous_bytes / MEGABYTE

    return peaks


def test_children_and_allocated_pages_count(peaks):
    own = f"data = bytearray(b'x') * {40 * MEGABYTE}; {WAIT}"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {own!r}])"
    whole, allocated = peaks(f"data = bytearray(b'x') * {30 * MEGABYTE}; {child}")
    assert 70 < allocated < 110 and whole > allocated


def test_pages_of_files_count_in_the_whole_alone(peaks, tmp_path):
    """And by how many map them: the same command with another beside it has another peak, and
    allocates the same.
    """
    (tmp_path / "x").write_bytes(b"x" * 60 * MEGABYTE)
    read = f"import numpy, time; data = numpy.memmap({str(tmp_path / 'x')!r}); data.sum()"
    alone, allocated = peaks(f"{read}; time.sleep(2)")
    other = subprocess.Popen(
        [sys.executable, "-c", f"{read}; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        with other.stdout:
            other.stdout.read(1)
            beside, allocated_beside = peaks(f"{read}; time.sleep(2)")
    finally:
        other.kill()
        other.wait()
    assert alone > 60 + allocated and beside < alone - 20
    assert abs(allocated - allocated_beside) < 10
