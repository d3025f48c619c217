"""A call into the TIDL stack that never comes back."""

from __future__ import annotations

import ctypes
import os
from typing import NoReturn


def wait_for_ever() -> NoReturn:
    """Block in C, with Python's lock released, as vxProcessGraph does: no Python signal handler runs any more in the
    calling thread, SIGTERM with a handler does nothing, SIGKILL ends the process."""
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(128)  # PTHREAD_MUTEX_INITIALIZER is all zeros, and no more than 48 bytes
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
    os.abort()  # a lock that is held can't be had


def say(text: str) -> None:
    """As the C library does: on file descriptor 1, past Python's `sys.stdout`."""
    os.write(1, f"{text}\n".encode())
