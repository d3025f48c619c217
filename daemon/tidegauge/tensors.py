"""What a tensor is, to every process: a name, a shape, an element type."""

from __future__ import annotations

from math import prod

import msgspec

#: Element types that cross a process or a wire, with their size in bytes. Names are NumPy's.
ELEMENT_SIZES = {
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float32": 4,
}


class TensorSpec(msgspec.Struct, frozen=True):
    """Name, shape (outermost dimension first, all known) and NumPy element type of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ELEMENT_SIZES[self.dtype]
