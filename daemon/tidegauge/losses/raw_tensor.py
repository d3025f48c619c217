"""Outputs of which nothing but their step is known."""

from __future__ import annotations

from tidegauge.losses.elements import Array, share_off


def loss(device: Array, reference: Array, step: float) -> float:
    """Share of elements off by more than one step; non-finite ones are off. Raises `ShapeMismatch`."""
    return share_off(device, reference, step)
