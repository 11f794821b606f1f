"""Compiles loops with Numba and caches the machine code in the user's cache folder, because the
package may be in a folder that cannot be written to.
"""

import functools
from collections.abc import Callable
from typing import Any

import numba

from bert_gpu.base.environment import cache_folder


@functools.cache
def numba_folder() -> str:
    return cache_folder("numba")


def compiled(function: Callable) -> Callable:
    """Compile a function with Numba, to run without the interpreter's lock (a decorator).

    Numba reads its setting CACHE_DIR during this call, so the setting is changed for that time
    only.
    """
    config: Any = numba.config
    user_folder = config.CACHE_DIR
    config.CACHE_DIR = user_folder or numba_folder()
    try:
        return numba.njit(cache=True, nogil=True)(function)
    finally:
        config.CACHE_DIR = user_folder
