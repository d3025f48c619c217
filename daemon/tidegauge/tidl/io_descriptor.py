"""`*_tidl_io_1.bin`: what TIDL expects of a network's inputs and outputs.

Source: sTIDL_IOBufDesc_t in the five layouts of `io_layout` (8.6 to 11.2); that of 10.0 to 11.1 is checked against real
AM62A files of tools 10_00_08_00, which it reads and writes to the byte. Integers are little-endian int32; arrays go by
field, not by tensor.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tidegauge.tidl import elements
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.io_layout import LAYOUTS, NAME_BYTES, Layout

#: The size that releases 10.0 to 11.1 write for one core.
SIZE = 94616
LARGEST = max(LAYOUTS)
#: Sizes of the struct by release; the loader takes its own and no other.
KNOWN_SIZES = {size: layout.release for size, layout in LAYOUTS.items()}

_INT32 = range(-(1 << 31), 1 << 31)
_FLOAT_MAX = (2 - 2**-23) * 2.0**127
_MOST_CORES, _INFERENCE_MODES = 8, range(3)

Dims = tuple[int, int, int, int, int, int]
Pads = tuple[int, int, int, int, int]
Columns = dict[str, tuple[int, ...]]


class IoTensor(msgspec.Struct, frozen=True):
    """An input or output of the network.

    `dims`: (batch, dim1, dim2, channels, height, width), without padding. `pads`: (left, top, right, bottom, channel).
    `channel_pitch` in elements; `size` of the buffer in elements as the compile states it, None before release 10.0.
    `layout`: 0 NCHW, 1 NHWC.
    """

    name: str
    data_id: int
    dims: Dims
    dtype: str
    scale: float
    zero_point: int
    pads: Pads = (0, 0, 0, 0, 0)
    channel_pitch: int = 0
    size: int | None = None
    layout: int = 0


class IoInput(IoTensor, frozen=True):
    """An input. `raw_dtype`: the type that the caller hands in. `resize`: (width, height) where TIDL resizes."""

    raw_dtype: str = "float32"
    data_format: int = 1
    resize_type: int = 0
    resize: tuple[int, int] = (0, 0)


class IoOutput(IoTensor, frozen=True):
    """An output. `valid_dims`: how many of the last dimensions the graph's own shape has; None before release 9.2."""

    valid_dims: int | None = 6

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape in the ONNX graph: the last `valid_dims` dimensions; None where the release does not tell."""
        return None if self.valid_dims is None else self.dims[len(self.dims) - self.valid_dims :]


class IoDescriptor(msgspec.Struct, frozen=True):
    """The whole descriptor. `file_size`: which release's layout, a key of KNOWN_SIZES."""

    inputs: tuple[IoInput, ...]
    outputs: tuple[IoOutput, ...]
    cores: int = 1
    virtual_cores: int = 1
    super_batches: int = 1
    inference_mode: int = 0
    file_size: int = SIZE

    @property
    def release(self) -> str:
        """The releases that write this layout, for instance "10.0 to 11.1"."""
        return KNOWN_SIZES[self.file_size]


def parse(data: bytes) -> IoDescriptor:
    """Any of the five layouts, told by the size. Raises FormatError, naming the releases where the size is none."""
    layout = LAYOUTS.get(len(data))
    if layout is None:
        known = ", ".join(f"{size} ({release})" for size, release in KNOWN_SIZES.items())
        raise FormatError(f"tidl_io_1.bin: {len(data)} bytes are no release's descriptor; known are {known}")
    reader = _Reader(data)
    words = reader.integers(layout.leading_words)
    n_in, n_out = words[:2]
    if not 0 <= n_in <= layout.inputs or not 0 <= n_out <= layout.outputs:
        raise FormatError(f"tidl_io_1.bin: {n_in} inputs and {n_out} outputs can't be", offset=0)
    cores, virtual_cores, super_batches, mode = words[2:] or (1, 1, 1, 0)
    if not layout.header_published:
        _require_derived(layout, words)
    columns = reader.columns(layout.input_fields, layout.inputs)
    scales, names = reader.floats(layout.inputs), reader.names(layout.inputs, n_in)
    columns |= reader.columns(layout.input_tail, layout.inputs)
    inputs = tuple(_input(columns, index, names[index], scales[index]) for index in range(n_in))
    columns = reader.columns(layout.output_fields, layout.outputs)
    names, scales = reader.names(layout.outputs, n_out), reader.floats(layout.outputs)
    columns |= reader.columns(layout.output_tail, layout.outputs)
    outputs = tuple(_output(columns, index, names[index], scales[index]) for index in range(n_out))
    return IoDescriptor(inputs, outputs, cores, virtual_cores, super_batches, mode, len(data))


