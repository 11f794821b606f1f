"""Whoever runs tasks, a Pool gives each result once, reports all that was done, and raises what a
task raises. Processes are tried in test_counting.py, a cluster in tests/data/test_ray_job.py.
"""

import functools

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.text import parallel
from bert_gpu.text.parallel import InThisProcess, Processes, Threads, Workers


def double(task, report):
    report(task, 1)
    report(0, 1)
    if task == 5:
        raise UserError("five")
    return 2 * task


@pytest.mark.parametrize("pool", [InThisProcess(), Threads(3)], ids=["here", "threads"])
def test_a_pool_runs_each_task_once(pool):
    total = [0, 0]

    def report(num_bytes, num_tokens):
        total[0] += num_bytes
        total[1] += num_tokens

    run = functools.partial(pool.run, double, report=report)
    assert sorted(run(tasks=[1, 2, 3, 4])) == [2, 4, 6, 8] and total == [10, 8]
    assert list(run(tasks=[])) == []
    with pytest.raises(UserError, match="five"):
        list(run(tasks=[4, 5]))


def test_little_work_starts_no_process(monkeypatch):
    monkeypatch.setattr(parallel.os, "cpu_count", lambda: 8)
    assert isinstance(Workers().make_pool(9, True, Threads), Threads)
    assert isinstance(Workers(1).make_pool(9, False, Threads), InThisProcess)
    assert Workers(4).make_pool(2, False, Threads).num_workers == 2
    found = Workers().make_pool(9, False, Threads)
    assert isinstance(found, Processes) and found.num_workers == 8
    cluster = InThisProcess()
    assert Workers(4, cluster).make_pool(9, False, Threads) is cluster


def test_groups_hold_every_block_once():
    class Block:
        num_bytes = 7

    class Cluster:
        num_workers = 2

        def run(self, function, tasks, report):
            assert len(tasks) == self.num_workers * parallel.GROUPS_PER_WORKER
            return InThisProcess().run(function, tasks, report)

    blocks, done = [Block() for _ in range(50)], []
    found = parallel.map_blocks(
        list, blocks, Workers(cluster=Cluster()), lambda num_bytes, _: done.append(num_bytes)
    )
    assert {block for group in found for block in group} == set(blocks)
    assert sum(done) == 350
