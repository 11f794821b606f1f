"""What a call may not leave behind in the process that makes it; see tests/test_hosts.py."""

import contextlib
import contextvars
import ctypes
import faulthandler
import gc
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import threading
import warnings

import numba
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import config as tf_config


def maps_large_blocks():
    """Whether malloc maps blocks of 24 MB anew although it has freed such ones before, which it
    does only when its threshold was set. So many are taken that no free part of the heap holds all.
    """
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes, library.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    for _ in range(2):  # the first time glibc raises a threshold that was not set
        blocks = [library.malloc(24 << 20) for _ in range(16)]
        sizes = [
            ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value
            for block in blocks
        ]
        for block in blocks:
            library.free(block)
    return any(size & 2 for size in sizes)  # IS_MMAPPED of glibc's malloc.c


def of_tensorflow():
    policies = {
        name: sys.modules[name].mixed_precision.global_policy().name
        if name == "tf_keras"
        else sys.modules[name].mixed_precision.dtype_policy().name
        for name in ("keras", "tf_keras")
        if name in sys.modules
    }
    return dict(
        determinism=tf_config.is_op_determinism_enabled(),
        eager_functions=tf.config.functions_run_eagerly(),
        policies=policies,
        soft_placement=tf.config.get_soft_device_placement(),
        tensor_float_32=tf.config.experimental.tensor_float_32_execution_enabled(),
        synchronous=tf.config.experimental.get_synchronous_execution(),
        jit=tf.config.optimizer.get_jit(),
        seed=context.global_seed(),
        intra=tf.config.threading.get_intra_op_parallelism_threads(),
        inter=tf.config.threading.get_inter_op_parallelism_threads(),
        device_policy=tf.config.experimental.get_device_policy(),
    )


def of_logs():
    names = ("", "absl", "tensorflow", "bert_gpu", "tf2onnx", "numba", "py.warnings", "ray")
    loggers = {
        name: (log.level, list(log.handlers), list(log.filters), log.propagate, log.disabled)
        for name, log in ((name, logging.getLogger(name)) for name in names)
    }
    return dict(loggers=loggers, disabled=logging.root.manager.disable, last=logging.lastResort)


def state():
    """{what: value}, equal before and after a call that leaves the process as it was."""
    numpy_state = np.random.get_state()
    return dict(
        of_tensorflow(),
        **of_logs(),
        python_random=random.getstate(),
        numpy_random=(numpy_state[1].tobytes(), numpy_state[2:]),
        signals={number: signal.getsignal(number) for number in signal.valid_signals()},
        mask=signal.pthread_sigmask(signal.SIG_BLOCK, []),
        timer=signal.getitimer(signal.ITIMER_REAL)[1],
        environ=dict(os.environ),
        folder=os.getcwd(),
        filters=list(warnings.filters),
        show=(warnings.showwarning, warnings.formatwarning),
        streams=(sys.stdin, sys.stdout, sys.stderr),
        hooks=(sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook),
        traces=(sys.gettrace(), sys.getprofile(), threading.gettrace()),
        paths=(list(sys.path), list(sys.meta_path)),
        locale=locale.setlocale(locale.LC_ALL),
        limits={
            name: resource.getrlimit(getattr(resource, name))
            for name in dir(resource)
            if name.startswith("RLIMIT")
        },
        numba=numba.get_num_threads(),
        start_method=multiprocessing.get_start_method(allow_none=True),
        children=multiprocessing.active_children(),
        threads=sorted(thread.name for thread in threading.enumerate()),
        # not how many objects are frozen: those that a test's imports froze go when they are freed
        collection=(gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        numpy=(np.geterr(), np.get_printoptions()),
        timeout=socket.getdefaulttimeout(),
        recursion=(sys.getrecursionlimit(), sys.getswitchinterval()),
        faults=faulthandler.is_enabled(),
        affinity=(os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)),
        maps_large_blocks=maps_large_blocks(),
        variables={
            variable.name: value
            for variable, value in contextvars.copy_context().items()
            if variable.name != "decimal_context"  # its first use in a thread makes it
        },
        files=open_files(),
    )


def open_files():
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(link for link in links if "site-packages" not in link)  # fonts of Matplotlib


def differences(before):
    """{what: (value in the state `before`, other value now)}."""
    after = state()
    if before["files"] != after["files"]:
        gc.collect()
        after["files"] = open_files()
    imported = before["policies"].keys()  # a module that a call imports has a policy too
    after["policies"] = {name: after["policies"][name] for name in imported}
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}
