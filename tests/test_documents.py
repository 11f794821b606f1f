"""What documents name is what the commands take and what the repository has; the README's walk and
the first day run; the site is built without a broken link.
"""

import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from bert_gpu.__main__ import COMMANDS, main
from bert_gpu.base.settings import fields_of
from bert_gpu.cli import aliases
from bert_gpu.cli import flags as cli_flags
from tests.cli.pretraining import SMALL
from tests.documents import DOCUMENTS, code
from tests.test_architecture import ROOT

SCRIPTS = {
    "create_pretraining_data.py": "data",
    "run_pretraining_gpu.py": "pretrain",
    "run_classifier.py": "classify",
}
NAMES = "|".join(map(re.escape, SCRIPTS))
COMMAND = rf"(?:python ({NAMES}) (?=.)|(?:python -m bert_gpu|bert-gpu) ([a-z][\w-]*)(?: |$))(.*)"
NEEDS = {"--lr_schedule=time": ["--total_training_time=1"]}
GUIDE_NAMES = (
    *("first-day", "flags", "recipes", "running", "batch-and-rate", "memory"),
    *("time-budgets", "troubleshooting", "file-formats", "watching", "models"),
    *("finetuning", "several-machines", "continued-pretraining", "text", "python", "how-it-works"),
)
GUIDES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs" / f"{name}.md" for name in GUIDE_NAMES),
]


def commands(path):
    """[(command, arguments)] of the scripts and of `python -m bert_gpu` in a document."""
    found = [re.match(COMMAND, span) for span in code(path.read_text())]
    calls = [
        (SCRIPTS.get(match[1], match[2]), shlex.split(match[3], comments=True))
        for match in found
        if match
    ]
    return [(name, arguments) for name, arguments in calls if arguments != ["..."]]


def flags(path):
    """The pieces of code of a document that are flags and nothing else."""
    spans = [shlex.split(span) for span in code(path.read_text()) if span.startswith("--")]
    return [
        span + NEEDS.get(span[-1], [])
        for span in spans
        if all(re.match(r"--\w", part) for part in span)
        and span not in (["--help"], ["--helpfull"])
    ]


class Accepted(Exception):
    pass


@pytest.fixture
def takes(monkeypatch, capsys):
    """(command, arguments) -> whether its parser and settings accept them. Of a flag without a
    value, or with a placeholder for one (--recipe=NAME), only the name counts.
    """
    parse = cli_flags.parse

    def parsed(argv, summary, example, classes, **more):
        named = [part for part in argv[1:] if re.fullmatch(r"--\w+(=[A-Z]+)?", part)]
        known = {"flagfile", *aliases.ALIASES.get(more.get("script"), ())}
        for name, field in fields_of(*classes).items():
            known |= {name, *field.metadata["aliases"]}
        words = [part[2:].split("=")[0] for part in named]
        if not all(word in known or word.removeprefix("no") in known for word in words):
            return parse(argv, summary, example, classes, **more)  # which says what is unknown
        given = parse(
            [part for part in argv if part not in named], summary, example, classes, **more
        )
        for kind in classes:
            given.make(kind)
        raise Accepted

    def ask(command, arguments):
        try:
            return main(["bert-gpu", command, *arguments]) == 0
        except Accepted:
            return True

    monkeypatch.setattr(cli_flags, "parse", parsed)
    return ask


USAGES = [
    pytest.param(*call, id=f"{path.name} {call[0]} {' '.join(call[1])}")
    for path in DOCUMENTS
    for call in commands(path)
]


def test_documents_name_commands():
    named = {usage.values[0] for usage in USAGES}
    assert named == set(COMMANDS) and len(USAGES) >= 7


@pytest.mark.parametrize("command, arguments", USAGES)
def test_documented_commands_parse(command, arguments, takes):
    assert takes(command, arguments)


