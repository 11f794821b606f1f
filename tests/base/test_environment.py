"""What the user has set wins; caches go where they can be written; Keras and other slow modules are
imported when they are used.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from bert_gpu.base import environment

ROOT = pathlib.Path(__file__).parents[2]
HOME = "/proc/nonexistent"  # cannot be made, not even by root


def python(code, path=ROOT, *arguments, **variables):
    """What a program, code or the path of a file, prints in a fresh process that imports bert_gpu
    from `path`. variables: of its environment; None = not set.
    """
    names = (
        "TF_CPP_MIN_LOG_LEVEL",
        "GLOG_minloglevel",
        "TF_ENABLE_ONEDNN_OPTS",
        "XLA_FLAGS",
        "NUMBA_CACHE_DIR",
        "XDG_CACHE_HOME",
    )
    values = {name: value for name, value in os.environ.items() if name not in names}
    values |= (
        dict(PYTHONPATH=str(path), CUDA_VISIBLE_DEVICES="-1", PYTHONDONTWRITEBYTECODE="1")
        | variables
    )
    result = subprocess.run(
        [sys.executable, *(["-c"] if isinstance(code, str) else []), code, *arguments],
        env=values,
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def prepared(**environ):
    environment.prepare(environ)
    return environ


def test_what_is_set_by_default(tmp_path):
    found = prepared(XDG_CACHE_HOME=str(tmp_path))
    assert found == dict(
        XDG_CACHE_HOME=str(tmp_path),
        TF_CPP_MIN_LOG_LEVEL="3",
        GLOG_minloglevel="3",
        TF_ENABLE_ONEDNN_OPTS="1",
        XLA_FLAGS="--xla_allow_excess_precision=false",
    )
    assert prepared(**found) == found, "a second call changes nothing"


@pytest.mark.parametrize(
    "name", ["TF_CPP_MIN_LOG_LEVEL", "GLOG_minloglevel", "TF_ENABLE_ONEDNN_OPTS"]
)
@pytest.mark.parametrize("value", ["0", "/mine"])
def test_what_the_user_has_set_wins(tmp_path, name, value):
    assert prepared(XDG_CACHE_HOME=str(tmp_path), **{name: value})[name] == value


@pytest.mark.parametrize(
    "given, expected",
    [
        ("--xla_allow_excess_precision=true", "--xla_allow_excess_precision=true"),
        ("--xla_dump_to=/x", "--xla_dump_to=/x --xla_allow_excess_precision=false"),
        ("flags.txt", "flags.txt"),  # the name of a file, which nothing may be appended to
        (" ", "--xla_allow_excess_precision=false"),
    ],
)
def test_flags_of_xla_that_the_user_has_set_win(tmp_path, given, expected):
    assert prepared(XDG_CACHE_HOME=str(tmp_path), XLA_FLAGS=given)["XLA_FLAGS"] == expected


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the package in which nothing may be written; root may all the same, so tests look
    where files went.
    """
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(
        ROOT / "bert_gpu", folder / "bert_gpu", ignore=shutil.ignore_patterns("__pycache__")
    )
    subprocess.run(["chmod", "-R", "a-w", folder], check=True)
    yield folder
    subprocess.run(["chmod", "-R", "u+w", folder], check=True)
    assert compiled(folder) == set()


def compiled(folder):
    """The names of what Numba has kept below a folder."""
    return {
        path.name.split("-")[0]
        for path in pathlib.Path(folder).rglob("*")
        if path.suffix in (".nbi", ".nbc")
    }


COMPILE = (
    "import bert_gpu.data.random_bits as c, numpy as np; "
    "c.draw(np.zeros(1, np.uint64)); print(c.__file__)"
)
COMPILED = {"random_bits.draw", "random_bits.mix"}  # what draw calls is compiled, too


def test_compiled_loops_are_kept_in_the_users_cache(installed, tmp_path):
    assert python(COMPILE, installed, XDG_CACHE_HOME=str(tmp_path)) == str(
        installed / "bert_gpu/data/random_bits.py"
    )
    assert compiled(tmp_path / "bert-gpu" / "numba") == COMPILED


def test_a_home_that_cannot_be_written_to(installed, tmp_path):
    python(COMPILE, installed, HOME=HOME, TMPDIR=str(tmp_path))
    assert compiled(tmp_path / f"bert-gpu-{os.getuid()}" / "numba") == COMPILED


@pytest.mark.long
def test_a_cache_of_the_users_own_wins(installed, tmp_path):
    python(
        COMPILE,
        installed,
        NUMBA_CACHE_DIR=str(tmp_path / "mine"),
        XDG_CACHE_HOME=str(tmp_path / "other"),
    )
    assert compiled(tmp_path / "mine") == COMPILED
    assert not (tmp_path / "other" / "bert-gpu").exists()  # Keras may bring other caches


