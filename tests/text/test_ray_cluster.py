"""What is said when there is no Ray, no cluster, or another bert-gpu on a node."""

import pickle
import sys
import types

import pytest

import bert_gpu
from bert_gpu.__main__ import main as command
from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.text import parallel, ray_cluster


@pytest.mark.parametrize("name", ["data", "vocab"])
def test_ray_that_is_not_installed_is_one_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("One line.\n")
    assert command(["bert-gpu", name, "--input_file=text.txt", "--ray_address=auto"]) == 2
    error = capsys.readouterr().err
    assert "--ray_address=auto: needs the package ray; pip install 'bert-gpu[ray]'" in error
    assert error.count("\n") == 1 and [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize("name", ["data", "vocab"])
def test_one_machine_is_no_cluster(name, capsys):
    assert command(["bert-gpu", name, "--ray_address=local"]) == 2
    assert "--ray_address=local: one machine needs no Ray" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "ray://127.0.0.1"])
def test_an_address_where_nothing_listens_is_told_at_once(address, monkeypatch):
    monkeypatch.setattr(ray_cluster, "CLIENT_PORT", 1)
    with pytest.raises(UserError) as error:
        ray_cluster.open_cluster(None, address)  # Ray is not asked
    assert f"--ray_address={address}: no Ray cluster answers (Connection refused)" in str(
        error.value
    )


def test_a_job_without_the_flag_imports_no_ray():
    before = sys.modules.get("ray")
    with ray_cluster.open_workers(3, None, Console()) as workers:
        assert workers == parallel.Workers(3)
    assert sys.modules.get("ray") is before


def test_a_task_on_a_node(monkeypatch):
    """It fetches the function once, and says on which node something is wrong."""
    fetched = []

    def function(task, report):
        report(len(task), 2)
        if not task:
            raise UserError("text.txt: is gone")
        return task[::-1]

    def get(reference):
        fetched.append(reference)
        return function

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(get=get))
    monkeypatch.setattr(ray_cluster, "functions", {})
    monkeypatch.setattr(ray_cluster.parallel, "use_one_thread", lambda: None)
    monkeypatch.setattr(ray_cluster.socket, "gethostname", lambda: "n7")
    place = dict(version=bert_gpu.__version__)
    for task in ("abc", "de"):
        found = ray_cluster.run_task(place, ["reference"], pickle.dumps(task))
        assert found == (None, task[::-1], (len(task), 2))
    assert fetched == ["reference"]
    with pytest.raises(UserError, match="^node n7: text.txt: is gone$"):
        ray_cluster.run_task(place, ["reference"], pickle.dumps(""))
    with pytest.raises(UserError, match="node n7 has bert-gpu .*, and this is 0.0"):
        ray_cluster.run_task(dict(version="0.0"), ["reference"], pickle.dumps("abc"))


def nodes(*cores):
    return [dict(Alive=True, Resources=dict(CPU=number)) for number in cores]


def test_lost_workers_are_told_and_counted(monkeypatch, capsys):
    pool = ray_cluster.RayPool(types.SimpleNamespace(nodes=lambda: nodes(2.0, 4.0)))
    assert pool.num_workers == 6 and pool.summary == "on a Ray cluster: 2 nodes, 6 cores"
    clock = [0.0]
    monkeypatch.setattr(ray_cluster.time, "monotonic", lambda: clock[0])
    pool.last_warning = -1.0
    for _ in range(3):  # within a second
        pool._count_loss(MemoryError(), 1)
    clock[0] = 2.0
    pool._count_loss(MemoryError(), ray_cluster.MAX_LOSSES)
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" ")[2] for line in said] == ["1", "4"] and "MemoryError" in said[0]
    with pytest.raises(UserError, match="a task was lost with 9 workers .*--num_workers"):
        pool._count_loss(MemoryError(), ray_cluster.MAX_LOSSES + 1)


def test_a_cluster_without_cores_is_told_once(monkeypatch, capsys):
    monkeypatch.setattr(ray_cluster, "LOOK_SECONDS", 0.0)
    found = [nodes(), nodes(), nodes(3.0)]
    pool = ray_cluster.RayPool(types.SimpleNamespace(nodes=lambda: found.pop(0)), num_workers=5)
    pool._look(), pool._look()
    assert capsys.readouterr().err.count("no node with cores; waiting") == 1
    assert pool.num_cores == 3 and pool.num_workers == 5
    assert pool.summary == "on a Ray cluster: 1 node, 3 cores"


def test_a_node_without_the_folder_is_named(tmp_path, monkeypatch):
    class Reference:
        def __init__(self, result):
            self.result = result

    def remote(**options):
        return lambda call: types.SimpleNamespace(remote=lambda *task: Reference(call(*task)))

    ray = types.SimpleNamespace(
        nodes=lambda: nodes(1.0),
        put=lambda function: function,
        remote=remote,
        wait=lambda references, timeout: (references, []),
        get=lambda reference: reference.result,
        exceptions=types.SimpleNamespace(RayTaskError=ArithmeticError, RayError=LookupError),
    )
    monkeypatch.setattr(ray_cluster.socket, "gethostname", lambda: "n7")
    pool = ray_cluster.RayPool(ray)
    pool.place["folder"] = str(tmp_path / "none")
    with pytest.raises(UserError) as error:
        list(pool.run(len, ["task"], lambda num_bytes, num_tokens: None))
    message = f"--ray_address: node n7 has no folder {tmp_path / 'none'}; all nodes must have "
    assert str(error.value).startswith(message)
