"""What a compile's tempDir tells of the device's tensors: names, scales, types, weights, the graph's edges."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TypeVar

from tidegauge.errors import TidegaugeError
from tidegauge.tidl import elements, io_descriptor, layer_info, netlog, quant_proto, svg, tensor_table
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.netlog import NetLayer
from tidegauge.tidl.tensor_table import TensorInfo

#: The svg of a network of 122 layers is 1.4 MB.
MAX_TEXT = 256 << 20

_LAYER_INFO = "_tidl_net.bin.layer_info.txt"
_NET_LOG = "_tidl_net.bin_netLog.txt"
_IO = "_tidl_io_1.bin"
_NET = "_tidl_net.bin"

T = TypeVar("T")


@dataclass(frozen=True)
class WeightScales:
    """Scales of a layer's weights as the quantisation proto states them, one or one a channel; `bits` of a code.

    `bias`: its bias, which calibration moves away from the model's (TIDL does at accuracy_level 1); empty without one.
    """

    scales: tuple[float, ...]
    bits: int
    bias: tuple[float, ...] = ()


@dataclass(frozen=True)
class Buffer:
    """How a tensor lies in the device's memory, in elements: `pad` lines and columns before the data, `pitch` from one
    batch, dim1, dim2, channel and line to the next."""

    pad: tuple[int, int]
    pitch: tuple[int, int, int, int, int]


@dataclass
class Subgraph:
    """One compiled sub-graph. `expected`: data ids with a trace of their own; `names` by data id.

    `order`: data ids in order of execution. `edges`: what the layer of a data id reads, None without a netLog;
    `incomplete`: data ids of layers that read more than the table has room for; `layers`: the rows of the netLog.
    `buffers`: by data id, where the svg tells them; `conflicts`, `refused`: scales that sources disagree about, and
    scales that no tensor can have.
    """

    name: str
    names: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    expected: tuple[int, ...] = ()
    table: tuple[TensorInfo, ...] = ()
    weights: dict[str, WeightScales] = field(default_factory=dict)
    net_sha256: str | None = None
    conflicts: tuple[str, ...] = ()
    order: tuple[int, ...] = ()
    edges: dict[int, tuple[int, ...]] | None = None
    incomplete: frozenset[int] = frozenset()
    layers: tuple[NetLayer, ...] = ()
    buffers: dict[int, Buffer] = field(default_factory=dict)
    refused: tuple[str, ...] = ()

    def info(self, data_id: int) -> TensorInfo | None:
        """The table's row of a data id."""
        return next((row for row in self.table if row.data_id == data_id), None)


def find_tempdir(folder: Path) -> Path:
    """The folder with the tables: `folder` itself or its `tempDir`. Raises `TidegaugeError`."""
    found = locate_tempdir(folder)
    if found is not None:
        return found
    raise TidegaugeError(
        f"{folder} has no *{_LAYER_INFO}, so nobody knows the names of the traced layers",
        "give --tempdir the tempDir of the compile that made the board's artifacts",
    )


def locate_tempdir(folder: Path) -> Path | None:
    """As `find_tempdir`; None where there is none."""
    for candidate in (folder, folder / "tempDir", folder / "artifacts" / "tempDir"):
        if any(candidate.glob(f"*{_LAYER_INFO}")) or any(candidate.glob(f"*{_NET_LOG}")):
            return candidate
    return None


#: What stands behind the two version words of a network that the virtual board compiled.
_VIRTUAL = b"tidegauge virtual board"


def is_virtual(folder: Path) -> bool:
    """Whether the compile whose tempDir this is (or holds) is the virtual board's, by the network beside it."""
    found = locate_tempdir(folder)
    for place in (found, found.parent) if found is not None else ():
        for path in place.glob(f"*{_NET}"):
            with path.open("rb") as file:
                if file.read(8 + len(_VIRTUAL))[8:] == _VIRTUAL:
                    return True
    return False


def read_tempdir(folder: Path, log: str = "") -> dict[str, Subgraph]:
    """Every sub-graph of a compile, by name. `log`: text of the C7x's log, for the scales that it prints.

    Raises `TidegaugeError` where there is none or a file is damaged.
    """
    folder = find_tempdir(folder)
    names = {p.name.removesuffix(_LAYER_INFO) for p in folder.glob(f"*{_LAYER_INFO}")}
    names |= {p.name.removesuffix(_NET_LOG) for p in folder.glob(f"*{_NET_LOG}")}
    # The log does not say which sub-graph a data id belongs to.
    printed = tensor_table.from_remote_log(log) if len(names) == 1 else ()
    return {name: _subgraph(folder, name, printed, len(names) == 1) for name in sorted(names)}


