"""Sets the environment variables that TensorFlow reads, before it is imported, and restores what a
call of the library changes in a program's process.

bert_gpu/__main__.py calls `prepare` for scripts and commands; worker processes begin with
`start_prepared`. A program that uses the library may call `prepare`; `import bert_gpu` does not.
Variables that the user has set stay. Nothing here imports a heavy package.
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
import random
import resource
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.base.signals import quiet_interrupts

# By default XLA removes a conversion from float32 to bfloat16 and back, even between two passes
# over memory. The first pass then writes float32: on GPUs the ops outside matrix products move 1.4
# times the bytes and need more memory. XLA reads its flags when it first compiles.
ROUNDING_FLAG = "--xla_allow_excess_precision"
OUR_FLAGS = f"{ROUNDING_FLAG}=false"  # the value of XLA_FLAGS where the user has set none


def prepare(environ: MutableMapping[str, str] = os.environ) -> None:
    """Prepare this process for TensorFlow, as the scripts do. Call it before TensorFlow is
    imported: a program that uses the library then computes the same numbers as the scripts, as
    fast.

    Sets environment variables that are not set yet, and an import hook that delays the import of
    Keras until it is used.

    Args:
      environ: the environment variables to change.
    """
    processes = sys.modules.get("multiprocessing.process")
    is_worker = bool(processes and processes.parent_process())
    if environ is os.environ and "tensorflow" in sys.modules and not is_worker:
        hint()  # TensorFlow has read its variables already
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    environ.setdefault("GLOG_minloglevel", "3")
    environ.update(missing_variables(environ))
    if is_worker:  # the parent process has printed these warnings
        warnings.filterwarnings("ignore", "Environment variable .* is defined", module="numba")
    if not any(isinstance(finder, LazyKerasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, LazyKerasFinder())


def start_prepared(pickled: bytes, *arguments: object) -> None:
    """Prepare a worker process for TensorFlow, then call a pickled function with `arguments`.
    Unpickling the function imports its module, so it comes second.
    """
    prepare()
    pickle.loads(pickled)(*arguments)


def missing_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return {environment variable: value that it should have} for the variables that change
    TensorFlow's numbers or speed and that the user has left open.
    """
    values = {}
    # TensorFlow leaves oneDNN's kernels off on CPUs without AVX512, where they are faster too
    # (dev/measurements.md).
    if "TF_ENABLE_ONEDNN_OPTS" not in environ:
        values["TF_ENABLE_ONEDNN_OPTS"] = "1"
    flags = environ.get("XLA_FLAGS", "").strip()
    # a value that begins without a dash names a file of flags, to which no flag can be added
    if ROUNDING_FLAG not in flags and (not flags or flags.startswith("-")):
        values["XLA_FLAGS"] = f"{flags} {OUR_FLAGS}".strip()
    return values


@functools.cache
def hint() -> None:
    """Warn once in a process, by the logger "bert_gpu", of environment variables that `prepare`
    would set.
    """
    missing = missing_variables(os.environ).items()
    if values := " ".join(f"{name}={value!r}" for name, value in missing):
        logging.getLogger("bert_gpu").warning(
            f"TensorFlow runs without {values}: numbers may differ from those of the scripts, and "
            "CPUs may be slower; call bert_gpu.prepare() before TensorFlow is imported"
        )


