"""The report shows what runs have, and nothing that they lack; its files are whole and its own."""

import html
import html.parser
import os
import re
import sys

import numpy as np
import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.base.locks import this_process, write_holder
from bert_gpu.watch import charts, figures, report, run_data, sections
from tests.watch.runs import line, make_run, noisy, read_runs, validation

CLASSIFIER = dict(task_name="pairs", labels=["no", "yes"])


def make(*folders):
    """The text of the page, without plotly's own script."""
    runs = read_runs(run_data.find_runs(map(str, folders)))
    return without_plotly(report.make_report(runs))


def without_plotly(text):
    start, end = text.index("<script>") + 8, text.index("</script>\n</head>")
    return text[:start] + text[end:]


def draw(*folders):
    """{heading: figure of curves} of runs of one section."""
    runs = read_runs(run_data.find_runs(map(str, folders)))
    (section,) = sections.sections_of(runs)
    groups = charts.charts_of(section.runs)
    return {name: figures.draw_curves(group, section) for name, group in groups.items()}


def titles(drawn):
    return [title.text.strip() for one in drawn.values() for title in one.layout.annotations]


def curves(figure, axis, mode="lines"):
    """The curves on a vertical axis; those that are faint are left out."""
    shown = [curve for curve in figure.data if (curve.yaxis, curve.mode) == (axis, mode)]
    return [curve for curve in shown if curve.hoverinfo != "skip"]


