"""SIGINT and SIGTERM: the first asks a run to save and stop, the second ends the process."""

import contextlib
import os
import signal
import threading

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def pass_on(signum):
    """Raises a signal that a run has caught again, after the run has saved: SIGINT becomes a
    KeyboardInterrupt.
    """
    if signum is not None:
        signal.raise_signal(signum)


@contextlib.contextmanager
def watch_signals():
    """Yields a list that receives the first SIGINT or SIGTERM; a second one ends the process at
    once with exit code 128 + signum.

    Python runs signal handlers only between calls into TensorFlow, which may be long, so a thread
    counts the signals as they arrive.
    """
    caught, previous = [], {}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def count():
        seen = 0
        while byte := os.read(reader, 1):
            seen += byte[0] in SIGNALS
            if seen == 2:
                os._exit(128 + byte[0])

    with contextlib.suppress(ValueError):  # not in the main thread: nothing to watch
        previous = {
            signum: signal.signal(signum, lambda signum, frame: caught.append(signum))
            for signum in SIGNALS
        }
        previous_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=count, name="signals", daemon=True)
    thread.start()
    try:
        yield caught
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        if previous:
            signal.set_wakeup_fd(previous_writer)
        os.close(writer)
        thread.join()
        os.close(reader)