def test_what_no_script_takes_is_noticed(takes, capsys):
    assert not takes("pretrain", ["--input_flie=x"]) and not takes("data", ["--dupe_factr"])
    assert not takes("pretrain", ["--model=huge"]) and not takes("classify", ["--dupe_factor=2"])
    assert capsys.readouterr().err.count("\n") == 4


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(span, id=f"{path.name} {' '.join(span)}")
        for path in GUIDES
        for span in flags(path)
    ],
)
def test_documented_flags_are_some_commands(words, takes):
    assert any(takes(command, words) for command in COMMANDS)


def rows_of_flags():
    """[(script, [flag])] of the table in docs/flags.md; "all" is every script."""
    for line in (ROOT / "docs" / "flags.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        scripts = SCRIPTS.values() if cells[0] == "all" else [cells[0]]
        for script in scripts if cells[0] in (*SCRIPTS.values(), "all") else ():
            named = [span for span in code(cells[1]) if span != "--help"]
            yield from ((script, [flag, *NEEDS.get(flag, [])]) for flag in named)


@pytest.mark.parametrize("script, words", rows_of_flags())
def test_the_table_of_flags_names_the_right_script(script, words, takes):
    assert takes(script, words)


def imported(path):
    """A module that is a file of the repository."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reference():
    """The page of all flags, as `make docs` writes it."""
    return imported(ROOT / "docs" / "make_reference.py").reference()


def test_the_page_of_all_flags_names_each_of_them():
    """Ours, and those of other projects."""
    classes_of = imported(ROOT / "docs" / "make_reference.py").classes_of
    parts = re.split(r"^## Flags of other projects$", reference(), flags=re.MULTILINE)
    ours, theirs = (set(re.findall(r"`--(\w+)`", part)) for part in parts)
    assert {name for name in COMMANDS for name in fields_of(*classes_of(name)[0])} <= ours
    for table in (*aliases.ALIASES.values(), *aliases.BESIDE.values()):
        assert {alias.name for alias in table.values() if alias.owners} <= theirs


PATH = r"\b(?:bert_gpu|tests|benchmarks|examples|docs|dev)/[\w/.-]*\.(?:py|md|json|png|tsv)\b"


def test_files_that_documents_name_exist():
    """But for what a command in them writes; what is decided there may be of former times."""
    written = {"docs/data/gpu.json", "docs/reference.md"}
    for path in DOCUMENTS:
        if path.name != "decisions.md":
            named = set(re.findall(PATH, path.read_text())) - written
            assert not [name for name in named if not (ROOT / name).exists()], path


def test_links_of_pages_outside_the_site_lead_somewhere():
    """The site's own are checked when it is built."""
    pages = [path for path in DOCUMENTS if path.parent != ROOT / "docs"]
    assert len(pages) >= 6
    for path in pages:
        for name, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", path.read_text()):
            target = path.parent / name if name else path
            assert target.exists(), (path, name)
            if anchor:
                headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
                named = [
                    re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings
                ]
                assert anchor in named, (path, name, anchor)


def test_what_is_said_to_be_in_a_module_is_in_it():
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    found = re.findall(r"(\w*[A-Z_]\w*) (?:of|in) ((?:bert_gpu|tests)/[\w/]+\.py)", text)
    assert len(found) >= 6
    for name, path in found:
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), (name, path)


def test_targets_of_make_exist():
    makefile = (ROOT / "Makefile").read_text()
    spans = [span for path in DOCUMENTS for span in code(path.read_text())]
    targets = {match[1] for span in spans if (match := re.match(r"make ([\w-]+)", span))}
    assert targets >= {"test", "demo", "faults"}
    assert not [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)]