class Checker(html.parser.HTMLParser):
    """Fails for an end that has no beginning; collects ids, and addresses that would be fetched."""

    EMPTY = ("meta",)

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.fetched = [], [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.fetched += [found[name] for name in ("src", "href") if name in found]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


def checked(text):
    checker = Checker()
    checker.feed(text)
    assert not checker.open and not checker.fetched and "@import" not in text
    assert len(set(checker.ids)) == len(checker.ids)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A report on a run of 60 steps, and one of 30 at another rate."""
    folder = tmp_path_factory.mktemp("two")
    make_run(folder / "long", noisy(60), exported_step=60)
    make_run(folder / "short", noisy(30, seed=1), settings=dict(learning_rate=2e-3))
    return make(folder)


def test_the_page_stands_alone_and_is_whole(two):
    checked(two)
    assert two.count("Plotly.newPlot") == 3 and "learning_rate" in two


def test_runs_of_different_lengths_share_their_charts(tmp_path):
    """Each button for the horizontal axis has the positions of every curve."""
    make_run(tmp_path / "long", noisy(60))
    make_run(tmp_path / "short", noisy(30, seed=1))
    figure = draw(tmp_path)["Learning"]
    smooth = curves(figure, "y")
    assert [curve.name for curve in smooth] == ["long", "short"]
    assert [(curve.x[0], curve.x[-1]) for curve in smooth] == [(1, 60), (1, 30)]
    assert len({curve.line.color for curve in smooth}) == 2
    assert [len(curve.x) for curve in curves(figure, "y", "lines+markers")] == [6, 3]
    assert [curve.name for curve in figure.data if curve.showlegend] == ["long", "short"]
    axes, scales = ([button.args for button in menu.buttons] for menu in figure.layout.updatemenus)
    factors = {"steps": 1, "real tokens": 40, "minutes": 1 / 60}
    for (change, layout), (title, factor) in zip(axes, factors.items(), strict=True):
        assert layout["xaxis2.title.text"] == title
        for curve, x in zip(figure.data, change["x"], strict=True):
            is_late = curve.mode == "lines+markers" and title == "minutes"
            np.testing.assert_allclose(x, factor * (curve.x + is_late / 2), rtol=1e-6)
    assert scales[1] == ({"yaxis.type": "log", "yaxis2.type": "log"},)


def test_what_differs_is_told_and_nothing_else(two):
    start = two.index("What differs")
    table = two[start : two.index("</table>", start)]
    assert re.findall(r"<tr><th>(\w+)</th>", table) == ["learning_rate"]
    assert "<td>0.001</td><td>0.002</td>" in table


def test_cards_sum_up(two):
    card = re.search(r"<h4[^>]*>long</h4>.*?</table>", two)[0]
    facts = dict(re.findall(r"<tr><th>([^<]*)</th><td>([^<]*)</td></tr>", card))
    assert list(facts.values()) == [
        *("finished", "tiny, 2 layers x 16", "data/*.tfrecord, 32 tokens each", "60 of 100"),
        *("4 sequences, adamw at 0.001", "2400", "1:00", "1 x CPU, float32", "4.74"),
        "5.106 at step 60",
    ]
    assert "<tr><th>state</th><td>stopped</td></tr>" in two
    assert "<tr><th>Loss </th><td>last 4.74, validation 5.106, best 5.106</td>" in two


def test_a_running_run_tells_what_is_left(tmp_path):
    folder = make_run(tmp_path / "run", [line(1, remaining_seconds=5400.0)])
    assert "<th>left</th>" not in make(folder)
    write_holder(folder / ".run.lock", this_process())
    assert "<th>left</th><td>1:30:00</td>" in make(folder)


def test_only_what_a_run_has_is_drawn(tmp_path):
    full = dict(loss_scale=2.0, mfu=0.4, gpu_utilization=90.0, gpu_memory_bytes=2e9)
    full |= {f"gpu_{name}temperature_celsius": 60.0 for name in ("", "0_")}
    full |= dict(gpu_1_temperature_celsius=50.0, gpu_throttled_heat=0.5, gpu_throttled_power=0.0)
    full |= dict(time_training=0.75, time_validation=0.25, skipped_steps=0, surprise=3.0)
    bare = draw(make_run(tmp_path / "bare", [line(1), line(2), line(3)]))
    assert titles(bare) == ["Loss", "Gradient norm", "Real tokens a second"]
    lines = [line(step, **full | dict(surprise=step)) for step in range(1, 5)]
    rich = draw(make_run(tmp_path / "rich", [*lines, validation(4, eval_f1=0.5)]))
    assert titles(rich) == [
        *("Loss", "f1", "Gradient norm", "Loss scale", "Real tokens a second", "MFU (%)"),
        *("GPU utilisation (%)", "GPU memory (GiB)", "GPU temperature (°C)"),
        *("Clocks held down: heat (%)", "surprise"),
    ]
    (high,) = [curve for curve in rich["GPUs"].data if curve.fill == "tonexty"]
    low = rich["GPUs"].data[rich["GPUs"].data.index(high) - 1]
    assert set(high.y) == {60} and set(low.y) == {50}
    (run,) = read_runs([str(tmp_path / "rich")])
    assert sections.time_shares(run) == dict(training=0.75, validation=0.25)
    bars = figures.draw_shares(dict(rich=sections.time_shares(run))).data
    assert {bar.name: bar.x[0] for bar in bars if bar.x[0]} == dict(training=75, validation=25)
    empty = make(make_run(tmp_path / "new", []))
    assert "Curves" not in empty and "Values" not in empty
    checked(empty), checked(rich := make(tmp_path / "rich"))
    assert "Where the time went" in rich


def test_a_loss_that_is_not_finite_or_positive_is_survived(tmp_path):
    lines = [line(1, loss=None), line(2, loss=0.0), line(3, loss=-1.0), line(4, gradient_norm=1e9)]
    lines += [line(5, loss=1e308, gradient_norm=10**300)]
    drawn = draw(make_run(tmp_path / "run", lines))
    (loss,) = curves(drawn["Learning"], "y")
    assert titles(drawn)[0] == "Loss" and loss.y.tolist() == [0, -1, 2]
    assert [drawn[name].layout.yaxis.type for name in ("Learning", "Steps")] == ["linear", "log"]


def test_a_run_that_has_only_validated_is_drawn(tmp_path):
    settings = dict(task_name="sts-b", labels=[])
    folder = make_run(tmp_path / "run", [validation(0), validation(9)], settings=settings)
    assert titles(draw(folder)) == ["Loss"] and "<td>sts-b</td>" in make(folder)
    long = make_run(tmp_path / "long", [validation(0), validation(36_000)], settings=settings)
    for run, unit in ((folder, "minutes"), (long, "hours")):
        menu = draw(run)["Learning"].layout.updatemenus[0]
        assert [button.label for button in menu.buttons] == ["steps", unit]


def test_trials_are_one_entry_with_their_spread(tmp_path):
    for model, accuracies in dict(good=(0.8, 0.9, 1.0), bad=(0.5, 0.5)).items():
        for seed, accuracy in enumerate(accuracies):
            start = dict(seed=seed, init_checkpoint=f"{model}{seed}")
            results = dict(accuracy=accuracy, num_examples=10, checkpoint="x")
            folder = tmp_path / f"{model}-{seed}"
            make_run(folder, [line(1)], settings=CLASSIFIER | start, results=results)
    make_run(tmp_path / "pretraining", [line(1)])
    runs = read_runs(run_data.find_runs([str(tmp_path)]))
    pretraining, trials = sections.sections_of(runs)
    assert [entry.name for entry in pretraining.entries] == ["pretraining"]
    assert [(entry.name, len(entry.runs)) for entry in trials.entries] == [("bad", 2), ("good", 3)]
    made = make(tmp_path)
    row = "<th>good, accuracy</th><td>3</td><td>0.9000</td><td>0.1000</td><td>0.9000</td>"
    assert row in made and "<td>0.9 ± 0.1</td>" in made
    metrics = sections.trial_metrics(trials)["accuracy"]
    assert {entry.name: values for entry, values in metrics.items()} == dict(
        bad=[0.5, 0.5], good=[0.8, 0.9, 1.0]
    )


def test_names_of_metrics_need_no_care(tmp_path):
    """Whatever a metric is called, its name is a text of the page and of a chart."""
    names = ['a"><script>alert(1)</script>', "a/b", "a_b", "A b", "../../up", "\\1", "/", "x" * 300]
    for seed in (1, 2):
        results = dict.fromkeys(names, seed / 2)
        lines = [line(1), line(2), validation(2, **{f"eval_{name}": 0.5 for name in names})]
        settings = CLASSIFIER | dict(seed=seed)
        make_run(tmp_path / f"run-{seed}", lines, settings=settings, results=results)
    made = make(tmp_path)
    checked(made)
    shown = [html.escape(name.replace("_", " ")) for name in names]
    drawn = [title for title in titles(draw(tmp_path)) if title in shown]
    assert sorted(drawn) == sorted(shown)
    rows = [f"<tr><th>run, {html.escape(name)}</th><td>2</td>" for name in names]
    assert all(row in made for row in rows) and "<script>alert" not in made


def test_each_task_has_a_section(tmp_path):
    for task in ("pairs", "CoLA", "c.o.l.a", "<>"):
        make_run(tmp_path / task.strip("<>") / "run", [line(1)], settings=dict(task_name=task))
    runs = read_runs([str(path.parent) for path in tmp_path.rglob("run.json")])
    found = sections.sections_of(runs)
    tasks = ("pairs", "CoLA", "c.o.l.a", "<>")
    assert {section.title for section in found} == {f"Fine-tuning: {task}" for task in tasks}


def test_a_folder_of_trials_has_an_entry_for_each_cell(tmp_path):
    """As finetune/sweep.py makes it: OUTPUT_DIR/CELL/trial-N."""
    for rate in (1e-5, 2e-5):
        for seed in (1, 2):
            settings = CLASSIFIER | dict(seed=seed, learning_rate=rate, init_checkpoint=f"x{seed}")
            folder = tmp_path / "sweep" / f"learning_rate={rate}" / f"trial-{seed}"
            make_run(folder, [line(1)], settings=settings, results=dict(accuracy=seed / 2))
    runs = read_runs(run_data.find_runs([str(tmp_path / "sweep")]))
    (section,) = sections.sections_of(runs)
    found = [(entry.name, len(entry.runs)) for entry in section.entries]
    assert found == [("learning_rate=1e-05", 2), ("learning_rate=2e-05", 2)]
    assert sections.differences(section) == dict(learning_rate=["1e-05", "2e-05"])


def test_runs_of_one_seed_and_several_models_are_no_trials(tmp_path):
    for number in (1, 2):
        start = CLASSIFIER | dict(init_checkpoint=f"model{number}")
        make_run(tmp_path / f"pairs-{number}", [line(1)], settings=start)
    runs = read_runs(run_data.find_runs([str(tmp_path)]))
    assert [entry.name for entry in sections.sections_of(runs)[0].entries] == ["pairs-1", "pairs-2"]


def test_twenty_runs_are_told_apart(tmp_path):
    for number in range(20):
        make_run(tmp_path / f"run-{number}", [line(1), line(2)])
    shown = curves(draw(tmp_path)["Learning"], "y")
    assert len({(curve.line.color, curve.line.dash) for curve in shown}) == 20


def test_a_long_log_keeps_its_spikes_and_has_few_points(tmp_path):
    lines = [line(step, loss=5.0 + (step == 1234) * 90) for step in range(1, 3001)]
    figure = draw(make_run(tmp_path / "run", lines))["Learning"]
    raw, smooth = figure.data
    assert raw.y.max() == 95 and raw.x[raw.y.argmax()] == 1234
    assert len(raw.x) < 1000 and smooth.y.max() < 10 and smooth.hoverinfo != "skip"


@pytest.mark.parametrize(
    "value, text",
    [
        *[(0, "0"), (0.25, "0.25"), (1e-5, "1e-05"), (1500, "1500"), (12500, "12.5k")],
        *[(3e9, "3B"), (9999.7, "10k"), (-999_990, "-1M"), (1.23e17, "1.23e+17")],
    ],
)
def test_numbers_are_short(value, text):
    assert sections.short_number(value) == text


def report_command(*arguments):
    return command(["bert-gpu", "report", *map(str, arguments)])


def test_files_are_written_and_replaced(tmp_path, capsys):
    """Names of runs need no care, and runs stay as they were."""
    run = make_run(tmp_path / "_a$b$ <x> \u4e16", [line(1), line(2)])
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    target = tmp_path / "out" / "page.html"
    for _ in range(2):
        assert report_command(run, f"--output={target}") == 0
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert capsys.readouterr().out == f"{target}\n" * 2
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]
    assert target.stat().st_size < 6e6
    text = without_plotly(target.read_text())
    assert "_a$b$ &lt;x&gt; \u4e16" in text
    checked(text)


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ([], "needs the folder of a run"),
        (["nothing"], "nothing: no such folder"),
        (["run", "--output=x.pdf"], "--output=x.pdf: must end in .html"),
        (["run", "--output=mine.html"], "mine.html: exists and was not written by `report`"),
        (["run", "--output=run/metrics.jsonl/x.html"], "is a file, not a folder"),
        (["run", "--output=folder.html"], "folder.html: is a folder"),
        (["run", "--watch"], "--watch: no such flag"),
        (["run", "--port=6006"], "--port=6006: no such flag"),
        (["run", "--refresh_seconds=5"], "--refresh_seconds=5: no such flag"),
        (["run", "damaged"], "metrics.jsonl, line 1"),
        (["damaged"], "metrics.jsonl, line 1"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    arguments, problem, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", [line(1)])
    make_run(tmp_path / "damaged", ["?\n"])
    (tmp_path / "mine.html").write_text("mine")
    (tmp_path / "folder.html").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert report_command(*arguments) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_a_damaged_run_in_a_folder_is_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("whole", "other", "broken"):
        make_run(tmp_path / "runs" / name, [line(1), line(2)])
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    assert report_command("runs", "--output=all.html") == 0
    error = capsys.readouterr().err
    assert error.startswith("warning: left out, because it is damaged: runs/broken/run.json")
    assert error.count("\n") == 1 and len(error) <= 301
    shown = (tmp_path / "all.html").read_text()
    assert "whole" in shown and "other" in shown and "broken" not in shown
    # nothing is left out that is named, nor where nothing else is there
    for named in (["runs/whole", "runs/broken"], ["runs", "runs/broken"]):
        assert report_command(*named, "--output=none.html") == 2
    for name in ("whole", "other"):
        (tmp_path / "runs" / name / "run.json").write_text("{")
    assert report_command("runs", "--output=none.html") == 2
    assert "warning" not in capsys.readouterr().err and not (tmp_path / "none.html").exists()


def test_a_run_that_cannot_be_read_is_left_out(tmp_path, capsys):
    for name in ("whole", "odd"):
        make_run(tmp_path / "runs" / name, [line(1), line(2)])
    (tmp_path / "runs" / "odd" / "metrics.jsonl").unlink()
    (tmp_path / "runs" / "odd" / "metrics.jsonl").mkdir()
    assert report_command(tmp_path / "runs", f"--output={tmp_path}/all.html") == 0
    assert "warning: left out, because it is damaged:" in capsys.readouterr().err
    assert report_command(tmp_path / "runs" / "odd", f"--output={tmp_path}/odd.html") == 2
    assert "metrics.jsonl: is a folder, not a file" in capsys.readouterr().err


def test_names_that_are_no_utf_8_are_escaped(tmp_path):
    """Of folders, and what a JSON escape makes in metrics."""
    odd = os.fsdecode(b"odd-\xff")
    lines = [line(1), line(2), validation(2, **{"eval_odd-\udcff": 0.5})]
    for name in (odd, "two\nlines"):
        make_run(tmp_path / "runs" / name, lines)
    target = tmp_path / "page.html"
    assert report_command(tmp_path / "runs", f"--output={target}") == 0
    text = target.read_text()
    assert "odd-\\udcff" in text and "two\\nlines" in text


def test_a_pipe_is_no_report(tmp_path, capsys):
    run = make_run(tmp_path / "run", [line(1)])
    os.mkfifo(tmp_path / "p.html")
    assert report_command(run, f"--output={tmp_path}/p.html") == 2
    assert "p.html: is a pipe" in capsys.readouterr().err


def test_without_plotly_the_remedy_is_told(tmp_path, capsys, monkeypatch):
    run = make_run(tmp_path / "run", [line(1)])
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert report_command(run, f"--output={tmp_path}/out/page.html") == 2
    assert "pip install 'bert-gpu[report]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
