"""Shared memory between two processes: an anonymous memfd, mapped on both sides.

It has no name, so nothing is left behind by a killed process; each worker makes a new one, so that a replacement
never meets what its predecessor left half-written. Who may touch which slot is settled by messages, not by locks:
a lock in shared memory stays held by a killed process for ever.
"""

from __future__ import annotations

import contextlib
import mmap
import os

import numpy as np

from tidegauge.pipeline.layout import Region, RingSpec
from tidegauge.runtimes.session import Array


class Ring:
    """A mapped ring. Close it when its worker's generation ends."""

    def __init__(self, spec: RingSpec, fd: int) -> None:
        """Map `fd`; the descriptor stays open as `self.fd` and belongs to the ring."""
        self.spec = spec
        self.fd = fd
        self._map = mmap.mmap(fd, max(spec.nbytes, 1))

    @classmethod
    def create(cls, spec: RingSpec, name: str) -> Ring:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, max(spec.nbytes, 1))
        return cls(spec, fd)

    def _start(self, slot: int) -> int:
        if not 0 <= slot < self.spec.slots:
            raise IndexError(f"slot {slot} of a ring of {self.spec.slots}")
        return slot * self.spec.slot_bytes

    def array(self, slot: int, region: Region) -> Array:
        """A view (no copy) of a tensor in a slot."""
        start = self._start(slot) + region.offset
        shape = region.spec.shape
        return np.ndarray(shape, np.dtype(region.spec.dtype), buffer=self._map, offset=start)

    def read(self, slot: int, region: Region) -> bytes:
        """A copy of a tensor's bytes."""
        start = self._start(slot) + region.offset
        return self._map[start : start + region.spec.nbytes]

    def close(self) -> None:
        """Unmap and close; a view still held by somebody keeps the mapping until it is dropped."""
        with contextlib.suppress(BufferError):  # a view is still alive: the mapping ends with it
            self._map.close()
        os.close(self.fd)
