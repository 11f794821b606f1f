"""The loops of two workers, whose clocks, signals and disks differ, make the same calls of steps
and end alike. Both run in this process, in threads that meet where workers exchange something.
"""

import concurrent.futures
import errno
import math
import threading

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.data.mixture import Mixture
from bert_gpu.devices import workers
from bert_gpu.devices.cluster import Cluster
from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.runs import folder as run_folder
from bert_gpu.runs.checkpoint_writer import SaveFailed
from bert_gpu.runs.shared_folder import SharedFolder
from bert_gpu.train.divergence import Diverged
from tests.train.world import World

CLUSTER = ("a:1", "b:2")


class Threads:
    """What threads exchange: everybody's values, when all have come."""

    def __init__(self, number):
        self.values, self.barrier = [None] * number, threading.Barrier(number, timeout=60)

    def exchange(self, index, value):
        self.values[index] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found


class ThreadWorkers(workers.Workers):
    def __init__(self, index, threads):
        super().__init__(Cluster(CLUSTER, index), 60.0)
        self.threads = threads

    def gather(self, value):
        return self.threads.exchange(self.index, value)

    def maximum(self, values):
        return [max(column) for column in zip(*self.gather(values), strict=True)]

    def _broadcast(self, value):
        return self.gather(value)[0]


class Worker(World):
    """A World of which each worker has its own pace: `seconds` for a step."""

    def __init__(self, folder, index, threads, seconds, **options):
        super().__init__(folder, **options)
        self.seconds, together = seconds, ThreadWorkers(index, threads)
        self.workers = together
        self.folder = SharedFolder(self.folder, together)

    def step(self, batches, learning_rates, step):
        before = self.now
        result = super().step(batches, learning_rates, step)
        self.now = before + self.seconds * len(batches)
        return result


def run_two(
    folder,
    prepare=lambda first, second: None,
    seconds=(10.0, 35.0),
    is_alone=False,
    **options,
):
    """Two Workers that have run, and what each of them has raised, or None. is_alone: whether what
    one raises ends the wait of the other, as that of a process that has ended.
    """
    threads = Threads(2)
    pair = [Worker(folder, i, threads, seconds[i], **options) for i in range(2)]
    prepare(*pair)

    def run(worker):
        try:
            worker.run()
        except Exception as error:
            if is_alone:
                threads.barrier.abort()
            return error
        return None

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(run, pair))
    return pair, errors


def check_lockstep(pair):
    first, second = pair
    assert first.calls == second.calls
    assert first.weight == second.weight
    kept = ("step", "records", "num_rollbacks", "best_step", "seconds")
    states = [{name: getattr(worker.progress, name) for name in kept} for worker in pair]
    assert states[0] == states[1]


TIME = ScheduleConfig(lr_schedule="time", total_training_time=200 / 3600)
RAMP = ScheduleConfig(lr_schedule="time", total_training_time=400 / 3600, batch_ramp_proportion=0.6)


@pytest.mark.parametrize(
    "options",
    [
        dict(schedule=TIME, save_checkpoints_steps=7),
        dict(schedule=RAMP, micro=(2, 4)),
        dict(
            schedule=TIME,
            eval_losses=lambda step: 9.0 if step else 10.0,
            eval_steps=2,
            early_stop_time=1.0,
        ),
    ],
    ids=["a budget", "a ramp by time", "an early stop"],
)
def test_the_clock_of_worker_0_decides(tmp_path, options):
    pair, errors = run_two(tmp_path, **options)
    check_lockstep(pair)
    assert [type(error) for error in errors] in ([type(None)] * 2, [type(errors[0])] * 2)
    assert len(pair[0].calls) > 5
    if "schedule" in options and errors == [None, None]:
        assert pair[0].now >= 3600 * options["schedule"].total_training_time
        assert pair[1].now > pair[0].now  # its own clock would have ended it before


def test_the_weights_of_data_sets_change_at_the_same_record(tmp_path):
    def prepare(*pair):
        for worker in pair:
            worker.mixture = Mixture([], change_share=0.5)

    pair, errors = run_two(tmp_path, prepare, schedule=TIME)
    assert errors == [None, None]
    check_lockstep(pair)
    assert pair[0].mixture.changed == pair[1].mixture.changed == 20


