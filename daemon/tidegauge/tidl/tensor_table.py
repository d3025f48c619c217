"""Type, scale, zero point and range of every tensor, from each place that tells them.

`value = (code - zero_point) / scale`. Order of trust: svg/html of the compile, quantisation proto, I/O descriptor, the
lines that the C7x prints while it dumps (rounded to five decimals, without zero point). The svg prints six decimals of
a scale: too few for a tensor of large values, where the next source that agrees with them is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from tidegauge.tidl import elements, quant_proto, remote_log, svg
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.io_descriptor import IoDescriptor
from tidegauge.tidl.layer_info import LayerRow

#: A scale outside is damage, not quantisation.
SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30
#: Half of the last decimal that each source prints.
_ROUNDING = {"svg": 0.5e-6, "log": 0.5e-5}
#: In codes: a source with all digits is preferred to one whose rounding moves the largest code by more.
_COARSE = 5e-4


class TensorInfo(msgspec.Struct, frozen=True):
    """What is known of one tensor; None for what its `source` ("svg", "proto", "io", "log") does not tell.

    `dims`: (batch, dim1, dim2, channels, height, width). `dtype`: NumPy's name. `minimum`, `maximum`: the range seen in
    calibration, in values (in the log: of the dumped frame). `problem`: why `scale` is None where the source has one.
    `doubt`: the share that the scale may be off by since its source prints it rounded.
    """

    data_id: int | None
    name: str | None
    layer_kind: str | None
    dims: tuple[int, ...] | None
    dtype: str | None
    scale: float | None
    zero_point: int | None
    minimum: float | None
    maximum: float | None
    source: str
    problem: str = ""
    doubt: float = 0.0


class Disagreement(msgspec.Struct, frozen=True):
    """Two sources tell different scales for one tensor: they are not of the same compile."""

    data_id: int | None
    name: str | None
    first: float
    second: float


def from_svg(text: str) -> tuple[TensorInfo, ...]:
    """Every output of every layer, in order of execution. Raises FormatError; also for a data id told twice."""
    table = [info for layer in svg.parse(text) for info in _svg_infos(layer)]
    seen: set[int | None] = set()
    for info in table:
        if info.data_id in seen:
            raise FormatError(f"svg: two layers write data id {info.data_id}")
        seen.add(info.data_id)
    return tuple(table)


def _svg_infos(layer: svg.SvgLayer) -> Iterable[TensorInfo]:
    for position, output in enumerate(layer.outputs):
        element = elements.from_svg_name(output.element)
        scale, problem = checked_scale(output.scale)
        yield TensorInfo(
            data_id=output.data_id,
            name=layer.name if position == 0 else None,  # the node shows the name of its first output only
            layer_kind=layer.kind,
            dims=output.dims,
            dtype=element.dtype if element is not None else None,
            scale=scale if element is not None else None,
            zero_point=output.zero_point,
            minimum=_finite(output.minimum),
            maximum=_finite(output.maximum),
            source="svg",
            problem=problem if element is not None else f"element type {output.element!r} is unknown",
        )


def from_quant_proto(text: str) -> tuple[TensorInfo, ...]:
    """One row a layer that has outputs, by name, data id unknown; repeated names kept in order. Raises FormatError."""
    return from_quant_layers(quant_proto.parse(text))


def from_quant_layers(layers: Sequence[quant_proto.QuantLayer]) -> tuple[TensorInfo, ...]:
    """The same of a proto that was read before."""
    return tuple(_proto_info(layer) for layer in layers if layer.outputs)


def _proto_info(layer: quant_proto.QuantLayer) -> TensorInfo:
    output = layer.outputs[0]
    element = None if output.element is None else elements.from_code(output.element)
    scale, problem = checked_scale(output.scales[0] if output.scales else None)
    if len(set(output.scales)) > 1:
        scale, problem = None, f"{len(output.scales)} scales for one tensor"
    if element is None:
        scale, problem = None, f"element type {output.element} is unknown"
    return TensorInfo(
        data_id=None,
        name=layer.name,
        layer_kind=layer.kind,
        dims=None,
        dtype=element.dtype if element is not None else None,
        scale=scale,
        zero_point=output.zero_points[0] if len(set(output.zero_points)) == 1 else None,
        minimum=_finite(output.minimum),
        maximum=_finite(output.maximum),
        source="proto",
        problem=problem,
    )


def from_io_descriptor(descriptor: IoDescriptor) -> tuple[TensorInfo, ...]:
    """The graph's inputs and outputs."""
    return tuple(
        TensorInfo(
            data_id=item.data_id,
            name=item.name,
            layer_kind=None,
            dims=item.dims,
            dtype=item.dtype,
            scale=checked_scale(item.scale)[0],
            zero_point=item.zero_point,
            minimum=None,
            maximum=None,
            source="io",
            problem=checked_scale(item.scale)[1],
        )
        for item in (*descriptor.inputs, *descriptor.outputs)
    )