def test_worker_processes_use_the_same_cache(installed, tmp_path):
    code = """
import multiprocessing, sys
with multiprocessing.get_context("spawn").Pool(1) as pool:
    pool.apply(exec, (sys.argv[1],))
"""
    python(code, installed, COMPILE, XDG_CACHE_HOME=str(tmp_path))
    assert compiled(tmp_path / "bert-gpu" / "numba") == COMPILED


def test_the_cache_of_other_compiled_functions_stays_where_it_was(tmp_path):
    code = "import numba, bert_gpu.data.random_bits; print(repr(numba.config.CACHE_DIR))"
    assert python(code, XDG_CACHE_HOME=str(tmp_path)) == "''"


def test_worker_processes_are_prepared(tmp_path):
    code = """
import os, sys
def main():
    from bert_gpu.text.parallel import Processes
    names = ("TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS")
    for values in Processes(1).run(looked, [names], lambda *_: None):
        print(*values)
def looked(names, report):
    return [os.environ.get(name) for name in names] + ["keras" in sys.modules]
if __name__ == "__main__":
    main()
    print([name for name in ("TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS") if name in os.environ])
"""
    path = tmp_path / "program.py"
    path.write_text(code)
    expected = ["1 --xla_allow_excess_precision=false False", "[]"]
    assert python(path).splitlines() == expected


def test_keras_is_imported_when_it_is_used():
    """Our own encoder needs neither it nor Model Garden."""
    code = """
import bert_gpu; bert_gpu.prepare()
import sys, tensorflow as tf, tensorflow_text as tf_text
from bert_gpu.model.config import preset
from bert_gpu.model.encoders import open_encoder
from tests import pretraining
pretraining.weights(open_encoder(preset("tiny")))
names = ("keras", "sklearn", "bert_gpu.model.garden", "official", "tf_keras")
print(*[name for name in names if name in sys.modules], hasattr(tf_text.keras, "absent"))
print(
    tf.keras.layers.Dense(2)(tf.ones([1, 3])).shape,
    tf_text.keras.layers.ToDense.__name__,
    "keras" in sys.modules,
)
print(isinstance(tf.keras.optimizers.Adam(1e-3), sys.modules["keras"].optimizers.Optimizer))
"""
    assert python(code).splitlines() == ["False", "(1, 2) ToDense True", "True"]


def test_tensorflow_alone_is_as_ever():
    """The finder holds Keras back while TensorFlow is imported, and never before or after."""
    code = """
import bert_gpu; bert_gpu.prepare()
import sys, keras
print("tensorflow_text" in sys.modules)
import tensorflow as tf, tensorflow_text as tf_text
print(tf.keras.layers.Dense is keras.layers.Dense, tf_text.keras.layers.ToDense.__name__)
"""
    assert python(code).splitlines() == ["False", "True ToDense"]


def test_later_imports_at_the_first_use():
    code = """
import json, sys
from bert_gpu.base.environment import LazyModule
module = LazyModule("wave")
before = "wave" in sys.modules
name = module.Error.__name__
print(json.dumps([before, name, "wave" in sys.modules]))
"""
    assert json.loads(python(code)) == [False, "Error", True]
    later = environment.LazyModule("json")
    assert later.dumps is json.dumps
    with pytest.raises(AttributeError):
        _ = later.absent
    with pytest.raises(ModuleNotFoundError):
        _ = environment.LazyModule("no_such_module").name


def test_quick_imports_leave_the_collector_on():
    code = """
import gc
from bert_gpu.base.environment import quick_imports
try:
    with quick_imports():
        print(gc.isenabled())
        raise ImportError
except ImportError:
    print(gc.isenabled(), gc.get_freeze_count() > 0)
"""
    assert python(code).splitlines() == ["False", "True True"]


@pytest.mark.parametrize("mapped", ["google_crc32c", "libtensorflow_framework"])
def test_ctrl_c_during_the_imports_is_quiet(tmp_path, mapped):
    """mapped: a library; when it is loaded, the imports of the flags, or of TensorFlow, go on."""
    command = [sys.executable, "-m", "bert_gpu", "data", f"--output_file={tmp_path}/out/x.tfrecord"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # tests may run where Ctrl-C is ignored, which processes inherit
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    maps = pathlib.Path(f"/proc/{process.pid}/maps")
    while mapped not in maps.read_text():
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == (130, "", "")
    assert not (tmp_path / "out").exists()
