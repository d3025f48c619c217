"""A simple image sensor: light in, 8-bit sRGB out, with the noise of photons and of the read-out.

Signal in electrons is Poisson, read noise Gaussian; both together are close to a Gaussian of variance
`signal + read_noise²` (the usual "shot + read" model, EMVA 1288), which is drawn here because it is cheap.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

#: Linear values are coded in so many levels before the transfer curve is looked up.
LEVELS = 4096


class Sensor(msgspec.Struct, frozen=True):
    """Noise of a sensor: `full_well` in electrons at linear 1.0, `read_noise` in electrons rms."""

    full_well: float = 6000.0
    read_noise: float = 5.0


def srgb_to_linear() -> NDArray[np.float32]:
    """Linear light 0…1 for each of the 256 codes (IEC 61966-2-1)."""
    code = np.arange(256) / 255.0
    linear = np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)
    return linear.astype(np.float32)


def linear_to_srgb() -> NDArray[np.uint8]:
    """The code 0…255 for each of `LEVELS` levels of linear light 0…1 (IEC 61966-2-1)."""
    linear = np.arange(LEVELS) / (LEVELS - 1)
    code = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    codes: NDArray[np.uint8] = np.rint(code * 255).astype(np.uint8)
    return codes


_TO_LINEAR = srgb_to_linear()
_TO_SRGB = linear_to_srgb()


def expose(picture: NDArray[Any], exposure: float, sensor: Sensor, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Take the scene `picture` (uint8 sRGB, any shape) again with `exposure` times its light, and noise.

    Returns uint8 sRGB of the same shape; what is over full scale is clipped, as a sensor does.
    """
    signal = np.take(_TO_LINEAR, picture)
    signal *= np.float32(exposure)
    deviation = np.sqrt(
        signal * np.float32(1 / sensor.full_well) + np.float32((sensor.read_noise / sensor.full_well) ** 2)
    )
    noise = rng.standard_normal(picture.shape, dtype=np.float32)
    noise *= deviation
    signal += noise
    signal *= np.float32(LEVELS - 1)
    np.clip(signal, 0, LEVELS - 1, out=signal)
    codes: NDArray[np.uint8] = np.take(_TO_SRGB, signal.astype(np.uint16))
    return codes
