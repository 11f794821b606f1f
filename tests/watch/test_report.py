"""The report shows what runs have, and nothing that they lack; its files are whole and its own."""

import html.parser
import os
import re
import sys

import matplotlib.image
import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.base.errors import UserError
from bert_gpu.base.locks import this_process, write_holder
from bert_gpu.watch import charts, report, run_data, sections, style
from tests.watch.runs import line, make_run, noisy, read_runs, validation

CLASSIFIER = dict(task_name="pairs", labels=["no", "yes"])


def make(*folders):
    runs = read_runs(run_data.find_runs(map(str, folders)))
    return report.make_report(runs)


def titles(html):
    return re.findall(r'<figcaption class="title">([^<]+?) ?<', html)


class Checker(html.parser.HTMLParser):
    """Fails for an end that has no beginning; collects ids, and addresses that would be fetched."""

    EMPTY = ("meta", "input", "br", "path", "use", "rect")

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.fetched, self.scripts = [], [], [], 0

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        addresses = [found.get(name) for name in ("src", "href", "xlink:href", "action")]
        self.fetched += [address for address in addresses if address and address[0] != "#"]
        self.scripts += tag == "script"
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


def checked(text):
    checker = Checker()
    checker.feed(text)
    assert not checker.open and not checker.fetched and checker.scripts == 1
    assert "url(http" not in text and "@import" not in text
    return checker


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A report on a run of 60 steps, and one of 30 at another rate."""
    folder = tmp_path_factory.mktemp("two")
    make_run(folder / "long", noisy(60), exported_step=60)
    make_run(folder / "short", noisy(30, seed=1), settings=dict(learning_rate=2e-3))
    return make(folder)


def test_the_page_stands_alone_and_is_whole(two):
    checker = checked(two.html)
    assert len(set(checker.ids)) == len(checker.ids)
    assert two.html.count("data-axis") > 3 and "learning_rate" in two.html


def test_runs_of_different_lengths_share_their_charts(two):
    svg = re.search(r"<svg data-axis=\"step\" data-scale=\"linear\".*?</svg>", two.html)[0]
    ends = [
        re.findall(r"[ML] ([\d.]+)", re.search(rf'class="run-{i} mean"> <path d="([^"]+)', svg)[1])
        for i in (0, 1)
    ]
    lengths = [float(points[-1]) - float(points[0]) for points in ends]
    assert lengths[0] / lengths[1] == pytest.approx(59 / 29, rel=0.01)
    assert svg.count("run-0 valid") == svg.count("run-1 valid") == 1
    assert "var(--series-0)" in svg and not re.search(r"#[0-9a-f]{6}\b(?!\))", svg)


def test_what_differs_is_told_and_nothing_else(two):
    start = two.html.index("What differs")
    table = two.html[start : two.html.index("</table>", start)]
    assert re.findall(r"<tr><th>(\w+)</th>", table) == ["learning_rate"]
    assert "<td>0.001</td><td>0.002</td>" in table


def test_cards_sum_up(two):
    card = re.search(r'<div class="card"><h4>.*?long.*?</dl></div>', two.html)[0]
    for text in ("finished", "tiny, 2 layers x 16", "60 of 100", "4 sequences, adamw at 0.001"):
        assert text in card, card
    assert re.search(r"<dt>best validation</dt><dd>5.106 at step 60</dd>", card)
    assert re.search(r"<dt>real tokens</dt><dd>2400</dd>", card)
    assert '<span class="state stopped">stopped</span>' in two.html


def test_a_running_run_tells_what_is_left(tmp_path):
    folder = make_run(tmp_path / "run", [line(1, remaining_seconds=5400.0)])
    assert "<dt>left</dt>" not in make(folder).html
    write_holder(folder / ".run.lock", this_process())
    assert "<dt>left</dt><dd>1 h 30 min</dd>" in make(folder).html


def test_only_what_a_run_has_is_drawn(tmp_path):
    full = dict(
        loss_scale=2.0,
        mfu=0.4,
        gpu_utilization=90.0,
        gpu_memory_bytes=2e9,
        gpu_temperature_celsius=60.0,
        gpu_0_temperature_celsius=60.0,
        gpu_1_temperature_celsius=50.0,
        gpu_throttled_heat=0.5,
        gpu_throttled_power=0.0,
        time_training=0.75,
        time_validation=0.25,
        skipped_steps=0,
        surprise=3.0,
    )
    bare = make(make_run(tmp_path / "bare", [line(1), line(2), line(3)]))
    assert titles(bare.html) == ["Loss", "Gradient norm", "Real tokens a second"]
    lines = [line(step, **full | dict(surprise=step)) for step in range(1, 5)]
    rich = make(make_run(tmp_path / "rich", [*lines, validation(4, eval_f1=0.5)]))
    assert titles(rich.html) == [
        *("Loss", "f1", "Gradient norm", "Loss scale", "Real tokens a second", "MFU"),
        *("Where the time went", "GPU utilisation", "GPU memory", "GPU temperature"),
        *("Clocks held down: heat", "surprise"),
    ]
    assert "run-0 range" in rich.html
    (run,) = read_runs([str(tmp_path / "rich")])
    assert sections.time_shares(run) == dict(training=0.75, validation=0.25)
    empty = make(make_run(tmp_path / "new", []))
    assert titles(empty.html) == [] and "Curves" not in empty.html and not empty.pictures
    checked(empty.html), checked(rich.html)


def test_a_loss_that_is_not_finite_or_positive_is_survived(tmp_path):
    lines = [line(1, loss=None), line(2, loss=0.0), line(3, loss=-1.0), line(4, gradient_norm=1e9)]
    lines += [line(5, loss=1e308, gradient_norm=10**300)]
    made = make(make_run(tmp_path / "run", lines))
    assert (
        titles(made.html)[0] == "Loss" and '<svg data-axis="step" data-scale="log"' not in made.html
    )
    (run,) = read_runs([str(tmp_path / "run")])
    by_key = {chart.key: chart for group in charts.charts_of([run]).values() for chart in group}
    assert by_key["gradient-norm"].opens_with_log([run])
    assert not by_key["loss"].opens_with_log([run])


def test_a_run_that_has_only_validated_is_drawn(tmp_path):
    settings = dict(task_name="sts-b", labels=[])
    folder = make_run(tmp_path / "run", [validation(0), validation(9)], settings=settings)
    made = make(folder)
    assert titles(made.html) == ["Loss"] and "<dd>sts-b</dd>" in made.html
    assert '"unit": "minutes"' in made.html
    long = make_run(tmp_path / "long", [validation(0), validation(36_000)], settings=settings)
    assert '"unit": "hours"' in (html := make(long).html) and '"unit": "minutes"' not in html


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
    assert "<td>accuracy</td><td>3</td><td>0.9000</td><td>0.1000</td><td>0.9000</td>" in made.html
    assert "<dd>0.9 ± 0.1</dd>" in made.html and "pairs-trials-accuracy" in made.pictures


def test_names_of_metrics_need_no_care(tmp_path):
    """Whatever a metric is called, its name is a text of the page and no part of a path."""
    names = ['a"><script>alert(1)</script>', "a/b", "a_b", "A b", "../../up", "\\1", "/", "x" * 300]
    for seed in (1, 2):
        results = dict.fromkeys(names, seed / 2)
        lines = [line(1), line(2), validation(2, **{f"eval_{name}": 0.5 for name in names})]
        settings = CLASSIFIER | dict(seed=seed)
        make_run(tmp_path / f"run-{seed}", lines, settings=settings, results=results)
    made = make(tmp_path)
    checker = checked(made.html)
    assert len(set(checker.ids)) == len(checker.ids)
    for kind in ("trials", "valid"):
        keys = [key for key in made.pictures if key.startswith(f"pairs-{kind}-")]
        assert len(keys) == len(names)
        assert all(re.fullmatch("[a-z0-9-]{,100}", key) for key in keys)


def test_each_task_has_a_section(tmp_path):
    for task in ("pairs", "CoLA", "c.o.l.a", "<>"):
        make_run(tmp_path / task.strip("<>") / "run", [line(1)], settings=dict(task_name=task))
    runs = read_runs([str(path.parent) for path in tmp_path.rglob("run.json")])
    found = sections.sections_of(runs)
    assert len({section.key for section in found}) == 4 and {"pairs", "cola"} <= {
        section.key for section in found
    }
    assert {section.title for section in found} >= {"Fine-tuning: pairs", "Fine-tuning: <>"}


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


def test_twenty_runs_are_told_apart():
    assert len({str(style.style_of(index)) for index in range(20)}) == 20


@pytest.mark.parametrize(
    "value, text",
    [
        *[(0, "0"), (0.25, "0.25"), (1e-4, "1e-4"), (1500, "1500"), (12500, "12.5k"), (3e9, "3B")],
        *[(9999.7, "10k"), (-999_990, "-1M"), (1.23e17, "1.23e17"), (float("inf"), "inf")],
    ],
)
def test_numbers_are_short(value, text):
    assert style.short_number(value) == text


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
    names = sorted(path.name for path in target.parent.iterdir())
    assert capsys.readouterr().out.count(f"{target}, and {len(names) - 1} pictures") == 2
    assert "page-loss.png" in names and "page.html" in names
    assert (target.parent / "page-loss.png").read_bytes()[1:4] == b"PNG"
    text = target.read_text()
    assert re.search(r'id="x-step" checked', text) and "_a$b$ &lt;x&gt; \u4e16" in text
    checked(text)


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ([], "needs the folder of a run"),
        (["nothing"], "nothing: no such folder"),
        (["run", "--output=x.pdf"], "--output=x.pdf: must end in .html"),
        (["run", "--output=mine.html"], "mine.html: exists and was not written by `report`"),
        (["run", "--output=own/page.html"], "page-loss.png: exists and was not written"),
        (["run", "--output=run/metrics.jsonl/x.html"], "is a file, not a folder"),
        (["run", "--output=folder.html"], "--output=folder.html: is a folder"),
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
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "page-loss.png").write_text("mine")
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


def test_the_names_of_many_runs_cover_no_curve(tmp_path):
    for number in range(15):
        make_run(tmp_path / f"a-run-with-a-long-name-{number}", [line(1), line(2)])
    runs = read_runs(run_data.find_runs([str(tmp_path)]))
    names = {index: run.name for index, run in enumerate(runs)}
    drawing = report.import_drawing()
    chart = charts.LOSSES[0]
    figure = drawing.draw(chart, list(enumerate(runs)), "step", False)
    with open(tmp_path / "loss.png", "wb") as file:
        drawing.write_png(figure, file, "Loss", names)
    axes = figure.axes[0]
    texts = [text.get_text().strip() for text in axes.get_legend().get_texts()]
    assert len(texts) == 13 and texts[-1] == "… and 3 more"
    box = axes.get_legend().get_window_extent()
    assert box.x0 >= axes.get_window_extent().x1
    height, width, _ = matplotlib.image.imread(tmp_path / "loss.png").shape
    assert width > height and width > 200 * 4.6, "the names are in the picture"


def test_a_pipe_is_no_report(tmp_path, capsys):
    run = make_run(tmp_path / "run", [line(1)])
    os.mkfifo(tmp_path / "p.html")
    assert report_command(run, f"--output={tmp_path}/p.html") == 2
    assert "p.html: is a pipe" in capsys.readouterr().err


def test_without_matplotlib_the_remedy_is_told(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "bert_gpu.watch.drawing", raising=False)
    monkeypatch.delattr("bert_gpu.watch.drawing", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'bert-gpu\[report\]'"):
        report.import_drawing()
