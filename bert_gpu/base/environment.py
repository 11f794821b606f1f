"""Sets the environment variables that TensorFlow reads, before it is imported.

Scripts and commands call `prepare` in bert_gpu/__main__.py, worker processes in `start_prepared`; a
program that uses the library may call it, and `import bert_gpu` does not. Variables that the user
has set win. Nothing here imports a heavy package.
"""

import contextlib
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import pickle
import sys
import tempfile
import warnings

from bert_gpu.base.errors import UserError
from bert_gpu.base.signals import quiet_interrupts

# By default XLA removes a conversion to bfloat16 and back, also between two passes, so that float32
# is written between them: on GPUs 1.4 times the bytes outside matrix products, and more memory. XLA
# reads its flags when it first compiles.
ROUNDING_FLAG = "--xla_allow_excess_precision"
OUR_FLAGS = f"{ROUNDING_FLAG}=false"  # the value of XLA_FLAGS where the user has set none


def prepare(environ=os.environ):
    """Set what the scripts set before TensorFlow is imported, so that a program that uses the
    library computes the same numbers as fast: environment variables that are not set yet, and an
    import hook, with which TensorFlow imports Keras when it is used. Call it first.

    Args:
      environ: the environment, a mapping that is changed.
    """
    processes = sys.modules.get("multiprocessing.process")
    is_worker = bool(processes and processes.parent_process())
    if environ is os.environ and "tensorflow" in sys.modules and not is_worker:
        hint()  # too late
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    environ.setdefault("GLOG_minloglevel", "3")
    environ.update(lacking(environ))
    if is_worker:  # its parent has shown these
        warnings.filterwarnings("ignore", "Environment variable .* is defined", module="numba")
    if not any(isinstance(finder, KerasLater) for finder in sys.meta_path):
        sys.meta_path.insert(0, KerasLater())


def start_prepared(pickled, *arguments):
    """Prepare a worker process, then unpickle a function, which imports its module, and call it."""
    prepare()
    pickle.loads(pickled)(*arguments)


def lacking(environ) -> dict[str, str]:
    """{variable: value} of what changes TensorFlow's numbers or speed and is not set."""
    values = {}
    # TensorFlow leaves oneDNN's kernels off on CPUs without AVX512, where they are faster too
    # (dev/measurements.md).
    if "TF_ENABLE_ONEDNN_OPTS" not in environ:
        values["TF_ENABLE_ONEDNN_OPTS"] = "1"
    flags = environ.get("XLA_FLAGS", "").strip()
    # a value without a dash is the name of a file of flags
    if ROUNDING_FLAG not in flags and (not flags or flags.startswith("-")):
        values["XLA_FLAGS"] = f"{flags} {OUR_FLAGS}".strip()
    return values


@functools.cache
def hint() -> None:
    """Say once in a process, to the logger "bert_gpu", what its TensorFlow lacks."""
    values = " ".join(f"{name}={value!r}" for name, value in lacking(os.environ).items())
    if values:
        logging.getLogger("bert_gpu").warning(
            f"TensorFlow runs without {values}: numbers may differ from those of the scripts, and "
            "CPUs may be slower; call bert_gpu.prepare() before TensorFlow is imported"
        )


def cache_folder(name, environ=os.environ):
    """A folder for files that can be recreated: the user's cache or, when that is not writable, the
    system's temporary folder.
    """
    home = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.path.join(home, "bert-gpu", name)
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    folder = os.path.join(tempfile.gettempdir(), f"bert-gpu-{os.getuid()}")
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        # a cache holds code that is run, so never use another user's
        if os.stat(folder).st_uid == os.getuid():
            return os.path.join(folder, name)
    return tempfile.mkdtemp(prefix="bert-gpu-")


class KerasLater:
    """Delays the import of Keras by `import tensorflow` and `import tensorflow_text`, which takes
    as long as the rest of them.

    TensorFlow imports Keras' optimizers last and tolerates a failure, which this import finder
    causes; `tf.keras` imports Keras when it is used. So does `tensorflow_text.keras`, which is an
    empty package until then.
    """

    def find_spec(self, name, path=None, target=None):
        tensorflow = sys.modules.get("tensorflow")
        is_starting = tensorflow is not None and getattr(
            tensorflow.__spec__, "_initializing", False
        )
        if is_starting and name.startswith(("keras.", "tf_keras.")):
            raise ImportError(f"{name} is imported when it is used")
        if name == "tensorflow_text.python.keras":
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            if spec is not None:
                spec.loader = PartsLater()
            return spec
        return None


class PartsLater(importlib.abc.Loader):
    """Loads a package without running it; its modules are imported when they are used."""

    def exec_module(self, module):
        def part(name):
            full_name = f"{module.__name__}.{name}"
            if name.startswith("__") or importlib.util.find_spec(full_name) is None:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return importlib.import_module(full_name)

        module.__getattr__ = part


class LazyModule:
    """A module that is imported when one of its attributes is first used: `tf =
    LazyModule("tensorflow")`.

    For modules that rarely need it, so that importing them is quick.
    """

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        return getattr(importlib.import_module(self._name), attribute)


@contextlib.contextmanager
def quick_imports():
    """Runs imports inside without garbage collection, also of their objects later on: for scripts,
    whose modules stay loaded. Ctrl-C ends the process quietly.
    """
    gc.disable()
    try:
        with quiet_interrupts():
            yield
    finally:
        gc.freeze()
        gc.enable()


def import_extra(module: str, setting: str, remedy: str):
    """A module of a package that an extra installs. UserError, which begins with the setting that
    needs it, where it is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"needs the package {module}", remedy, where=setting) from error
