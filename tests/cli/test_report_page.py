"""The report of a real run, one that was killed and resumed, in a real browser."""

import io
import json
import threading

import matplotlib.image
import numpy as np
import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.watch import run_data, serve
from bert_gpu.watch.config import ReportConfig
from tests.browser import NAMES, Page, find_browser
from tests.cli.pretraining import lines, pretrain, start_and_hold, wait_until
from tests.watch.runs import line, make_run, noisy, write_lines

LOADED = """
new Promise(resolve => {
  const look = () => document.readyState === "complete" ? resolve(true) : setTimeout(look, 20);
  look();
})
"""
SHOWN = """
[...document.querySelectorAll("figure")].map(
  figure => [...figure.querySelectorAll("svg")].filter(svg => svg.getClientRects().length).length)
"""
# the read-out over the middle of the first chart
READ = """
(() => {
  const svg = [...document.querySelectorAll("svg[data-axis]")].find(
    svg => svg.getClientRects().length);
  svg.scrollIntoView();
  const box = svg.getBoundingClientRect(), at = {bubbles: true, clientY: box.y + box.height / 2};
  svg.dispatchEvent(new PointerEvent("pointermove", {...at, clientX: box.x + box.width / 2}));
  return document.getElementById("read-out").innerText;
})()
"""


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
        for name in ("step", "loss", "tokens"):
            one, other = (getattr(run, table)[name] for run in (first, second))
            np.testing.assert_allclose(one, other, rtol=1e-6)
    assert first.state == second.state == "finished"
    assert first.num_parameters == second.num_parameters > 1000


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1280])
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
        browser.open(f"file://{target}")
        assert browser.evaluate(LOADED)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        picture = matplotlib.image.imread(io.BytesIO(browser.screenshot()))
        grounds[scheme] = np.median(picture[..., :3])
        assert picture.std() > 0.02, "nothing is shown"
    assert grounds["light"] > 0.9 and grounds["dark"] < 0.2
    assert set(browser.evaluate(SHOWN)) == {1}
    for axis, unit in (("tokens", "real tokens"), ("hours", "minutes"), ("step", "steps")):
        browser.evaluate(f'document.getElementById("x-{axis}").click()')
        assert set(browser.evaluate(SHOWN)) == {1}
        assert f" {unit}\n" in browser.evaluate(READ)
    browser.evaluate('document.getElementById("y-log").click()')
    assert set(browser.evaluate(SHOWN)) == {1}
    assert "resumed" in browser.evaluate(READ) and "other" in browser.evaluate(READ)
    browser.evaluate('document.getElementById("runs-0").click()')
    assert "resumed" not in browser.evaluate(READ) and "other" in browser.evaluate(READ)
    assert not browser.errors, browser.errors


@pytest.mark.long
def test_the_read_out_says_what_the_curve_is(tmp_path, browser):
    """On a straight line the value under the pointer is known, on both scales."""
    folder = make_run(tmp_path / "run", [line(step, loss=float(step)) for step in range(1, 102)])
    target = tmp_path / "report.html"
    assert command(["bert-gpu", "report", str(folder), f"--output={target}", "--smoothing=0"]) == 0
    browser.show_as(1280, "light")
    browser.open(f"file://{target}")
    assert browser.evaluate(LOADED)
    for scale in ("linear", "log"):
        browser.evaluate(f'document.getElementById("y-{scale}").click()')
        place, value = browser.evaluate(READ).split("\n")
        step = float(place.split()[0])
        assert 45 < step < 57
        assert float(value.split()[-1]) == pytest.approx(step, abs=1)


def until(condition):
    """A promise of JavaScript that a condition holds at last."""
    return f"""
    new Promise(resolve => {{
      const look = () => {{ if ({condition}) resolve(true); else setTimeout(look, 50); }};
      look();
    }})
    """


@pytest.mark.long
def test_a_page_that_was_opened_early_becomes_whole(tmp_path, browser):
    """Before the first line there is nothing to choose between; tokens become known later."""
    folder = make_run(tmp_path / "run", [])
    config = ReportConfig(watch=True, refresh_seconds=1.0, x="tokens")
    browser.ask(
        "Network.emulateNetworkConditions",
        **dict(offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1),
    )
    with serve.open_server([str(tmp_path)], config) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host, port = server.server_address
        browser.open(f"http://{host}:{port}/")
        assert browser.evaluate(LOADED)
        assert browser.evaluate(SHOWN) == []
        first = [dict(step=step, loss=8 / step, gradient_norm=1.0) for step in (1, 2)]
        write_lines(folder / "metrics.jsonl", first)
        assert browser.evaluate(until('document.querySelector("#controls:not([hidden])")'))
        assert set(browser.evaluate(SHOWN)) == {1}
        write_lines(folder / "metrics.jsonl", noisy(20))
        assert browser.evaluate(until('document.getElementById("x-tokens")?.checked'))
        assert set(browser.evaluate(SHOWN)) == {1}
        browser.evaluate('document.getElementById("x-step").click()')
        make_run(tmp_path / "other", noisy(20))
        assert browser.evaluate(until('document.title === "other, run"'))
        assert browser.evaluate('document.getElementById("title").textContent') == "other, run"
        assert browser.evaluate('document.getElementById("x-step").checked')
        assert set(browser.evaluate(SHOWN)) == {1}
        browser.evaluate('document.getElementById("runs-1").click()')
        hidden = 'document.querySelectorAll("#runs .run-1").length'
        assert browser.evaluate(hidden) > 0
        assert browser.evaluate("""
            [...document.querySelectorAll("#runs .run-1")].every(
              part => !part.getClientRects().length)
        """)
        server.shutdown()
        thread.join()


@pytest.mark.long
def test_a_served_page_follows_the_run_and_keeps_what_was_chosen(tmp_path, browser):
    folder = make_run(tmp_path / "run", list(noisy(20)))
    config = ReportConfig(watch=True, refresh_seconds=1.0)
    browser.ask(
        "Network.emulateNetworkConditions",
        **dict(offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1),
    )
    with serve.open_server([str(folder)], config) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host, port = server.server_address
        browser.open(f"http://{host}:{port}/")
        assert browser.evaluate(LOADED)
        browser.evaluate('document.getElementById("x-tokens").click()')
        browser.evaluate('document.getElementById("runs-0").click()')
        write_lines(folder / "metrics.jsonl", noisy(40))
        text = 'document.getElementById("content").innerText.includes("40 of 100")'
        arrived = f"""
        new Promise(resolve => setInterval(() => {{ if ({text}) resolve(true); }}, 50))
        """
        assert browser.evaluate(arrived)
        kept = ["x-tokens", "runs-0"]
        found = browser.evaluate(
            f"{json.dumps(kept)}.map(id => document.getElementById(id).checked)"
        )
        assert found == [True, False]
        server.shutdown()
        thread.join()
    gone = """
    new Promise(resolve => setInterval(() => {
      if (document.getElementById("note").textContent.includes("no longer")) resolve(true);
    }, 50))
    """
    assert browser.evaluate(gone)
