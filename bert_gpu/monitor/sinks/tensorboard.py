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
from collections.abc import Collection, Iterator, Mapping

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.scalar.summary_v2 import scalar_pb

from bert_gpu.monitor.sinks.interface import Sink

TRAIN = "train"  # a run of TensorBoard, in a folder of its own
VALIDATION = "validation"  # another run of TensorBoard
EVAL = "eval_"  # prefix of the names of validation metrics in metrics.jsonl


class TensorBoard(Sink):
    """A sink that writes two runs of TensorBoard below a folder, train/ and validation/. Scalars of
    one name share a chart, so the metric eval_loss is written as "loss" of the run validation.

    The sink does not recover from an error, because readers stop at a partly written record.

    Args of the constructor: step: the restored step, None for a new run; events after it are
    dropped. losses: names of training metrics that are written as NAME_loss, their name in
    validation.
    """

    def __init__(self, folder: str, step: int | None = None, losses: Collection[str] = ()) -> None:
        self.folder = folder
        self.losses = losses
        self.files: dict[str, tf.io.TFRecordWriter] = {}
        self._open(step)

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Write the scalars of one step, except those that are None."""
        for name, value in values.items():
            if value is not None:
                run, tag = place(name, self.losses)
                event = Event(step=step)
                event.summary.MergeFromString(scalar_pb(tag, value).SerializeToString())
                self._write(run, event)
        for file in self.files.values():
            file.flush()

    def cut(self, step: int) -> None:
        self.close()
        self._open(step)

    def close(self) -> None:
        while self.files:
            self.files.popitem()[1].close()

    def _open(self, step: int | None) -> None:
        os.makedirs(self.folder, exist_ok=True)
        for run in (TRAIN, VALIDATION):
            cut_events(os.path.join(self.folder, run), step)
        self._open_file(TRAIN)  # that of validation is opened with its first value

    def _open_file(self, run: str) -> None:
        folder = os.path.join(self.folder, run)
        os.makedirs(folder, exist_ok=True)
        # names have a serial number: readers sort files by name, and files may share a second
        name = (
            f"events.out.tfevents.{int(time.time()):010d}."
            f"{len(event_files(folder)):06d}.{socket.gethostname()}.{os.getpid()}"
        )
        self.files[run] = tf.io.TFRecordWriter(os.path.join(folder, name))
        self._write(run, Event(file_version="brain.Event:2"))
        self.files[run].flush()

    def _write(self, run: str, event: Event) -> None:
        if run not in self.files:
            self._open_file(run)
        event.wall_time = time.time()
        self.files[run].write(event.SerializeToString())


def place(name: str, losses: Collection[str]) -> tuple[str, str]:
    """Return (run of TensorBoard, tag in it) for the metric `name` of metrics.jsonl. losses: names
    of training metrics whose tag is NAME_loss.
    """
    if name.startswith(EVAL):
        return VALIDATION, name.removeprefix(EVAL)
    return TRAIN, f"{name}_loss" if name in losses else name


def cut_events(folder: str, step: int | None) -> None:
    """Drop from the event files in a folder the events of steps after `step` (None = all events),
    and everything after a broken record.
    """
    partial = os.path.join(folder, ".cut.partial")  # overwrites one left by a killed process
    for path in event_files(folder):
        if step is None:
            os.remove(path)
            continue
        with tf.io.TFRecordWriter(partial) as file:
            for record in whole_records(path):
                if Event.FromString(record).step <= step:
                    file.write(record)
        os.replace(partial, path)


def event_files(folder: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(folder), "*.tfevents.*")))


def whole_records(path: str) -> Iterator[bytes]:
    """Yield the records of a TFRecord file up to its end, or to a record that a killed process left
    incomplete.
    """
    try:
        yield from tf.data.TFRecordDataset(path).as_numpy_iterator()
    except tf.errors.DataLossError:
        return
