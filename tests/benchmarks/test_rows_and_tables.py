"""What benchmarks choose, keep and print, without a run."""

import argparse
import importlib
import json
import sys
import types

import pytest

from tests.benchmarks.commands import FOLDER, table, tables


def test_a_race_without_ours_shows_the_others(capsys):
    """Their speeds, and no ratio; and the other way round."""
    import training

    def row(*systems):
        result = dict(
            tokens_per_second=1234.0, step_seconds=0.5, mfu=0.1, peak_bytes=1, turns=[1]
        ) | dict(took_turns=True)
        settings = dict(precision="float32")
        variants = {
            f"{name} float32, x": dict(result, system=name, settings=settings) for name in systems
        }
        return dict(model="tiny", length=16, rows=2, variants=variants)

    training.print_race([row("garden", "hugging_face")], dict(float32=1e9))
    (_, cells) = tables(capsys.readouterr().out)[1].popitem()
    assert cells[1:] == [
        *("not measured", "-", "1,234 (x)", "-", "1,234 (x)", "-"),
        *("not measured", "-"),
    ]
    training.print_race([row("ours", "garden")], dict(float32=1e9))
    (_, cells) = tables(capsys.readouterr().out)[1].popitem()
    assert cells[1:5] == ["1,234 (x)", "10 %, missed", "1,234 (x)", "1.00"]


def test_a_search_goes_on_at_an_edge_until_it_gets_worse():
    from helpers.learning_rates import final_rates, rates_between
    from helpers.learning_rates import search as search_of
    from helpers.race import DIVERGED
    from optimizers import read_rates

    def search(rates, loss_at):
        return search_of(rates, lambda rates: [loss_at(rate) for rate in rates])

    rates = rates_between(1e-3, 5e-3)
    found = search(rates, lambda rate: abs(rate - 0.02))
    assert sorted(found) == pytest.approx([0.001, 0.002, 0.005, 0.01, 0.02, 0.05])
    assert list(search(rates, lambda rate: rate))[3:5] == pytest.approx([5e-4, 2e-4])
    assert list(search(rates, lambda rate: 1.0)) == rates
    assert len(search([0.01], lambda rate: abs(rate - 0.01))) == 3
    losses = {1e-3: 6.28, 2e-3: 6.3, 5e-3: 6.27, 1e-2: DIVERGED}
    assert final_rates(losses) == [5e-3, 1e-3]
    assert final_rates(dict.fromkeys(losses, DIVERGED)) == [1e-3]
    found = read_rates("adamw:0.001,lamb:5e-3,adamw:2e-4")
    assert found == dict(adamw=[1e-3, 2e-4], lamb=[5e-3])
    for wrong in ("sgd:1", "adamw:abc", "adamw"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"{wrong}: must be OPTIMIZER:LEARN"):
            read_rates(wrong)


def test_calls_within_a_part_count_once():
    import data

    def of(cumulative, **callers):
        calls = {key(name): (1, 1, 0.0, seconds) for name, seconds in callers.items()}
        return 1, 1, 0.0, cumulative, calls

    def key(name):
        return f"bert_gpu/{name}.py", 1, "tokenize" if name != "whole" else "whole"

    found = types.SimpleNamespace(
        stats={
            key("whole"): of(5.0),
            key("shards"): of(3.0, whole=3.0),
            key("tokenizer"): of(3.5, shards=2.5, whole=1.0),
            ("/elsewhere.py", 1, "tokenize"): of(9.0),
        }
    )
    assert data.part_seconds(found) == {"tokenizer": 4.0}


def test_optimizers_are_compared_seed_by_seed(capsys):
    from helpers import race_tables

    def row(loss):
        curve = [[0.0, 9.0], [10.0, loss]]
        accuracies = dict(mlm_accuracy=0.1, nsp_accuracy=0.6)
        return dict(steps=5, curve=curve, mlm_loss=loss) | accuracies

    lost = dict(error="diverged", steps=5)
    adamw = [row(5.0), row(7.0), lost]
    found = dict(adamw=(1e-3, adamw), lamb=(2e-3, [lost] * 3), muon=(3e-3, [row(3.0)] * 3))
    race_tables.print_race("tiny", "pre-LN", found, 5)
    text = capsys.readouterr().out
    cells = table(text)
    assert cells["adamw (1 of 3 diverged)"][2] == "6.000 (5.000 to 7.000)"
    assert cells["adamw (1 of 3 diverged)"][-1] == "-" and "fall to 0" in text
    assert cells["lamb (3 of 3 diverged)"][2:] == ["-", "-", "-", "0 of 2"]
    assert cells["muon"][-1] == "5 (3 to 7)"
    assert race_tables.time_to_adamw([row(6.0), row(6.0), lost], adamw) == "1 of 2: 7"


