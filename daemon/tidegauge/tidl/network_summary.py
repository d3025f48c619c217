"""A compiled network as a person sees it: layers with their tensors, and where each number was told."""

from __future__ import annotations

import msgspec

from tidegauge.tidl.io_descriptor import IoDescriptor


class Layer(msgspec.Struct, frozen=True):
    """One layer in order of execution with its output tensor; None for what no file tells.

    `dims`: (batch, dim1, dim2, channels, height, width). `minimum`, `maximum`: calibration range in values.
    `weight_steps`: largest weight error in quantisation steps; `weight_relative`: mean relative weight error.
    `microseconds`: simulated; `cycles`: measured on the C7x.
    """

    number: int
    kind: str
    name: str
    data_id: int | None
    inputs: tuple[int, ...]
    dims: tuple[int, ...] | None
    dtype: str | None
    scale: float | None
    zero_point: int | None
    minimum: float | None
    maximum: float | None
    source: str
    weight_steps: float | None
    weight_relative: float | None
    microseconds: float | None
    cycles: int | None


class Network(msgspec.Struct, frozen=True):
    """One sub-graph. `picture`: "svg", "html" or "" by presence."""

    name: str
    era: str
    version: str | None
    release: str | None
    container: bool
    descriptor: IoDescriptor | None
    descriptor_release: str | None
    picture: str
    giga_macs: float | None
    layers: tuple[Layer, ...]
