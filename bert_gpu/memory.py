"""Keeps what a process holds in memory to what it uses.

glibc's malloc gives freed memory back to the system late, and from the top of each thread's heap
only: after many blocks of text a process holds several hundred megabytes of gaps. On other systems,
and with other allocators, both functions do nothing.
"""

import ctypes
import functools

M_MMAP_THRESHOLD = -3  # malloc.h
# of what is mapped for itself, and so given back when it is freed; smaller things are
# worth using again
LARGE_BYTES = 4 << 20


@functools.cache
def glibc():
    """The C library, where it is glibc; else None."""
    try:
        library = ctypes.CDLL(None)
        return (
            library
            if hasattr(library, "gnu_get_libc_version") and hasattr(library, "malloc_trim")
            else None
        )
    except (OSError, TypeError):
        return None


def map_large_things():
    """From now on large arrays and strings lie outside of the heap. glibc would raise the size that
    is large as it sees them freed.
    """
    if glibc() is not None:
        glibc().mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def give_back():
    """Returns free pages to the system; takes milliseconds."""
    if glibc() is not None:
        glibc().malloc_trim(ctypes.c_size_t(0))
