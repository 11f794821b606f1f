"""Each benchmark runs in its smallest form; scaling.py has a file of its own here."""

import json
import os
import subprocess
import sys

import pytest

from tests.benchmarks.commands import FOLDER, TENSORFLOW_VARIABLES, number, run, table, tables
from tests.test_architecture import ROOT


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
    seconds = [row[0] for row in speeds.values()]
    assert all(
        cell == "within its start-up: more --megabytes" or number(cell) >= 0 for cell in seconds
    )
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
def test_the_labels_of_pairs_are_counted():
    ((random, of_one, used),) = table(run(FOLDER / "pair_labels.py", "--shapes=1")).values()
    assert 48 < float(random.rstrip("%")) < 70 and of_one == "0.0%"
    assert 80 < float(used.rstrip("%")) <= 100


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


@pytest.mark.long
def test_replicas_are_compared(small, tmp_path):
    sizes = (
        "--steps=2 --seeds=1 --batch_size=2 --max_seq_length=32 --replicas=2 --lr_scaling=sqrt"
    ).split()
    files = [f"--text={small}/small.txt", f"--pairs={small}/pairs", f"--json={tmp_path}/rows.json"]
    found = table(run(FOLDER / "replicas.py", *sizes, *files))
    assert [[name, *row[:4]] for name, row in found.items()] == [
        ["untrained", "-", "-", "-", "1"],
        ["1", "2", "none", "5.0e-04", "1"],
        ["2", "4", "sqrt", "7.1e-04", "1"],
    ]
    for name, row in found.items():
        losses = row[4:7]
        assert all(0 <= float(cell) <= 1 for cell in row[7:])
        assert losses == ["-"] * 3 if name == "untrained" else 5 < float(losses[0]) < 15
    assert len(json.loads((tmp_path / "rows.json").read_text())["runs"]) == 3


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
    more = ["--only=24-hour BERT small", f"--json={tmp_path}/rows.json"]
    found = table(run(FOLDER / "recipes.py", *sizes, *files, *more))
    assert list(found) == ["24-hour BERT small"]
    for seeds, steps, epochs, _, loss, *shares in found.values():
        assert (seeds, steps) == ("1", "2") and number(epochs) > 0 and 5 < number(loss) < 10
        assert all(0 <= number(cell) <= 1 for cell in shares)
    stored = (tmp_path / "rows.json").read_bytes()
    assert table(run(FOLDER / "recipes.py", *sizes, *files, *more)) == found
    assert (tmp_path / "rows.json").read_bytes() == stored
    assert table(run(FOLDER / "recipes.py", "--table", f"--json={tmp_path}/rows.json")) == found


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


@pytest.mark.long
def test_optimizers_are_compared(small, tmp_path, monkeypatch, capsys):
    """All parts, with one learning rate each; a second time nothing is run again."""
    import optimizers
    from helpers import learning_rates, race, race_pairs

    monkeypatch.setattr(race, "FIRST_RATES", dict.fromkeys(race.OPTIMIZERS, (2e-3,) * 2))
    monkeypatch.setattr(race_pairs, "FIRST_PAIR_RATES", (1e-3, 1e-3))
    monkeypatch.setattr(race_pairs, "FINE_TUNED_BY", ("muon",))
    monkeypatch.setattr(learning_rates, "extended", lambda losses: None)
    for name in TENSORFLOW_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    flags = (
        f"--text={small}/small.txt --pairs={small}/pairs --folder={tmp_path} --vocab_size=500 "
        f"--json={tmp_path}/found.json --models=tiny --forms=pre-LN --optimizers=adamw,muon "
        "--minutes=1e-3 --turns=1 --turn_seconds=0.01 --seeds=1 --pair_epochs=1 "
        "--further_rates=adamw:0.001"
    )
    monkeypatch.setattr(sys, "argv", ["optimizers", *flags.split()])
    optimizers.main()
    found = json.loads((tmp_path / "found.json").read_text())
    assert [len(found[part]) for part in ("costs", "runs", "pairs")] == [1, 5, 3]
    assert "tiny pre-LN adamw 0.001 0.001 min seed 2" in found["runs"]
    assert all(4 < row["mlm_loss"] < 8 for row in found["runs"].values())
    printed = losses, pairs, costs = tables(capsys.readouterr().out)
    assert list(losses) == ["adamw", "muon"] and losses["adamw"][-1] == "-"
    assert list(pairs) == ["untrained", "adamw", "muon"]
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
    assert (len(models), len(trained)) == (1, 2) and not set(models) & set(trained)
    for module in (optimizers, race, race_pairs):
        monkeypatch.setattr(module, "run_script", None)
    monkeypatch.setattr(race, "Peer", None)
    optimizers.main()
    assert json.loads((tmp_path / "found.json").read_text())["runs"] == found["runs"]
    capsys.readouterr()
    flags = f"--table --json={tmp_path}/found.json --minutes=1e-3 --seeds=1 --models=tiny"
    monkeypatch.setattr(sys, "argv", ["optimizers", *flags.split()])
    optimizers.main()
    assert tables(capsys.readouterr().out) == printed


@pytest.mark.long
def test_the_first_second_is_measured():
    found = table(run(FOLDER / "startup.py", "--runs=1"))
    assert len(found) == 14 and all(float(seconds) > 0 for (seconds,) in found.values())


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
        f"--seeds_of_all=1 --splits=16,8,8 --workers=2 --plots={tmp_path}"
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
    lines = (tmp_path / "work" / "run" / "samples.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    assert samples and all("[MASK]" in row["text"] and row["guesses"] for row in samples)
    assert (tmp_path / "work" / "run" / "model" / "README.md").exists()
    before = (tmp_path / "found.json").read_bytes()
    record.main()
    assert (tmp_path / "found.json").read_bytes() == before
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["record", "--table", f"--json={tmp_path}/found.json"])
    record.main()
    assert table(capsys.readouterr().out) == found


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
