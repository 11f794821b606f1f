"""TF_CONFIG and Slurm's variables name the workers; what cannot train says so."""

import json

import pytest

from bert_gpu.cluster import Cluster, find_cluster
from bert_gpu.settings import UserError

TWO = ("a:1", "b:2")


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


def test_slurm_counts_nodes_in_its_own_order():
    assert find_cluster(slurm()) == Cluster(("node9:15007", "node9:15008", "node10:15007"), 2)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        dict(TF_CONFIG=""),
        dict(TF_CONFIG="{}"),
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
        (tf_config(dict(worker=TWO), "evaluator"), "evaluators take no part"),
        (tf_config(dict(worker=TWO), index=2), "its task, worker 2, is none"),
        (tf_config(dict(worker=["a:1", "a:1"])), "same address"),
        (tf_config(dict(worker=["a", "b"])), "host:port"),
        (dict(SLURM_STEP_NUM_TASKS="2"), "SLURM_STEP_NODELIST is missing"),
        (slurm(SLURM_STEP_TASKS_PER_NODE="2"), "give 2 tasks"),
        (slurm(SLURM_STEP_TASKS_PER_NODE="two"), "cannot be read"),
    ],
)
def test_what_cannot_train_is_refused_in_one_line(environ, told):
    with pytest.raises(UserError, match=told) as raised:
        find_cluster(environ)
    assert len(str(raised.value)) <= 300


@pytest.mark.parametrize("total", [0, 1, 7, 8])
def test_shares_are_all_items_once_and_in_order(total):
    shares = [Cluster(("a:1", "b:2", "c:3"), index).share(total) for index in range(3)]
    assert [item for share in shares for item in share] == list(range(total))


def test_parts_of_a_file_are_named_as_shards():
    assert Cluster(TWO, 1).part_of("out/lines.npy") == "out/lines-00001-of-00002.npy"
