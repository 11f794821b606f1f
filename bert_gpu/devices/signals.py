"""SIGINT and SIGTERM: the first asks a run to save and stop, the second ends the process.

Python runs signal handlers only between calls into TensorFlow, which may be long, so a thread
counts the signals as they arrive, and answers the first by a line.
"""

import contextlib
import os
import select
import signal
import threading

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 0.5  # seconds in which a process may end without the line


def reraise(signum):
    """Raises a signal that a run has caught again, after the run has saved: SIGINT becomes a
    KeyboardInterrupt.
    """
    if signum is not None:
        signal.raise_signal(signum)


@contextlib.contextmanager
def watch_signals(warn, patience=PATIENCE):
    """Yields a list that receives the first SIGINT or SIGTERM; a second one ends the process at
    once with exit code 128 + signum. warn, patience: as for `answer_signals`.
    """
    caught = []
    handlers = dict.fromkeys(SIGNALS, lambda signum, frame: caught.append(signum))
    answer = "the run saves and stops after the current call; a second signal ends it unsaved"
    with answer_signals(handlers, answer, warn, patience):
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
def answer_signals(handlers, answer, warn, patience):
    """Sets signal handlers. A signal whose effect has to wait gets a line; a second one ends the
    process at once with exit code 128 + signum.

    Args:
      handlers: {signum: function of Python's `signal`}. While another one is set in its place, its
        signal is not answered here.
      answer: the line, behind the signal's name. warn: function of the line; a thread calls it.
      patience: seconds after which the line is written, unless the context has ended by then.
    """
    previous, previous_writer = {}, None
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def count():
        seen = 0
        while byte := os.read(reader, 1):
            if byte[0] in handlers and signal.getsignal(byte[0]) == handlers[byte[0]]:
                seen += 1
                if seen == 2:
                    os._exit(128 + byte[0])
                if not select.select([reader], [], [], patience)[0]:
                    warn(f"{signal.Signals(byte[0]).name}: {answer}")

    with contextlib.suppress(ValueError):  # not in the main thread: nothing to watch
        previous_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        previous = {number: signal.signal(number, call) for number, call in handlers.items()}
    thread = threading.Thread(target=count, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        if previous_writer is not None:
            signal.set_wakeup_fd(previous_writer)
        os.close(writer)
        thread.join()
        os.close(reader)
