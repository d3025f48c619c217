"""Error pictures of a culprit: device, reference and difference of the channel with the largest error, as PNG."""

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


def draw(case: Evidence) -> tuple[Picture, ...]:
    """Three pictures, or none for a tensor without a plane to draw."""
    _, height, width = case.device.shape
    if height < 2 or width < 2:
        return ()
    residual = np.where(np.isfinite(case.residual), case.residual, 0.0)
    broken = (~np.isfinite(case.residual)).sum(axis=(1, 2))
    energy = np.square(residual, dtype=np.float64).sum(axis=(1, 2))
    channel = int(np.argmax(broken)) if broken.any() else int(np.argmax(energy))
    stride = max(1, -(-max(height, width) // SIDE))
    device, local = case.device[channel, ::stride, ::stride], case.local[channel, ::stride, ::stride]
    finite = np.concatenate([device[np.isfinite(device)], local[np.isfinite(local)]])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    worst = float(np.abs(residual[channel]).max())
    return (
        Picture("device", "device", channel, low, high, _gray(device, low, high)),
        Picture("reference", "float model, from the device's own input", channel, low, high, _gray(local, low, high)),
        Picture("difference", "device minus float", channel, -worst, worst, _signed(device - local, worst)),
    )


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