def cache_folder(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a folder for files that can be recreated: in the user's cache or, when that is not
    writable, in the system's temporary folder.
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


class LazyKerasFinder:
    """An import finder that keeps `import tensorflow` and `import tensorflow_text` from importing
    Keras, which would double their time.

    TensorFlow imports Keras' optimizers at the end of its own import and tolerates a failure of
    that, which this finder causes; `tf.keras` imports Keras when it is used.
    `tensorflow_text.keras` becomes a package whose modules are imported when they are used.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        tensorflow = sys.modules.get("tensorflow")
        is_starting = tensorflow is not None and getattr(
            tensorflow.__spec__, "_initializing", False
        )
        if is_starting and name.startswith(("keras.", "tf_keras.")):
            raise ImportError(f"{name} is imported when it is used")
        if name == "tensorflow_text.python.keras":
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            if spec is not None:
                spec.loader = LazyPackageLoader()
            return spec
        return None


class LazyPackageLoader(importlib.abc.Loader):
    """Loads a package without running it; its modules are imported when they are used."""

    def exec_module(self, module: ModuleType) -> None:
        def part(name: str) -> ModuleType:
            full_name = f"{module.__name__}.{name}"
            if name.startswith("__") or importlib.util.find_spec(full_name) is None:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return importlib.import_module(full_name)

        module.__getattr__ = part  # type: ignore[method-assign]


class LazyModule:
    """A stand-in for a module, which imports the module when one of its attributes is first used:
    `tf = LazyModule("tensorflow")`. Code that rarely needs a slow module loads quickly with it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        state = None if self._name in sys.modules else random.getstate()
        module = importlib.import_module(self._name)
        if state:  # scikit-learn draws a number when it is imported, which would be the program's
            random.setstate(state)
        return getattr(module, attribute)


tf: Any = LazyModule("tensorflow")
tf_config: Any = LazyModule("tensorflow.python.framework.config")


def set_determinism(is_on: bool) -> None:
    """Switch TensorFlow's op determinism on or off; where TensorFlow is not imported, it is off."""
    if "tensorflow" in sys.modules:
        (tf_config.enable_op_determinism if is_on else tf_config.disable_op_determinism)()


@contextlib.contextmanager
def process_kept() -> Iterator[None]:
    """Restore, after the last of the calls of the library that are under way in a program, what
    they change in its process; see `remember`.
    """
    with _lock:
        if not _calls:
            remember(_found)
        _calls.append(threading.get_ident())
    try:
        yield
    finally:
        with _lock:
            _calls.pop()
            if not _calls:
                _found.close()


_calls: list[int] = []  # the threads of the calls that are under way
_found = contextlib.ExitStack()  # restores what the first of them found
_lock = threading.Lock()


def remember(stack: contextlib.ExitStack) -> None:
    """Add to a stack what restores the limit of open files, the variables and loggers that
    libraries change (scikit-learn, tf2onnx) or that are set for them (MLflow, Weights & Biases),
    and TensorFlow's determinism. Until then functions are compiled even if the program runs them
    eagerly.
    """
    stack.callback(
        resource.setrlimit, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    stack.enter_context(warnings.catch_warnings())  # SciPy adds a filter
    for name in (
        *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "MLFLOW_ALLOW_FILE_STORE"),
        *("WANDB_ERROR_REPORTING", "TF_CPP_MIN_LOG_LEVEL"),
    ):
        restore: Callable[..., object] = (
            os.environ.__setitem__ if name in os.environ else os.environ.pop
        )
        stack.callback(restore, name, os.environ.get(name))
    for logger in map(logging.getLogger, (None, "absl", "tf2onnx")):
        stack.callback(logger.setLevel, logger.level)
        stack.callback(logger.handlers.__setitem__, slice(None), logger.handlers[:])
    has_tensorflow = "tensorflow" in sys.modules
    stack.callback(set_determinism, has_tensorflow and tf_config.is_op_determinism_enabled())
    if has_tensorflow:
        stack.callback(tf.config.run_functions_eagerly, tf.config.functions_run_eagerly())
        tf.config.run_functions_eagerly(False)


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Run the imports inside this context without garbage collection, and keep the imported objects
    out of later collections: for scripts, whose modules stay loaded. Ctrl-C during the imports ends
    the process without a traceback.
    """
    gc.disable()
    try:
        with quiet_interrupts():
            yield
    finally:
        gc.freeze()
        gc.enable()


def import_extra(module: str, setting: str, remedy: str) -> ModuleType:
    """Import and return a module of an optional package, which one of bert-gpu's extras installs.

    Raises UserError, which begins with the setting that needs the package, when it is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"needs the package {module}", remedy, where=setting) from error
