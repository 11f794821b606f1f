"""Makes glibc's malloc return freed memory to the system.

By default it does so late, and only from the top of each thread's heap: after many blocks of text a
process holds several hundred megabytes of free but unreturned memory. With other allocators both
functions do nothing.
"""

import ctypes
import functools
from typing import Any

M_MMAP_THRESHOLD = -3  # malloc.h
# blocks of this size are mapped one by one and returned when freed; malloc reuses smaller ones
LARGE_BYTES = 4 << 20


@functools.cache
def glibc() -> Any:
    """Return the C library, a ctypes.CDLL, if it is glibc; else None."""
    try:
        library = ctypes.CDLL(None)
        return (
            library
            if hasattr(library, "gnu_get_libc_version") and hasattr(library, "malloc_trim")
            else None
        )
    except (OSError, TypeError):
        return None


def map_large_blocks() -> None:
    """Allocate large arrays and strings outside the heap from now on. This sets a fixed threshold,
    because glibc raises its own whenever a mapped block is freed.
    """
    if glibc() is not None:
        glibc().mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def trim_heap() -> None:
    """Return free pages of the heap to the system, which takes milliseconds."""
    if glibc() is not None:
        glibc().malloc_trim(ctypes.c_size_t(0))
