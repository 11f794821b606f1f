"""A program that calls the library finds its process afterwards as it was, also one that has
changed what can be changed: policies, seeds, handlers, logging. A training that a signal has
stopped never returns as one that has ended.
"""

import gc
import json
import logging
import os
import random
import signal
import sys
import threading
import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config as tf_config

import bert_gpu
from bert_gpu import api
from bert_gpu.finetune.run import Result
from bert_gpu.runs.progress import Progress
from bert_gpu.runs.trials import SweepResult
from bert_gpu.train.loop import Loop
from bert_gpu.train.run import TrainingResult
from bert_gpu.train.step import TrainStep
from tests.process_state import differences, state
from tests.test_api import python

SHAPE = dict(num_hidden_layers=1, hidden_size=16, intermediate_size=32, num_attention_heads=2)
TRAINING = dict(input_file="data", model="tiny", train_batch_size=8, num_train_steps=2, **SHAPE)
TASK = dict(data_dir="task", task_name="single", train_batch_size=8, max_seq_length=16)
MODEL = "run/model"
FULL = dict(source=MODEL, overwrite=True)
# [(a name, what is called, its arguments)], in an order in which each finds what it needs
QUICK_CALLS = [
    ("data", "create_pretraining_data", dict(output_dir="data", num_workers=1)),
    (
        "data by workers",
        "create_pretraining_data",
        dict(output_dir="more", num_workers=2, num_shards=2),
    ),
    ("pretraining", "run_pretraining", dict(output_dir="run", **TRAINING)),
    ("settings", "run_pretraining", dict(show_config=True, **TRAINING)),
    ("wrong setting", "run_pretraining", dict(output_dir="run", learning_rate=-1)),
    ("embed", "embed", dict(model=MODEL, input="lines.txt", output="x.npy")),
    ("fill_mask", "fill_mask", dict(model=MODEL, input="lines.txt")),
    ("search", "search", dict(model=MODEL, input="lines.txt", index="index", query="the cat")),
]
CALLS = [
    *QUICK_CALLS,
    ("fine-tuning", "run_classifier", dict(init_checkpoint="run", output_dir="tuned", **TASK)),
    ("evaluation", "run_classifier", dict(do_eval=True, output_dir="tuned", data_dir="task")),
    ("evaluate", "evaluate", dict(model=MODEL, input="lines.txt")),
    ("to Hugging Face", "export", dict(to="hf", **FULL)),
    ("import", "import_model", dict(source="hf", to="imported")),
    ("extend", "extend", dict(tokens_file="words.txt", to="extended", **FULL)),
]
# those that import or convert much
SLOW_CALLS = [
    ("to Model Garden", "export", dict(to="garden", format="garden", **FULL)),
    ("to ONNX", "export", dict(to="onnx", format="onnx", **FULL)),
]
TEXT = dict(input_file="text.txt", vocab_size=200, max_seq_length=32, dupe_factor=1)


def write_inputs(folder):
    os.makedirs(folder / "task")
    lines = [f"the cat {i} sat .\nit saw {i * 7} birds .\nthey went home .\n" for i in range(60)]
    (folder / "text.txt").write_text("\n".join(lines))
    rows = "text\tlabel\n" + "".join(f"the cat {i} sat\t{'ab'[i % 2]}\n" for i in range(16))
    for name in ("train", "dev"):
        (folder / "task" / f"{name}.tsv").write_text(rows)
    (folder / "lines.txt").write_text("the [MASK] sat\nit saw [MASK]\n")
    (folder / "words.txt").write_text("catsbirds\nsatmat\n")


def call(name, arguments):
    """What a call returns; a UserError is a result too."""
    more = TEXT if name == "create_pretraining_data" else {}
    arguments = arguments | dict(num_train_epochs=1) if "max_seq_length" in arguments else arguments
    try:
        return getattr(bert_gpu, name)(**more, **arguments)
    except bert_gpu.UserError as error:
        return error


