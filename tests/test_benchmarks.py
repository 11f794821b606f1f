"""Benchmarks start, say what they are for, refuse unknown flags and run in their smallest form;
commands in the documents are theirs.

benchmarks/killing.py runs in tests/cli/test_pretrain_engine.py, where it shows more than
that it runs.
"""

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.documents import DOCUMENTS, code
from tests.test_architecture import ROOT

FOLDER = ROOT / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
TENSORFLOW_VARIABLES = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS")


@pytest.fixture(autouse=True)
def path_of_benchmarks(monkeypatch):
    """As `python benchmarks/X.py` has it."""
    monkeypatch.syspath_prepend(str(FOLDER))


def run(*command):
    """What a command prints in an environment in which nothing of TensorFlow is set, from a folder
    that is not the checkout.
    """
    environment = {
        name: value for name, value in os.environ.items() if name not in TENSORFLOW_VARIABLES
    }
    environment |= dict(CUDA_VISIBLE_DEVICES="-1", COLUMNS="200")
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def tables(text):
    """[{first cell of a row: the other cells}] of the printed tables."""
    found, previous = [], ""
    for line in text.splitlines():
        if line.startswith("|"):
            found += [] if previous.startswith("|") else [[]]
            found[-1].append([cell.strip() for cell in line[1:-1].split("|")])
        previous = line
    return [{row[0]: row[1:] for row in rows[2:]} for rows in found]


def table(text):
    """The only printed table."""
    (found,) = tables(text)
    return found


def documented_commands(text):
    """[(name, flags)] of the commands in a Markdown text."""
    found = [re.search(r"benchmarks/(\w+)\.py(.*)", span) for span in code(text)]
    return [(match[1], match[2]) for match in found if match]


def usages():
    """[(where, name, flags)] of all commands that documents and benchmarks' own docstrings name;
    [...] is what may be left out.
    """
    for path in DOCUMENTS:
        yield from ((path.name, *command) for command in documented_commands(path.read_text()))
    for name in NAMES:
        text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text()))
        yield from (
            (f"{name}.py", other, re.sub(r"[][]", "", flags))
            for other, flags in documented_commands(text)
        )


@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_a_benchmark_is_for(name):
    idea = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())).split("\n\n")[0]
    assert idea in run(FOLDER / f"{name}.py", "--help")


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_flag_is_refused(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--no_such_flag=1"])
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(name).main()
    assert stopped.value.code == 2 and "--no_such_flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, flag",
    [(name, "--part") for name in ("ahead", "data", "gpu", "scaling", "training")],
)
def test_an_unknown_part_is_refused(name, flag, capsys):
    with pytest.raises(SystemExit):
        importlib.import_module(name).make_parser().parse_args([f"{flag}=none"])
    assert "none: must be one of" in capsys.readouterr().err


def test_documents_name_commands():
    text = (
        "`A=1 python benchmarks/data.py --text=a\n"
        "--part=speed`, `x`\n\n    python benchmarks/gpu.py --list\n"
    )
    assert documented_commands(text) == [("data", " --text=a --part=speed"), ("gpu", " --list")]
    assert {name for _, name, _ in usages()} >= set(NAMES) - {"data"}


@pytest.mark.parametrize(
    "where, name, flags", [pytest.param(*usage, id=" ".join(usage)) for usage in usages()]
)
def test_documented_commands_parse(where, name, flags):
    importlib.import_module(name).make_parser().parse_args(shlex.split(flags, comments=True))


@pytest.mark.parametrize(
    "command, expected",
    [
        ("gpu.py --list --small", "attention: padding, 2 x 32 x 2 x 16"),
        ("gpu.py --list --part=precision,bert", "precision: float16"),
        (
            "ahead.py --list --part=memory --model=base --length=128",
            "memory: base 128: bfloat16, recompute",
        ),
        ("training.py --list --only=^Model", "Model Garden bfloat16, XLA"),
    ],
)
def test_a_list_names_what_would_be_measured(command, expected):
    name, *flags = command.split()
    assert expected in run(FOLDER / name, *flags).splitlines()


