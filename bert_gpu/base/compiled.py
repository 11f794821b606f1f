"""Loops that Numba compiles, kept in the user's cache: the package may lie where nothing can be
written.
"""

import functools

import numba

from bert_gpu.base.environment import cache_folder


@functools.cache
def own_folder() -> str:
    return cache_folder("numba")


def compiled(function):
    """Decorator: Numba compiles a function, which runs without the interpreter's lock. Its machine
    code is kept in NUMBA_CACHE_DIR or, where that is not set, in a folder of ours; Numba chooses
    the folder now, and its setting is left as it was.
    """
    own = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = own or own_folder()
    try:
        return numba.njit(cache=True, nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = own
