"""Hypotheses about the place of an error: rows, columns, a border, channels, a pitch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.residual import Cause, Evidence
from tidegauge.compare.types import CauseName

#: Pitches tried: so many elements too long or too short. Memory is allocated in steps of that size at most.
_PITCHES = tuple(k for n in range(1, 17) for k in (n, -n))
#: Channels that the pitch is looked for in.
_FEW = 8
#: Share of a place's codes that are off by one where the place is the cause.
_DENSE = 0.2
#: A code off by one whose value was near the middle of two may look off by two: in so few cases.
_TIED = 0.02


def _band(axis: int, name: CauseName, word: str) -> Callable[[Evidence], Cause | None]:
    def test(case: Evidence) -> Cause | None:
        length = case.device.shape[axis]
        if length < 4 or case.device.shape[3 - axis] < 2:
            return None
        others = tuple(i for i in range(3) if i != axis)
        energy = np.sum(np.square(case.residual, dtype=np.float64), axis=others)
        if not energy.any():
            return None
        first, last = _best_run(energy - energy.mean())
        covered = (last - first + 1) / length
        if covered > 0.75:
            return None
        share = float(energy[first : last + 1].sum() / energy.sum())
        if not _dense(case, (slice(None),) * axis + (slice(first, last + 1),)):
            return None
        where = f"{word} {first}" if first == last else f"{word}s {first} to {last}"
        border = axis == 2 and first == last and first in (0, length - 1)
        return Cause(
            "boundary_column" if border else name,
            max(0.0, (share - covered) / (1 - covered)),
            f"{where} of {length} hold {share:.0%} of the error",
        )

    return test


def _dense(case: Evidence, place: tuple[Any, ...]) -> bool:
    """Whether codes off by one fill a place, rather than being there by chance; larger errors always do."""
    inside = np.abs(case.residual[place]) * case.encoding.scale
    wrong = inside > 0.5
    if not case.exact or float((inside > 1.5).sum()) > _TIED * float(wrong.sum()):
        return True
    return float(wrong.mean()) >= _DENSE


def _best_run(values: NDArray[np.float64]) -> tuple[int, int]:
    """First and last index of the run with the largest sum (Kadane)."""
    best, best_run, total, start = -np.inf, (0, 0), 0.0, 0
    for i, value in enumerate(values):
        if total <= 0:
            total, start = 0.0, i
        total += float(value)
        if total > best:
            best, best_run = total, (start, i)
    return best_run


def _channels(case: Evidence) -> Cause | None:
    count = case.device.shape[0]
    if count < 3:
        return None
    energy = np.sum(np.square(case.residual, dtype=np.float64), axis=(1, 2))
    floor = 0.0 if case.exact else 10 * case.floor * case.residual[0].size
    noisy = np.flatnonzero(energy > max(floor, 0.01 * energy.max()))
    covered = noisy.size / count
    if covered == 0 or covered > 0.75 or not _dense(case, (noisy,)):
        return None
    share = float(energy[noisy].sum() / energy.sum())
    listed = ", ".join(map(str, noisy[:8])) + (", …" if noisy.size > 8 else "")
    word = "channel" if noisy.size == 1 else "channels"
    detail = f"{word} {listed} of {count} hold {share:.0%} of the error"
    return Cause("channels", max(0.0, (share - covered) / (1 - covered)), detail)


def _row_shear(case: Evidence) -> Cause | None:
    """Each row starts further right (or left) than the one before: the pitch of a row is wrong."""
    channels, height, width = case.device.shape
    if height < 4 or width < 4:
        return None
    some = slice(0, channels, max(1, channels // _FEW))
    device, local = case.device[some], case.local[some]
    errors = {k: float(np.square(device - _sheared(local, k), dtype=np.float64).sum()) for k in _PITCHES}
    pitch = min(errors, key=lambda k: errors[k])
    explained = case.explained(_sheared(case.local, pitch))
    by, way = ("1 element" if abs(pitch) == 1 else f"{abs(pitch)} elements"), "long" if pitch > 0 else "short"
    return Cause("row_shear", explained, f"the pitch of a row is {by} too {way}", float(pitch))


def _sheared(values: NDArray[np.float32], pitch: int) -> NDArray[np.float32]:
    channels, height, width = values.shape
    rows, columns = np.indices((height, width))
    order = (rows * (width + pitch) + columns) % (height * width)
    return values.reshape(channels, -1)[:, order.reshape(-1)].reshape(values.shape)


PLACES = (_band(1, "row_band", "row"), _band(2, "column_band", "column"), _channels)
MOVED = (_row_shear,)
