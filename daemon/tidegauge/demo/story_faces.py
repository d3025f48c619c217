"""Drawn faces with known key points and pose: what the key-point network is trained on and measured with.

Coordinates are shares of the picture's width and height, x before y, in the order of `POINTS`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIDE = 64
POINTS = ("left eye", "right eye", "nose", "left mouth corner", "right mouth corner")
POSES = ("turned left", "straight", "turned right")
#: Where the points of a straight face are, in half axes of its outline.
_PLACES = np.array([[-0.42, -0.28], [0.42, -0.28], [0.0, 0.1], [-0.34, 0.48], [0.34, 0.48]], np.float32)
#: From dusk to noon: how much light there is, drawn log-uniform.
LIGHT = (0.15, 1.2)
#: How far a turned face's points move sideways.
_TURN = 0.28

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Faces:
    """`pictures`: (n, 3, 64, 64) RGB in 0…1. `points`: (n, 5, 2) in 0…1. `poses`: (n,) index into `POSES`."""

    pictures: Array
    points: Array
    poses: NDArray[np.int64]


def draw(random: np.random.Generator, count: int) -> Faces:
    """`count` faces of random place, size, tilt, pose, colour and light, before random backgrounds."""
    poses = random.integers(0, 3, count)
    axes = np.stack([random.uniform(0.17, 0.26, count), random.uniform(0.24, 0.34, count)], 1)
    centres = random.uniform(0.36, 0.64, (count, 2))
    tilt = random.uniform(-0.35, 0.35, count)
    places = np.repeat(_PLACES[None], count, 0)
    places[:, :, 0] += (_TURN * (poses - 1))[:, None]
    turned = _turn(places * axes[:, None, :], tilt)
    points = (centres[:, None, :] + turned).astype(np.float32)
    pictures = _background(random, count)
    pictures = _ellipse(pictures, centres, axes, tilt, random.uniform(0.45, 0.85, (count, 1)) * _skin(random, count))
    eye = random.uniform(0.02, 0.032, count)
    for number, (size, dark) in enumerate(((1.0, 0.1), (1.0, 0.1), (0.8, 0.45), (0.6, 0.3), (0.6, 0.3))):
        colour = np.full((count, 3), dark) * random.uniform(0.7, 1.3, (count, 1))
        if number > 2:
            colour[:, 0] += 0.35
        pictures = _ellipse(pictures, points[:, number], np.stack([eye * size] * 2, 1), tilt, colour)
    dim, full = np.log(LIGHT)
    light = np.exp(random.uniform(dim, full, (count, 1, 1, 1))) * random.uniform(0.85, 1.15, (count, 3, 1, 1))
    noisy = pictures * light + random.normal(0, 0.006, pictures.shape)
    return Faces(np.clip(noisy, 0, 1).astype(np.float32), points, poses)


def _turn(offsets: NDArray[np.float64] | Array, tilt: NDArray[np.float64]) -> NDArray[np.float64]:
    cos, sin = np.cos(tilt)[:, None], np.sin(tilt)[:, None]
    x, y = offsets[..., 0], offsets[..., 1]
    return np.stack([cos * x - sin * y, sin * x + cos * y], -1)


def _skin(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    return np.array([1.0, 0.78, 0.62]) * random.uniform(0.9, 1.1, (count, 3))


def _background(random: np.random.Generator, count: int) -> Array:
    tiles = random.uniform(0.05, 0.75, (count, 3, 5, 5))
    grid = np.linspace(0, 4, SIDE)
    low = np.minimum(grid.astype(int), 3)
    part = grid - low
    rows = tiles[:, :, low, :] * (1 - part)[None, None, :, None] + tiles[:, :, low + 1, :] * part[None, None, :, None]
    blended: Array = (rows[..., low] * (1 - part) + rows[..., low + 1] * part).astype(np.float32)
    return blended


def _ellipse(
    pictures: Array,
    centres: NDArray[np.floating],
    axes: NDArray[np.floating],
    tilt: NDArray[np.floating],
    colour: NDArray[np.floating],
) -> Array:
    """Fill an ellipse with a soft edge of about a pixel."""
    grid = (np.arange(SIDE) + 0.5) / SIDE
    x = grid[None, None, :] - centres[:, 0, None, None]
    y = grid[None, :, None] - centres[:, 1, None, None]
    cos, sin = np.cos(tilt)[:, None, None], np.sin(tilt)[:, None, None]
    across, along = (cos * x + sin * y) / axes[:, 0, None, None], (cos * y - sin * x) / axes[:, 1, None, None]
    inside = (1 - np.sqrt(across**2 + along**2)) * axes.min(1)[:, None, None] * SIDE
    share = np.clip(inside + 0.5, 0, 1)[:, None]
    filled: Array = (pictures * (1 - share) + colour[:, :, None, None] * share).astype(np.float32)
    return filled


def error_pixels(points: Array, truth: Array) -> Array:
    """The distance of each point to where it is, in pixels of the 64-pixel picture: shape (n, 5)."""
    distance: Array = np.sqrt((((points - truth) * SIDE) ** 2).sum(-1))
    return distance