@pytest.mark.parametrize("index", [0, 1])
def test_a_signal_of_one_stops_both_after_a_save(tmp_path, index):
    def prepare(*pair):
        worker = pair[index]
        step = worker.step

        def signalled(batches, learning_rates, first):
            if first == 5:
                worker.caught.append(15)
            return step(batches, learning_rates, first)

        worker.step = signalled

    pair, errors = run_two(tmp_path, prepare, num_train_steps=100, save_checkpoints_steps=50)
    check_lockstep(pair)
    assert errors == [None, None] and [worker.progress.step for worker in pair] == [6, 6]
    assert pair[0].folder.own.steps() == [6]


@pytest.mark.parametrize("index", [0, 1])
def test_a_signal_of_one_ends_the_validation_of_both(tmp_path, index):
    """After the same batch; what is saved says that it was not validated."""
    batches = [[], []]

    def prepare(*pair):
        for number, worker in enumerate(pair):

            def validate(until_stopped, number=number, worker=worker):
                for batch in until_stopped(iter(range(3))):
                    batches[number].append((worker.progress.step, batch))
                    if (number, worker.progress.step, batch) == (index, 4, 1):
                        worker.caught.append(15)
                return dict(loss=1.0)

            worker.validate = validate

    pair, errors = run_two(tmp_path, prepare, num_train_steps=100, eval_steps=4)
    check_lockstep(pair)
    assert errors == [None, None] and [worker.progress.step for worker in pair] == [4, 4]
    assert batches == [[(0, 0), (0, 1), (0, 2), (4, 0), (4, 1)]] * 2
    assert [line["step"] for line in pair[0].log.lines if "eval_loss" in line] == [0]
    assert pair[0].folder.own.progress_of(4).validation_failed


def test_both_go_back_together(tmp_path):
    """Records 12 and 13, and with them the seventh step, are bad, once."""
    pair, errors = run_two(
        tmp_path,
        losses=lambda step, first: math.nan if first == 12 else 2.0,
        num_train_steps=10,
        save_checkpoints_steps=2,
        log_steps=1,
        max_bad_steps=1,
        on_divergence="rollback",
    )
    assert errors == [None, None]
    check_lockstep(pair)
    assert pair[0].progress.num_rollbacks == 1 and pair[0].progress.step == 10
    assert pair[0].folder.own.steps() == [2, 4, 6, 8, 10]


def test_both_diverge_alike(tmp_path):
    pair, errors = run_two(
        tmp_path, losses=lambda step, first: math.nan, num_train_steps=10, log_steps=1
    )
    assert [type(error) for error in errors] == [Diverged] * 2


@pytest.mark.parametrize("broken", [[0, 1], [0]], ids=["all", "worker 0"])
def test_a_corrupt_record_costs_no_finished_steps(tmp_path, broken):
    """What one worker alone cannot read ends it without waiting for the other."""

    def prepare(*pair):
        for index in broken:
            worker = pair[index]

            def open_batches(read=worker.open_batches, **given):
                for number, batch in enumerate(read(**given)):
                    if number == 5:
                        raise UserError("record 10: is corrupt")
                    yield batch

            worker.open_batches = open_batches

    pair, errors = run_two(
        tmp_path,
        prepare,
        is_alone=len(broken) == 1,
        num_train_steps=100,
        save_checkpoints_steps=50,
        log_steps=50,
    )
    second = UserError if 1 in broken else threading.BrokenBarrierError
    assert [type(error) for error in errors] == [UserError, second]
    assert pair[0].folder.own.steps() == [5]


def test_a_save_that_fails_on_worker_0_fails_on_both(tmp_path, monkeypatch):
    def full(values, path):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(run_folder, "save_file", full)
    options = dict(num_train_steps=10, save_checkpoints_steps=2)
    pair, errors = run_two(tmp_path, **options)
    check_lockstep(pair)
    assert [type(error) for error in errors] == [SaveFailed] * 2
