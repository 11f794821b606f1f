"""How a CPU spends a step: in TensorFlow's ops, from the trace of its profiler, and in oneDNN's
primitives, from what oneDNN prints of itself (ONEDNN_VERBOSE=profile_exec).
"""

import collections
import contextlib
import ctypes
import os
import pathlib
import re
import tempfile

OP = re.compile(r"[^\s:]+:(\w+)")  # name:type
PASS = re.compile(r"(?!function$)[a-z][\w-]*(\.\d+)*")  # XLA's names, as multiply_add_fusion.1
PRIMITIVE = re.compile(r"onednn_verbose,(?:v\d+,)?primitive,exec,cpu,(\w+),.*,([\d.e+-]+)")


def own_seconds(events):
    """[(name, seconds without those of the events within it)] of the events of one thread.

    events: [(name, begin, end)], which lie within each other or apart.
    """
    outer, found = [], []
    for name, begin, end in sorted(events, key=lambda event: (event[1], -event[2])):
        while outer and outer[-1][1] <= begin:
            outer.pop()
        if outer:
            found[outer[-1][0]][1] -= end - begin
        outer.append((len(found), end))
        found.append([name, end - begin])
    return [tuple(pair) for pair in found]


def op_seconds(events):
    """({type of op: seconds of its own}, {compiled pass: seconds of its own}); what is neither, as
    the executor's own work and waiting, is left out.

    events: as of own_seconds.
    """
    ops, passes = collections.Counter(), collections.Counter()
    for name, seconds in own_seconds(events):
        if op := OP.fullmatch(name):
            ops[op[1]] += seconds
        elif PASS.fullmatch(name):
            passes[name] += seconds
    return ops, passes


def threads_of_trace(folder):
    """The events of each thread in a trace that tf.profiler wrote into a folder."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for path in pathlib.Path(folder).rglob("*.xplane.pb"):
        for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
            if plane.name != "/host:CPU":
                continue
            for line in plane.lines:
                yield [
                    (
                        plane.event_metadata[event.metadata_id].name,
                        event.offset_ps * 1e-12,
                        (event.offset_ps + event.duration_ps) * 1e-12,
                    )
                    for event in line.events
                ]


def primitive_seconds(text):
    """{kind of oneDNN's primitive: seconds} in what it printed."""
    found = collections.Counter()
    for line in text.splitlines():
        primitive = PRIMITIVE.fullmatch(line)
        if primitive:
            found[primitive[1]] += 1e-3 * float(primitive[2])
    return dict(found)


@contextlib.contextmanager
def standard_output():
    """Collects what the process prints on file descriptor 1, from C too: a list that has the text
    at its end.
    """
    said, c_library = [], ctypes.CDLL(None)
    with tempfile.TemporaryFile() as file:
        c_library.fflush(None)
        before = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield said
        finally:
            c_library.fflush(None)
            os.dup2(before, 1)
            os.close(before)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
