"""Settings of a whole process that make it faster: for commands alone, which own theirs."""

import ctypes
import gc
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_COLLECT_AFTER = 100_000  # new objects; Python's 700 to 2,000 cost a fifth of loading libraries


def collect_rarely() -> None:
    """Look for garbage rarely: loading libraries makes many objects that all stay."""
    gc.set_threshold(_COLLECT_AFTER, 50, 100)


def keep_memory() -> None:
    """Keep freed memory for the next tensor, in training, whose steps are alike, and small work.

    glibc returns large blocks to the system and fetches them again, page by page, for the next
    tensor of the same size. Elsewhere (macOS, musl) the allocator stays as it is. A large search
    grew by this, from one start on transformer-a with 1,024 examples to 2.4 GB instead of 1.5; that
    was before bases were stored in place (`circuits.runs.layer_input`) and was not measured since.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, 2**30)
            mallopt(_TRIM_THRESHOLD, 2**31 - 1)