def change_process():
    """Change what a program may have changed before it calls the library."""
    import keras
    import tf_keras

    keras.mixed_precision.set_global_policy("mixed_float16")
    tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
    tf.config.run_functions_eagerly(True)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.random.set_seed(3)
    random.seed(3)
    np.random.seed(3)
    np.seterr(over="raise")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    logging.getLogger().setLevel(logging.ERROR)
    warnings.simplefilter("ignore", ResourceWarning)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    sys.excepthook = lambda *_: None


def differences_of_calls(calls):
    """{name of a call: what is other after it}."""
    found = {}
    gc.collect()  # files that earlier tests have left open are closed now, not during a call
    for name, called, arguments in calls:
        before = state()
        result = call(called, arguments)
        found[name] = sorted(differences(before))
        is_wrong = isinstance(result, bert_gpu.UserError)
        assert is_wrong == (name == "wrong setting"), (name, result)
    return found


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The folder in which a program works that has changed its process; afterwards it is as it was
    before.
    """
    import keras
    import tf_keras

    folder = tmp_path_factory.mktemp("host")
    write_inputs(folder)
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    }
    level, hook = logging.getLogger().level, sys.excepthook
    errors, was_deterministic = np.geterr(), tf_config.is_op_determinism_enabled()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.chdir(folder)
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
        tf_config.disable_op_determinism()
        change_process()
        yield folder
    for module in (keras, tf_keras):
        module.mixed_precision.set_global_policy("float32")
    tf.config.run_functions_eagerly(False)
    tf.config.experimental.enable_tensor_float_32_execution(True)
    tf.random.set_seed(1)
    np.seterr(**errors)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    logging.getLogger().setLevel(level)
    sys.excepthook = hook
    if was_deterministic:
        tf_config.enable_op_determinism()


@pytest.fixture
def trained(host):
    """The same, with a data set and a model in it."""
    if not os.path.exists(MODEL):
        differences_of_calls([each for each in CALLS if each[0] in ("data", "pretraining")])


@pytest.mark.parametrize(
    "calls", [QUICK_CALLS, pytest.param(CALLS[len(QUICK_CALLS) :], marks=pytest.mark.long)]
)
def test_no_call_changes_the_process_that_makes_it(request, host, calls):
    if calls is not QUICK_CALLS:
        request.getfixturevalue("trained")
    found = differences_of_calls(calls)
    assert found == {name: [] for name, *_ in calls}


def test_an_open_embedder_changes_nothing_either(trained, host):
    embedder = bert_gpu.Embedder(bert_gpu.EmbedConfig(model=MODEL))
    before = state()
    vectors = embedder((host / "lines.txt").read_text().splitlines())
    assert differences(before) == {}
    call("embed", dict(model=MODEL, input="lines.txt", output="y.npy"))
    np.testing.assert_allclose(vectors, np.load("y.npy"), atol=1e-6)


PROGRAM = """
import json, pathlib, sys, threading
import bert_gpu
bert_gpu.prepare()
is_changed, is_thread, folder = *map(int, sys.argv[1:3]), pathlib.Path(sys.argv[3])
from tests import test_hosts as hosts
if is_changed:
    hosts.change_process()
    hosts.tf_config.enable_op_determinism()
hosts.write_inputs(folder)
def run():
    calls = [each for each in hosts.CALLS if each[0] in ("data", "pretraining")]
    print(json.dumps(hosts.differences_of_calls([*calls, *hosts.SLOW_CALLS])))
if is_thread:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
else:
    run()
