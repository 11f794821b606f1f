"""The report of a real run, one that was killed and resumed, in a real browser."""

import io
import re

import matplotlib.image
import numpy as np
import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.watch import run_data
from tests.browser import NAMES, Page, find_browser
from tests.cli.pretraining import lines, pretrain, start_and_hold, wait_until
from tests.watch.runs import line, make_run, noisy

LOADED = """
new Promise(resolve => {
  const look = () => document.readyState === "complete" ? resolve(true) : setTimeout(look, 20);
  look();
})
"""
# the middle of the first chart, which is scrolled to
MIDDLE = """
(chart => {
  chart.scrollIntoView({block: "center"});
  const box = chart.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})(document.querySelector(".nsewdrag"))
"""
CURVES = 'document.querySelectorAll(".scatterlayer .trace").length'
LAYOUT = """
(({xaxis, yaxis, dragmode}) => [xaxis.range[1], yaxis.type, dragmode])(
  document.querySelector(".plotly-graph-div")._fullLayout)
"""


def click(browser, label):
    """Clicks the first button with a label; plotly's buttons are parts of a drawing."""
    buttons = '[...document.querySelectorAll(".updatemenu-button")]'
    click = 'dispatchEvent(new MouseEvent("click", {bubbles: true}))'
    browser.evaluate(f'{buttons}.find(one => one.textContent == "{label}").{click}')


def read_out(browser):
    """The text that appears when the pointer is over the middle of the first chart."""
    x, y = browser.evaluate(MIDDLE)
    for place in [dict(x=1, y=1), *(dict(x=x + k / 100, y=y) for k in range(50))]:
        browser.ask("Input.dispatchMouseEvent", type="mouseMoved", **place)
    return browser.evaluate('document.querySelector(".hoverlayer").textContent')


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = find_browser()
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed: apt-get install chromium")
    with Page(found, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def resumed(data, tmp_path_factory):
    """A run of 12 steps that was killed after its eighth, resumed from the fifth."""
    output = tmp_path_factory.mktemp("resumed") / "resumed"
    with start_and_hold(data, output, "--save_checkpoints_steps=5", before_step=8) as process:
        wait_until(process, lambda: (output / "metrics.jsonl").exists() and len(lines(output)) >= 8)
        process.kill()
    assert run_data.read_run(str(output), "x").state == "stopped"
    assert pretrain(data, output, "--save_checkpoints_steps=5") == 0
    return output


@pytest.mark.long
def test_a_run_that_was_killed_reads_as_the_one_that_was_not(resumed, finished):
    first, second = (run_data.read_run(str(folder), "x") for folder in (resumed, finished))
    assert first.train["step"].tolist() == list(range(1, 13))
    for table in ("train", "valid"):
        for name in ("step", "loss"):
            one, other = (getattr(run, table)[name] for run in (first, second))
            np.testing.assert_allclose(one, other, rtol=1e-6)
    one, other = (np.diff(run.train["tokens"], prepend=0) for run in (first, second))
    # the first step of a session has no rates, and takes its tokens from the nearest line
    differ = np.flatnonzero(~np.isclose(one, other, rtol=1e-6)).tolist()
    assert differ in ([], [5]) and one[5] in (other[5], *other[[4, 6]])
    assert first.state == second.state == "finished"
    assert first.num_parameters == second.num_parameters > 1000


@pytest.mark.long
@pytest.mark.parametrize("width", [400, 1280])
def test_the_report_fits_and_its_choices_work(resumed, tmp_path, browser, width):
    """At the width of a phone and of a desktop, light and dark, from a file, without a network."""
    other = make_run(tmp_path / "other", noisy(20))
    target = tmp_path / "report.html"
    assert command(["bert-gpu", "report", str(resumed), str(other), f"--output={target}"]) == 0
    browser.ask("Network.enable")
    browser.ask(
        "Network.emulateNetworkConditions",
        **dict(offline=True, latency=0, downloadThroughput=0, uploadThroughput=0),
    )
    grounds = {}
    for scheme in ("light", "dark"):
        browser.show_as(width, scheme)
        browser.ask("Emulation.setTouchEmulationEnabled", enabled=width < 600)
        browser.open(f"file://{target}")
        assert browser.evaluate(LOADED)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        picture = matplotlib.image.imread(io.BytesIO(browser.screenshot()))
        grounds[scheme] = np.median(picture[..., :3])
        assert picture.std() > 0.02, "nothing is shown"
    assert grounds["light"] > 0.9 and grounds["dark"] < 0.2
    assert browser.evaluate(CURVES) > 10
    text = read_out(browser)
    assert "resumed" in text and "other" in text
    last = {}
    for label in ("tokens", "minutes", "steps"):
        click(browser, label)
        last[label], scale, drag = browser.evaluate(LAYOUT)
        assert scale == "linear" and drag == (False if width < 600 else "zoom")
    assert last["minutes"] < 20 <= last["steps"] < 30 < last["tokens"]
    click(browser, "log")
    assert browser.evaluate(LAYOUT)[1] == "log"
    requested = 'performance.getEntriesByType("resource").length'
    assert browser.evaluate(requested) == 0 and not browser.errors, browser.errors


@pytest.mark.long
def test_the_read_out_says_what_the_curve_is(tmp_path, browser):
    """On a straight line the value under the pointer is known, on both scales."""
    folder = make_run(tmp_path / "run", [line(step, loss=float(step)) for step in range(1, 102)])
    target = tmp_path / "report.html"
    assert command(["bert-gpu", "report", str(folder), f"--output={target}"]) == 0
    browser.show_as(1280, "light")
    browser.open(f"file://{target}")
    assert browser.evaluate(LOADED)
    for scale in ("linear", "log"):
        click(browser, scale)
        step, value = re.fullmatch(r"([\d.]+)run : ([\d.]+)", read_out(browser)).groups()
        assert 45 < float(step) < 57 and float(value) == pytest.approx(float(step), abs=1)
