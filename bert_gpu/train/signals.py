"""SIGINT and SIGTERM: the first asks a run to end well, the second ends the process at once."""

import contextlib
import os
import signal
import threading

NUMBERS = (signal.SIGINT, signal.SIGTERM)


def pass_on(number):
    """Sends this process a signal that a run has caught, now that the run has ended well: SIGINT is
    a KeyboardInterrupt again.
    """
    if number is not None:
        signal.raise_signal(number)


@contextlib.contextmanager
def watch_signals():
    """Gives a list that gets the number of the first SIGINT or SIGTERM; a second one ends the
    process at once, with 128 + its number.

    Python runs its handlers between two calls into TensorFlow, and a call may be long. So a thread
    counts the signals as they come.
    """
    caught, previous = [], {}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def count():
        seen = 0
        while byte := os.read(reader, 1):
            seen += byte[0] in NUMBERS
            if seen == 2:
                os._exit(128 + byte[0])

    with contextlib.suppress(ValueError):  # not in the main thread: nothing to watch
        previous = {
            number: signal.signal(number, lambda number, frame: caught.append(number))
            for number in NUMBERS
        }
        previous_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=count, name="signals", daemon=True)
    thread.start()
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if previous:
            signal.set_wakeup_fd(previous_writer)
        os.close(writer)
        thread.join()
        os.close(reader)