def _require_derived(layout: Layout, words: Sequence[int]) -> None:
    """A layout that no public header shows is read only where its leading words make sense."""
    cores, virtual_cores, super_batches, mode = words[2:]
    sane = all(1 <= value <= _MOST_CORES for value in (cores, virtual_cores)) and super_batches >= 1
    if not sane or mode not in _INFERENCE_MODES:
        raise FormatError(
            f"tidl_io_1.bin: the layout of release {layout.release} ({layout.size} bytes) is not public, and the"
            f" leading words {tuple(words)} are not those of the layout derived from 8.6 and 9.2",
            "compile with tools 9.2 or later, or take the tensors' names and scales from tempDir",
            offset=8,
        )


def pack(descriptor: IoDescriptor) -> bytes:
    """The file's bytes in the layout of `file_size`; scales become float32.

    Raises FormatError for what the struct has no room for. What an older layout does not hold is left out.
    """
    layout = LAYOUTS.get(descriptor.file_size)
    if layout is None:
        raise FormatError(f"tidl_io_1.bin: no release writes {descriptor.file_size} bytes", f"use {SIZE}")
    inputs, outputs = descriptor.inputs, descriptor.outputs
    if len(inputs) > layout.inputs or len(outputs) > layout.outputs:
        room = f"room for {layout.inputs} inputs and {layout.outputs} outputs"
        raise FormatError(f"tidl_io_1.bin: {room}", "split the model")
    counts = (len(inputs), len(outputs), descriptor.cores, descriptor.virtual_cores)
    words = (*counts, descriptor.super_batches, descriptor.inference_mode)[: layout.leading_words]
    rows_in, rows_out = [_input_row(item) for item in inputs], [_output_row(item) for item in outputs]
    return b"".join(
        (
            _integers(words, layout.leading_words),
            _columns(rows_in, layout.input_fields, layout.inputs),
            _floats(inputs, layout.inputs),
            _names(inputs, layout.inputs),
            _columns(rows_in, layout.input_tail, layout.inputs),
            _columns(rows_out, layout.output_fields, layout.outputs),
            _names(outputs, layout.outputs),
            _floats(outputs, layout.outputs),
            _columns(rows_out, layout.output_tail, layout.outputs),
        )
    )


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def integers(self, length: int) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{length}i", self.data, self.offset)
        self.offset += 4 * length
        return values

    def columns(self, fields: Sequence[str], length: int) -> Columns:
        return {field: self.integers(length) for field in fields}

    def floats(self, length: int) -> tuple[float, ...]:
        values = struct.unpack_from(f"<{length}f", self.data, self.offset)
        self.offset += 4 * length
        return values

    def names(self, length: int, used: int) -> list[str]:
        start, self.offset = self.offset, self.offset + NAME_BYTES * length
        return [_name(self.data, start + NAME_BYTES * index) for index in range(used)]


def _name(data: bytes, offset: int) -> str:
    field = data[offset : offset + NAME_BYTES]
    end = field.find(b"\0")
    if end < 0:
        raise FormatError("tidl_io_1.bin: a tensor's name has no end", offset=offset)
    try:
        return field[:end].decode()
    except UnicodeDecodeError:
        raise FormatError("tidl_io_1.bin: a tensor's name is not text", offset=offset) from None


def _dtype(code: int, name: str) -> str:
    element = elements.from_code(code)
    if element is None:
        raise FormatError(f"tidl_io_1.bin: tensor {name[:80]!r} has the unknown element type {code}")
    return element.dtype


def _common(columns: Columns, index: int, name: str, scale: float) -> tuple[Dims, Pads, int | None]:
    def value(field: str) -> int:
        return columns[field][index]

    dim1, dim2 = (value("dim1"), value("dim2")) if "dim1" in columns else (1, 1)
    dims = (value("batch"), dim1, dim2, value("channels"), value("height"), value("width"))
    if min(dims) < 0:
        raise FormatError(f"tidl_io_1.bin: tensor {name[:80]!r} has a negative dimension in {dims}")
    if not math.isfinite(scale):
        raise FormatError(f"tidl_io_1.bin: tensor {name[:80]!r} has the scale {scale}")
    pads = (value("pad_left"), value("pad_top"), value("pad_right"), value("pad_bottom"), value("pad_channel"))
    return dims, pads, value("size") if "size" in columns else None