def test_messages_in_troubleshooting_are_ours():
    """Words of a message, between what differs from case to case, stand in the code so."""
    source = "\n".join(path.read_text() for path in sorted((ROOT / "bert_gpu").rglob("*.py")))
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    table = re.findall(r"^\| (`[^|]+`[^|]*) \|", troubleshooting().read_text(), re.MULTILINE)
    messages = [span for cell in table for span in code(cell) if " " in span]
    assert len(messages) >= 8
    for message in messages:
        parts = re.split(r"\.\.\.|--\w+=\w+: |\d+|\bTensorFlow\b|\bnone\b|\w+\.jsonl", message)
        for words in (part.strip(" :,") for part in parts):
            assert words in source, (message, words)


def troubleshooting():
    return ROOT / "docs" / "troubleshooting.md"


LIMITS = {
    "words of dev": 10_000,
    "words of docs and README": 15_000,
    "lines of benchmarks": 7_650,
}


def test_documents_and_benchmarks_stay_short():
    """A longer text replaces another one."""
    sizes = imported(ROOT / "dev" / "sizes.py")
    found = sizes.documents(ROOT)
    assert found.keys() == LIMITS.keys()
    assert all(0 < number <= LIMITS[name] for name, number in found.items()), found
    assert sizes.flags(ROOT) > 100 and sizes.statements(ROOT / "dev") > 30


@pytest.mark.long
def test_the_site_is_built_without_a_broken_link(tmp_path):
    """And needs no other site; a link that leads nowhere fails it."""
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--nitpicky", "--quiet"]
    source = tmp_path / "source"
    shutil.copytree(ROOT / "docs", source)
    (source / "reference.md").write_text(reference())
    result = subprocess.run([*build, source, tmp_path / "site"], cwd=ROOT, capture_output=True)
    assert result.returncode == 0, result.stderr.decode()
    pages = {path.stem for path in source.glob("*.md")}
    assert pages <= {path.stem for path in (tmp_path / "site").glob("*.html")}
    for path in (tmp_path / "site").glob("*.html"):
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?:', path.read_text()), path
    broken = tmp_path / "docs"
    broken.mkdir()
    (broken / "conf.py").write_text((ROOT / "docs" / "conf.py").read_text())
    (broken / "index.md").write_text("# Start\n\n[nowhere](nothing.md)\n")
    result = subprocess.run([*build, broken, tmp_path / "other"], capture_output=True)
    assert result.returncode == 1 and b"nothing.md" in result.stderr


@pytest.mark.long
def test_the_walk_with_own_text_runs(tmp_path, sample_text, monkeypatch, capsys):
    """The commands of the README, in order, with flags that make them small appended, and those of
    docs/running.md and docs/watching.md.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:mlruns")
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text(pathlib.Path(sample_text).read_text())
    (tmp_path / "my_pairs").mkdir()
    for split in ("train", "dev", "test"):
        rows = (ROOT / "examples" / "pairs" / f"{split}.tsv").read_text().splitlines()[1:11]
        rows.insert(0, "id\tquestion1\tquestion2\tis_duplicate")
        (tmp_path / "my_pairs" / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "glue" / "MNLI").mkdir(parents=True)
    for stem in ("train", "dev_matched", "dev_mismatched"):
        labels = ("neutral", "entailment", "contradiction")
        rows = ["sentence1\tsentence2\tgold_label", *(f"a\tb\t{label}" for label in labels)]
        (tmp_path / "glue" / "MNLI" / f"{stem}.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "new.csv").write_text("sentence1,sentence2\na,b\n")
    running = [
        part
        for page in ("running", "watching")
        for span in flags(ROOT / "docs" / f"{page}.md")
        for part in span
        if "=" in part and not part.startswith("--wandb")
    ]
    assert len(running) >= 3
    small = dict(
        data=["--vocab_size=500", "--dupe_factor=1", "--max_seq_length=32"],
        pretrain=["--num_gpus=0", *SMALL, "--num_train_steps=2", *running],
        classify=["--num_gpus=0", "--num_train_epochs=1", "--max_seq_length=32"],
    )
    walk = commands(ROOT / "README.md")
    order = ("data", "pretrain", "classify", "export", "report")
    assert sorted(name for name, _ in walk) == sorted([*order, "classify", "classify"])
    for name, arguments in sorted(walk, key=lambda call: order.index(call[0])):
        assert main(["bert-gpu", name, *arguments, *small.get(name, [])]) == 0, capsys.readouterr()
    assert len(capsys.readouterr().out.splitlines()) > 10
    assert {path.name for path in (tmp_path / "data").glob("books-*-of-*.tfrecord")}
    assert (tmp_path / "runs" / "pretrain" / "model" / "model.safetensors").exists()
    assert (tmp_path / "runs" / "classify" / "test_results.tsv").exists()
    assert (tmp_path / "runs" / "mnli" / "eval_results.json").exists()
    assert (tmp_path / "runs" / "mnli" / "predictions.tsv").exists()
    assert (tmp_path / "exported" / "bert_model.ckpt.index").exists()
    assert (tmp_path / "report" / "report.html").exists()


# The command as it is, with Ctrl-C in its 20th step.
INTERRUPTED = """
import os, signal, sys
from bert_gpu.__main__ import main
from bert_gpu.train.step import TrainStep
call = TrainStep.__call__