"""


@pytest.mark.long
def test_no_call_changes_a_process_of_its_own(tmp_path):
    """In a thread of a program with another policy, eager functions and deterministic ops."""
    text = python(f"import os; os.chdir({str(tmp_path)!r})\n{PROGRAM}", 1, 1, tmp_path)
    found = json.loads(text.splitlines()[-1])
    assert len(found) == 4
    for name, names in found.items():
        assert not names, (name, names)


@pytest.fixture
def arrived():
    """The signals that reach a program's own handler, which raises nothing."""
    numbers = []
    handlers = {
        number: signal.signal(number, lambda number, _: numbers.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    yield numbers
    for number, handler in handlers.items():
        signal.signal(number, handler)


ENDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: bert_gpu.TrainingStopped}
STEP, VALIDATION, SAVING = (
    (TrainStep, "__call__"),
    (Loop, "_run_validation"),
    (Loop, "_write_checkpoint"),
)


@pytest.mark.parametrize(
    "call_of, more, signum, place",
    [
        ("pretraining", dict(output_dir="a"), signal.SIGTERM, STEP),
        pytest.param(
            *("pretraining", dict(output_dir="b", save_checkpoints_steps=1)),
            *(signal.SIGINT, SAVING),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("pretraining", dict(output_dir="c", grid="seed=1,2"), signal.SIGINT, VALIDATION),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("fine-tuning", dict(output_dir="e", num_trials=2), signal.SIGINT, STEP),
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_training_that_was_stopped_never_returns(
    trained, arrived, monkeypatch, call_of, more, signum, place
):
    """Whatever the program's own handler does; the same call then resumes and returns."""
    _, name, arguments = next(each for each in CALLS if each[0] == call_of)
    arguments = arguments | more
    real = getattr(*place)

    def stopped(*words, **named):
        if not is_sent:
            is_sent.append(signum)
            signal.raise_signal(signum)
        return real(*words, **named)

    is_sent = []
    monkeypatch.setattr(*place, stopped)
    before = state()
    with pytest.raises(ENDS[signum]):
        call(name, arguments)
    assert differences(before) == {} and arrived == is_sent
    result = call(name, arguments)
    assert not isinstance(result, bert_gpu.UserError) and len(arrived) == 1


@pytest.mark.long
def test_a_signal_after_the_last_step_reaches_the_program(trained, arrived, monkeypatch):
    """The training has ended, so it returns."""
    real, left = Loop.is_complete, [signal.SIGTERM]  # a second signal would end the process

    def complete(self):
        for number in [left.pop()] if left else []:
            signal.raise_signal(number)
        return real(self)

    monkeypatch.setattr(Loop, "is_complete", complete)
    _, name, arguments = next(each for each in CALLS if each[0] == "pretraining")
    result = call(name, arguments | dict(output_dir="late"))
    assert result.progress.step == 2 and arrived == [signal.SIGTERM]


@pytest.mark.parametrize("kind", ["silent", "raises", "ignored"])
@pytest.mark.parametrize("late", [None, *ENDS])
@pytest.mark.parametrize("stop", [None, *ENDS])
@pytest.mark.parametrize("form", ["pretraining", "fine-tuning", "sweep"])
def test_a_result_with_a_signal_is_delivered(host, arrived, kind, form, stop, late):
    if form == "sweep" and late:
        return  # a sweep tells only the signal that stopped it
    outcome = TrainingResult(None, Progress(), stop, late)
    result = {
        "pretraining": outcome,
        "fine-tuning": Result("", {}, outcome),
        "sweep": SweepResult("", stop, []),
    }[form]
    if kind == "raises":
        for number in ENDS:
            signal.signal(number, lambda *_: next(iter(())))
    elif kind == "ignored":
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)
    first = stop or late
    if first is None or (stop is None and kind != "raises"):
        assert api.deliver_signal(result) is result
    else:
        with pytest.raises(StopIteration if kind == "raises" else ENDS[stop]):
            api.deliver_signal(result)
    assert arrived == [first] * (first is not None and kind == "silent")


@pytest.mark.long
def test_two_calls_in_threads_leave_the_process_as_it_was(trained):
    gc.collect()
    before = state()
    arguments = next(one for name, _, one in CALLS if name == "pretraining")
    threads = [
        threading.Thread(
            target=call, args=("run_pretraining", arguments | dict(output_dir=f"thread{i}"))
        )
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert differences(before) == {}
    assert os.path.exists("thread0/model/config.json") and os.path.exists("thread1/model")
