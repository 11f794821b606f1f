"""How many calls lead from the command to the loop and to the first gradient; and the functions of
the main path are given what they need, instead of capturing it.
"""

import pathlib
import re
import sys
import threading
import types

import pytest
import tensorflow as tf

import bert_gpu
from bert_gpu.__main__ import main as command
from bert_gpu.train.loop import Loop
from bert_gpu.train.step import TrainStep
from tests.cli.pretraining import SMALL
from tests.train.tiny import VOCAB, batches

PACKAGE = pathlib.Path(bert_gpu.__file__).parent
MAIN_PATH = (
    *("cli/pretrain.py", "cli/training.py", "pretrain/run.py", "pretrain/start.py"),
    *(
        "pretrain/objectives/joint.py",
        "pretrain/validation.py",
        "finetune/run.py",
        "finetune/evaluate.py",
        "finetune/start.py",
        *("train/run.py", "train/plan.py", "train/auto_batch.py"),
    ),
    *("train/loop.py", "train/step.py", "train/batching.py", "train/cadence.py"),
    *("train/divergence.py", "train/start_block.py", "train/memory.py"),
    "train/memory_check.py",
)


class Measured(Exception):
    """Ends the run when everything is measured."""


def calls_of(frame):
    """How many frames of the package lie on the stack of a frame, which counts."""
    own = 0
    while frame is not None:
        own += pathlib.Path(frame.f_code.co_filename).is_relative_to(PACKAGE)
        frame = frame.f_back
    return own


def depths(arguments):
    """(Calls on the stack when the loop starts, when a replica asks for its first gradient) in a
    command. A replica has a thread, whose calls follow those of the thread that waits for it.
    """
    found = {}
    start, step = Loop.run.__code__, TrainStep._replica_step.__code__
    main_thread = threading.get_ident()

    def profile(frame, event, _):
        if event == "call" and frame.f_code is start:
            found["loop"] = calls_of(frame)
        elif event == "call" and frame.f_code is step:
            waiting = sys._current_frames()[main_thread]
            found["gradient"] = calls_of(waiting) + calls_of(frame)
            raise Measured

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        with pytest.raises(Measured):
            command(["bert-gpu", "pretrain", *arguments])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found["loop"], found["gradient"]


def write_records(path):
    """Records of batches of tests/train/tiny.py, without a data set around them."""
    (batch,) = batches(1)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in range(len(batch["input_ids"])):
            features = {name: feature_of(values[row]) for name, values in batch.items()}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def feature_of(values):
    if values.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values.reshape(-1)))


def test_calls_from_the_command_to_the_first_gradient(tmp_path):
    """At revision fa0b666 they were 11 and 17."""
    write_records(tmp_path / "x.tfrecord")
    arguments = [f"--input_file={tmp_path}/x.tfrecord", f"--output_dir={tmp_path}/run", *SMALL]
    more = [f"--vocab_size={VOCAB}", "--num_train_steps=1", "--xla=off", "--quiet"]
    assert depths([*arguments, *more]) == (6, 10)


def functions_of(code):
    """The code objects inside another one, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from functions_of(constant)


@pytest.mark.parametrize("path", MAIN_PATH)
def test_no_closure_of_the_main_path_captures_more_than_two_names(path):
    code = compile((PACKAGE / path).read_text(), path, "exec")
    comprehensions = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
    assert not {
        function.co_name: function.co_freevars
        for function in functions_of(code)
        if len(function.co_freevars) > 2 and function.co_name not in comprehensions
    }


@pytest.mark.parametrize("path", MAIN_PATH)
def test_only_the_plan_and_batching_speak_of_units_of_data(path):
    if path not in ("train/plan.py", "train/batching.py"):
        assert not re.search(r"\bunits\b|\bunit_size\b", (PACKAGE / path).read_text())
