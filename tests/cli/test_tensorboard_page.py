"""What a browser shows of a run in TensorBoard."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.browser import NAMES, Page, find_browser

# Resolves to the titles of the charts that have a line, when there are COUNT of them.
CHARTS = """
new Promise(resolve => setInterval(() => {
  const cards = [...document.querySelectorAll("scalar-card")].filter(
    card => card.querySelector("line-chart svg path, line-chart canvas"));
  const titles = cards.map(card => card.querySelector("tb-truncated-path").title);
  if (titles.length >= COUNT) resolve(titles);
}, 100))
"""
# Resolves when the page has all of NAMES.
WORDS = """
new Promise(resolve => setInterval(() => {
  if (NAMES.every(name => document.body.innerText.includes(name))) resolve(true);
}, 100))
"""


@pytest.fixture
def tensorboard(finished):
    """The address of TensorBoard for a finished run."""
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={finished}/tensorboard"]
    process = subprocess.Popen(
        [*command, "--port=0", "--load_fast=false"],
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, CUDA_VISIBLE_DEVICES="-1"),
    )
    with process:
        try:
            yield next(filter(None, (re.search(r"http://\S+", line) for line in process.stderr)))[0]
        finally:
            process.kill()


@pytest.mark.long
def test_the_charts_of_a_run_are_shown(finished, tensorboard, tmp_path):
    """Every number of metrics.jsonl is listed by its name; every loss has a chart with a line."""
    browser = find_browser()
    if browser is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed: apt-get install chromium")
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    numbers = {name for line in lines for name, value in line.items() if value is not None} - {
        "step"
    }
    losses = sorted(name for name in numbers if "loss" in name)
    assert {"loss", "eval_loss"} <= set(losses)
    with Page(browser, tmp_path / "profile") as page:
        page.open(f"{tensorboard}#timeseries")
        assert page.evaluate(WORDS.replace("NAMES", json.dumps(sorted(numbers))))
        page.open("about:blank")
        page.open(f"{tensorboard}?tagFilter=loss#timeseries")
        found = page.evaluate(CHARTS.replace("COUNT", str(len(losses))))
        assert sorted(found) == losses and not page.errors, page.errors
