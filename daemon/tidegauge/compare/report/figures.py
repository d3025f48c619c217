"""Smaller drawings of the report as inline SVG: what a cure gains step by step, and histograms with the code grid."""

from __future__ import annotations

import math
from html import escape

from tidegauge.compare.report.words import CHANGES, decibels, number
from tidegauge.compare.types import Cure, Histogram, LayerResult

_WIDTH, _HEIGHT, _LEFT, _BASE = 640, 150, 46, 124
#: A grid of more codes than this is no grid any more.
_MOST_CODES = 64


def gains(cure: Cure) -> str:
    """The output's SQNR after each change, with the target."""
    values = [cure.before.sqnr_db, *(step.after.sqnr_db for step in cure.steps)]
    known = [value for value in values if value is not None]
    if len(cure.steps) < 1 or not known:
        return ""
    top = max([*known, cure.target_db or 0.0, 1.0]) * 1.08
    low = min(0.0, *known)
    step = (_WIDTH - _LEFT - 20) / len(cure.steps)

    def point(number_: int, value: float) -> tuple[float, float]:
        return _LEFT + number_ * step, _BASE - (_BASE - 14) * (value - low) / (top - low)

    parts = [f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{_BASE}" y2="{_BASE}"/>']
    if cure.target_db is not None:
        y = point(0, cure.target_db)[1]
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{cure.target_db:g}</text>')
    line = [point(i, value) for i, value in enumerate(values) if value is not None]
    parts.append(f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in line)}"/>')
    names = ["as it is", *(f"{step_.layer} {CHANGES[step_.change]}" for step_ in cure.steps)]
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        if value is None:
            continue
        x, y = point(i, value)
        title = f"<title>{escape(name)}: {decibels(value)}</title>"
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4">{title}</circle>')
        if i in (0, len(values) - 1):
            parts.append(f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{value:.1f} dB</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 8}">layers changed: 0 to {len(cure.steps)}</text>')
    return (
        f'<svg class="chart gains" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="SQNR of the output over the number of layers changed">{"".join(parts)}</svg>'
    )


def histogram(layer: LayerResult) -> str:
    """Device and local reference in the same bins, on a square-root scale, with the codes as a grid below."""
    found = layer.histogram
    if found is None or found.high <= found.low:
        return ""
    peak = max([1, *found.device, *found.reference])
    count = len(found.device)
    width = 100 / count
    bars = "".join(
        f'<rect class="h-device" x="{i * width:.2f}" y="{_level(value, peak):.1f}" width="{width:.2f}" '
        f'height="{56 - _level(value, peak):.1f}"/>'
        for i, value in enumerate(found.device)
        if value
    )
    steps = "".join(
        f"{'M' if i == 0 else 'L'}{i * width:.2f} {_level(value, peak):.1f}h{width:.2f}"
        for i, value in enumerate(found.reference)
    )
    grid, words = _grid(layer, found)
    caption = f"device (bars) and float region (line), {number(found.low)} to {number(found.high)}{words}"
    return (
        '<div class="profile"><svg viewBox="0 0 100 60" preserveAspectRatio="none" role="img" '
        f'aria-label="histogram of the device and of its local reference">{bars}'
        f'<path class="h-reference" d="{steps}"/>{grid}</svg><div class="small soft">{escape(caption)}</div></div>'
    )


def _level(value: int, peak: int) -> float:
    return 56 * (1 - math.sqrt(value / peak))


def _grid(layer: LayerResult, found: Histogram) -> tuple[str, str]:
    if layer.scale is None or layer.dtype in (None, "float32") or layer.zero_point is None:
        return "", ""
    span = found.high - found.low
    codes = span * layer.scale
    if codes > _MOST_CODES:
        return "", f"; {codes:.0f} codes lie between"
    first = math.ceil(found.low * layer.scale)
    places = [(code / layer.scale - found.low) / span * 100 for code in range(first, first + int(codes) + 1)]
    ticks = "".join(f"M{place:.2f} 57v3" for place in places if 0 <= place <= 100)
    return f'<path class="h-grid" d="{ticks}"/>', "; a tick is a code"
