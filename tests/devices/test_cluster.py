"""TF_CONFIG and Slurm's variables name the workers; what cannot train says so."""

import json
import socket

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.devices.cluster import Cluster, find_cluster

TWO = ("a:1", "b:2")
TASK = '"task": {"type": "worker", "index": 0}'


def tf_config(cluster, kind="worker", index=0):
    return dict(TF_CONFIG=json.dumps(dict(cluster=cluster, task=dict(type=kind, index=index))))


def slurm(**variables):
    return {
        f"SLURM_{name}": value
        for name, value in dict(
            STEP_NUM_TASKS="3",
            STEP_NODELIST="node[9-10]",
            STEP_TASKS_PER_NODE="2,1",
            JOB_ID="20007",
            PROCID="2",
        ).items()
    } | variables


def test_tf_config_names_the_workers():
    assert find_cluster(tf_config(dict(worker=TWO), index=1)) == Cluster(TWO, 1)
    chief = dict(chief=["c:3"], worker=TWO)
    assert find_cluster(tf_config(chief, "worker", 0)) == Cluster(("c:3", *TWO), 1)
    assert find_cluster(tf_config(chief, "chief", 0)).index == 0
    assert find_cluster(tf_config(dict(worker=TWO, evaluator=["e:1"]))) == Cluster(TWO, 0)
    assert find_cluster(tf_config(dict(worker=TWO), index="1")) == Cluster(TWO, 1)
    six = ("[fe80::1%eth0]:1", "node-1.x_y:65535")
    assert find_cluster(tf_config(dict(worker=six))) == Cluster(six, 0)


def test_slurm_counts_nodes_in_its_own_order():
    assert find_cluster(slurm()) == Cluster(("node9:15007", "node9:15008", "node10:15007"), 2)
    assert find_cluster(slurm()).variable == "SLURM_STEP_NUM_TASKS"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        dict(TF_CONFIG=""),
        dict(TF_CONFIG="{}"),
        dict(TF_CONFIG='{"environment": "cloud", "cluster": {}, "task": {}}'),
        tf_config(dict(worker=["a:1"])),
        dict(SLURM_STEP_NUM_TASKS="1"),
    ],
)
def test_a_single_task_is_no_cluster(environ):
    assert find_cluster(environ) is None


@pytest.mark.parametrize(
    "environ, told",
    [
        (dict(TF_CONFIG="garbage"), "TF_CONFIG=garbage: cannot be read"),
        (dict(TF_CONFIG="[]"), "cannot be read"),
        (tf_config(5), "cannot be read"),
        (tf_config(dict(worker=TWO, ps=["p:1"])), "parameter servers"),
        (tf_config(dict(worker=TWO), "evaluator"), "evaluators are not supported"),
        (tf_config(dict(worker=TWO), index=2), "its task, worker 2, is not in the cluster"),
        (tf_config(dict(worker=["a:1", "a:1"])), "same address"),
        (tf_config(dict(worker=["a", "b"])), "'a' must be host:port"),
        (tf_config(dict(worker=["a:1", "b:x"])), "'b:x' must be host:port"),
        (tf_config(dict(worker=["a:1", "b:99999"])), "'b:99999' must be host:port with a port"),
        (tf_config(dict(worker=["a:0", "b:1"])), "'a:0' must be host:port"),
        (tf_config(dict(worker=["a:1", ":39002"])), "':39002' must be host:port"),
        (tf_config(dict(worker=["a:1", "::1:2"])), "'::1:2' must be host:port"),
        (tf_config(dict(worker=["a:1", 7])), "'7' must be host:port"),
        (tf_config(dict(worker="a:1")), "'a' must be host:port"),
        (tf_config(dict(workers=TWO)), "job 'workers' is not known"),
        (tf_config(dict(worker=TWO), "Worker"), "job 'Worker' is not known"),
        (tf_config(dict(worker=TWO), ["worker"]), "is not known"),
        (tf_config({}), "has a task, but no"),
        (dict(TF_CONFIG=f'{{"clusters": {{}}, {TASK}}}'), "has a task, but no"),
        (dict(TF_CONFIG=f"{{{TASK}}}".replace("0", "1e999")), "index, inf, must be an integer"),
        (tf_config(dict(worker=TWO), index=0.7), "index, 0.7, must be an integer"),
        (tf_config(dict(worker=TWO), index=True), "index, True, must be an integer"),
        (tf_config(dict(worker=TWO), index=-1), "its task, worker -1, is not in the cluster"),
        (tf_config(dict(worker=TWO), index=10**60), "is not in the cluster"),
        (dict(TF_CONFIG="[" * 5000), "cannot be read"),
        (dict(TF_CONFIG=f"{{{TASK}}}".replace("0", "1" * 5000)), "cannot be read"),
        (slurm(SLURM_PROCID="-1"), "SLURM_PROCID=-1: must be from 0 to 2"),
        (slurm(SLURM_PROCID="3"), "SLURM_PROCID=3: must be from 0 to 2"),
        (dict(SLURM_STEP_NUM_TASKS="2"), "SLURM_STEP_NODELIST is missing"),
        (slurm(SLURM_STEP_TASKS_PER_NODE="2"), "give 2 tasks"),
        (slurm(SLURM_STEP_TASKS_PER_NODE="two"), "cannot be read"),
    ],
)
def test_what_cannot_train_is_refused_in_one_line(environ, told):
    with pytest.raises(UserError, match=told) as raised:
        find_cluster(environ)
    assert len(str(raised.value)) <= 300
    assert environ.get("TF_CONFIG", "")[:40] in str(raised.value)


def test_the_first_worker_that_cannot_be_reached_is_named():
    with (
        socket.create_server(("127.0.0.1", 0)) as there,
        socket.create_server(("127.0.0.1", 0)) as gone,
    ):
        own, answers, silent = (
            "127.0.0.1:1",
            *(f"127.0.0.1:{server.getsockname()[1]}" for server in (there, gone)),
        )
        assert Cluster((own, answers, silent), 0).first_unreachable() is None
        gone.close()
        found = Cluster((own, answers, silent), 0).first_unreachable()
        assert found == (2, "nothing answers there (Connection refused)")
        too_long_for_any = f"{'a' * 70}.invalid:1"
        index, reason = Cluster((own, too_long_for_any, silent), 0).first_unreachable()
        assert index == 1 and "host name does not resolve" in reason
