"""Giving back to the system what the start has used."""

from __future__ import annotations

import ctypes
import gc


def give_back() -> None:
    """Collect once, and let the C library return the free pages of its heap: imports leave some megabytes of them.

    malloc_trim(3) is glibc's own; another C library keeps what it has.
    """
    gc.collect()
    gc.freeze()  # what the start made stays: later collections need not look at it
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
