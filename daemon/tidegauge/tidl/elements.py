"""Element types of TIDL tensors.

Source: eTIDL_ElementType of TI's itidl_io.h; the names are those in the tempDir's svg.
"""

from __future__ import annotations

from enum import IntEnum

from tidegauge.tidl.errors import FormatError


class ElementType(IntEnum):
    """A TIDL element type; the value is its code in descriptors, protos and log lines."""

    UNSIGNED_CHAR = 0
    SIGNED_CHAR = 1
    UNSIGNED_SHORT = 2
    SIGNED_SHORT = 3
    UNSIGNED_WORD = 4
    SIGNED_WORD = 5
    SINGLE_PREC_FLOAT = 6
    UNSIGNED_DOUBLE_WORD = 7
    SIGNED_DOUBLE_WORD = 8

    @property
    def svg_name(self) -> str:
        """The name in svg and html, for instance "TIDL_SignedShort"."""
        return _ROWS[self][0]

    @property
    def dtype(self) -> str:
        """NumPy's name."""
        return _ROWS[self][1]

    @property
    def bits(self) -> int:
        return _ROWS[self][2]

    @property
    def is_float(self) -> bool:
        return self is ElementType.SINGLE_PREC_FLOAT

    @property
    def code_range(self) -> tuple[int, int] | None:
        """Lowest and highest code, both included; None for float."""
        if self.is_float:
            return None
        if self.dtype.startswith("u"):
            return 0, (1 << self.bits) - 1
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1


_ROWS: dict[ElementType, tuple[str, str, int]] = {
    ElementType.UNSIGNED_CHAR: ("TIDL_UnsignedChar", "uint8", 8),
    ElementType.SIGNED_CHAR: ("TIDL_SignedChar", "int8", 8),
    ElementType.UNSIGNED_SHORT: ("TIDL_UnsignedShort", "uint16", 16),
    ElementType.SIGNED_SHORT: ("TIDL_SignedShort", "int16", 16),
    ElementType.UNSIGNED_WORD: ("TIDL_UnsignedWord", "uint32", 32),
    ElementType.SIGNED_WORD: ("TIDL_SignedWord", "int32", 32),
    ElementType.SINGLE_PREC_FLOAT: ("TIDL_SinglePrecFloat", "float32", 32),
    ElementType.UNSIGNED_DOUBLE_WORD: ("TIDL_UnsignedDoubleWord", "uint64", 64),
    ElementType.SIGNED_DOUBLE_WORD: ("TIDL_SignedDoubleWord", "int64", 64),
}
_BY_SVG_NAME = {row[0]: element for element, row in _ROWS.items()}
_BY_DTYPE = {row[1]: element for element, row in _ROWS.items()}


def from_code(code: int) -> ElementType | None:
    """The element type of a code; None where TIDL knows none such."""
    return ElementType(code) if 0 <= code < len(_ROWS) else None


def from_svg_name(name: str) -> ElementType | None:
    """The element type of a name as in the svg; None where TIDL knows none such."""
    return _BY_SVG_NAME.get(name)


def from_dtype(dtype: str) -> ElementType:
    """The element type of a NumPy name. Raises FormatError."""
    if dtype not in _BY_DTYPE:
        raise FormatError(f"element type {dtype!r} is none of TIDL's", "use one of: " + ", ".join(_BY_DTYPE))
    return _BY_DTYPE[dtype]
