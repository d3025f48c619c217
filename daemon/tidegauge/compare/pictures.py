"""Error pictures of a culprit: device, reference and difference of the channels with the largest error, as PNG."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.causes import Evidence
from tidegauge.compare.types import Picture

Bytes = NDArray[np.uint8]

#: Longest side of a picture, in pixels; a larger tensor is thinned out.
SIDE = 320
#: So many channels are drawn, the worst first; others smaller, and only from this share of the worst one's error on.
CHANNELS, SMALL_SIDE, WORTH_A_LOOK = 3, 160, 0.05
#: Side of a scatter, and how many elements it is made of at most.
SCATTER, MOST_POINTS = 160, 200_000


def draw(case: Evidence) -> tuple[Picture, ...]:
    """Device, reference and difference of up to `CHANNELS` channels where there is a plane to draw, then device against
    reference of all."""
    scatter = _scatter(case)
    _, height, width = case.device.shape
    if height < 2 or width < 2:
        return scatter
    residual = np.where(np.isfinite(case.residual), case.residual, 0.0)
    broken = (~np.isfinite(case.residual)).sum(axis=(1, 2))
    energy = np.square(residual, dtype=np.float64).sum(axis=(1, 2))
    measure = broken if broken.any() else energy
    order = np.argsort(-measure, kind="stable")[:CHANNELS]
    shown = [int(channel) for channel in order if measure[channel] >= WORTH_A_LOOK * measure[order[0]]]
    drawn = [_channel(case, channel, SIDE if i == 0 else SMALL_SIDE) for i, channel in enumerate(shown)]
    return (*(picture for pictures in drawn for picture in pictures), *scatter)


def _channel(case: Evidence, channel: int, side: int) -> tuple[Picture, ...]:
    _, height, width = case.device.shape
    stride = max(1, -(-max(height, width) // side))
    device, local = case.device[channel, ::stride, ::stride], case.local[channel, ::stride, ::stride]
    finite = np.concatenate([device[np.isfinite(device)], local[np.isfinite(local)]])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    residual = case.residual[channel]
    worst = float(np.abs(residual[np.isfinite(residual)]).max(initial=0.0))
    return (
        Picture("device", "device", channel, low, high, _gray(device, low, high)),
        Picture("reference", "float model, from the device's own input", channel, low, high, _gray(local, low, high)),
        Picture("difference", "device minus float", channel, -worst, worst, _signed(device - local, worst)),
    )


def _scatter(case: Evidence) -> tuple[Picture, ...]:
    """How often which device value stands where the float region has which value; grey: equal, red: the fitted line."""
    device, local = case.device.reshape(-1), case.local.reshape(-1)
    finite = np.isfinite(device) & np.isfinite(local)
    stride = max(1, int(finite.sum()) // MOST_POINTS)
    device, local = device[finite][::stride].astype(np.float64), local[finite][::stride].astype(np.float64)
    if device.size < 2 or min(device.min(), local.min()) >= max(device.max(), local.max()):
        return ()
    low, high = float(min(device.min(), local.min())), float(max(device.max(), local.max()))
    place = (SCATTER - 1) / (high - low)
    column = ((local - low) * place).round().astype(int)
    row = ((device - low) * place).round().astype(int)
    counts = np.zeros((SCATTER, SCATTER))
    np.add.at(counts, (row, column), 1.0)
    shade = 90 + 165 * (1 - np.log1p(counts) / np.log1p(counts.max()))
    rgb = np.where(counts[:, :, None] > 0, shade[:, :, None] * np.array([0.3, 0.6, 0.9]), 250.0)
    axis = np.arange(SCATTER)
    free = axis[counts[axis, axis] == 0]
    rgb[free, free] = 170
    words = "device against float"
    if local.std() > 0:
        gain = float(np.cov(local, device, bias=True)[0, 1] / local.var())
        offset = float(device.mean() - gain * local.mean())
        fitted = np.round((gain * (low + axis / place) + offset - low) * place).astype(int)
        seen = (fitted >= 0) & (fitted < SCATTER)
        rgb[fitted[seen], axis[seen]] = (200, 40, 40)
        words += f", gain {gain:.3g}, offset {offset:.3g}"
    return (Picture("scatter", words, 0, low, high, png(rgb[::-1].astype(np.uint8))),)


def _gray(plane: NDArray[np.float32], low: float, high: float) -> bytes:
    span = high - low if high > low else 1.0
    with np.errstate(invalid="ignore"):
        level = np.clip((plane - low) / span * 255.0, 0, 255)
    gray = np.where(np.isfinite(plane), level, 0).astype(np.uint8)
    rgb = np.repeat(gray[:, :, None], 3, axis=2)
    rgb[~np.isfinite(plane)] = (255, 0, 200)
    return png(rgb)


def _signed(plane: NDArray[np.float32], worst: float) -> bytes:
    """White where equal, red where the device is too high, blue where it is too low, magenta where not finite."""
    with np.errstate(invalid="ignore"):
        ratio = np.clip(plane / (worst or 1.0), -1, 1)
    ratio = np.where(np.isfinite(plane), ratio, 0.0)
    strength = np.sqrt(np.abs(ratio))[:, :, None]  # small errors stay visible
    towards = np.where(ratio[:, :, None] > 0, np.array([178, 24, 43]), np.array([33, 102, 172]))
    rgb = (247 + (towards - 247) * strength).astype(np.uint8)
    rgb[~np.isfinite(plane)] = (255, 0, 200)
    return png(rgb)


def png(rgb: NDArray[Any]) -> bytes:
    """An 8-bit RGB PNG of (height, width, 3) (RFC 2083)."""
    height, width, _ = rgb.shape
    rows = np.zeros((height, 1 + width * 3), np.uint8)
    rows[:, 1:] = rgb.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