def from_remote_log(text: str) -> tuple[TensorInfo, ...]:
    """Tensors by data id, from the scale lines in a log; a log without such a line gives an empty table.

    A tensor that the log tells twice (a second frame, or a reader that began anew) counts once, the last time. If its
    scale or type differs between them, two networks were dumped, and the scale is None with a problem.
    """
    table: dict[int, TensorInfo] = {}
    for line in text.splitlines():
        printed = remote_log.scale_line(remote_log.parse(line).text)
        if printed is None:
            continue
        info, before = _log_info(printed), table.get(printed.data_id)
        if before and (before.problem or (before.scale, before.dtype) != (info.scale, info.dtype)):
            problem = before.problem or f"printed with scale {before.scale} and with {info.scale}: two networks"
            info = msgspec.structs.replace(info, scale=None, problem=problem)
        table[printed.data_id] = info
    return tuple(table[data_id] for data_id in sorted(table))


def _log_info(printed: remote_log.ScaleLine) -> TensorInfo:
    element = elements.from_code(printed.element)
    scale, problem = checked_scale(printed.scale)
    return TensorInfo(
        data_id=printed.data_id,
        name=None,
        layer_kind=None,
        dims=None,
        dtype=element.dtype if element is not None else None,
        scale=scale if element is not None else None,
        zero_point=None,
        minimum=_finite(printed.minimum),
        maximum=_finite(printed.maximum),
        source="log",
        problem=problem if element is not None else f"element type {printed.element} is unknown",
    )


def merge(
    svg: Sequence[TensorInfo] = (),
    proto: Sequence[TensorInfo] = (),
    log: Sequence[TensorInfo] = (),
    io: Sequence[TensorInfo] = (),
    layers: Sequence[LayerRow] = (),
) -> tuple[TensorInfo, ...]:
    """One table by data id: each tensor from the first source that has a usable scale for it, named in `source`.

    A scale of too few digits gives way to a source that tells all of them; where none does, `doubt` says how far off it
    may be.

    `layers` (layer_info) gives names to data ids and data ids to the proto's names. Scale, zero point and type are
    never mixed from two sources; name, kind and dims are filled in from whichever tells them. A tensor of the proto
    whose data id nobody tells stays in the table without one.
    """
    names = _names(svg, layers)
    ids = {name: data_id for data_id, name in reversed(list(names.items()))}
    rows: dict[int | str, list[TensorInfo]] = {}
    for info in (*svg, *_unique_names(proto), *io, *log):
        data_id = info.data_id if info.data_id is not None else ids.get(info.name or "")
        name = info.name if info.name is not None else names.get(-1 if data_id is None else data_id)
        known = msgspec.structs.replace(info, data_id=data_id, name=name)
        rows.setdefault(data_id if data_id is not None else name or "", []).append(known)
    merged = [_first_usable(sources) for sources in rows.values()]
    return tuple(sorted(merged, key=lambda info: (info.data_id is None, info.data_id or 0)))


