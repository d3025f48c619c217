"""`*_tidl_io_1.bin`: what TIDL expects of a network's inputs and outputs.

Source: sTIDL_IOBufDesc_t of TI's itidl_ti.h, releases 10.0 to 11.1, one core; checked against real AM62A files of tools
10_00_08_00, which it reads and writes to the byte. Integers are little-endian int32; arrays go by field, not by tensor.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

import msgspec

from tidegauge.tidl import elements
from tidegauge.tidl.errors import FormatError

SIZE = 94616
#: Sizes of the struct by release; the loader takes its own and no other.
KNOWN_SIZES = {
    37256: "8.6 or 9.0",
    37272: "8.6 or 9.0",
    93976: "9.2",
    SIZE: "10.0 to 11.1, one core",
    378392: "11.2, four cores",
}
MAX_INPUTS, MAX_OUTPUTS, NAME_BYTES = 32, 128, 512

_HEADER = struct.Struct("<6i")
_INPUT_FIELDS = (
    *("data_format", "resize_type", "resize_width", "resize_height", "width", "height", "channels"),
    *("dim2", "dim1", "channel_pitch", "batch", "pad_left", "pad_top", "pad_right", "pad_bottom", "pad_channel"),
    *("raw_element", "element", "zero_point", "layout", "data_id"),
)
_OUTPUT_FIELDS = (
    *("width", "height", "dim2", "dim1", "channels", "channel_pitch", "batch"),
    *("pad_left", "pad_top", "pad_right", "pad_bottom", "pad_channel", "element", "data_id"),
)
_OUTPUT_TAIL = ("zero_point", "layout", "size", "valid_dims")
_INT32 = range(-(1 << 31), 1 << 31)
_FLOAT_MAX = (2 - 2**-23) * 2.0**127

Dims = tuple[int, int, int, int, int, int]
Pads = tuple[int, int, int, int, int]
Columns = dict[str, tuple[int, ...]]


class IoTensor(msgspec.Struct, frozen=True):
    """An input or output of the network.

    `dims`: (batch, dim1, dim2, channels, height, width), without padding. `pads`: (left, top, right, bottom, channel).
    `channel_pitch` in elements; `size` of the buffer in elements as the compile states it. `layout`: 0 NCHW, 1 NHWC.
    """

    name: str
    data_id: int
    dims: Dims
    dtype: str
    scale: float
    zero_point: int
    pads: Pads = (0, 0, 0, 0, 0)
    channel_pitch: int = 0
    size: int = 0
    layout: int = 0


class IoInput(IoTensor, frozen=True):
    """An input. `raw_dtype`: the type that the caller hands in. `resize`: (width, height) where TIDL resizes."""

    raw_dtype: str = "float32"
    data_format: int = 1
    resize_type: int = 0
    resize: tuple[int, int] = (0, 0)


class IoOutput(IoTensor, frozen=True):
    """An output. `valid_dims`: how many of the last dimensions the graph's own shape has."""

    valid_dims: int = 6

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the ONNX graph: the last `valid_dims` dimensions."""
        return self.dims[len(self.dims) - self.valid_dims :]


class IoDescriptor(msgspec.Struct, frozen=True):
    """The whole descriptor."""

    inputs: tuple[IoInput, ...]
    outputs: tuple[IoOutput, ...]
    cores: int = 1
    virtual_cores: int = 1
    super_batches: int = 1
    inference_mode: int = 0


def parse(data: bytes) -> IoDescriptor:
    """Raises FormatError; one that names the release where the size is another release's."""
    if len(data) != SIZE:
        whose = f"that is the size of release {KNOWN_SIZES[len(data)]}, " if len(data) in KNOWN_SIZES else ""
        raise FormatError(f"tidl_io_1.bin: {len(data)} bytes, {whose}not {SIZE}", "compile with tools 10.0 to 11.1")
    n_in, n_out, cores, virtual_cores, super_batches, mode = _HEADER.unpack_from(data)
    if not 0 <= n_in <= MAX_INPUTS or not 0 <= n_out <= MAX_OUTPUTS:
        raise FormatError(f"tidl_io_1.bin: {n_in} inputs and {n_out} outputs can't be", offset=0)
    reader = _Reader(data, _HEADER.size)
    columns = reader.columns(_INPUT_FIELDS, MAX_INPUTS)
    scales, names = reader.floats(MAX_INPUTS), reader.names(MAX_INPUTS, n_in)
    columns.update(reader.columns(("size",), MAX_INPUTS))
    inputs = tuple(_input(columns, index, names[index], scales[index]) for index in range(n_in))
    columns = reader.columns(_OUTPUT_FIELDS, MAX_OUTPUTS)
    names, scales = reader.names(MAX_OUTPUTS, n_out), reader.floats(MAX_OUTPUTS)
    columns.update(reader.columns(_OUTPUT_TAIL, MAX_OUTPUTS))
    outputs = tuple(_output(columns, index, names[index], scales[index]) for index in range(n_out))
    return IoDescriptor(inputs, outputs, cores, virtual_cores, super_batches, mode)


