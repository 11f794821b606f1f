"""What SIGINT, SIGTERM and SIGHUP do, in three policies: the process ends at once
(`quiet_interrupts`, for imports); it unwinds (`answer_interrupts`, `sigterm_unwinds`); or the
signal is kept for a loop that saves and stops (`watch_signals`, `collect_signals`).

Python runs signal handlers only between calls into TensorFlow, which may be long, so a thread
counts the signals as they arrive, and answers the first by a line; a second ends the process.
"""

import contextlib
import os
import select
import signal
import threading

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 0.5  # seconds in which a process may end without the line


@contextlib.contextmanager
def handled_signals(handlers):
    """Sets signal handlers, {signum: handler}, inside; in threads other than the main nothing."""
    previous = {}
    with contextlib.suppress(ValueError):  # not in the main thread
        previous = {number: signal.signal(number, call) for number, call in handlers.items()}
    try:
        yield
    finally:
        for number, call in previous.items():
            signal.signal(number, call)


def reraise(signum):
    """Raises a signal that a run has caught again, after the run has saved: SIGINT becomes a
    KeyboardInterrupt.
    """
    if signum is not None:
        signal.raise_signal(signum)


def quiet_interrupts():
    """A context in which Ctrl-C ends the process at once, with exit code 130: for imports, which
    would turn it into other exceptions, and before which nothing is written.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    end = {signal.SIGINT: lambda number, frame: os._exit(128 + number)}
    return handled_signals(end if is_default else {})


def sigterm_unwinds():
    """A context in which SIGTERM ends the process by SystemExit, so that contexts clean up as for
    Ctrl-C. A program that handles the signal itself goes on to do so.
    """

    def stop(number, frame):
        raise SystemExit(128 + number)

    is_default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    return handled_signals({signal.SIGTERM: stop} if is_default else {})


@contextlib.contextmanager
def children_ignore_interrupts():
    """Processes started inside do not get Ctrl-C, which the terminal sends to them too: it is
    their parent's to handle, once they are started.
    """
    caught, handler = [], signal.getsignal(signal.SIGINT)
    # any thread of this process may get the signal, and Python then interrupts the main one
    keep = {signal.SIGINT: lambda signum, frame: caught.append(signum)} if callable(handler) else {}
    with handled_signals(keep):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which children inherit
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if caught:  # called, not raised again: who counts signals has seen it
        handler(signal.SIGINT, None)


@contextlib.contextmanager
def collect_signals():
    """Yields a list that receives SIGINT, SIGTERM and SIGHUP; SIGHUP not where it is ignored, as
    under nohup. Of SIGHUP only the first counts: the end of a terminal is told by the kernel and
    again by the shell, and a second signal would end workers that are saving.
    """
    taken, numbers = [], [*SIGNALS, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)

    def take(number, frame):
        if number != signal.SIGHUP or number not in taken:
            taken.append(number)

    with handled_signals(dict.fromkeys(numbers, take)):
        yield taken


@contextlib.contextmanager
def watch_signals(warn, patience=PATIENCE, interrupts=False):
    """Yields a list that receives the first SIGINT or SIGTERM; a second one ends the process at
    once with exit code 128 + signum. warn, patience: as for `answer_signals`.

    interrupts: for a program or a notebook, which lives on: a second SIGINT is a KeyboardInterrupt.
    """
    caught = []

    def keep(signum, frame):
        if interrupts and signum == signal.SIGINT and caught:
            raise KeyboardInterrupt
        caught.append(signum)

    handlers = dict.fromkeys(SIGNALS, keep)
    answer = "the run saves and stops after the current call; a second signal ends it unsaved"
    with answer_signals(handlers, answer, warn, patience, [signal.SIGINT] * interrupts):
        yield caught


def answer_interrupts(warn, patience=PATIENCE):
    """A context in which Ctrl-C is a KeyboardInterrupt as ever, but one that has to wait for a long
    call is answered, and a second one ends the process at once. A program that handles or ignores
    Ctrl-C itself goes on to do so. warn, patience: as for `answer_signals`.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    handlers = {signal.SIGINT: signal.default_int_handler} if is_default else {}
    answer = "ends after the current call; a second Ctrl-C ends it at once"
    return answer_signals(handlers, answer, warn, patience)


@contextlib.contextmanager
def answer_signals(handlers, answer, warn, patience, harmless=()):
    """Sets signal handlers. A signal whose effect has to wait gets a line; a second one ends the
    process at once with exit code 128 + signum.

    Args:
      handlers: {signum: function of Python's `signal`}. While another one is set in its place, its
        signal is not answered here.
      answer: the line, behind the signal's name. warn: function of the line; a thread calls it.
      patience: seconds after which the line is written, unless the context has ended by then.
      harmless: signals that do not end the process.
    """
    previous_writer = None
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def count():
        seen = 0
        while byte := os.read(reader, 1):
            if byte[0] in handlers and signal.getsignal(byte[0]) == handlers[byte[0]]:
                seen += 1
                if seen >= 2 and byte[0] not in harmless:
                    os._exit(128 + byte[0])
                if seen == 1 and not select.select([reader], [], [], patience)[0]:
                    warn(f"{signal.Signals(byte[0]).name}: {answer}")

    with contextlib.suppress(ValueError):  # not in the main thread: nothing to watch
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
