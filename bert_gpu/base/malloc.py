"""Makes glibc's malloc return freed memory to the system.

By default malloc returns memory late, and only from the top of each thread's heap: after many
blocks of text a process holds several hundred megabytes of free but unreturned memory. With another
C library, map_large_blocks and trim_heap do nothing.
"""

import ctypes
import functools

M_MMAP_THRESHOLD = -3  # the constant's value in glibc's malloc.h
# blocks of at least this size are mapped one by one and returned to the system when freed;
# smaller ones stay in the heap for reuse
LARGE_BYTES = 4 << 20


@functools.cache
def glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc, else None."""
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
    """Make malloc allocate blocks of at least LARGE_BYTES outside the heap from now on. Setting the
    threshold also fixes it; otherwise glibc raises it whenever a mapped block is freed.
    """
    if (library := glibc()) is not None:
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def trim_heap() -> None:
    """Return free pages of the heap to the system, which takes milliseconds."""
    if (library := glibc()) is not None:
        library.malloc_trim(ctypes.c_size_t(0))
