"""What TensorFlow and Numba find in the environment: decided here, before either is imported.

`import bert_gpu` calls `prepare`, so scripts, library and worker processes (which inherit the
environment) get the same. What the user has set wins. Nothing here imports a heavy package.
"""

import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile

# By default XLA takes a conversion to bfloat16 and back for needless, also between two passes, so
# that what is written between them is float32: on GPUs 1.4 times the bytes outside products, and
# more memory. XLA reads its flags when it first compiles.
ROUNDING_FLAG = "--xla_allow_excess_precision"


def prepare(environ=os.environ, arguments=None):
    """Sets what is not set yet.

    Args:
      environ: the environment, a mapping that is changed. arguments: of the process; with --verbose
        TensorFlow's log stays on.
    """
    if "--verbose" not in (sys.argv if arguments is None else arguments):
        environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        environ.setdefault("GLOG_minloglevel", "3")
    # TensorFlow leaves oneDNN's kernels off on CPUs without AVX512, where they are faster too
    # (docs/results.md).
    environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    flags = environ.get("XLA_FLAGS", "").strip()
    # a value without a dash is the name of a file of flags
    if ROUNDING_FLAG not in flags and (not flags or flags.startswith("-")):
        environ["XLA_FLAGS"] = f"{flags} {ROUNDING_FLAG}=false".strip()
    if "NUMBA_CACHE_DIR" not in environ:
        environ["NUMBA_CACHE_DIR"] = cache_folder("numba", environ)
    if not any(isinstance(finder, KerasLater) for finder in sys.meta_path):
        sys.meta_path.insert(0, KerasLater())


def cache_folder(name, environ=os.environ):
    """A folder for what may be made again: the user's cache, or, where that cannot be written, the
    system's folder for temporary files.
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
        # a cache is code that is run, so nobody else's is taken
        if os.stat(folder).st_uid == os.getuid():
            return os.path.join(folder, name)
    return tempfile.mkdtemp(prefix="bert-gpu-")


class KerasLater:
    """Spares `import tensorflow` and `import tensorflow_text` the import of Keras, which takes as
    long as all the rest of them.

    TensorFlow imports Keras' optimizers at its end and goes on without them where that fails, which
    this import finder sees to; `tf.keras` imports Keras when it is used. So does
    `tensorflow_text.keras`: until then it is a package without content.
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


class Later:
    """A module that is imported when something of it is first used: `tf = Later("tensorflow")`.

    For modules that mostly do without it, so that importing them is quick.
    """

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        return getattr(importlib.import_module(self._name), attribute)


@contextlib.contextmanager
def quick_imports():
    """Imports inside are spared the garbage collector, now and at the end of the process: for
    scripts, whose modules stay.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
