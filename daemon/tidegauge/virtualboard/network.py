"""The compiled network: its layers, its quantisation, and the file `*_tidl_net.bin` that carries them.

The two leading words (version, device id) are TIDL's, so that a version gate works; what follows is the virtual
board's own payload, marked as such, since the layout of TIDL's network structure changes with every release.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegauge.errors import TidegaugeError

NET_VERSION = 0x20250821  # TIDL tools 11_01_06_00
DEVICE_AM62A = 4
MARK = b"tidegauge virtual board twin 1\n\0"
MAX_NET_BYTES = 1 << 30

UINT8, INT8, UINT16, INT16, FLOAT32 = 0, 1, 2, 3, 6
DTYPES: dict[int, str] = {UINT8: "uint8", INT8: "int8", UINT16: "uint16", INT16: "int16", FLOAT32: "float32"}
TYPE_NAMES = {
    UINT8: "TIDL_UnsignedChar",
    INT8: "TIDL_SignedChar",
    UINT16: "TIDL_UnsignedShort",
    INT16: "TIDL_SignedShort",
    FLOAT32: "TIDL_SinglePrecFloat",
}

_NET = "_tidl_net.bin"
Dims = tuple[int, int, int, int, int, int]


class Quant(msgspec.Struct, frozen=True):
    """How a tensor's codes mean values: `value = (code - zero_point) / scale`. Float tensors: scale 1, zero point 0."""

    element_type: int
    scale: float = 1.0
    zero_point: int = 0

    @property
    def is_float(self) -> bool:
        return self.element_type == FLOAT32

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return np.dtype(DTYPES[self.element_type])

    @property
    def bits(self) -> int:
        return self.dtype.itemsize * 8

    @property
    def code_range(self) -> tuple[int, int]:
        """Lowest and highest code."""
        info = np.iinfo(DTYPES[self.element_type])
        return int(info.min), int(info.max)

    @property
    def value_range(self) -> tuple[float, float]:
        """Values of the lowest and of the highest code."""
        low, high = self.code_range
        return (low - self.zero_point) / self.scale, (high - self.zero_point) / self.scale

    def values(self, codes: NDArray[np.generic]) -> NDArray[np.float32]:
        """Codes as float32 values, as TIDL writes them into `_float.bin`."""
        if self.is_float:
            return codes.astype(np.float32, copy=False)
        shifted = codes.astype(np.float32) - np.float32(self.zero_point)
        return shifted / np.float32(self.scale)


FLOAT = Quant(FLOAT32)


class TwinLayer(msgspec.Struct, frozen=True):
    """One TIDL layer and its one output tensor.

    `name`: the output's name in traces and tables. `inputs`: data ids. `shape`: as in the ONNX graph; `dims`: TIDL's
    six dimensions (batch, dim1, dim2, channels, height, width). `low`, `high`: calibration range. `varies`: the
    range isn't a point; `channels_differ`: neighbouring channels carried different content during calibration.
    `tiles`: how many pieces a super-tiled layer is computed in, and so how often its trace is written; else 1.
    `nhwc`: the layer converts to NHWC, so that `dims` are permuted. Graph output data layers have no tensor: data id 0,
    empty shape.
    """

    layer_id: int
    data_id: int
    kind: str
    name: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    dims: Dims
    quant: Quant
    low: float
    high: float
    macs: int = 0
    varies: bool = True
    channels_differ: bool = False
    tiles: int = 1
    nhwc: bool = False

    @property
    def is_sink(self) -> bool:
        return self.kind == "TIDL_DataLayer" and self.layer_id > 0 and not self.shape


