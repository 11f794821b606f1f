"""TensorFlow is started once for all tests, on the CPU, with four logical devices, so that any test
can have up to four replicas.
"""

import os
import signal

# A shell lets its jobs in the background ignore Ctrl-C, and nohup the end of the terminal; whatever
# they start does so, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

# Before TensorFlow, as in the commands: the same kernels, and so the same bits.
from bert_gpu.base import environment

environment.prepare()

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)

# experimental_get_compiler_ir draws a random number, which deterministic ops, switched on by other
# tests, allow with a seed only.
tf.random.set_seed(1)


# The same examples in every run, however slow the machine is.
hypothesis.settings.register_profile(
    "same",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same")


@pytest.fixture(scope="session")
def sample_text():
    return os.path.join(os.path.dirname(__file__), "sample_text.txt")


def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true", help="a test that is skipped fails")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    if report.skipped and item.config.getoption("--no-skips"):
        report.outcome, report.longrepr = "failed", f"skipped: {report.longrepr}"
