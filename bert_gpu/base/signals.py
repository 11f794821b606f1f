"""Handles SIGINT, SIGTERM and SIGHUP by three policies: the process ends at once
(`quiet_interrupts`, for imports); it unwinds (`answer_interrupts`, `sigterm_unwinds`); or the
signal is stored for a loop that saves and stops (`watch_signals`, `collect_signals`).

Python runs signal handlers only between calls into TensorFlow, which may be long, so a thread
counts the signals as they arrive and prints a line for the first; a second ends the process.
"""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 0.5  # seconds between a signal and its line, which a process that ends sooner skips
Handler = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def handled_signals(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Set signal handlers inside this context and restore the previous ones after it; do nothing
    outside the main thread. A handler that was not set by Python cannot be restored, so it stays.
    """
    previous = {}
    with contextlib.suppress(ValueError):  # raised outside the main thread
        previous = {
            number: signal.signal(number, call)
            for number, call in handlers.items()
            if signal.getsignal(number) is not None
        }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def quiet_interrupts() -> contextlib.AbstractContextManager[None]:
    """Return a context in which Ctrl-C ends the process at once, with exit code 130.

    It is for imports, which may turn a KeyboardInterrupt into other exceptions. Before them nothing
    has been written that would have to be cleaned up.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    end = {signal.SIGINT: lambda number, frame: os._exit(128 + number)}
    return handled_signals(end if is_default else {})


def sigterm_unwinds() -> contextlib.AbstractContextManager[None]:
    """Return a context in which SIGTERM ends the process by SystemExit, so that contexts clean up
    as for Ctrl-C. A handler that the program has set itself is kept.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    is_default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    return handled_signals({signal.SIGTERM: stop} if is_default else {})


@contextlib.contextmanager
def children_ignore_interrupts() -> Iterator[None]:
    """Start the child processes inside this context with SIGINT blocked, because a terminal sends
    Ctrl-C to them too, but only this process should handle it. A Ctrl-C during the start is handled
    when the context ends.
    """
    caught: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    # The mask below blocks SIGINT in this thread only. If another thread gets the signal, Python
    # runs the handler in the main thread, so this handler keeps the signal for later.
    delay = (
        {signal.SIGINT: lambda signum, frame: caught.append(signum)} if callable(handler) else {}
    )
    with handled_signals(delay):
        # child processes inherit this signal mask
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # The signal is not raised again, because the thread of `answer_signals` has counted it already.
    if caught and callable(handler):
        handler(signal.SIGINT, None)


@contextlib.contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Yield a list to which each SIGINT, SIGTERM and SIGHUP that arrives is appended; SIGHUP only
    if the process does not ignore it, as under nohup.

    Only the first SIGHUP counts: the kernel and the shell both send one when a terminal closes, and
    a second signal would end workers that are saving.
    """
    signals: list[int] = []
    numbers = [*SIGNALS, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)

    def collect(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGHUP or number not in signals:
            signals.append(number)

    with handled_signals(dict.fromkeys(numbers, collect)):
        yield signals


@contextlib.contextmanager
def watch_signals(
    warn: Callable[[str], None], patience: float = PATIENCE, interrupts: bool = False
) -> Iterator[list[int]]:
    """Yield a list to which the first SIGINT or SIGTERM is appended; a second one ends the process
    at once with exit code 128 + signum.

    Args:
      warn, patience: as in `answer_signals`.
      interrupts: whether a second SIGINT raises KeyboardInterrupt instead, for a program or a
        notebook, which must not end.
    """
    caught: list[int] = []

    def collect(signum: int, frame: FrameType | None) -> None:
        if interrupts and signum == signal.SIGINT and caught:
            raise KeyboardInterrupt
        caught.append(signum)

    handlers = dict.fromkeys(SIGNALS, collect)
    answer = "the run saves and stops after the current call; a second signal ends it unsaved"
    with answer_signals(handlers, answer, warn, patience, [signal.SIGINT] * interrupts):
        yield caught


def answer_interrupts(
    warn: Callable[[str], None], patience: float = PATIENCE
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which Ctrl-C raises KeyboardInterrupt as usual, but prints a line when it
    has to wait for a long call, and ends the process at once the second time.

    If a program handles or ignores Ctrl-C itself, its handler is kept. warn, patience: as in
    `answer_signals`.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    handlers = {signal.SIGINT: signal.default_int_handler} if is_default else {}
    answer = "ends after the current call; a second Ctrl-C ends it at once"
    return answer_signals(handlers, answer, warn, patience)


@contextlib.contextmanager
def answer_signals(
    handlers: Mapping[signal.Signals, Handler],
    answer: str,
    warn: Callable[[str], None],
    patience: float,
    harmless: Collection[int] = (),
) -> Iterator[None]:
    """Set signal handlers inside this context. If the context does not end soon after a signal, a
    line is printed; a second signal ends the process at once with exit code 128 + signum.

    Args:
      handlers: {signal: handler}. A signal whose handler is replaced meanwhile is not counted.
      answer: the line, which the signal's name precedes. warn: function that prints the line,
        called by a thread.
      patience: seconds between the signal and the line.
      harmless: signals that do not end the process when they come second.
    """
    previous_writer = None
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def count() -> None:
        num_signals = 0
        while byte := os.read(reader, 1):
            if (
                byte[0] in handlers
                and signal.getsignal(byte[0]) == handlers[signal.Signals(byte[0])]
            ):
                num_signals += 1
                if num_signals >= 2 and byte[0] not in harmless:
                    os._exit(128 + byte[0])
                if num_signals == 1 and not select.select([reader], [], [], patience)[0]:
                    warn(f"{signal.Signals(byte[0]).name}: {answer}")

    with contextlib.suppress(ValueError):  # raised outside the main thread
        previous_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=count, name="signals", daemon=True)
    thread.start()
    try:
        with handled_signals(handlers):
            yield
    finally:
        if previous_writer is not None:
            signal.set_wakeup_fd(previous_writer)
        os.close(writer)
        thread.join()
        os.close(reader)