class TwinNetwork(msgspec.Struct, frozen=True):
    """Everything a session needs: the layers in execution order and the twin, a serialised ONNX graph.

    Every layer's output is an output of that graph under its own name; graph inputs keep their ONNX names. `whole`:
    no node of the model is left to the CPU or to another network.
    """

    layers: tuple[TwinLayer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: int
    twin: bytes
    whole: bool = True

    def tensors(self) -> tuple[TwinLayer, ...]:
        """Layers with a tensor that the C7x computes: all but the data layers, in execution order."""
        return tuple(layer for layer in self.layers if layer.kind != "TIDL_DataLayer")

    def layer(self, name: str) -> TwinLayer:
        """The computing layer of this name. Raises `TidegaugeError` naming the known ones."""
        for layer in self.tensors():
            if layer.name == name:
                return layer
        known = ", ".join(layer.name for layer in self.tensors())
        raise TidegaugeError(f"the network has no layer {name!r}", f"use one of {known}")


def six_dims(shape: tuple[int, ...]) -> Dims:
    """TIDL's six dimensions of an ONNX shape: from the right, but the first of four or more is the batch."""
    if len(shape) > 6:
        raise TidegaugeError(f"a tensor of {len(shape)} dimensions", "TIDL knows at most six: reshape it in the model")
    if len(shape) >= 4:
        padded = (shape[0], *([1] * (6 - len(shape))), *shape[1:])
    else:
        padded = (*([1] * (6 - len(shape))), *shape)
    batch, dim1, dim2, channels, height, width = padded
    return batch, dim1, dim2, channels, height, width


def encode(network: TwinNetwork) -> bytes:
    """The bytes of `*_tidl_net.bin`."""
    body = msgspec.msgpack.encode(network)
    return struct.pack("<II", NET_VERSION, DEVICE_AM62A) + MARK + struct.pack("<Q", len(body)) + body


def decode(data: bytes, path: Path) -> TwinNetwork:
    """The network in the bytes of `path`. Raises `TidegaugeError` if the virtual board did not write them."""
    start = 8 + len(MARK)
    cure = "compile the model again with `tidegauge virtualboard compile`"
    if data[8:start] != MARK:
        raise TidegaugeError(f"{path} was not written by the virtual board, which can't run TI's own networks", cure)
    if len(data) < start + 8 or len(data) != start + 8 + struct.unpack_from("<Q", data, start)[0]:
        raise TidegaugeError(f"{path} is truncated", cure)
    try:
        return msgspec.msgpack.decode(memoryview(data)[start + 8 :], type=TwinNetwork)
    except msgspec.MsgspecError as error:
        raise TidegaugeError(f"{path} is damaged ({error})", cure) from error


def load(path: Path) -> TwinNetwork:
    """Read a `*_tidl_net.bin`. Raises `TidegaugeError` if it is missing, too large or not the virtual board's."""
    try:
        if path.stat().st_size > MAX_NET_BYTES:
            raise TidegaugeError(f"{path} is larger than {MAX_NET_BYTES} bytes", "name the right artifacts folder")
        return decode(path.read_bytes(), path)
    except OSError as error:
        raise TidegaugeError(
            f"{path} can't be read ({error.strerror})", "name a folder of compiled artifacts"
        ) from error


def load_artifacts(artifacts: Path) -> TwinNetwork:
    """The network of an artifacts folder, the first where there are several."""
    names = subgraph_names(artifacts)
    return load(artifacts / f"{names[0] if names else 'subgraph_0'}{_NET}")


def load_all(artifacts: Path) -> dict[str, TwinNetwork]:
    """Every network of an artifacts folder by the name of its sub-graph. Raises `TidegaugeError`."""
    names = subgraph_names(artifacts) or ["subgraph_0"]
    return {name: load(artifacts / f"{name}{_NET}") for name in names}


def subgraph_names(artifacts: Path) -> list[str]:
    """The names of the networks in a folder, in order: `subgraph_N` of an ONNX model, of a TFLite model the index of an
    output tensor (tfl_delegate.cpp, SDK 11.1)."""
    names = [path.name.removesuffix(_NET) for path in artifacts.glob(f"*{_NET}")]
    return sorted(names, key=lambda name: (len(name), name))
