"""Runs two commands as processes of which one at a time goes on, to its next pause point.

`python -m tests.faults.paused JSON`, with {"commands": [[...], [...]], "points": [["module",
"Class.function"], ...], "schedule": "ABBA..."}: a process pauses before each call of a point, and
each letter of the schedule lets one go on to its next pause or its end. With {"locks": false} locks
let everybody in. Prints [[exit code, stderr], ...]. The processes are forked from one that has
imported TensorFlow and not used it yet.
"""

import functools
import importlib
import json
import os
import sys
import tempfile

import filelock


class Process:
    """A command in a forked process that waits for its first `go_on`."""

    def __init__(self, command, points):
        reader, self.go = os.pipe()
        self.paused, writer = os.pipe()
        self.errors = tempfile.TemporaryFile()
        self.process_id = os.fork()
        if self.process_id == 0:
            os.close(self.go)
            os.close(self.paused)
            self._run(command, points, functools.partial(pause, writer, reader))
        os.close(reader)
        os.close(writer)
        self.has_ended = False

    def _run(self, command, points, wait):
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(self.errors.fileno(), 2)
            for module, name in points:
                pause_before(importlib.import_module(module), name.split("."), wait)
            wait()
            from bert_gpu.__main__ import main

            code = main(["bert-gpu", *command])
        finally:
            os._exit(code)

    def go_on(self):
        """Lets it run to its next pause or its end."""
        if not self.has_ended:
            os.write(self.go, b"x")
            self.wait()

    def wait(self):
        """Waits until it pauses or ends."""
        self.has_ended = not os.read(self.paused, 1)

    def end(self):
        """Lets it run to its end; returns [exit code, stderr]."""
        while not self.has_ended:
            self.go_on()
        _, status = os.waitpid(self.process_id, 0)
        self.errors.seek(0)
        return [os.waitstatus_to_exitcode(status), self.errors.read().decode()]


def pause(writer, reader):
    os.write(writer, b"x")
    os.read(reader, 1)


def pause_before(owner, names, wait):
    """Replaces a function, or a method of a class, by one that waits first."""
    *parents, name = names
    for parent in parents:
        owner = getattr(owner, parent)
    original = getattr(owner, name)

    def paused(*arguments, **options):
        wait()
        return original(*arguments, **options)

    setattr(owner, name, paused)


def main(request):
    for module in {module for module, _ in request["points"]}:
        importlib.import_module(module)
    if not request.get("locks", True):
        filelock.FileLock.acquire = filelock.FileLock.release = lambda self: None
    processes = []
    for command in request["commands"]:
        processes.append(Process(command, request["points"]))
        processes[-1].wait()  # the second inherits the pipes of the first, but writes to none
    for letter in request["schedule"]:
        processes["AB".index(letter)].go_on()
    print(json.dumps([process.end() for process in processes]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