def pack(descriptor: IoDescriptor) -> bytes:
    """The file's 94616 bytes; scales become float32. Raises FormatError for what the struct has no room for."""
    inputs, outputs = descriptor.inputs, descriptor.outputs
    if len(inputs) > MAX_INPUTS or len(outputs) > MAX_OUTPUTS:
        raise FormatError(f"tidl_io_1.bin: room for {MAX_INPUTS} inputs and {MAX_OUTPUTS} outputs", "split the model")
    counts = (len(inputs), len(outputs), descriptor.cores, descriptor.virtual_cores)
    head = _integers((*counts, descriptor.super_batches, descriptor.inference_mode), 6)
    rows = [_input_row(item) for item in inputs]
    parts = [head, *(_integers([row[field] for row in rows], MAX_INPUTS) for field in _INPUT_FIELDS)]
    parts += [_floats(inputs, MAX_INPUTS), _names(inputs, MAX_INPUTS), _integers([i.size for i in inputs], MAX_INPUTS)]
    rows = [_output_row(item) for item in outputs]
    parts += [_integers([row[field] for row in rows], MAX_OUTPUTS) for field in _OUTPUT_FIELDS]
    parts += [_names(outputs, MAX_OUTPUTS), _floats(outputs, MAX_OUTPUTS)]
    parts += [_integers([row[field] for row in rows], MAX_OUTPUTS) for field in _OUTPUT_TAIL]
    return b"".join(parts)


class _Reader:
    def __init__(self, data: bytes, offset: int) -> None:
        self.data = data
        self.offset = offset

    def columns(self, fields: Sequence[str], length: int) -> Columns:
        found: Columns = {}
        for field in fields:
            found[field] = struct.unpack_from(f"<{length}i", self.data, self.offset)
            self.offset += 4 * length
        return found

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


def _common(columns: Columns, index: int, name: str, scale: float) -> tuple[Dims, Pads, int]:
    def value(field: str) -> int:
        return columns[field][index]

    dims = (value("batch"), value("dim1"), value("dim2"), value("channels"), value("height"), value("width"))
    if min(dims) < 0:
        raise FormatError(f"tidl_io_1.bin: tensor {name[:80]!r} has a negative dimension in {dims}")
    if not math.isfinite(scale):
        raise FormatError(f"tidl_io_1.bin: tensor {name[:80]!r} has the scale {scale}")
    pads = (value("pad_left"), value("pad_top"), value("pad_right"), value("pad_bottom"), value("pad_channel"))
    return dims, pads, value("size")


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
    valid = columns["valid_dims"][index]
    if not 0 <= valid <= len(dims):
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
    rest = {"data_id": item.data_id, "zero_point": item.zero_point, "layout": item.layout, "size": item.size}
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
    return {**_row(item), "valid_dims": item.valid_dims}


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