def interrupted(self, batches, learning_rates, step, *rest):
    if step == 19:
        os.kill(os.getpid(), signal.SIGINT)
    return call(self, batches, learning_rates, step, *rest)

TrainStep.__call__ = interrupted
sys.exit(main(["bert-gpu", *sys.argv[1:]]))
"""


def first_day():
    """[(shell command, [line that it prints])] of docs/first-day.md; where a line of numbers
    begins or a line is cut off (...), what follows may differ.
    """
    found = []
    for line in re.findall(r"^    (.+)$", (ROOT / "docs" / "first-day.md").read_text(), re.M):
        if line.startswith("> "):
            found[-1][1].append(re.split(r"\d|\.\.\.", line[2:])[0])
        else:
            found.append((line, []))
    return found


def program(folder, name, *call):
    """Makes a program of a call, to which its arguments are added."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(map(str, call))} "$@"\n')
    (folder / name).chmod(0o755)
    return folder


@pytest.mark.long
def test_the_first_day_runs_as_it_is_written(tmp_path):
    """Its ten commands, in order, in a shell; the first training is interrupted. The last one needs
    transformers: BERT_GPU_ORACLE_PYTHON.
    """
    (tmp_path / "sample_text.txt").write_text((ROOT / "sample_text.txt").read_text())
    programs = program(tmp_path / "bin", "bert-gpu", sys.executable, "-m", "bert_gpu")
    oracle = os.environ.get("BERT_GPU_ORACLE_PYTHON", sys.executable)
    program(programs, "python", oracle)
    interrupting = program(tmp_path / "stop", "bert-gpu", sys.executable, "-c", INTERRUPTED)

    def run(command, folder, path=programs):
        environment = dict(os.environ, PATH=f"{path}:{os.environ['PATH']}", PYTHONPATH=str(ROOT))
        result = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return result.returncode, result.stdout

    (preparation, _), *commands = first_day()
    assert len(commands) == 10 and commands[3][0] == commands[4][0]
    assert run(preparation, tmp_path) == (0, "")
    for index, (command, expected) in enumerate(commands):
        if "transformers" in command and run("python -c 'import transformers'", tmp_path)[0]:
            pytest.skip("needs transformers: set BERT_GPU_ORACLE_PYTHON")
        is_interrupted = index == 3
        code, printed = run(
            command, tmp_path / "first-day", interrupting if is_interrupted else programs
        )
        assert code == (130 if is_interrupted else 0), printed
        assert expected
        # where there is no terminal, lines of training and validation begin with the time
        stamp = r"^\d{4}(-\d\d){2} \d\d(:\d\d){2}  "
        shown = [re.sub(stamp, "", line) for line in printed.splitlines()]
        for beginning in expected:
            assert any(line.startswith(beginning) for line in shown), (
                beginning,
                printed,
            )
