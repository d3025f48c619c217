"""Shared memory between two processes: an anonymous memfd, mapped on both sides.

It has no name, so nothing is left behind by a killed process; each worker makes a new one, so that a replacement
never meets what its predecessor left half-written. Who may touch which slot is settled by messages, not by locks:
a lock in shared memory stays held by a killed process for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from math import prod

import numpy as np

from tidegauge.pipeline.layout import Region, RingSpec
from tidegauge.runtimes.session import Array


class SlotError(IndexError):
    """There is no such slot, or the tensor reaches past it."""


class Ring:
    """A mapped ring. Close it when its worker's generation ends."""

    def __init__(self, spec: RingSpec, fd: int) -> None:
        """Map `fd`; the descriptor stays open as `self.fd` and belongs to the ring, also when this raises ValueError.

        The size is checked here, since touching a page beyond the end of a memfd kills the process (SIGBUS).
        """
        self.spec = spec
        self.fd = fd
        try:
            if spec.slots < 0 or spec.slot_bytes < 0:
                raise ValueError(f"a ring can't have {spec.slots} slots of {spec.slot_bytes} bytes")
            size = os.fstat(fd).st_size
            if size < spec.nbytes:
                raise ValueError(f"the shared memory of {size} bytes is too small for a ring of {spec.nbytes}")
            self._map = mmap.mmap(fd, max(spec.nbytes, 1))
        except (OSError, ValueError):
            os.close(fd)
            raise

    @classmethod
    def create(cls, spec: RingSpec, name: str) -> Ring:
        """A new ring, its size sealed, so that neither side can pull pages from under the other."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, max(spec.nbytes, 1))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except OSError:
            os.close(fd)
            raise
        return cls(spec, fd)

    def _start(self, slot: int, region: Region) -> int:
        if not 0 <= slot < self.spec.slots:
            raise SlotError(f"slot {slot} of a ring of {self.spec.slots}")
        if region.offset < 0 or region.offset + region.spec.nbytes > self.spec.slot_bytes:
            raise SlotError(f"tensor {region.spec.name} reaches past its slot of {self.spec.slot_bytes} bytes")
        return slot * self.spec.slot_bytes + region.offset

    def array(self, slot: int, region: Region) -> Array:
        """A view (no copy) of a tensor in a slot."""
        start = self._start(slot, region)
        # Not np.ndarray(buffer=…): that keeps no export of the buffer, so `close` would unmap under a living view.
        dtype = np.dtype(region.spec.dtype)
        return np.frombuffer(self._map, dtype, prod(region.spec.shape), start).reshape(region.spec.shape)

    def read(self, slot: int, region: Region) -> bytes:
        """A copy of a tensor's bytes."""
        start = self._start(slot, region)
        return self._map[start : start + region.spec.nbytes]

    def close(self) -> None:
        """Unmap and close, once or more often; a view still held by somebody keeps the mapping until it is dropped."""
        with contextlib.suppress(BufferError):  # a view is still alive: the mapping ends with it
            self._map.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
