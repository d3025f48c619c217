"""Pictures of a camera that does not move: one view, things that pass, changing light; and what may become of them.

Frame `n` is a pure function of the seed, `n` and the change, so that two runs see the same pictures.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Literal, get_args

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegauge.camera.folder import list_pictures, load_picture
from tidegauge.camera.sensor import Sensor, expose
from tidegauge.demo.settings import PHOTOS

Picture = NDArray[np.uint8]

#: What becomes of the scene, and what becomes of the camera.
DataChange = Literal["light", "dusk", "fog", "cast", "noise", "rain", "crowd"]
CameraChange = Literal["frozen", "black", "blown", "blurred", "covered", "moved"]
DATA_CHANGES: tuple[DataChange, ...] = get_args(DataChange)
CAMERA_CHANGES: tuple[CameraChange, ...] = get_args(CameraChange)
#: Passing things in a healthy frame, at most; their height as a share of the picture's.
MOST_THINGS, THING_HEIGHT = 3, (0.15, 0.4)
#: Levels of an overcast sky, of a lens cover.
FOG_LEVEL, COVER_LEVEL = 190, 40


class Change(msgspec.Struct, frozen=True):
    """`size` in (0, 1], gross at 1; `kind` empty for none. "frozen" has no size.

    light: times 1 + 4 size. dusk: times 1 − 0.9 size. fog: a share of grey. cast: blue and green fade. noise: of the
    sensor's read-out, times 1 + 60 size. rain: streaks on a share of 0.3 size. crowd: 20 size more things.

    black, blown: towards the end of the range. blurred: a Gaussian of 3 % of the height. covered: from the left, a
    share of the width. moved: to the side, a third of the width at most.
    """

    kind: DataChange | CameraChange | Literal[""] = ""
    size: float = 1.0


NONE = Change()


class FixedCamera:
    """`light`: least and most exposure. `view`: number of the photograph that it looks at."""

    def __init__(self, width: int, height: int, view: int, light: tuple[float, float], seed: int) -> None:
        photos = [load_picture(path) for path in list_pictures(PHOTOS)]
        self._photos, self._view, self._seed = photos, view, seed
        self._size, self._light = (width, height), light
        self._background = _fitted(photos[view], *self._size)

    def frame(self, number: int, change: Change = NONE) -> Picture:
        """BGR, height × width × 3."""
        rng = np.random.default_rng((self._seed, number))
        exposure = float(np.exp(rng.uniform(*np.log(self._light))))
        things = int(rng.integers(MOST_THINGS + 1))
        size, kind = change.size, change.kind
        if kind == "crowd":
            things += ceil(20 * size)
        if kind in ("light", "dusk"):
            exposure *= 1 + 4 * size if kind == "light" else 1 - 0.9 * size
        picture = self._with_things(rng, things, round(self._size[0] / 3 * size) if kind == "moved" else 0)
        picture = _weather(picture, change, rng)
        sensor = Sensor(read_noise=5.0 * (1 + 60 * size)) if kind == "noise" else Sensor()
        return _delivered(expose(picture, exposure, sensor, rng), change)

    def _with_things(self, rng: np.random.Generator, things: int, moved: int) -> Picture:
        width, height = self._size
        picture = np.roll(self._background, moved, axis=1)
        for _ in range(things):
            others = [photo for number, photo in enumerate(self._photos) if number != self._view]
            photo = others[int(rng.integers(len(others)))]
            tall = max(4, round(height * rng.uniform(*THING_HEIGHT)))
            wide = max(4, round(tall * rng.uniform(0.5, 1.5)))
            top, left = int(rng.integers(height - tall + 1)), int(rng.integers(max(1, width - wide + 1)))
            wide = min(wide, width - left)
            picture[top : top + tall, left : left + wide] = _fitted(photo, wide, tall)
        return picture


def _fitted(photo: NDArray[Any], width: int, height: int) -> Picture:
    """The largest part of the photograph that has this aspect, in this size."""
    rows, columns = photo.shape[:2]
    scale = min(columns / width, rows / height)
    tall, wide = max(1, int(height * scale)), max(1, int(width * scale))
    top, left = (rows - tall) // 2, (columns - wide) // 2
    part = photo[top : top + tall, left : left + wide]
    return _codes(cv2.resize(part, (width, height), interpolation=cv2.INTER_AREA))


def _weather(picture: Picture, change: Change, rng: np.random.Generator) -> Picture:
    size = change.size
    if change.kind == "fog":
        return _codes(picture * (1 - size) + FOG_LEVEL * size)
    if change.kind == "cast":
        return _codes(picture * np.array([1 - 0.8 * size, 1 - 0.4 * size, 1.0]))
    if change.kind == "rain":
        rows, columns = picture.shape[:2]
        length = max(3, rows // 16)
        for _ in range(ceil(0.3 * size * rows * columns / length)):
            row, column = int(rng.integers(rows)), int(rng.integers(columns))
            picture[row : row + length, column] = 230
    return picture


def _delivered(picture: Picture, change: Change) -> Picture:
    """What a faulty camera makes of the picture."""
    size, (rows, columns) = change.size, picture.shape[:2]
    if change.kind == "black":
        return _codes(picture * (1 - size))
    if change.kind == "blown":
        return _codes(picture + 280 * size)
    if change.kind == "blurred":
        return _codes(cv2.GaussianBlur(picture, (0, 0), max(0.05, 0.03 * rows * size)))
    if change.kind == "covered":
        covered = picture.copy()
        covered[:, : round(columns * size)] = COVER_LEVEL
        return covered
    return picture


def _codes(values: NDArray[Any]) -> Picture:
    codes: Picture = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return codes
