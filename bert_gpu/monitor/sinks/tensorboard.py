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

from bert_gpu.monitor.sinks.interface import Sink

TRAIN, VALIDATION = "train", "validation"  # runs of TensorBoard, a folder each
EVAL = "eval_"  # which names of validation begin with in metrics.jsonl


class TensorBoard(Sink):
    """A sink for two runs below a folder, train/ and validation/: scalars of one name share a
    chart, so eval_loss is the run validation's "loss".

    step: the restored one, None for a new run; what was written after it is dropped. losses: names
    that validation calls NAME_loss; so does TensorBoard. It does not recover, because readers stop
    at a partly written record.
    """

    def __init__(self, folder, step=None, losses=()):
        self.folder, self.losses, self.files = folder, losses, {}
        self._open(step)

    def write(self, step, values):
        """Scalars of one step; None is left out."""
        for name, value in values.items():
            if value is not None:
                run, tag = place(name, self.losses)
                event = Event(step=step)
                event.summary.MergeFromString(scalar_pb(tag, value).SerializeToString())
                self._write(run, event)
        for file in self.files.values():
            file.flush()

    def cut(self, step):
        self.close()
        self._open(step)

    def close(self):
        while self.files:
            self.files.popitem()[1].close()

    def _open(self, step):
        os.makedirs(self.folder, exist_ok=True)
        for run in (TRAIN, VALIDATION):
            cut_events(os.path.join(self.folder, run), step)
        self._open_file(TRAIN)  # that of validation with its first value

    def _open_file(self, run):
        folder = os.path.join(self.folder, run)
        os.makedirs(folder, exist_ok=True)
        # readers sort files by name, also those of the same second
        num_files = len(event_files(folder))
        name = (
            f"events.out.tfevents.{int(time.time()):010d}."
            f"{num_files:06d}.{socket.gethostname()}.{os.getpid()}"
        )
        self.files[run] = tf.io.TFRecordWriter(os.path.join(folder, name))
        self._write(run, Event(file_version="brain.Event:2"))
        self.files[run].flush()

    def _write(self, run, event):
        if run not in self.files:
            self._open_file(run)
        event.wall_time = time.time()
        self.files[run].write(event.SerializeToString())


def place(name, losses):
    """(run, tag) of a name in metrics.jsonl."""
    if name.startswith(EVAL):
        return VALIDATION, name.removeprefix(EVAL)
    return TRAIN, f"{name}_loss" if name in losses else name


def cut_events(folder, step):
    """Drops from a folder's event files the events after `step` (all for None) and everything after
    a broken record.
    """
    partial = os.path.join(folder, ".cut.partial")  # one that a killed process left is overwritten
    for path in event_files(folder):
        if step is None:
            os.remove(path)
            continue
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
