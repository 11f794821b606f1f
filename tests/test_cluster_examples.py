"""The files of examples/cluster are valid, and start workers that form a cluster and take the flags
that they are given. srun, ssh and python are stand-ins, which tell what they were called with.
"""

import os
import subprocess

import kubernetes_validate
import pytest
import yaml

from bert_gpu.__main__ import main as command
from bert_gpu.cli import pretrain
from bert_gpu.devices.cluster import find_cluster
from tests.test_architecture import ROOT

FOLDER = ROOT / "examples" / "cluster"
MANIFEST = FOLDER / "kubernetes.yaml"
KUBERNETES = "1.31"
# A process tells its arguments and what makes it a worker.
PYTHON = """#!/bin/bash
printf '%s\\n' "TF_CONFIG=$TF_CONFIG" "$@" | sed "s/^/$SLURM_PROCID /" >> "$TOLD"
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@"; done
"""
SSH = """#!/bin/bash
SLURM_PROCID=$1 bash -c "$2"
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Function of arguments of bash -> {who: (TF_CONFIG, arguments)} of the calls of python."""
    for name, text in (("python", PYTHON), ("srun", SRUN), ("ssh", SSH)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)

    def run(*words, **environ):
        calls = tmp_path / "told"
        environ |= dict(TOLD=str(calls), PATH=f"{tmp_path}:{os.environ['PATH']}")
        subprocess.run(["bash", *words], env={"SLURM_PROCID": "0", **environ}, check=True)
        found = {}
        for line in calls.read_text().splitlines():
            who, text = line.split(" ", 1)
            found.setdefault(who, []).append(text)
        return {
            who: (lines[0].removeprefix("TF_CONFIG="), lines[1:]) for who, lines in found.items()
        }

    return run


@pytest.fixture
def check_flags(monkeypatch):
    """Function of the arguments of python: it would pretrain, and takes the flags."""
    parsed = []

    def check_phase(flags, *_):
        parsed.append(flags)
        raise SystemExit(0)

    monkeypatch.setattr(pretrain, "check_phase", check_phase)

    def check(arguments):
        script, *flags = arguments
        if script == "-m":
            script, *flags = flags[1:]
        assert script in ("pretrain", "run_pretraining_gpu.py")
        with pytest.raises(SystemExit):
            command(["bert-gpu", "pretrain", *flags])
        assert parsed.pop().is_set("output_dir")

    return check


@pytest.mark.parametrize("name", ["slurm.sh", "ssh.sh"])
def test_the_scripts_are_bash(name):
    subprocess.run(["bash", "-n", FOLDER / name], check=True)


def test_the_job_of_slurm_starts_a_task_a_node(told, check_flags):
    text = (FOLDER / "slurm.sh").read_text()
    assert "#SBATCH --nodes=2\n" in text and "#SBATCH --ntasks-per-node=1\n" in text
    calls = told(FOLDER / "slurm.sh")
    assert calls.keys() == {"0", "1"}
    for _, arguments in calls.values():
        check_flags(arguments)


def test_ssh_starts_a_worker_on_each_host(told, check_flags):
    calls = told(FOLDER / "ssh.sh", "alpha", "beta")
    for index, host in enumerate(("alpha", "beta")):
        tf_config, arguments = calls[host]
        cluster = find_cluster(dict(TF_CONFIG=tf_config))
        assert cluster.addresses == ("alpha:15000", "beta:15000") and cluster.index == index
        check_flags(arguments)


def test_the_manifest_is_valid():
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    assert [document["kind"] for document in documents] == ["Service", "Job"]
    for document in documents:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_pods_form_a_cluster(told, check_flags):
    service, job = yaml.safe_load_all(MANIFEST.read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    assert int(given["NUM_WORKERS"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    calls = told(*container["command"][1:], JOB_COMPLETION_INDEX="1", **given)
    tf_config, arguments = calls["0"]
    port = container["ports"][0]["containerPort"]
    cluster = find_cluster(dict(TF_CONFIG=tf_config))
    assert cluster.addresses == (f"bert-0.bert:{port}", f"bert-1.bert:{port}")
    assert cluster.index == 1
    check_flags(arguments)
