"""How many bytes a capture writes, before it is taken.

Sources in order of trust: the compile's netLog (every tensor's dimensions; element types from the svg beside it), the
ONNX model's inferred shapes. Without an element type 16 bits are assumed: never less than what is written.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import msgspec

from tidegauge.preflight import onnx_file
from tidegauge.tidl import elements, netlog, svg
from tidegauge.tidl.errors import FormatError

_WORST_BYTES = 2
_FLOAT_BYTES = 4


class CaptureSize(msgspec.Struct, frozen=True):
    """Bytes of all traces together; `source`: where the dimensions come from."""

    bytes: int
    tensors: int
    source: str


def from_netlog(text: str, element_bytes: dict[int, int], debug_level: int) -> CaptureSize:
    """`element_bytes`: bytes of an element by data id, where known. Raises FormatError."""
    layers = [layer for layer in netlog.parse(text).layers if layer.outputs and all(layer.output_dims)]
    total = sum(
        prod(layer.output_dims) * _bytes_of(element_bytes.get(layer.outputs[0], _WORST_BYTES), debug_level)
        for layer in layers
    )
    return CaptureSize(total, len(layers), "netLog")


def _bytes_of(element: int, debug_level: int) -> int:
    """Level 4 writes a float32 copy beside each fixed-point trace; a float tensor has no fixed-point trace."""
    return element if element == _FLOAT_BYTES or debug_level < 4 else element + _FLOAT_BYTES


def of(artifacts: Path, model: Path, debug_level: int) -> CaptureSize | None:
    """The size from the best source at hand; None where there is none."""
    found = [path for folder in _temporary(artifacts) for path in sorted(folder.glob("*_netLog.txt"))]
    try:
        sizes = [from_netlog(path.read_text(errors="replace"), _elements(path), debug_level) for path in found]
    except (FormatError, OSError):
        sizes = []
    if sizes:
        return CaptureSize(sum(size.bytes for size in sizes), sum(size.tensors for size in sizes), "netLog")
    return _from_onnx(model, debug_level) if model.suffix == ".onnx" else None


def _temporary(artifacts: Path) -> list[Path]:
    """The compile's tempDir: inside the artifacts folder, or beside it in a model-zoo package."""
    return [folder for folder in (artifacts / "tempDir", artifacts.parent / "tempDir") if folder.is_dir()][:1]


def _elements(log: Path) -> dict[int, int]:
    """Bytes of an element by data id, from the svg of the same network; empty where there is none."""
    known: dict[int, int] = {}
    for path in sorted(log.parent.glob(log.name.replace("_netLog.txt", ".svg"))):
        for layer in svg.parse(path.read_text(errors="replace")):
            for output in layer.outputs:
                element = elements.from_svg_name(output.element)
                if element is not None:
                    known[output.data_id] = element.bits // 8
    return known


def _from_onnx(model: Path, debug_level: int) -> CaptureSize | None:
    loaded = onnx_file.load(model, shapes=True)
    if loaded is None:
        return None
    graph = loaded.graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.output, *graph.input)
    }
    produced = [name for node in graph.node if node.op_type != "Constant" for name in node.output if name in shapes]
    counted = [prod(shapes[name]) for name in (*produced, *(item.name for item in graph.input)) if all(shapes[name])]
    if not counted:
        return None
    return CaptureSize(
        sum(counted) * _bytes_of(_WORST_BYTES, debug_level), len(counted), "the model's shapes, 16 bits each"
    )
