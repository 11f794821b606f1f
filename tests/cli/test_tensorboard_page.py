"""What a browser shows of a run in TensorBoard."""

import json
import os
import re
import subprocess
import sys

import pytest

from bert_gpu.monitor.sinks.tensorboard import place
from bert_gpu.pretrain.objectives.table import OBJECTIVES
from tests.browser import NAMES, Page, find_browser

# Resolves to {title: runs} of the charts that have a line, when these are COUNT runs in all. The
# table below a chart names its runs.
CHARTS = """
new Promise(resolve => setInterval(() => {
  const cards = [...document.querySelectorAll("scalar-card")].filter(
    card => card.querySelector("line-chart svg path, line-chart canvas"));
  const found = cards.map(card => [
    card.querySelector("tb-truncated-path").title,
    ["train", "validation"].filter(run => card.innerText.split(/\\s+/).includes(run))]);
  if (found.flatMap(([_, runs]) => runs).length >= COUNT) resolve(Object.fromEntries(found));
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
    """Every number of metrics.jsonl is listed; every loss has a chart with a line, which training
    and validation share.
    """
    browser = find_browser()
    if browser is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed: apt-get install chromium")
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    numbers = {name for line in lines for name, value in line.items() if value is not None} - {
        "step"
    }
    assert {"loss", "eval_loss", "mlm", "eval_mlm_loss"} <= numbers
    placed = [place(name, OBJECTIVES) for name in sorted(numbers)]
    charts = {tag: sorted(run for run, other in placed if other == tag) for _, tag in placed}
    losses = {tag: runs for tag, runs in charts.items() if "loss" in tag}
    both = ["train", "validation"]
    assert losses == dict(loss=both, mlm_loss=both, nsp_loss=both, loss_scale=["train"])
    with Page(browser, tmp_path / "profile") as page:
        page.open(f"{tensorboard}#timeseries")
        assert page.evaluate(WORDS.replace("NAMES", json.dumps(sorted(charts))))
        page.open("about:blank")
        page.open(f"{tensorboard}?tagFilter=loss#timeseries")
        found = page.evaluate(CHARTS.replace("COUNT", str(sum(map(len, losses.values())))))
        assert found == losses and not page.errors, page.errors
