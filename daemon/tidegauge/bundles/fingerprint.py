"""Fingerprints of tensors and hashes of files, in one pass and bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tidegauge.bundles.manifest import Fingerprint
from tidegauge.tensors import ELEMENT_SIZES

#: Elements looked at in one go; some ten times as many bytes are held for a moment.
BLOCK = 1 << 18
#: Bytes read in one go.
READ = 1 << 20


def fingerprint(array: NDArray[Any]) -> Fingerprint:
    """The fingerprint of a tensor of any shape, of an element type of `tensors.ELEMENT_SIZES`; see `Fingerprint`.

    The code range is that of the element type; for float32 it is the range of finite numbers. Sums are in float64.
    Raises ValueError for an empty tensor, which has no shares, and for another element type.
    """
    if array.dtype.name not in ELEMENT_SIZES:
        raise ValueError(f"no fingerprint of {array.dtype.name}; known: {', '.join(ELEMENT_SIZES)}")
    if array.size == 0:
        raise ValueError("an empty tensor has no fingerprint")
    tally = _Tally(array.dtype)
    for block in _blocks(array):
        tally.add(block)
    return tally.result()


class _Tally:
    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._integer = dtype.kind in "iu"
        limits = np.iinfo(dtype) if self._integer else np.finfo(dtype)
        self._low, self._high = limits.min, limits.max
        self._count = self._finite = self._zeros = self._lows = self._highs = 0
        self._sum = self._squares = 0.0
        self._minimum, self._maximum = float("inf"), float("-inf")
        self._counts = np.zeros(256, np.int64) if dtype.itemsize == 1 else None

    def add(self, block: NDArray[Any]) -> None:
        self._count += block.size
        self._zeros += int(np.count_nonzero(block == 0))
        self._lows += int(np.count_nonzero(block == self._low))
        self._highs += int(np.count_nonzero(block == self._high))
        if self._counts is not None:
            codes = block.astype(np.int64) - int(self._low)
            self._counts += np.bincount(codes, minlength=256)
        values = block.astype(np.float64)
        if not self._integer:
            values = values[np.isfinite(values)]
        self._finite += values.size
        if values.size:
            self._minimum = min(self._minimum, float(values.min()))
            self._maximum = max(self._maximum, float(values.max()))
            self._sum += float(values.sum())
            self._squares += float(np.dot(values, values))

    def result(self) -> Fingerprint:
        any_finite = self._finite > 0
        return Fingerprint(
            count=self._count,
            non_finite=self._count - self._finite,
            minimum=self._minimum if any_finite else None,
            maximum=self._maximum if any_finite else None,
            mean=self._sum / self._finite if any_finite else None,
            rms=sqrt(self._squares / self._finite) if any_finite else None,
            zero_share=self._zeros / self._count,
            low_share=self._lows / self._count,
            high_share=self._highs / self._count,
            counts=None if self._counts is None else tuple(int(count) for count in self._counts),
        )


def _blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Pieces of the elements in C order. Slices of `flat` copy one piece, whatever the memory layout."""
    whole = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for start in range(0, array.size, BLOCK):
        yield np.asarray(whole[start : start + BLOCK])


class Digest:
    """SHA-256 (for identity) and XXH3-128 (to compare cheaply) of the same bytes."""

    def __init__(self) -> None:
        self._sha256, self._xxh3 = hashlib.sha256(), xxhash.xxh3_128()
        self.size = 0

    def update(self, data: bytes | memoryview) -> None:
        self._sha256.update(data)
        self._xxh3.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def xxh3_128(self) -> str:
        return str(self._xxh3.hexdigest())


def digest_bytes(data: bytes) -> tuple[str, str]:
    """SHA-256 and XXH3-128 of `data`, hex."""
    digest = Digest()
    digest.update(data)
    return digest.sha256, digest.xxh3_128


def digest_file(path: Path) -> tuple[str, str]:
    """SHA-256 and XXH3-128 of a file, hex, from one read. Raises OSError."""
    digest = Digest()
    with path.open("rb") as file:
        while piece := file.read(READ):
            digest.update(piece)
    return digest.sha256, digest.xxh3_128