def _names(svg: Sequence[TensorInfo], layers: Sequence[LayerRow]) -> dict[int, str]:
    names: dict[int, str] = {}
    for row in layers:
        names.setdefault(row.data_id, row.name)  # the graph's end repeats data id 0
    names.update({info.data_id: info.name for info in svg if info.data_id is not None and info.name is not None})
    return names


def _unique_names(proto: Sequence[TensorInfo]) -> list[TensorInfo]:
    # A graph output repeats the name of the layer that computes it, with nothing of its own to tell.
    first: dict[str | None, TensorInfo] = {}
    for info in proto:
        first.setdefault(info.name, info)
    return list(first.values())


def _first_usable(sources: list[TensorInfo]) -> TensorInfo:
    chosen = _finest([info for info in sources if info.scale is not None]) or sources[0]
    for other in sources:
        chosen = msgspec.structs.replace(
            chosen,
            name=chosen.name if chosen.name is not None else other.name,
            layer_kind=chosen.layer_kind if chosen.layer_kind is not None else other.layer_kind,
            dims=chosen.dims if chosen.dims is not None else other.dims,
        )
    return chosen


def _finest(usable: list[TensorInfo]) -> TensorInfo | None:
    """The first of them; if it is too coarse, the next one of the same type that agrees with it and has all digits."""
    if not usable:
        return None
    first = msgspec.structs.replace(usable[0], doubt=_doubt(usable[0]))
    for other in usable[1:] if first.doubt * codes_of(first.dtype) > _COARSE else ():
        agree = math.isclose(first.scale or 0.0, other.scale or 0.0, rel_tol=1e-6, abs_tol=_rounding(first, other))
        if agree and other.dtype == first.dtype and _doubt(other) == 0:
            zero = other.zero_point if other.zero_point is not None else first.zero_point
            return msgspec.structs.replace(other, zero_point=zero)
    return first


def codes_of(dtype: str | None) -> int:
    """The number of codes of an integer type; 0 for floats and for what nobody tells."""
    return {"int8": 1 << 8, "uint8": 1 << 8, "int16": 1 << 16, "uint16": 1 << 16}.get(dtype or "", 0)


def _doubt(info: TensorInfo) -> float:
    """The share that a printed scale may be off by."""
    if info.scale is None or info.source not in _ROUNDING or not codes_of(info.dtype):
        return 0.0
    return _ROUNDING[info.source] / info.scale


def _rounding(one: TensorInfo, other: TensorInfo) -> float:
    return 1.001 * max(_ROUNDING.get(one.source, 0.0), _ROUNDING.get(other.source, 0.0))


def disagreements(first: Sequence[TensorInfo], second: Sequence[TensorInfo]) -> tuple[Disagreement, ...]:
    """Tensors to which two sources give scales that differ by more than their printing explains.

    Matched by data id where both tell one, else by whole name (the first of repeated ones).
    """
    by_id = {info.data_id: info for info in reversed(second) if info.data_id is not None}
    by_name = {info.name: info for info in reversed(second) if info.name is not None}
    found: list[Disagreement] = []
    for one in first:
        other = by_id.get(one.data_id) if one.data_id is not None else None
        if other is None and one.name is not None:
            other = by_name.get(one.name)
            if other is not None and None not in (one.data_id, other.data_id):
                other = None
        if other is None or one.scale is None or other.scale is None:
            continue
        if not math.isclose(one.scale, other.scale, rel_tol=1e-6, abs_tol=_rounding(one, other)):
            found.append(Disagreement(one.data_id, one.name, one.scale, other.scale))
    return tuple(found)


def checked_scale(written: str | float | None) -> tuple[float | None, str]:
    """A scale that can be divided by, or None and why not."""
    if written is None:
        return None, "no scale is given"
    scale = _number(written)
    if scale is None or not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        return None, f"scale {str(written)[:40]} is not a positive number of a sane size"
    return scale, ""


def _number(written: str | float) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _finite(written: str | None) -> float | None:
    return None if written is None else _number(written)
