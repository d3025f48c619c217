"""A clip made of still photographs: a camera that pans and zooms over them in changing low light.

Frame `n` is a pure function of the photographs, the size, the seed and `n`, so that a test, a demo and a report show
the same picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegauge.camera.config import CameraConfig
from tidegauge.camera.folder import list_pictures, load_picture
from tidegauge.camera.pace import Pace
from tidegauge.camera.sensor import Sensor, expose
from tidegauge.camera.source import Picture

#: Frames of one scene: one photograph, one camera path.
SCENE_FRAMES = 120
#: Smallest and largest part of the light that the photograph was taken with.
EXPOSURES = (0.06, 0.35)
#: Smallest and largest magnification against the largest view that fits the photograph.
ZOOMS = (1.05, 1.7)


class Scene(msgspec.Struct, frozen=True):
    """A camera path over one photograph: values at start and end. Positions in 0…1 of the free room."""

    photo: int
    x: tuple[float, float]
    y: tuple[float, float]
    zoom: tuple[float, float]
    exposure: tuple[float, float]
    #: Within the scene the light falls or rises at once at this share of its time (a lamp), by this factor.
    switch_at: float
    switch_factor: float


class View(msgspec.Struct, frozen=True):
    """Where the camera looks, in 0…1 of the free room, at a magnification, with a share of the light."""

    photo: int
    x: float
    y: float
    zoom: float
    exposure: float


def _generator(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed % 2**64, *key])))


def scene(seed: int, index: int, photos: int) -> Scene:
    """The scene number `index` of the clip."""
    rng = _generator(seed, 1, index)
    order = _generator(seed, 0).permutation(photos)
    low, high = np.log(EXPOSURES)

    def pair(start: float, end: float) -> tuple[float, float]:
        return float(rng.uniform(start, end)), float(rng.uniform(start, end))

    exposure = pair(low, high)
    return Scene(
        photo=int(order[index % photos]),
        x=pair(0, 1),
        y=pair(0, 1),
        zoom=pair(*ZOOMS),
        exposure=(float(np.exp(exposure[0])), float(np.exp(exposure[1]))),
        switch_at=float(rng.uniform(0.3, 0.7)),
        switch_factor=float(rng.choice([0.6, 1.0, 1.0, 1.5])),
    )


def view(seed: int, number: int, photos: int, scene_frames: int = SCENE_FRAMES) -> View:
    """What frame `number` shows: a smooth path from the scene's start to its end."""
    index, offset = divmod(number, scene_frames)
    path = scene(seed, index, photos)
    share = offset / scene_frames
    smooth = share * share * (3 - 2 * share)
    exposure = path.exposure[0] * (path.exposure[1] / path.exposure[0]) ** smooth
    if share >= path.switch_at:
        exposure *= path.switch_factor
    return View(
        photo=path.photo,
        x=path.x[0] + (path.x[1] - path.x[0]) * smooth,
        y=path.y[0] + (path.y[1] - path.y[0]) * smooth,
        zoom=path.zoom[0] * (path.zoom[1] / path.zoom[0]) ** smooth,
        exposure=min(max(exposure, EXPOSURES[0]), EXPOSURES[1]),
    )


class Clip:
    """The frames of a synthetic clip: BGR, uint8, (height, width, 3).

    `photos`: BGR, uint8, any size. They are kept at the scale at which the camera sees them, at most.
    """

    def __init__(
        self,
        photos: Sequence[NDArray[Any]],
        width: int,
        height: int,
        seed: int,
        scene_frames: int = SCENE_FRAMES,
    ) -> None:
        if not photos:
            raise ValueError("a clip needs a photograph")
        self._width = width
        self._height = height
        self._seed = seed
        self._scene_frames = scene_frames
        self._sensor = Sensor()
        self._photos = [self._prepare(photo) for photo in photos]

    def _widest(self, photo: NDArray[Any]) -> float:
        """Width of the largest view of the clip's aspect that fits the photograph, in its pixels."""
        return float(min(photo.shape[1], photo.shape[0] * self._width / self._height))

    def _prepare(self, photo: NDArray[Any]) -> NDArray[Any]:
        scale = self._width * ZOOMS[1] / self._widest(photo)
        if scale >= 1:
            return photo
        size = (max(round(photo.shape[1] * scale), 1), max(round(photo.shape[0] * scale), 1))
        return cv2.resize(photo, size, interpolation=cv2.INTER_AREA)

    def scene_light(self, number: int) -> tuple[NDArray[Any], View]:
        """What the camera would see of frame `number` in good light and without noise, and where it looks."""
        looks = view(self._seed, number, len(self._photos), self._scene_frames)
        photo = self._photos[looks.photo]
        scale = self._widest(photo) / looks.zoom / self._width
        left = looks.x * (photo.shape[1] - scale * self._width)
        top = looks.y * (photo.shape[0] - scale * self._height)
        matrix = np.array([[scale, 0, left], [0, scale, top]], np.float64)
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        seen = cv2.warpAffine(photo, matrix, (self._width, self._height), flags=flags, borderMode=cv2.BORDER_REPLICATE)
        return seen, looks

    def frame(self, number: int) -> NDArray[np.uint8]:
        """Frame `number`, as the sensor delivers it."""
        seen, looks = self.scene_light(number)
        return expose(seen, looks.exposure, self._sensor, _generator(self._seed, 2, number))


class SyntheticSource:
    """The clip over the photographs of a folder; it never ends."""

    def __init__(self, config: CameraConfig) -> None:
        folder = Path(config.source)
        self.description = f"synthetic clip over {folder}, seed {config.seed}"
        self.width = config.width
        self.height = config.height
        photos = [load_picture(path) for path in list_pictures(folder)]
        self._clip = Clip(photos, config.width, config.height, config.seed, config.scene_frames)
        self._pace = Pace(config.frames_per_second)
        self._next = 0

    def read(self) -> Picture | None:
        picture = Picture(self._clip.frame(self._next), self._next)
        self._next += 1
        self._pace.wait()
        return picture

    def close(self) -> None:
        """Nothing is held open."""
