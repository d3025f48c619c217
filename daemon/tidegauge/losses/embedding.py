"""Embeddings: vectors of which the direction matters."""

from __future__ import annotations

import numpy as np

from tidegauge.losses.elements import Array, all_finite, flat_pair


def loss(device: Array, reference: Array) -> float:
    """(1 − cosine) / 2, the mean over vectors along the last dimension. Raises `ShapeMismatch`.

    A vector of zeros has no direction: wrong by 1 where the other has one, right where the other is zeros too. Not
    finite is 1.
    """
    flat_pair(device, reference)
    if not (all_finite(device) and all_finite(reference)):
        return 1.0
    length = device.shape[-1] if device.ndim else 1
    one, other = (each.reshape(-1, length).astype(np.float64) for each in (device, reference))
    # Scaled first: the square of a large element would overflow, that of a small one vanish.
    tops = [np.abs(each).max(axis=1, keepdims=True) for each in (one, other)]
    empty = [top[:, 0] == 0 for top in tops]
    one, other = (each / np.where(top > 0, top, 1) for each, top in zip((one, other), tops, strict=True))
    norm = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosine = np.sum(one * other, axis=1) / np.where(norm > 0, norm, 1)
    found = np.where(empty[0] & empty[1], 0.0, np.where(empty[0] | empty[1], 1.0, (1 - cosine) / 2))
    return float(np.clip(found.mean(), 0, 1))


def summary(output: Array) -> dict[str, float]:
    """The `norm` of all elements."""
    return {"norm": float(np.linalg.norm(output.astype(np.float64).ravel()))}