def test_only_a_divergence_is_a_result():
    from helpers.command import Failed
    from helpers.race import or_diverged

    def fails(text):
        def make():
            raise Failed(text)

        return make

    text = "run.py: exit code 3: error: diverged: 25 steps"
    assert or_diverged(fails(text), steps=3) == dict(steps=3, error=text)
    for other in ("run.py: exit code 3: error: disk full", "run.py: exit code 2: diverged"):
        with pytest.raises(Failed):
            or_diverged(fails(other))


def test_rows_of_other_settings_are_refused(tmp_path, small, capsys):
    import optimizers
    from helpers.rows import Missing, Rows

    path, text = tmp_path / "found.json", small / "small.txt"
    flags = [f"--text={text}", f"--json={path}", f"--pairs={small}/pairs", f"--folder={tmp_path}"]

    def settings(*more):
        return optimizers.settings_of(optimizers.make_parser().parse_args([*flags, *more]))

    def rows(*more):
        return Rows(path, settings(*more), optimizers.ROWS_OF)

    old = dict(runs={"tiny pre-LN adamw 0.001 2 min seed 1": dict(steps=1)})
    path.write_text(json.dumps(old))
    record = rows("--part=race")
    assert "without settings" in capsys.readouterr().out
    record.row("costs", "x", dict)
    stored = json.loads(path.read_text())
    assert stored["settings"].keys() == {"text", "vocab_size"}
    rows().row("costs", "y", dict)  # adds the pairs
    assert Rows(path, None, optimizers.ROWS_OF).row("costs", "y", None) == {}
    with pytest.raises(Missing, match="found.json: costs: z: not there"):
        Rows(path, None, optimizers.ROWS_OF).row("costs", "z", dict)
    with pytest.raises(optimizers.Failed, match="was made with another vocab_size; name another"):
        rows("--vocab_size=100")
    with pytest.raises(optimizers.Failed, match="was made with another pair_epochs"):
        rows("--pair_epochs=1")
    rows("--pair_epochs=1", "--part=race")  # of no importance there
    other = tmp_path / "other.txt"
    other.write_text("Other words.\n")
    with pytest.raises(optimizers.Failed, match="was made with another text"):
        rows(f"--text={other}")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset.json").write_text("{}")
    options = optimizers.make_parser().parse_args(flags)
    assert optimizers.make_data(options) == str(tmp_path / "data")
    options.text = str(other)
    with pytest.raises(optimizers.Failed, match="data: was made with another text; .* --folder"):
        optimizers.make_data(options)


@pytest.mark.parametrize("content", [None, "{}", "[1]", "no JSON", '{"command": "replicas.py"}'])
def test_a_table_needs_a_file_of_its_benchmark(content, tmp_path, monkeypatch, capsys):
    import recipes

    path = tmp_path / "rows.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr(sys, "argv", ["benchmarks/recipes.py", "--table", f"--json={path}"])
    with pytest.raises(SystemExit) as ended:
        recipes.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert "no rows of recipes.py; name a file" in said


def test_models_of_earlier_runs_need_a_folder(monkeypatch, capsys):
    import optimizers

    monkeypatch.setattr(sys, "argv", ["optimizers", "--json=x.json", "--part=pairs"])
    with pytest.raises(SystemExit):
        optimizers.main()
    assert "needs --folder" in capsys.readouterr().err


def test_a_table_of_no_race_says_so(tmp_path, monkeypatch, capsys):
    import optimizers

    path = tmp_path / "rows.json"
    hardware = dict(revision="1234567", cores=2, cpu="A")
    path.write_text(json.dumps(dict(command="benchmarks/optimizers.py", hardware=hardware)))
    monkeypatch.setattr(sys, "argv", ["optimizers.py", "--table", f"--json={path}", "--minutes=7"])
    optimizers.main()
    said = capsys.readouterr().out
    assert "no race of --minutes=7 --search_minutes=7 --seeds=3 is whole" in said


@pytest.mark.parametrize("name", ["finetuning", "optimizers", "recipes", "replicas"])
def test_no_seeds_are_refused(name, capsys):
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).make_parser().parse_args(["--seeds=0"])
    assert ended.value.code == 2
    assert "--seeds: 0: must be a whole number from 1" in capsys.readouterr().err


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