@pytest.mark.long
def test_eight_bits_run():
    found = run(FOLDER / "adamw8bit.py", "--steps=25")
    assert float(table(found)["1-25"][2].removesuffix(" %")) < 1
    assert found.startswith(f"{FOLDER / 'adamw8bit.py'} --steps=25\nrevision ")


@pytest.fixture(scope="module")
def small(tmp_path_factory, sample_text):
    """Folder of a text and pairs that are small: small.txt, pairs/."""
    folder = tmp_path_factory.mktemp("small")
    with open(sample_text) as file:
        documents = file.read().split("\n\n")
    (folder / "small.txt").write_text("\n\n".join(documents[:24]) + "\n")
    (folder / "pairs").mkdir()
    for split in ("train", "dev"):
        rows = (ROOT / "examples" / "pairs" / f"{split}.tsv").read_text().splitlines()[:11]
        (folder / "pairs" / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def oracle():
    """The Python with torch, transformers and datasets."""
    python = os.environ.get("BERT_GPU_ORACLE_PYTHON")
    if not python:
        pytest.skip("BERT_GPU_ORACLE_PYTHON is not set")
    return python


def number(cell):
    """A printed number, without its thousands' commas and what follows it."""
    return float(cell.split()[0].replace(",", ""))


@pytest.mark.long
def test_data_jobs_and_their_peers_are_measured(small, oracle):
    sizes = "--megabytes=0.02 --memory_megabytes=1,2 --runs=1".split()
    found = run(FOLDER / "data.py", f"--text={small}/small.txt", f"--hf_python={oracle}", *sizes)
    speeds, memory, share, reading = tables(found)
    assert list(speeds) == [
        "Model Garden nsp, dupe 1",
        "bert-gpu nsp static, dupe 1",
        "Model Garden nsp, dupe 10",
        "bert-gpu nsp static, dupe 10",
        "Hugging Face run_mlm.py's way",
        "Hugging Face tokenizers, ids only",
        "bert-gpu packed dynamic",
    ]
    for name, (_, _, instances, _, peak, _) in speeds.items():
        assert number(peak) > 50 and (instances == "") == name.startswith("Hugging Face"), name
    for dupe in (1, 10):
        mine, theirs = (
            number(speeds[f"{name}, dupe {dupe}"][2])
            for name in ("bert-gpu nsp static", "Model Garden nsp")
        )
        assert 0.9 < mine / theirs < 1.1 and mine > 20 * dupe
    assert found.count("x Model Garden") == 3 and found.count("x Hugging Face") == 2
    assert list(memory) == ["1", "2"] and all(number(peak) > 50 for peak, _ in memory.values())
    assert list(share) == [
        "tokenizer alone",
        "whole job, packed dynamic",
        "whole job, nsp static, dupe 1",
    ]
    assert share["tokenizer alone"][2] == "1.00" and found.count("profile of") == 2
    assert len(reading) == 2 and all(float(row[0]) > 0 for row in reading.values())


@pytest.mark.long
def test_training_and_its_peers_race(small, oracle, tmp_path):
    sizes = (
        "--models=tiny --lengths=16 --tokens=32 --turns=1 --seconds=0.01 --drop=1e9 "
        "--packed_model=tiny --packed_length=16"
    ).split()
    names = [
        "ours float32",
        "Model Garden float32",
        "Hugging Face float32, torch.compile",
        "Hugging Face float32, eager",
        "as shipped float32, eager",
    ]
    found = run(
        FOLDER / "training.py",
        *sizes,
        f"--only=^({'|'.join(names)})$",
        f"--text={small}/small.txt",
        f"--oracle_python={oracle}",
        f"--json={tmp_path}/found.json",
    )
    results = json.loads((tmp_path / "found.json").read_text())
    (row,) = results["race"]
    for part in (row, results["packed"]):
        for name, result in part["variants"].items():
            assert "error" not in result and result["step_seconds"] > 0, (name, result)
            assert result["took_turns"] and result["peak_bytes"] > 1e8
    assert list(row["variants"]) == names and len(results["packed"]["variants"]) == 4
    assert "not measured" not in found
    assert results["hardware"]["cores"] and "--models=tiny" in results["command"]


def test_a_race_without_ours_shows_the_others(capsys):
    """Their speeds, and no ratio; and the other way round."""
    import training

    def row(*systems):
        result = dict(
            tokens_per_second=1234.0, step_seconds=0.5, mfu=0.1, peak_bytes=1, turns=[1]
        ) | dict(took_turns=True)
        variants = {f"{name} x": dict(result, system=name) for name in systems}
        return dict(model="tiny", length=16, rows=2, variants=variants)

    training.print_race([row("garden", "hugging_face")], dict(float32=1e9))
    (_, cells) = tables(capsys.readouterr().out)[1].popitem()
    assert cells[1:] == [
        *("not measured", "1,234 (garden x)", "-", "1,234 (hugging_face x)", "-"),
        *("not measured", "-"),
    ]
    training.print_race([row("ours", "garden")], dict(float32=1e9))
    (_, cells) = tables(capsys.readouterr().out)[1].popitem()
    assert cells[1:4] == ["1,234 (ours x)", "1,234 (garden x)", "1.00 (missed)"]


@pytest.mark.long
def test_replicas_are_compared(small):
    sizes = "--steps=2 --batch_size=2 --max_seq_length=32 --replicas=2 --lr_scaling=sqrt".split()
    files = [f"--text={small}/small.txt", f"--pairs={small}/pairs"]
    found = table(run(FOLDER / "replicas.py", *sizes, *files))
    assert [found[name][:3] for name in ("1", "2")] == [
        ["2", "none", "5.0e-04"],
        ["4", "sqrt", "7.1e-04"],
    ]
    for row in found.values():
        assert 5 < float(row[3]) < 15 and all(0 <= float(cell) <= 1 for cell in row[4:9])


def test_what_packs_hide_of_an_exchange():
    """2 s of a step are the exchange: all of it is hidden at 4 s, a half at 5 s."""
    seconds = {"none": [4.0, 4.0, 9.0], "0": [6.0], "1": [4.0], "8": [5.0], "16": [7.0]}
    rows = importlib.import_module("workers").rows_of(seconds)
    assert [row[2:] for row in rows] == [
        ["0.67", ""],
        ["1.00", ""],
        ["0.67", "100%"],
        ["0.83", "50%"],
        ["1.17", "-50%"],
    ]


@pytest.mark.long
def test_the_exchange_of_two_workers_is_measured():
    sizes = "--model=tiny --rounds=2 --batch_size=2 --length=16 --packs=1".split()
    found = table(run(FOLDER / "workers.py", *sizes))
    names = ["no exchange", "one, after the backward pass", "packs of 1 MB"]
    assert list(found) == names and all(float(row[0]) > 0 for row in found.values())
    assert found[names[1]][1] == "1.00"


@pytest.mark.long
def test_recipes_are_compared(small, tmp_path):
    """With a small vocabulary, too: no document is dropped for it. What is in the JSON file is not
    measured again.
    """
    sizes = (
        "--vocab_size=1000 --steps=2 --seeds=1 --layers=1 --hidden_size=32 --batch_size=8 "
        "--max_seq_length=32"
    ).split()
    files = [f"--text={small}/small.txt", f"--pairs={small}/pairs"]
    more = ["--only=crammed Muon,24-hour BERT small", f"--json={tmp_path}/rows.json"]
    found = table(run(FOLDER / "recipes.py", *sizes, *files, *more))
    assert list(found) == ["crammed Muon", "24-hour BERT small"]
    for steps, epochs, _, loss, *shares in found.values():
        assert number(steps) == 2 and number(epochs) > 0 and 5 < number(loss) < 10
        assert all(0 <= number(cell) <= 1 for cell in shares)
    stored = (tmp_path / "rows.json").read_bytes()
    assert table(run(FOLDER / "recipes.py", *sizes, *files, *more)) == found
    assert (tmp_path / "rows.json").read_bytes() == stored


@pytest.mark.long
def test_shapes_of_the_quick_recipe_are_compared(small, tmp_path):
    """And what is in the JSON file is not measured again."""
    given = f"--text={small}/small.txt", f"--pairs={small}/pairs", f"--json={tmp_path}/rows.json"
    call = FOLDER / "quick.py", *given, "--steps=3", "--seeds=1", "--only=length 32"
    (found,) = tables(run(*call))
    assert list(found) == ["length 32"]
    for cells in found.values():
        assert cells[0] == "3" and all(0 <= number(cell) < 20 for cell in cells[1:])
    stored = (tmp_path / "rows.json").read_bytes()
    assert tables(run(*call)) == [found] and (tmp_path / "rows.json").read_bytes() == stored


def test_a_search_goes_on_at_an_edge_until_it_gets_worse():
    import optimizers

    rates = optimizers.rates_between(1e-3, 5e-3)
    found = optimizers.search(rates, lambda rate: abs(rate - 0.02))
    assert sorted(found) == pytest.approx([0.001, 0.002, 0.005, 0.01, 0.02, 0.05])
    assert list(optimizers.search(rates, lambda rate: rate))[3:5] == pytest.approx([5e-4, 2e-4])
    assert list(optimizers.search(rates, lambda rate: 1.0)) == rates
    assert len(optimizers.search([0.01], lambda rate: abs(rate - 0.01))) == 3


def test_optimizers_are_compared_seed_by_seed(capsys):
    import optimizers

    def row(loss):
        curve = [[0.0, 9.0], [10.0, loss]]
        accuracies = dict(mlm_accuracy=0.1, nsp_accuracy=0.6)
        return dict(steps=5, curve=curve, mlm_loss=loss) | accuracies

    lost = dict(error="diverged", steps=5)
    adamw = [row(5.0), row(7.0), lost]
    found = dict(adamw=(1e-3, adamw), lamb=(2e-3, [lost] * 3), muon=(3e-3, [row(3.0)] * 3))
    optimizers.print_race("tiny", "pre-LN", found, 5)
    text = capsys.readouterr().out
    cells = table(text)
    assert cells["adamw (1 of 3 diverged)"][2] == "6.000 (5.000 to 7.000)"
    assert cells["adamw (1 of 3 diverged)"][-1] == "-" and "fall to 0" in text
    assert cells["lamb (3 of 3 diverged)"][2:] == ["-", "-", "-", "0 of 2"]
    assert cells["muon"][-1] == "5 (3 to 7)"
    assert optimizers.time_to_adamw([row(6.0), row(6.0), lost], adamw) == "1 of 2: 7"


def test_only_a_divergence_is_a_result():
    import optimizers

    def fails(text):
        def make():
            raise optimizers.Failed(text)

        return make

    text = "run.py: exit code 3: error: diverged: 25 steps"
    assert optimizers.or_diverged(fails(text), steps=3) == dict(steps=3, error=text)
    for other in ("run.py: exit code 3: error: disk full", "run.py: exit code 2: diverged"):
        with pytest.raises(optimizers.Failed):
            optimizers.or_diverged(fails(other))


def test_rows_of_other_settings_are_refused(tmp_path, small, capsys):
    import optimizers

    path, text = tmp_path / "found.json", small / "small.txt"
    flags = [f"--text={text}", f"--json={path}", f"--pairs={small}/pairs", f"--folder={tmp_path}"]

    def settings(*more):
        return optimizers.settings_of(optimizers.make_parser().parse_args([*flags, *more]))

    old = dict(runs={"tiny pre-LN adamw 0.001 2 min seed 1": dict(model="/a", steps=1)})
    path.write_text(json.dumps(old))
    record = optimizers.Record(path, settings("--part=race"))
    assert "without settings" in capsys.readouterr().out
    record.row("costs", "x", dict)
    stored = json.loads(path.read_text())
    assert stored["settings"].keys() == {"text", "vocab_size"} and "/a" not in str(stored)
    optimizers.Record(path, settings()).row("costs", "y", dict)  # adds the pairs
    with pytest.raises(optimizers.Failed, match="was made with another vocab_size; name another"):
        optimizers.Record(path, settings("--vocab_size=100"))
    with pytest.raises(optimizers.Failed, match="was made with another pair_epochs"):
        optimizers.Record(path, settings("--pair_epochs=1"))
    optimizers.Record(path, settings("--pair_epochs=1", "--part=race"))  # of no importance there
    other = tmp_path / "other.txt"
    other.write_text("Other words.\n")
    with pytest.raises(optimizers.Failed, match="was made with another text"):
        optimizers.Record(path, settings(f"--text={other}"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset.json").write_text("{}")
    options = optimizers.make_parser().parse_args(flags)
    assert optimizers.make_data(options) == str(tmp_path / "data")
    options.text = str(other)
    with pytest.raises(optimizers.Failed, match="data: was made with another text; .* --folder"):
        optimizers.make_data(options)


def test_models_of_earlier_runs_need_a_folder(monkeypatch, capsys):
    import optimizers

    monkeypatch.setattr(sys, "argv", ["optimizers", "--json=x.json", "--part=pairs"])
    with pytest.raises(SystemExit):
        optimizers.main()
    assert "needs --folder" in capsys.readouterr().err


@pytest.mark.long
def test_optimizers_are_compared(small, tmp_path, monkeypatch, capsys):
    """All parts, with one learning rate each; a second time nothing is run again."""
    import optimizers

    monkeypatch.setattr(
        optimizers, "FIRST_RATES", dict.fromkeys(optimizers.OPTIMIZERS, (2e-3,) * 2)
    )
    monkeypatch.setattr(optimizers, "FIRST_PAIR_RATES", (1e-3, 1e-3))
    monkeypatch.setattr(optimizers, "extended", lambda losses: None)
    for name in TENSORFLOW_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    flags = (
        f"--text={small}/small.txt --pairs={small}/pairs --folder={tmp_path} --vocab_size=500 "
        f"--json={tmp_path}/found.json --models=tiny --forms=pre-LN --minutes=1e-3 --turns=1 "
        "--turn_seconds=0.01 --seeds=1 --pair_epochs=1"
    )
    monkeypatch.setattr(sys, "argv", ["optimizers", *flags.split()])
    optimizers.main()
    found = json.loads((tmp_path / "found.json").read_text())
    assert [len(found[part]) for part in ("costs", "runs", "pairs")] == [1, 6, 6]
    assert all(4 < row["mlm_loss"] < 8 for row in found["runs"].values())
    race, pairs, costs = tables(capsys.readouterr().out)
    assert list(race) == ["adamw", "lamb", "muon"] and race["adamw"][-1] == "-"
    assert list(pairs) == ["untrained", "adamw", "muon"]  # the last row of each
    assert all(0 <= number(row[-1]) <= 1 for row in pairs.values())
    assert number(costs["tiny pre-LN"][-1]) > 0
    models = [
        json.loads(path.read_text())["settings"]["init_checkpoint"]
        for path in sorted(tmp_path.glob("*-untrained-*/run.json"))
    ]
    trained = [
        json.loads(path.read_text())["settings"]["init_checkpoint"]
        for path in sorted(tmp_path.glob("*-pretrained-*/run.json"))
    ]
    assert len(models) == 2 and not set(models) & set(trained)
    monkeypatch.setattr(optimizers, "run_script", None)
    monkeypatch.setattr(optimizers, "Peer", None)
    optimizers.main()
    assert json.loads((tmp_path / "found.json").read_text())["runs"] == found["runs"]


@pytest.mark.long
def test_the_first_second_is_measured():
    found = table(run(FOLDER / "startup.py", "--runs=1"))
    assert len(found) == 14 and all(float(seconds) > 0 for (seconds,) in found.values())


def test_every_process_with_tensorflow_gets_what_bert_gpu_sets_for_itself():
    from helpers.process import SCRIPTS, WITHOUT_TENSORFLOW, environment_of

    with_it = {"ours", "garden", "ahead_lowering", "inference_ours", "scaling_ours"}
    with_it |= {"finetuning_ours"}
    assert set(SCRIPTS) - set(WITHOUT_TENSORFLOW) == with_it
    for system in SCRIPTS:
        found = environment_of(system, dict(PYTHONPATH="/mine", TF_CPP_MIN_LOG_LEVEL="0"))
        if system in WITHOUT_TENSORFLOW:
            assert not [name for name in found if name.startswith(("TF_", "XLA_", "PYTHONPATH"))]
        else:
            assert found["TF_ENABLE_ONEDNN_OPTS"] == "1" and found["TF_CPP_MIN_LOG_LEVEL"] == "0"
            assert found["PYTHONPATH"] == f"{ROOT}:/mine"
        assert environment_of(system, dict(TF_ENABLE_ONEDNN_OPTS="0")).get(
            "TF_ENABLE_ONEDNN_OPTS"
        ) in ("0", None), "the user's wins"


def test_what_a_benchmark_starts_inherits_the_environment_of_bert_gpu():
    """Also Model Garden's job in benchmarks/data.py; and it is this checkout's bert_gpu
    that decides.
    """
    code = f"""
import os, sys
sys.path.insert(0, {str(FOLDER)!r})
import data, bert_gpu
print(os.environ["TF_ENABLE_ONEDNN_OPTS"], bert_gpu.__file__)
"""
    assert run("-c", code).split() == ["1", str(ROOT / "bert_gpu" / "__init__.py")]


@pytest.mark.long
def test_checkpoints():
    rows = table(run(FOLDER / "checkpoints.py", "--model=tiny", "--repeats=1"))
    assert list(rows) == ["with a checksum", "without"]
    assert all(float(cell) > 0 for row in rows.values() for cell in row)


@pytest.fixture(scope="module")
def documents(sample_text):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        from helpers import text_tasks
    return text_tasks.read_documents(sample_text)[:300]


def test_tasks_made_from_text_have_right_labels(documents):
    from random import Random

    from helpers import text_tasks

    home = {sentence: index for index, lines in enumerate(documents) for sentence in lines}
    rows = text_tasks.same_document(documents, 100, Random(1))
    assert sum(label == "1" for *_, label in rows) == 50
    unique = [row for row in rows if all(sum(x in d for d in documents) == 1 for x in row[:2])]
    assert len(unique) > 90
    for first, second, label in unique:
        assert (home[first] == home[second]) == (label == "1")
        lines = documents[home[first]]
        if label == "1" and lines.count(first) == lines.count(second) == 1:
            assert first != second
    rows = text_tasks.shifted_words(documents, 100, Random(1))
    assert sum(label == "1" for *_, label in rows) == 50
    for text, label in rows:
        assert (" ".join(text.split()) in home) == (label == "0")
        if label == "1":
            words = text.split()
            orders = [
                [*words[:k], words[k + 1], words[k], *words[k + 2 :]]
                for k in range(1, len(words) - 2)
            ]
            assert any(" ".join(order) in home for order in orders)
    assert text_tasks.shifted_words(documents, 100, Random(1)) == rows


def test_no_two_splits_of_a_task_share_a_document(documents, tmp_path):
    from helpers import text_tasks

    kept, held_out = text_tasks.hold_out(documents, 0.5)
    assert len(kept) + len(held_out) == len(documents)
    assert len(held_out) == round(len(documents) / 2)
    text_tasks.write_tasks(held_out, tmp_path, dict(train=60, dev=20, test=20))
    home = {sentence: index for index, lines in enumerate(documents) for sentence in lines}
    seen = {}
    for split, count in (("train", 60), ("dev", 20), ("test", 20)):
        header, *rows = (tmp_path / "same-document" / f"{split}.tsv").read_text().splitlines()
        assert header == "text_a\ttext_b\tlabel" and len(rows) == count
        texts = {text for row in rows for text in row.split("\t")[:2]}
        seen[split] = {home[text] for text in texts if sum(text in d for d in documents) == 1}
    assert not seen["train"] & seen["dev"] and not seen["dev"] & seen["test"]


def test_gains_are_held_against_their_errors(capsys):
    import record

    rows = record.Rows(None, {}, record.PARTS)
    for start, values in (("pretrained", (0.8, 0.9)), ("untrained", (0.5, 0.6))):
        for seed, value in enumerate(values, 1):
            rows.values["curves"][f"pairs, 200 labels, {start}, seed {seed}"] = dict(test=value)
    rows.values["curves"]["pairs, all labels, pretrained, seed 1"] = dict(test=0.9)
    (cell, alone) = record.gather(rows).values()
    points, error = record.gain(cell)
    assert points == pytest.approx(30) and error == pytest.approx(100 * 0.05 * 2**0.5)
    assert alone == dict(pretrained=[0.9])
    record.print_record(rows)
    text = capsys.readouterr().out
    assert "| 85.0 ± 5.0 | 55.0 ± 5.0 | 30.0 ± 7.1   | yes" in text
    assert "30.0 points, pairs (goal: 10: reached)" in text and "goal: two tasks: missed" in text


@pytest.mark.long
def test_the_record_is_measured_once(small, sample_text, tmp_path, monkeypatch, capsys):
    """One task in its smallest form; a second time nothing is run again."""
    import record

    prepare = record.prepare
    monkeypatch.setattr(
        record, "prepare", lambda options: {"shifted words": prepare(options)["shifted words"]}
    )
    for name in TENSORFLOW_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    flags = (
        f"--text={small}/small.txt --pairs={small}/pairs --folder={tmp_path}/work --sizes=8 "
        f"--json={tmp_path}/found.json --minutes=1 --steps=2 --rates=1e-3 --updates=2 --seeds=2 "
        f"--seeds_of_all=1 --splits=16,8,8 --plots={tmp_path}"
    )
    monkeypatch.setattr(sys, "argv", ["record", *flags.split()])
    record.main()
    found = table(capsys.readouterr().out)
    assert list(found) == ["shifted words"] and found["shifted words"][0] == "all"
    stored = json.loads((tmp_path / "found.json").read_text())
    assert len(stored["curves"]) == 6 and len(stored["rates"]) == 2
    assert all(0 <= row["test"] <= 1 for row in stored["curves"].values())
    assert stored["pretraining"]["run"]["steps"] == 2
    assert (tmp_path / "record-loss.png").exists() and (tmp_path / "record-labels.png").exists()
    from bert_gpu.watch.samples import read_samples

    samples = read_samples(str(tmp_path / "work" / "run" / "samples.jsonl"))
    assert samples and all("[MASK]" in sample.text and sample.guesses for sample in samples)
    assert (tmp_path / "work" / "run" / "model" / "README.md").exists()
    before = (tmp_path / "found.json").read_bytes()
    record.main()
    assert (tmp_path / "found.json").read_bytes() == before
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["record", "--table", f"--json={tmp_path}/found.json"])
    record.main()
    assert table(capsys.readouterr().out) == found


@pytest.mark.long
def test_techniques_are_compared(small, tmp_path):
    """Accumulation and recompute change no loss, and frozen layers do; nothing is run again."""
    sizes = "--model=tiny --length=32 --batch=4 --steps=3 --seeds=1".split()
    names = ["nothing", "accumulation 4", "embeddings and half of the layers frozen"]
    call = FOLDER / "techniques.py", f"--text={small}/small.txt", f"--json={tmp_path}/rows.json"
    call = *call, *sizes, f"--only={','.join(names)}"
    found = table(run(*call))
    assert list(found) == names
    losses = {name: number(cells[4]) for name, cells in found.items()}
    assert losses["accumulation 4"] == pytest.approx(losses["nothing"], abs=2e-4)
    assert abs(losses[names[2]] - losses["nothing"]) > 1e-3
    for seconds, _, speed, memory, *_ in found.values():
        assert number(seconds) > 0 and number(speed) > 0 and number(memory) > 100
    assert table(run(*call)) == found


@pytest.mark.long
def test_programs_run_where_there_is_no_tensorflow(oracle, tmp_path):
    """What this Python writes, one with JAX and PyTorch alone runs; here on the CPU."""
    folder, name = tmp_path / "programs", FOLDER / "gpu_programs.py"
    tiny = "--model=tiny --length=16 --tokens=32 --variant=plain".split()
    said = run(name, f"--write={folder}", f"--jax_python={oracle}", *tiny)
    assert ": 1 cases, 0." in said
    call = ["--cpu", "--seconds=0.01", "--peer=PyTorch eager", f"--json={tmp_path}/found.json"]
    environment = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=str(ROOT))
    environment = {k: v for k, v in environment.items() if k not in TENSORFLOW_VARIABLES}
    command = [oracle, str(name), f"--run={folder}", *call]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "tiny 16: plain is " in result.stdout and "x PyTorch eager" in result.stdout
    cases = json.loads((tmp_path / "found.json").read_text())["cases"]
    assert list(cases) == ["tiny 16: plain", "tiny 16: PyTorch eager"]
    step = cases["tiny 16: plain"]
    assert step["seconds"] == step["gradients"]["seconds"] + step["update"]["seconds"] > 0
    assert step["gradients"]["kernels"] > 50 and not any("error" in case for case in cases.values())


@pytest.mark.long
def test_fine_tuning_is_compared_with_the_trainer_and_with_frozen_layers(small, oracle, tmp_path):
    import finetuning
    from helpers.models import make_model

    call = (FOLDER / "finetuning.py", f"--pairs={small}/pairs")
    sizes = "--model=tiny --paddings=dynamic --steps=2 --turns=1 --batch=2".split()
    found = run(*call, *sizes, f"--oracle_python={oracle}", f"--text={small}/small.txt")
    rows = table(found)
    assert list(rows) == ["ours, dynamic", "Trainer, dynamic"]
    for training, prediction, loss, difference in rows.values():
        assert number(training) > 0 and number(prediction) > 0 and 0.5 < number(loss) < 1
        assert number(difference) < 1e-5
    assert found.count("each its best (goal 1.25: ") == 2

    make_model(tmp_path, f"{small}/small.txt", "tiny", classifies=True)
    more = ["--frozen=nothing,embeddings", "--seeds=1", "--epochs=1", "--batch=2"]
    given = f"--init_checkpoint={tmp_path}/model"
    rows = table(run(*call, "--part=freezing", given, *more))
    assert list(rows) == ["nothing", "embeddings"] and len(finetuning.FROZEN) == 4
    for seconds, _, peak, accuracy in rows.values():
        assert number(seconds) > 0 and number(peak) > 100 and 0 <= number(accuracy) <= 1


@pytest.mark.long
def test_embeddings_and_words_are_compared(oracle):
    """Ours agree with Hugging Face's within 1e-4."""
    found = run(FOLDER / "embed.py", "--model=tiny", "--lines=100", "--turns=1", "--tuning=20")
    rows = [line.split("|")[1:-1] for line in found.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in row] for row in rows]
    assert [row[:2] for row in rows] == [
        [task, system]
        for task in ("embed", "fill_mask")
        for system in ("ours", "Hugging Face", "Hugging Face sorted")
    ]
    assert all(number(row[3]) > 0 and float(row[5]) < 1e-4 for row in rows)