def _subgraph(folder: Path, name: str, log: tuple[TensorInfo, ...], single: bool) -> Subgraph:
    rows = _parse(folder / f"{name}{_LAYER_INFO}", layer_info.parse) or ()
    net = _parse(folder / f"{name}{_NET_LOG}", netlog.parse)
    picture: tuple[TensorInfo, ...] = ()
    drawn: tuple[svg.SvgLayer, ...] = ()
    for suffix in (".svg", ".html"):
        path = folder / f"{name}{_NET}{suffix}"
        drawn = drawn or _parse(path, svg.parse) or ()
        picture = picture or _parse(path, tensor_table.from_svg) or ()
    proto_layers = _proto(folder) if single else ()
    proto = tensor_table.from_quant_layers(proto_layers[0]) if proto_layers else ()
    io = _io(folder, name)
    found = Subgraph(name=name, table=tensor_table.merge(picture, proto, log, io, rows))
    for row in rows:
        found.names.setdefault(row.data_id, row.name)
    for layer in net.layers if net else ():
        for data_id in layer.outputs:
            found.kinds[data_id] = layer.kind
            if len(layer.outputs) == 1:
                found.names[data_id] = layer.name
    for info in picture:
        if info.data_id is not None and info.layer_kind is not None:
            found.kinds.setdefault(info.data_id, info.layer_kind)
    found.order = tuple(dict.fromkeys(row.data_id for row in rows))
    if net is not None:
        _edges(found, net)
    known = found.kinds or dict.fromkeys((i for i in found.names if i > 0), "")
    found.expected = tuple(sorted(i for i, kind in known.items() if kind != "TIDL_DataLayer"))
    found.weights = _weights(proto_layers[0]) if proto_layers else {}
    found.net_sha256 = _net_hash(folder, name)
    sources = {"svg": picture, "quantisation proto": proto, "io descriptor": io, "C7x's log": log}
    found.conflicts = _conflicts(sources, found.names)
    found.refused = _refused(sources, found.names)
    for drawing in drawn:
        for output in drawing.outputs:
            if len(output.pitch) == 5:
                found.buffers[output.data_id] = Buffer(output.pad, output.pitch[:5])
    return found


def _conflicts(sources: dict[str, tuple[TensorInfo, ...]], names: dict[int, str]) -> tuple[str, ...]:
    """Every pair of sources that tell different scales for one tensor."""
    found = []
    for (first, ours), (second, theirs) in combinations(sources.items(), 2):
        for each in tensor_table.disagreements(ours, theirs):
            name = each.name or names.get(each.data_id or -1) or str(each.data_id)
            found.append(f"{name}: scale {each.first:g} in the {first}, {each.second:g} in the {second}")
    return tuple(found)


def _refused(sources: dict[str, tuple[TensorInfo, ...]], names: dict[int, str]) -> tuple[str, ...]:
    """Scales that no tensor can have (0, negative, not a number, absurdly large), by tensor and source."""
    return tuple(
        f"{info.name or names.get(info.data_id or -1) or info.data_id}: {info.problem} in the {source}"
        for source, table in sources.items()
        for info in table
        if info.scale is None and info.problem.startswith("scale ")
    )


def _edges(found: Subgraph, net: netlog.NetLog) -> None:
    found.layers = net.layers
    found.edges = {data_id: layer.inputs for layer in net.layers for data_id in layer.outputs}
    found.order = tuple(found.edges)
    found.incomplete = frozenset(
        data_id for layer in net.layers if layer.input_count > len(layer.inputs) for data_id in layer.outputs
    )


def _parse(path: Path, parser: Callable[[str], T]) -> T | None:
    text = _text(path)
    if text is None:
        return None
    try:
        return parser(text)
    except FormatError as error:
        raise error.in_file(str(path)) from error


def _text(path: Path) -> str | None:
    try:
        if path.stat().st_size > MAX_TEXT:
            raise TidegaugeError(f"{path} is larger than {MAX_TEXT} bytes", "give the tempDir of a TIDL compile")
        return path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TidegaugeError(f"{path} can't be read", str(error.strerror)) from error


def find_proto(folder: Path) -> str | None:
    """The text of a compile's quantisation proto; None where there is none. Raises `TidegaugeError`."""
    found = _proto(locate_tempdir(folder) or folder)
    return found[1] if found else None


def _proto(folder: Path) -> tuple[tuple[quant_proto.QuantLayer, ...], str] | tuple[()]:
    for place in (folder, folder.parent):
        for path in sorted(place.glob("*.prototxt")):
            text = _text(path)
            if text is None or "quant_type" not in text[:4096]:
                continue
            try:
                return quant_proto.parse(text), text
            except FormatError as error:
                raise error.in_file(str(path)) from error
    return ()


def _weights(layers: tuple[quant_proto.QuantLayer, ...]) -> dict[str, WeightScales]:
    found: dict[str, WeightScales] = {}
    for layer in layers:
        if len(layer.weights) != 1 or layer.name in found:
            continue
        block = layer.weights[0]
        scales = [tensor_table.checked_scale(text)[0] for text in block.scales]
        usable = tuple(scale for scale in scales if scale is not None)
        element = elements.from_code(block.element) if block.element is not None else None
        symmetric = not any(block.zero_points)
        if element is not None and not element.is_float and symmetric and usable and len(usable) == len(scales):
            found[layer.name] = WeightScales(usable, element.bits, _stated_bias(layer))
    return found


def _stated_bias(layer: quant_proto.QuantLayer) -> tuple[float, ...]:
    """The bias in full, or nothing where it is not there or a value of it is no number."""
    written = layer.bias[0].values if len(layer.bias) == 1 else ()
    try:
        values = tuple(float(text) for text in written)
    except ValueError:
        return ()
    return values if all(map(math.isfinite, values)) else ()


def _io(folder: Path, name: str) -> tuple[TensorInfo, ...]:
    for place in (folder, folder.parent):
        path = place / f"{name}{_IO}"
        if path.is_file():
            try:
                return tensor_table.from_io_descriptor(io_descriptor.parse(path.read_bytes()))
            except FormatError:
                return ()  # another release's struct: the svg and the proto tell the same
    return ()


def _net_hash(folder: Path, name: str) -> str | None:
    for place in (folder.parent, folder):
        path = place / f"{name}{_NET}"
        if path.is_file():
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
    return None
