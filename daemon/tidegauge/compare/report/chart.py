"""Drawings of a comparison as inline SVG: the layers in execution order, and error profiles along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tidegauge.compare.culprits import FAULTY
from tidegauge.compare.report.words import decibels, number, verdict
from tidegauge.compare.types import LayerResult

_LEFT, _RIGHT, _TOP, _CURVE, _GAP, _BARS, _BOTTOM = 64, 12, 22, 120, 34, 150, 22
_LOW = 0.1


def chart(layers: Sequence[LayerResult]) -> str:
    """Cumulative SQNR as a curve above, local error over the noise floor as bars below, on a logarithmic scale."""
    step = max(9.0, min(40.0, 980.0 / max(1, len(layers))))
    width = _LEFT + _RIGHT + step * len(layers)
    height = _TOP + _CURVE + _GAP + _BARS + _BOTTOM
    top = max([FAULTY * 10, *(layer.excess for layer in layers if layer.excess is not None)])
    decades = max(1, math.ceil(math.log10(top / _LOW)))
    best = max([40.0, *(_sqnr(layer) for layer in layers)])
    parts = [
        f'<svg class="chart" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}" role="group" '
        'aria-label="Layers in execution order; arrow keys move between them">',
        *_grid(width, best, decades),
        _curve(layers, step, best),
        *(_bar(layer, step, decades, best, height) for layer in layers),
        "</svg>",
    ]
    return "".join(parts)


def _sqnr(layer: LayerResult) -> float:
    value = layer.cumulative.sqnr_db if layer.cumulative is not None else None
    return 0.0 if value is None else max(0.0, value)


def _x(layer: LayerResult, step: float) -> float:
    return _LEFT + (layer.index + 0.5) * step


def _y_curve(value: float, best: float) -> float:
    return _TOP + _CURVE * (1 - min(1.0, max(0.0, value / best)))


def _y_bar(value: float, decades: int) -> float:
    level = math.log10(max(value, _LOW) / _LOW) / decades
    return _TOP + _CURVE + _GAP + _BARS * (1 - min(1.0, level))


def _grid(width: float, best: float, decades: int) -> list[str]:
    parts = [f'<text x="{_LEFT}" y="13">Cumulative SQNR against the float run (dB, higher is better)</text>']
    parts.append(
        f'<text x="{_LEFT}" y="{_TOP + _CURVE + _GAP - 8}">Local error over the healthy noise (lower is better)</text>'
    )
    for value in range(0, int(best) + 1, 20 if best <= 80 else 40):
        y = _y_curve(value, best)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value}</text>')
    stride = max(1, -(-decades // 7))
    for power in range(0, decades + 1, stride):
        y = _y_bar(_LOW * 10**power, decades)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(_LOW * 10**power)}×</text>')
    y = _y_bar(FAULTY, decades)
    parts.append(f'<line class="limit" x1="{_LEFT}" x2="{width - _RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
    return parts


def _curve(layers: Sequence[LayerResult], step: float, best: float) -> str:
    runs: list[list[str]] = [[]]
    for layer in layers:
        if layer.cumulative is None or layer.cumulative.sqnr_db is None:
            runs.append([])  # no number: the curve has a gap
        else:
            runs[-1].append(f"{_x(layer, step):.1f},{_y_curve(layer.cumulative.sqnr_db, best):.1f}")
    return "".join(f'<polyline class="curve" points="{" ".join(run)}"/>' for run in runs if len(run) > 1)


def _bar(layer: LayerResult, step: float, decades: int, best: float, height: int) -> str:
    x, base = _x(layer, step), _TOP + _CURVE + _GAP + _BARS
    words = f"{layer.name or layer.file}: {verdict(layer)}, local error {number(layer.excess)} times the noise"
    words += f", SQNR {decibels(layer.cumulative.sqnr_db if layer.cumulative else None)}"
    parts = [
        f'<g class="layer" data-index="{layer.index}" tabindex="-1" role="button" aria-label="{escape(words)}">',
        f"<title>{escape(words)}</title>",
        f'<rect class="hit" x="{x - step / 2:.1f}" y="{_TOP}" width="{step:.1f}" height="{height - _TOP}"/>',
    ]
    if layer.cumulative is not None and layer.cumulative.sqnr_db is not None:
        radius = min(3.5, step / 3)
        parts.append(
            f'<circle class="dot" cx="{x:.1f}" cy="{_y_curve(layer.cumulative.sqnr_db, best):.1f}" r="{radius}"/>'
        )
    shape, left, wide = f"v-{layer.verdict}", f"{x - step * 0.36:.1f}", f"{step * 0.72:.1f}"
    y = base - _BARS if layer.excess is None else _y_bar(layer.excess, decades)
    if layer.excess is not None or layer.verdict in ("faulty", "recovers"):
        parts.append(f'<rect class="{shape}" x="{left}" y="{y:.1f}" width="{wide}" height="{base - y:.1f}"/>')
    else:
        parts.append(f'<text x="{x:.1f}" y="{base - 2}" text-anchor="middle">?</text>')
    if layer.verdict == "faulty":
        parts.append(f'<path class="{shape}" d="M{x - 5:.1f} {base + 14} l5 -9 l5 9 z"/>')
    parts.append("</g>")
    return "".join(parts)


def profile(values: Sequence[float], label: str) -> str:
    """Local error along one axis as bars on a square-root scale; with its peak in words."""
    if len(values) < 2:
        return ""
    peak = max(values)
    if peak <= 0:
        return ""
    width = 100 / len(values)
    bars = "".join(
        f'<rect class="v-faulty" x="{i * width:.2f}" y="{60 * (1 - math.sqrt(v / peak)):.1f}" '
        f'width="{width * 0.9:.2f}" height="{60 * math.sqrt(max(v, 0) / peak):.1f}"/>'
        for i, v in enumerate(values)
    )
    return (
        f'<div class="profile"><svg viewBox="0 0 100 60" preserveAspectRatio="none" role="img" '
        f'aria-label="local error along the {escape(label)}s">{bars}</svg>'
        f'<div class="small soft">error by {escape(label)}, peak {number(peak)} times the noise</div></div>'
    )
