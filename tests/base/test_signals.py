"""Ctrl-C and SIGTERM: the line that answers the first, the end at the second, and that a run which
they stop anywhere ends, when it is resumed, as one that nobody stopped.
"""

import os
import signal
import sys
import tempfile
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.base import signals
from tests.train.world import World

NUM_BATCHES = 3  # of a validation
LONGEST = 60  # seconds, only where a test fails


@pytest.fixture
def default_interrupts():
    """As in a terminal; pytest-xdist ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def call(lock):
    assert lock.acquire(timeout=LONGEST)


def call_until(is_over, signum):
    """A call in the main thread that a signal does not interrupt, as one of TensorFlow: it ends
    when the lock is released. The signal reaches another thread when the call has begun.
    """
    main = threading.get_ident()
    line = call.__code__.co_firstlineno + 1  # no handler runs in it before the call ends

    def send():
        while (frame := sys._current_frames()[main]).f_code is not call.__code__ or (
            frame.f_lineno != line
        ):
            time.sleep(0.001)
        signal.pthread_kill(threading.get_ident(), signum)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    call(is_over)
    sender.join()


@pytest.fixture
def is_over():
    """A lock that is held."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@pytest.mark.parametrize("signum", signals.SIGNALS)
def test_a_signal_gets_a_line_while_a_call_still_runs(signum, is_over):
    """The call ends with the line."""
    lines = []
    with signals.watch_signals(lambda text: (lines.append(text), is_over.release()), 0) as caught:
        call_until(is_over, signum)
    answer = "the run saves and stops after the current call; a second signal ends it unsaved"
    assert (lines, caught) == ([f"{signal.Signals(signum).name}: {answer}"], [signum])


def test_an_interrupt_gets_a_line_while_a_call_still_runs(default_interrupts, is_over):
    lines = []
    with pytest.raises(KeyboardInterrupt):
        with signals.answer_interrupts(lambda text: (lines.append(text), is_over.release()), 0):
            call_until(is_over, signal.SIGINT)
    assert lines == ["SIGINT: ends after the current call; a second Ctrl-C ends it at once"]


def test_an_interrupt_that_ends_the_work_at_once_needs_no_line(default_interrupts):
    lines = []
    with pytest.raises(KeyboardInterrupt):
        with signals.answer_interrupts(lines.append, LONGEST):
            signal.raise_signal(signal.SIGINT)
    assert lines == []


@pytest.mark.parametrize("signum", signals.SIGNALS)
def test_a_second_signal_ends_the_process_in_a_call(signum, is_over, monkeypatch):
    codes = []
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), is_over.release()))
    with signals.watch_signals(lambda text: None, patience=LONGEST):
        signal.raise_signal(signum)
        call_until(is_over, signum)
    assert codes == [128 + signum]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda signum, frame: None])
def test_who_handles_interrupts_itself_goes_on_to_do_so(handler, default_interrupts):
    lines = []
    signal.signal(signal.SIGINT, handler)
    with signals.answer_interrupts(lines.append, 0):
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
    assert lines == [] and signal.getsignal(signal.SIGINT) is handler


class Interrupted(World):
    """A World with a validation of several batches, which a signal reaches during one of its
    events: calls of steps and batches of validations. events: their names; after: those that
    happened after the signal; signal_at: the index of its event, None for no signal.
    """

    def __init__(self, folder, losses, signal_at, **settings):
        super().__init__(folder, eval_losses=losses, **settings)
        self.events, self.signal_at = [], signal_at
        judge, step = self.validate, self.step

        def event(name, act):
            if len(self.events) == self.signal_at:
                self.caught.append(signal.SIGINT)
            self.events.append(name)
            return act()

        def validate(until_stopped=iter):
            for _ in until_stopped(iter(range(NUM_BATCHES))):
                event("batch", lambda: None)
            return judge(until_stopped)

        self.validate = validate
        self.step = lambda *given: event("call", lambda: step(*given))

    @property
    def after(self):
        return self.events[self.signal_at + 1 :] if self.caught else []

    def session(self):
        """Runs from the newest checkpoint to the end or the signal; returns whether all is done."""
        if self.saved:
            self.progress, values = self.folder.newest_whole(print)
            self.assign(values)
        running = self.run()
        return running.is_complete()


def outcome(sessions):
    """What a run has come to in several sessions."""
    lines = [
        (line["step"], line["eval_loss"])
        for world in sessions
        # a run without a checkpoint starts anew, and so does its log
        for line in (world.log.lines if world.saved_then else [])
        if "eval_loss" in line
    ]
    last = sessions[-1]
    kept = ("step", "records", "best_step", "best_metric", "num_worse")
    exports = [mark for world in sessions for mark, _ in world.exports if world.saved_then]
    return (
        lines,
        [getattr(last.progress, name) for name in kept],
        last.folder.best_step(),
        last.saved[-1:],
        last.weight,
        exports,
    )


def run_sessions(folder, losses, signals_at, **settings):
    """The worlds of a run that is resumed until it is done; a signal reaches each of the first
    sessions.
    """
    sessions = []
    for signal_at in [*signals_at, None]:
        world = Interrupted(folder, losses, signal_at, **settings)
        is_done = world.session()
        world.saved_then = list(world.saved)
        sessions.append(world)
        if is_done:
            break
    assert is_done
    return sessions


@settings(max_examples=15)
@given(
    losses=st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=20, max_size=20),
    signals_at=st.lists(st.integers(0, 16), min_size=1, max_size=2),
    num_train_steps=st.integers(1, 8),
    steps_per_loop=st.integers(1, 4),
    eval_steps=st.integers(1, 6),
    save_checkpoints_steps=st.integers(2, 9),
    early_stop_patience=st.sampled_from([None, 2]),
)
def test_a_run_that_is_stopped_anywhere_ends_as_one_that_was_not(losses, signals_at, **options):
    """Each validation is recorded once and whole, and nothing runs on after a signal."""
    options |= dict(keep_checkpoint_max=99, finetune_time_markers=("0.5",))
    if options["early_stop_patience"] is None:
        del options["early_stop_patience"]
    with tempfile.TemporaryDirectory() as top:
        plain = run_sessions(f"{top}/plain", losses.__getitem__, [], **options)
        stopped = run_sessions(f"{top}/stopped", losses.__getitem__, signals_at, **options)
        assert outcome(stopped) == outcome(plain)
        assert [world.after for world in stopped] == [[]] * len(stopped)
