"""Invariants of the camera: frozen, black, blown, blurred, covered. Pure; seconds of one monotonic clock are arguments.

Each condition must hold for a while before it is a fault, so that a headlight or a passing lorry is none. All
thresholds are starting points, to be set on footage of the place.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.defaults import (
    BLACK_LUMA,
    BLACK_QUANTILE,
    BLOWN_LUMA,
    BLOWN_SHARE,
    BLURRED_SHARE,
    COVERED_CORRELATION,
    HEALTHY_QUANTILE,
    HOLD,
    MARGIN,
    Condition,
)

CONDITIONS: tuple[Condition, ...] = ("frozen", "black", "blown", "blurred", "covered")

#: Cells of the edge map, rows and columns: coarse enough that moving things do not decide.
EDGE_GRID = (12, 16)


class FrameLook(msgspec.Struct, frozen=True):
    """What one frame looks like: luma's 99 % quantile `bright`, the share `blown` of luma from 250 on.

    `sharpness`: variance of the Laplacian. `edges`: mean gradient of each cell of a 12 × 16 grid, row by row, to two
    decimals (they are stored with each sample of an acceptance).
    """

    bright: float
    blown: float
    sharpness: float
    edges: tuple[float, ...]


class CameraReference(msgspec.Struct, frozen=True):
    """How frames of one light context looked at acceptance: medians.

    `judges_blur`, `judges_cover`: nearly all frames of acceptance itself were well inside the limit. A camera that
    moves has no view of its own to be turned away from, and must not be called covered for it.
    """

    sharpness: float
    edges: tuple[float, ...]
    judges_blur: bool = True
    judges_cover: bool = True


def look(luma: NDArray[np.uint8]) -> FrameLook:
    """Look at one frame, height × width. Raises ValueError for one that is too small for the edge map."""
    height, width = luma.shape
    rows, columns = EDGE_GRID
    if height < 2 * rows or width < 2 * columns:
        raise ValueError(f"a frame of {height} × {width} is too small to be judged")
    grey = luma.astype(np.float32)
    inner = grey[1:-1, 1:-1]
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * inner
    gradient = np.abs(grey[1:-1, 2:] - grey[1:-1, :-2]) + np.abs(grey[2:, 1:-1] - grey[:-2, 1:-1])
    cells = np.add.reduceat(
        np.add.reduceat(gradient, _starts(gradient.shape[0], rows), axis=0), _starts(gradient.shape[1], columns), axis=1
    )
    return FrameLook(
        bright=float(np.quantile(grey, BLACK_QUANTILE)),
        blown=float(np.mean(luma >= BLOWN_LUMA)),
        sharpness=float(laplacian.var()),
        edges=tuple(np.round(cells.astype(np.float64) * (cells.size / gradient.size), 2).ravel().tolist()),
    )


def reference_of(looks: Iterable[FrameLook]) -> CameraReference:
    """Medians over the frames of one light context. Raises ValueError for none."""
    seen = list(looks)
    if not seen:
        raise ValueError("no frames to take a camera's reference from")
    edges = tuple(np.median(np.array([each.edges for each in seen]), axis=0).tolist())
    sharpness = float(np.median([each.sharpness for each in seen]))
    least_sharp = float(np.quantile([each.sharpness for each in seen], HEALTHY_QUANTILE))
    least_alike = float(np.quantile([_correlation(each.edges, edges) for each in seen], HEALTHY_QUANTILE))
    return CameraReference(
        sharpness,
        edges,
        judges_blur=least_sharp >= MARGIN * BLURRED_SHARE * sharpness,
        judges_cover=least_alike >= MARGIN * COVERED_CORRELATION,
    )


def conditions(seen: FrameLook, reference: CameraReference | None) -> set[Condition]:
    """What is wrong with one frame. `reference`: of its light context; without one, blur and cover are not judged."""
    if seen.bright < BLACK_LUMA:
        return {"black"}  # a dark frame has no edges: it is neither blurred nor covered besides
    if seen.blown > BLOWN_SHARE:
        return {"blown"}
    found: set[Condition] = set()
    if reference is None:
        return found
    if reference.judges_blur and seen.sharpness < BLURRED_SHARE * reference.sharpness:
        found.add("blurred")
    if reference.judges_cover and _correlation(seen.edges, reference.edges) < COVERED_CORRELATION:
        found.add("covered")
    return found


class CameraState(msgspec.Struct, frozen=True):
    """`since`: when each condition began that holds now; `sequence`, `moved`: the last new frame, and when it came."""

    since: dict[str, float]
    sequence: int | None
    moved: float


class CameraHealth:
    """Conditions with hold times, seconds. `start`: now, monotonic; frames are expected from then on."""

    def __init__(self, start: float, hold: dict[Condition, float] | None = None) -> None:
        self.hold = HOLD | (hold or {})
        self._since: dict[Condition, float] = {}
        self._sequence: int | None = None
        self._moved = start

    def frame(self, now: float, sequence: int, found: set[Condition]) -> list[Alarm]:
        """Take a delivered frame: its sensor's sequence number (or timestamp) and what `conditions` says of it.

        Frozen is judged by delivery: a sequence that stays is frozen, an unchanged picture of a quiet scene is not.
        """
        if sequence != self._sequence:
            self._sequence, self._moved = sequence, now
        self._since = {each: self._since.get(each, now) for each in CONDITIONS if each in found and each != "frozen"}
        return self.alarms(now)

    def alarms(self, now: float) -> list[Alarm]:
        """What has held long enough by `now`, also when no frame comes."""
        since = dict(self._since)
        if now > self._moved:
            since["frozen"] = self._moved
        return [
            Alarm(
                f"camera_{name}",
                f"the camera is {name}: for {now - since[name]:.0f} s",
                {"seconds": now - since[name], "hold": self.hold[name]},
            )
            for name in CONDITIONS
            if name in since and now - since[name] >= self.hold[name]
        ]

    def healthy(self, now: float) -> bool:
        """Whether frames may be judged: no condition holds at all, be it for long enough or not.

        A frame that might be a fault's first must feed no paired detector (DESIGN §6.4).
        """
        return not self._since and now - self._moved < self.hold["frozen"]

    def state(self) -> CameraState:
        return CameraState({str(name): since for name, since in self._since.items()}, self._sequence, self._moved)


def _starts(length: int, parts: int) -> NDArray[np.intp]:
    return (np.arange(parts) * length) // parts


def _correlation(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    left, right = np.asarray(one), np.asarray(other)
    if left.size != right.size:
        raise ValueError(f"edge maps of {left.size} and {right.size} cells")
    left, right = left - left.mean(), right - right.mean()
    scale = float(np.sqrt(np.sum(left * left) * np.sum(right * right)))
    return float(np.sum(left * right)) / scale if scale > 0 else 0.0
