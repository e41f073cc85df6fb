"""Memory that programs free is kept for their next step.

The C library of Linux (glibc) gives large blocks back to the system as soon as they are free, and each thread has a
heap of its own. A training step then asks for the same hundred megabytes again and again, and the system clears every
page of them: that took up to half of the time of a step.
"""

import ctypes
import os
import sys

SETTINGS = {-4: 0, -1: 2_000_000_000, -8: 1}
"""M_MMAP_MAX (no blocks outside of the heap), M_TRIM_THRESHOLD (free bytes that the heap may keep), M_ARENA_MAX (one
heap for all threads), with their numbers in glibc's malloc.h."""


def keep_freed_memory() -> bool:
    """Let this process keep up to 2 GB that it frees, for all of its threads; says whether it does: only with glibc.

    Results do not change. Settings of the user (``MALLOC_...``, ``GLIBC_TUNABLES``) are left alone. It is for programs,
    not for libraries. Call it before JAX starts its threads, which otherwise keep heaps of their own.
    """
    chosen = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    if chosen or not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    accepted = [library.mallopt(ctypes.c_int(name), ctypes.c_int(value)) for name, value in SETTINGS.items()]
    return all(accepted)
