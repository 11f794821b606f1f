"""Limits of the cost model of benchmarks/scaling.py, and the smallest form of its measurement."""

import dataclasses
import math
import re
import sys

import pytest

from tests.benchmarks.commands import FOLDER, number, run, tables


@pytest.fixture(autouse=True)
def path_of_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def model():
    from helpers import scaling_model

    return scaling_model


@pytest.fixture
def work(model):
    return model.Work(micro_batch_seconds=0.04, update_seconds=0.001, gradient_bytes=4e8)


def clusters(model):
    for machines in (1, 2, 3, 8, 64):
        for gpus in (1, 2, 8):
            for inside in model.INSIDE.values():
                for gbits in (1, 25, 400, 3200):
                    yield model.Cluster(machines, gpus, inside, model.network(gbits))


def test_one_gpu_does_not_communicate(model, work):
    alone = model.Cluster(1, 1, model.INSIDE["pcie4"], model.network(25))
    for overlap in (False, True):
        assert model.step_seconds(work, alone, 3, overlap) == 3 * 0.04 + 0.001
        assert model.efficiency(work, alone, 3, overlap) == 1.0
    assert model.least_accumulation(work, alone, 0.95) == 1


def test_a_perfect_network_scales_perfectly(model, work):
    link = model.Link(math.inf, 0.0)
    assert model.efficiency(work, model.Cluster(64, 8, link, link)) == 1.0


def test_a_ring_sends_each_byte_about_twice(model):
    link = model.Link(1e9, 0.0)
    assert model.ring(1e9, 2, link) == 1.0
    assert model.ring(1e9, 4, link) == pytest.approx(1.5)
    assert model.ring(1e9, 10**6, link) == pytest.approx(2.0, rel=1e-5)
    assert model.ring(0.0, 4, model.Link(1e9, 1e-3)) == pytest.approx(6e-3)
    machine = model.Cluster(1, 4, link, model.network(1))
    assert model.all_reduce(1e9, machine) == model.hierarchical(1e9, machine)
    assert model.all_reduce(1e9, machine) == pytest.approx(1.5)


def test_stages_beat_one_ring_when_the_network_is_the_bottleneck(model):
    """That is where a GPU's link is as fast as all machines' together; and never is the result
    slower than either way.
    """
    num_compared = 0
    for cluster in clusters(model):
        ways = model.flat_ring(4e8, cluster), model.hierarchical(4e8, cluster)
        assert model.all_reduce(4e8, cluster) == min(ways)
        machines, between = cluster.num_machines, cluster.between.bytes_per_second
        if machines > 1 and cluster.inside.bytes_per_second >= machines * between:
            assert ways[1] <= ways[0]
            num_compared += 1
    assert num_compared > 20


def test_what_can_only_help_helps(model, work):
    """Overlapping, half the bytes, accumulation; fewer GPUs."""
    half = dataclasses.replace(work, gradient_bytes=work.gradient_bytes / 2)
    for cluster in clusters(model):
        plain = model.step_seconds(work, cluster)
        assert model.step_seconds(work, cluster, overlap=True) <= plain
        assert model.step_seconds(half, cluster) <= plain
        for overlap in (False, True):
            shares = [model.efficiency(work, cluster, count, overlap) for count in (1, 2, 8, 64)]
            assert shares == sorted(shares) and 0 < shares[0] <= shares[-1] <= 1
        more = dataclasses.replace(cluster, num_machines=2 * cluster.num_machines)
        assert model.all_reduce(4e8, more) >= model.all_reduce(4e8, cluster)


def test_the_accumulation_that_is_told_is_the_least_that_suffices(model, work):
    for cluster in clusters(model):
        found = model.least_accumulation(work, cluster, 0.95)
        assert model.efficiency(work, cluster, found) >= 0.95 - 1e-9
        assert found == 1 or model.efficiency(work, cluster, found - 1) < 0.95


def test_a_ramp_is_between_its_first_and_its_last_step(model, work):
    cluster = model.Cluster(4, 8, model.INSIDE["nvlink3"], model.network(100))
    ends = [model.efficiency(work, cluster, count) for count in (1, 16)]
    assert ends[0] < model.ramped_efficiency(work, cluster, 16, 0.7) < ends[1]
    assert model.ramped_efficiency(work, cluster, 16, 1.0) == ends[1]


def test_a_line_through_times_is_found(model):
    seconds, rate = model.fitted({size: 0.002 + size / 1e9 for size in (1e6, 2e6, 8e6)})
    assert (seconds, rate) == (pytest.approx(0.002), pytest.approx(1e9))


def test_a_published_figure_predicts_itself(model):
    from helpers import scaling_published

    for (name, _, precision), (base, *others) in scaling_published.FIGURES.items():
        found = scaling_published.predicted(name, precision, base, base)
        assert found == pytest.approx(base.throughput) and others
        for row in others:
            perfect = base.throughput * row.size / base.size
            assert scaling_published.predicted(name, precision, base, row) < perfect


def test_tables_of_predictions(monkeypatch, capsys, tmp_path):
    """All but what is measured; from a measured step, and as a picture."""
    import scaling

    monkeypatch.setattr(scaling, "num_parameters", dict(base=110e6, large=336e6).get)
    given = "--part=predict,accumulate,ramp,published", f"--plots={tmp_path}"
    monkeypatch.setattr(sys, "argv", ["scaling", *given])
    scaling.main()
    base, large, accumulate, ramp, published = tables(capsys.readouterr().out)
    for found in (base, large):
        assert list(found)[0] == "1 x 1" and list(found)[-1] == "64 x 8"
        assert found["1 x 1"][3:] == ["100.0"] * 6
        assert all(0 < number(cell) <= 100 for row in found.values() for cell in row[3:])
    assert len(accumulate) == 12 and len(ramp) == 2 and len(published) > 5
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    step = "--part=predict", "--model=base", "--step_seconds=0.5", "--update_seconds=0.1"
    monkeypatch.setattr(sys, "argv", ["scaling", *step, "--rows=8"])
    scaling.main()
    said = capsys.readouterr().out
    assert "micro-batches of 8: 400.0 ms, update 100.0 ms, 440 MB" in said


@pytest.mark.parametrize(
    "flags, complaint",
    [
        (["--part=predict", "--length=64"], "is not in .*give --step_seconds and --rows"),
        (["--step_seconds=1", "--update_seconds=2"], "--step_seconds: must be more than"),
        (["--part=all"], "all: must be one of"),
        (["--workers=1"], "1: must be 2 or more"),
    ],
)
def test_what_cannot_be_predicted_is_refused(flags, complaint, monkeypatch, capsys):
    import scaling

    monkeypatch.setattr(scaling, "num_parameters", lambda model: 1e8)
    monkeypatch.setattr(sys, "argv", ["scaling", *flags])
    with pytest.raises(SystemExit) as stopped:
        scaling.main()
    assert stopped.value.code == 2
    assert re.search(complaint, capsys.readouterr().err)


@pytest.mark.long
def test_this_machine_is_measured():
    """Virtual replicas, and workers on loopback."""
    sizes = "--here_model=tiny --here_length=16 --here_rows=1 --turns=1".split()
    found = run(FOLDER / "scaling.py", "--part=muon,here", "--model=base", *sizes)
    muon, here = tables(found)
    assert number(muon["base"][0]) > number(muon["base"][1]) > 0
    assert list(here) == ["2 virtual replicas", "2 workers"]
    for row in here.values():  # the last of each place
        assert row[0] == "4" and all(number(cell) >= 0 for cell in row[1:5])