def _input(columns: Columns, index: int, name: str, scale: float) -> IoInput:
    dims, pads, size = _common(columns, index, name, scale)
    return IoInput(
        name=name,
        data_id=columns["data_id"][index],
        dims=dims,
        dtype=_dtype(columns["element"][index], name),
        scale=scale,
        zero_point=columns["zero_point"][index],
        pads=pads,
        channel_pitch=columns["channel_pitch"][index],
        size=size,
        layout=columns["layout"][index],
        raw_dtype=_dtype(columns["raw_element"][index], name),
        data_format=columns["data_format"][index],
        resize_type=columns["resize_type"][index],
        resize=(columns["resize_width"][index], columns["resize_height"][index]),
    )


def _output(columns: Columns, index: int, name: str, scale: float) -> IoOutput:
    dims, pads, size = _common(columns, index, name, scale)
    valid = columns["valid_dims"][index] if "valid_dims" in columns else None
    if valid is not None and not 0 <= valid <= len(dims):
        raise FormatError(f"tidl_io_1.bin: output {name[:80]!r} has {valid} valid dimensions")
    return IoOutput(
        name=name,
        data_id=columns["data_id"][index],
        dims=dims,
        dtype=_dtype(columns["element"][index], name),
        scale=scale,
        zero_point=columns["zero_point"][index],
        pads=pads,
        channel_pitch=columns["channel_pitch"][index],
        size=size,
        layout=columns["layout"][index],
        valid_dims=valid,
    )


def _row(item: IoTensor) -> dict[str, int]:
    batch, dim1, dim2, channels, height, width = item.dims
    sizes = {"batch": batch, "dim1": dim1, "dim2": dim2, "channels": channels, "height": height, "width": width}
    left, top, right, bottom, channel = item.pads
    pads = {"pad_left": left, "pad_top": top, "pad_right": right, "pad_bottom": bottom, "pad_channel": channel}
    rest = {"data_id": item.data_id, "zero_point": item.zero_point, "layout": item.layout, "size": item.size or 0}
    element = elements.from_dtype(item.dtype).value
    return {**sizes, **pads, **rest, "channel_pitch": item.channel_pitch, "element": element}


def _input_row(item: IoInput) -> dict[str, int]:
    width, height = item.resize
    return {
        **_row(item),
        "data_format": item.data_format,
        "resize_type": item.resize_type,
        "resize_width": width,
        "resize_height": height,
        "raw_element": elements.from_dtype(item.raw_dtype).value,
    }


def _output_row(item: IoOutput) -> dict[str, int]:
    return {**_row(item), "valid_dims": len(item.dims) if item.valid_dims is None else item.valid_dims}


def _columns(rows: Sequence[Mapping[str, int]], fields: Sequence[str], length: int) -> bytes:
    return b"".join(_integers([row[field] for row in rows], length) for field in fields)


def _integers(values: Sequence[int], length: int) -> bytes:
    for value in values:
        if value not in _INT32:
            raise FormatError(f"tidl_io_1.bin: {value} does not fit into 32 bits", "use a smaller tensor")
    return struct.pack(f"<{length}i", *values, *(0,) * (length - len(values)))


def _floats(items: Sequence[IoTensor], length: int) -> bytes:
    values = [item.scale for item in items]
    if not all(abs(value) <= _FLOAT_MAX for value in values):
        raise FormatError("tidl_io_1.bin: a scale is not finite or too large for float32", "correct the scale")
    return struct.pack(f"<{length}f", *values, *(0.0,) * (length - len(values)))


def _names(items: Sequence[IoTensor], length: int) -> bytes:
    return b"".join(_padded(items)).ljust(NAME_BYTES * length, b"\0")


def _padded(items: Sequence[IoTensor]) -> Iterator[bytes]:
    for item in items:
        try:
            name = item.name.encode()
        except UnicodeEncodeError:
            raise FormatError(f"tidl_io_1.bin: the name {item.name[:40]!r} is not text", "rename it") from None
        if len(name) >= NAME_BYTES or b"\0" in name:
            raise FormatError(f"tidl_io_1.bin: the name {item.name[:40]!r} is longer than 511 bytes", "rename it")
        yield name.ljust(NAME_BYTES, b"\0")
