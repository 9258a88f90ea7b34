"""The memory of a process that trains on a CPU."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
AS_LARGE_AS_POSSIBLE = 2**31 - 1


def keep_freed_memory() -> bool:
    """Lets the C library keep what is freed, and use it again for the next step's tensors.

    By default it gives a large tensor's pages back to the system at once, and the system hands out and clears new
    ones for the next. On GPUs torch keeps memory by itself.

    Returns:
        Whether the C library is one that can be told so (glibc).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent from musl
    return mallopt is not None and all(
        mallopt(option, AS_LARGE_AS_POSSIBLE) for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)
    )
