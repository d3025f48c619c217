"""The network as it is: layers by depth, branches side by side, coloured by verdict; an SVG to pan, zoom and click.

A deep network is folded into columns that are read from left to right, so that all of it can be looked at together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from tidegauge.compare.report.words import number, verdict
from tidegauge.compare.types import LayerResult

_WIDE, _HIGH, _ACROSS, _DOWN, _MARGIN = 176, 34, 196, 56, 28
#: Ranks from which on the drawing is folded, the space between its columns, and width over height of the page's frame.
_DEEP, _GUTTER, _ASPECT = 40, 44, 2.7
_LETTERS = 25


def network(layers: Sequence[LayerResult]) -> str:
    """The drawing. Fused operators stand in the layer's second line; a layer without a place in the model is left out
    (it is listed as not compared)."""
    drawn = [layer for layer in layers if layer.tensor is not None and layer.operators]
    if not drawn:
        return ""
    reads = edges(drawn)
    place = fold(arrange({layer.index: reads[layer.index] for layer in drawn}))
    width = max(x for x, _ in place.values()) + _ACROSS + _MARGIN
    height = max(y for _, y in place.values()) + _DOWN + _MARGIN
    lines = "".join(_edge(place[source], place[target]) for target, sources in reads.items() for source in sources)
    boxes = "".join(_box(layer, place[layer.index]) for layer in drawn)
    return (
        f'<svg id="network" viewBox="0 0 {width} {height}" data-width="{width}" data-height="{height}" role="group" '
        f'aria-label="The network; drag to move, wheel or buttons to zoom"><g>{lines}{boxes}</g></svg>'
    )


def edges(layers: Sequence[LayerResult]) -> dict[int, tuple[int, ...]]:
    """By layer index, the indices of the layers whose tensors it reads."""
    by_tensor = {layer.tensor: layer.index for layer in layers}
    return {
        layer.index: tuple(dict.fromkeys(by_tensor[n] for n in layer.reads if n in by_tensor and n != layer.tensor))
        for layer in layers
    }


def arrange(reads: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, int]]:
    """A (lane, rank) for each node, in the order given (a topological one): rank is the longest way from an input; a
    node goes on in the lane of a node that it reads where that lane is free, so that the main line is straight.

    A lane stays taken down to the last reader of its last node. No two nodes share a place.
    """
    rank: dict[int, int] = {}
    for node, sources in reads.items():
        rank[node] = 1 + max((rank[source] for source in sources if source in rank), default=-1)
    last = {node: rank[node] for node in reads}
    for node, sources in reads.items():
        for source in sources:
            if source in last:
                last[source] = max(last[source], rank[node])
    lanes: list[tuple[int, int]] = []  # of each lane: its last node, and the rank down to which it is taken
    place: dict[int, tuple[int, int]] = {}
    for node in sorted(reads, key=lambda n: (rank[n], n)):
        lane = _lane(lanes, [s for s in reads[node] if s in place], place, rank[node])
        if lane == len(lanes):
            lanes.append((node, last[node]))
        lanes[lane] = (node, last[node])
        place[node] = (lane, rank[node])
    return place


def _lane(
    lanes: Sequence[tuple[int, int]], sources: Sequence[int], place: Mapping[int, tuple[int, int]], rank: int
) -> int:
    own = [place[source][0] for source in sources if lanes[place[source][0]][0] == source]
    if own:
        return min(own)
    free = [lane for lane, (node, until) in enumerate(lanes) if until < rank and place[node][1] < rank]
    near = min((place[source][0] for source in sources), default=0)
    return min(free, key=lambda lane: abs(lane - near), default=len(lanes))


def fold(place: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Upper left corners (x, y) for places (lane, rank): in one column, or in as many as fill the page's frame."""
    down = 1 + max(rank for _, rank in place.values())
    across = 1 + max(lane for lane, _ in place.values())
    columns = 1
    if down > _DEEP:
        columns = max(1, round(math.sqrt(_ASPECT * down * _DOWN / (across * _ACROSS + _GUTTER))))
    rows = math.ceil(down / columns)
    lanes = [0] * columns
    for lane, rank in place.values():
        lanes[rank // rows] = max(lanes[rank // rows], lane + 1)
    left = [_MARGIN + sum(lanes[:column]) * _ACROSS + column * _GUTTER for column in range(columns)]
    return {
        node: (left[rank // rows] + lane * _ACROSS, _MARGIN + rank % rows * _DOWN)
        for node, (lane, rank) in place.items()
    }


def _edge(source: tuple[int, int], target: tuple[int, int]) -> str:
    (x, y), (u, v) = source, target
    if v <= y:  # in a column further right: along the gutter before it
        gutter, x, y, u = u - _GUTTER // 2 - 4, x + _WIDE // 2, y + _HIGH, u + _WIDE // 2
        out, back = f"C{x} {y + 18} {gutter} {y + 18} {gutter} {y}", f"C{gutter} {v - 26} {u} {v - 26} {u} {v}"
        return f'<path class="edge" stroke-dasharray="4 3" d="M{x} {y}{out}V{v}{back}"/>'
    x, y, u = x + _WIDE // 2, y + _HIGH, u + _WIDE // 2
    if x == u and v - y > _DOWN:  # past layers of the same lane: around them
        side = x + _WIDE // 2 + 9
        out, back = f"C{side} {y + 12} {side} {y + 12} {side} {y + 24}", f"C{side} {v - 12} {side} {v - 12} {u} {v}"
        return f'<path class="edge" d="M{x} {y}{out}V{v - 24}{back}"/>'
    return f'<path class="edge" d="M{x} {y}C{x} {y + 22} {u} {v - 22} {u} {v}"/>'


def _box(layer: LayerResult, place: tuple[int, int]) -> str:
    x, y = place
    name = layer.name or layer.file
    words = f"{name}: {verdict(layer)}, local error {number(layer.excess)} times the noise"
    short = name if len(name) <= _LETTERS else f"…{name[1 - _LETTERS :]}"
    kinds = " + ".join(layer.operators)
    second = f"{kinds if len(kinds) <= 20 else kinds[:19] + '…'}"
    return (
        f'<g class="node n-{layer.verdict}" data-index="{layer.index}" tabindex="-1" role="button" '
        f'aria-label="{escape(words)}"><title>{escape(words)}</title>'
        f'<rect x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="5"/>'
        f'<text x="{x + 8}" y="{y + 14}">{escape(short)}</text>'
        f'<text class="kind" x="{x + 8}" y="{y + 27}">{escape(second)}</text>'
        f'<text class="kind" x="{x + _WIDE - 8}" y="{y + 27}" text-anchor="end">{number(layer.excess)}×</text></g>'
    )
