"""Tensors of a bundle as pictures. Pure: arrays in, PNG out.

What the board recorded is the input tensor, not the camera's frame; `Preprocess` says how it was made of one, and is
undone here as far as it can be: `value / scale + mean`.
"""

from __future__ import annotations

import struct
import zlib
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegauge.bundles.manifest import Blob, Manifest, StoredTensor
from tidegauge.tensors import TensorSpec

Role = Literal["input", "device", "reference", "difference"]
ROLES: tuple[Role, ...] = ("input", "device", "reference", "difference")
#: Longest side, pixels; a larger tensor is thinned out.
SIDE = 640
#: Largest tensor that is drawn, bytes.
MOST_BYTES = 64 << 20
#: Colour of what is not finite, of too much, and of too little.
_BROKEN, _ABOVE, _BELOW = (255, 0, 200), (213, 94, 0), (0, 114, 178)

Planes = NDArray[np.float32]


class Drawn(msgspec.Struct, frozen=True):
    """A picture that a page can show: of which tensor, made of which blobs, and what it says in words."""

    role: Role
    tensor: str
    blobs: tuple[Blob, ...]
    words: str


def drawable(manifest: Manifest) -> tuple[Drawn, ...]:
    """The pictures that a bundle has. The output is one only where the model's answer is a picture."""
    found = []
    if (given := next((each for each in manifest.inputs if _is_picture(each.spec)), None)) is not None:
        found.append(Drawn("input", given.spec.name, (given.blob,), "Input tensor, before the model"))
    device = _watched(manifest, manifest.device_outputs)
    reference = _watched(manifest, manifest.reference_outputs)
    if device is not None:
        found.append(Drawn("device", device.spec.name, (device.blob,), "Device run"))
    if reference is not None:
        found.append(Drawn("reference", reference.spec.name, (reference.blob,), "Reference run: float, on the CPU"))
    if device is not None and reference is not None and device.spec.shape == reference.spec.shape:
        words = "Device minus reference: orange too high, blue too low, magenta not a number"
        found.append(Drawn("difference", device.spec.name, (device.blob, reference.blob), words))
    return tuple(found)


def draw(manifest: Manifest, picture: Drawn, content: list[bytes]) -> bytes:
    """A PNG; `content`: the decoded blobs of the picture. Raises ValueError where they do not fit their shape."""
    if picture.role == "input":
        return png(_input(manifest, picture.tensor, content[0]))
    stored = manifest.device_outputs if picture.role != "reference" else manifest.reference_outputs
    spec = next(each.spec for each in stored if each.spec.name == picture.tensor)
    output = manifest.profile.output
    planes = [_planes(spec, data, output.layout) for data in content]
    if picture.role == "difference":
        return png(_difference(planes[0] - planes[1], output.high - output.low))
    return png(_shown(planes[0], output.low, output.high, output.channel_order))


def png(rgb: NDArray[np.uint8]) -> bytes:
    """An 8-bit RGB PNG of (height, width, 3) (RFC 2083)."""
    height, width, _ = rgb.shape
    rows = np.zeros((height, 1 + width * 3), np.uint8)
    rows[:, 1:] = rgb.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _is_picture(spec: TensorSpec) -> bool:
    """One picture with one or three channels, in either layout."""
    if len(spec.shape) != 4 or spec.shape[0] != 1 or min(spec.shape) < 1 or spec.nbytes > MOST_BYTES:
        return False
    return (spec.shape[1] in (1, 3)) != (spec.shape[3] in (1, 3)) or spec.shape[1] == spec.shape[3]


def _watched(manifest: Manifest, stored: tuple[StoredTensor, ...]) -> StoredTensor | None:
    output = manifest.profile.output
    if output.kind != "image":
        return None
    return next((each for each in stored if each.spec.name == output.name and _is_picture(each.spec)), None)


def _planes(spec: TensorSpec, data: bytes, layout: Literal["NCHW", "NHWC"]) -> Planes:
    """(height, width, channels), thinned out."""
    array = np.frombuffer(data, np.dtype(spec.dtype)).reshape(spec.shape)[0]
    planes = array.transpose(1, 2, 0) if layout == "NCHW" else array
    stride = max(1, -(-max(planes.shape[:2]) // SIDE))
    thinned: Planes = planes[::stride, ::stride].astype(np.float32)
    return thinned


def _input(manifest: Manifest, name: str, data: bytes) -> NDArray[np.uint8]:
    made = manifest.profile.preprocess
    spec = next(each.spec for each in manifest.inputs if each.spec.name == name)
    planes = _planes(spec, data, made.layout)
    channels = planes.shape[2]
    scale, mean = (np.resize(np.array(values, np.float32), channels) for values in (made.scale, made.mean))
    scale = np.where(scale == 0, np.float32(1), scale)
    return _shown(planes / scale + mean, 0.0, 255.0, made.channel_order)


def _shown(planes: Planes, low: float, high: float, order: Literal["RGB", "BGR"]) -> NDArray[np.uint8]:
    broken = ~np.isfinite(planes).all(axis=2)
    finite = np.where(np.isfinite(planes), planes, low)
    level = np.clip((finite - low) / ((high - low) or 1.0) * 255.0, 0, 255).round().astype(np.uint8)
    rgb = np.repeat(level, 3, axis=2) if level.shape[2] == 1 else level
    if order == "BGR" and level.shape[2] == 3:
        rgb = rgb[:, :, ::-1]
    rgb = np.ascontiguousarray(rgb)
    rgb[broken] = _BROKEN
    return rgb


def _difference(planes: Planes, span: float) -> NDArray[np.uint8]:
    """White where equal; by the square root of the error, so that small ones are seen."""
    broken = ~np.isfinite(planes).all(axis=2)
    finite = np.where(np.isfinite(planes), planes, np.float32(0))
    worst = np.take_along_axis(finite, np.abs(finite).argmax(axis=2)[:, :, None], axis=2)
    strength = np.sqrt(np.clip(np.abs(worst) / (span or 1.0), 0, 1))
    towards = np.where(worst > 0, np.array(_ABOVE), np.array(_BELOW))
    rgb: NDArray[np.uint8] = (255 + (towards - 255) * strength).round().astype(np.uint8)
    rgb[broken] = _BROKEN
    return rgb
