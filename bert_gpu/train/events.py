"""Writes scalars to TensorBoard's event files, which a resume truncates to the restored step.

An event file is a TFRecord file of Event messages, so TensorFlow's record writer and reader
suffice. Truncating rewrites the files without the later events. The protocol's own way, a
session-start event, does not work for today's scalars: TensorBoard 2.20 does not purge tensors. A
TensorBoard that has the old files open shows both until it is restarted.
"""

import glob
import os
import socket
import time

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.scalar.summary_v2 import scalar_pb


class TensorBoard:
    """A sink for a folder of event files. step: the restored one, None for a new run; what was
    written after it is dropped.
    """

    recovers = False  # readers stop at a partly written record

    def __init__(self, folder, step=None):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self._open(step)

    def write(self, step, values):
        """Scalars of one step; None is left out."""
        for name, value in values.items():
            if value is not None:
                summary = scalar_pb(name, value).SerializeToString()
                event = Event(step=step)
                event.summary.MergeFromString(summary)
                self._write(event)
        self.file.flush()

    def cut(self, step):
        self.file.close()
        self._open(step)

    def close(self):
        self.file.close()

    def _open(self, step):
        cut_events(self.folder, step)
        # readers sort files by name, also those of the same second
        num_files = len(event_files(self.folder))
        name = (
            f"events.out.tfevents.{int(time.time()):010d}."
            f"{num_files:06d}.{socket.gethostname()}.{os.getpid()}"
        )
        self.file = tf.io.TFRecordWriter(os.path.join(self.folder, name))
        self._write(Event(file_version="brain.Event:2"))
        self.file.flush()

    def _write(self, event):
        event.wall_time = time.time()
        self.file.write(event.SerializeToString())


def cut_events(folder, step):
    """Drops from a folder's event files the events after `step` (all for None) and everything after
    a broken record.
    """
    for leftover in glob.glob(os.path.join(glob.escape(folder), ".cut.*.partial")):
        os.remove(leftover)  # of a process that was killed here
    for path in event_files(folder):
        if step is None:
            os.remove(path)
            continue
        partial = os.path.join(folder, f".cut.{os.getpid()}.partial")
        with tf.io.TFRecordWriter(partial) as file:
            for record in whole_records(path):
                if Event.FromString(record).step <= step:
                    file.write(record)
        os.replace(partial, path)


def event_files(folder):
    return sorted(glob.glob(os.path.join(glob.escape(folder), "*.tfevents.*")))


def whole_records(path):
    """The records of a TFRecord file up to its end, or to where a killed process left it broken."""
    try:
        yield from tf.data.TFRecordDataset(path).as_numpy_iterator()
    except tf.errors.DataLossError:
        return
