"""The TIDL side of a TFLite interpreter: its sub-graphs on the virtual C7x, and LiteRT between them on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tidegauge.errors import TidegaugeError
from tidegauge.tidl import artifacts as formats
from tidegauge.tidl.errors import FormatError
from tidegauge.virtualboard import creation, host_lines, tflite_source
from tidegauge.virtualboard.creation import Created
from tidegauge.virtualboard.device import Device
from tidegauge.virtualboard.faults import check_all
from tidegauge.virtualboard.network import TwinNetwork, load_all
from tidegauge.virtualboard.plan import Plan, Step
from tidegauge.virtualboard.state import BoardWatch
from tidegauge.virtualboard.tflite_model import TfliteModel
from tidegauge.virtualboard.tflite_source import Piece
from tidegauge.virtualboard.waiting import say

Array = NDArray[Any]


class OffloadedTflite:
    """A model whose `allowedNode.txt` gives the C7x one sub-graph or more. Not thread-safe."""

    def __init__(self, watch: BoardWatch, path: Path, artifacts: Path, level: int) -> None:
        """Creates every sub-graph in turn. A create that fails is told in the log only. Raises RuntimeError where the
        model isn't that of the artifacts, `TidegaugeError` where the board can't have the faults it is told to have."""
        model, pieces = _divide(path, artifacts)
        networks = load_all(artifacts)
        offloaded = [piece for on_c7x, piece in pieces if on_c7x]
        names = [_name(model, piece, networks, artifacts) for piece in offloaded]
        if len(names) > 1:
            check_all([networks[name] for name in names], watch.current().faults)
        self.operators = frozenset(op.index for piece in offloaded for op in piece) | model.folded
        self.ends = [_indices(model, networks[name]) for name in names]
        #: Sub-graphs that the C7x could not create. TI's delegate knows no such list: for whoever runs this board.
        self.failed: list[str] = []
        self._stamps: dict[str, int] = {}
        say(
            f" Number of subgraphs:{len(names)} , {len(self.operators)} nodes delegated out of "
            f"{len(model.operators)} nodes \n "
        )
        if level >= 1:
            say(host_lines.init())
        steps: list[Step] = []
        ready = iter(names)
        for on_c7x, piece in pieces:
            if on_c7x:
                name = next(ready)
                created = _create(watch, artifacts, name, networks[name], level)
                self.failed += [name] if created.zeros else []
                steps.append(_device_step(Device(watch, created, level, len(names) == 1), self._stamps))
            else:
                steps.append(tflite_source.cpu_step(model, *tflite_source.ends(model, piece)))
        self._plan = Plan(tuple(steps))

    def run(self, wanted: list[str], feeds: Mapping[str, Array], stamps: dict[str, int]) -> dict[str, Array]:
        """The wanted outputs by name. Adds each sub-graph's time stamps, in nanoseconds, to `stamps`."""
        self._stamps.clear()
        result = self._plan.run(wanted, feeds)
        stamps |= self._stamps
        return result


def _divide(path: Path, artifacts: Path) -> tuple[TfliteModel, list[Piece]]:
    try:
        groups = formats.parse_allowed_nodes((artifacts / formats.ALLOWED_NODES).read_text())
        return tflite_source.by_groups(path, groups)
    except (OSError, UnicodeDecodeError, FormatError, TidegaugeError) as error:
        raise RuntimeError(f"the artifacts in {artifacts} can't be used: {error}") from error


def _name(model: TfliteModel, piece: tuple[Any, ...], networks: Mapping[str, TwinNetwork], artifacts: Path) -> str:
    """The sub-graph of a piece: it makes what the network makes."""
    made = {name for op in piece for name in model.names(op.outputs)}
    known = {tensor.name: tensor.index for tensor in model.tensors}
    for name, network in networks.items():
        if made.issuperset(network.outputs) and str(known[network.outputs[0]]) == name:
            return name
    raise RuntimeError(f"the artifacts in {artifacts} belong to another model: its sub-graphs have other ends")


def _indices(model: TfliteModel, network: TwinNetwork) -> dict[str, list[int]]:
    known = {tensor.name: tensor.index for tensor in model.tensors}
    return {"inputs": [known[name] for name in network.inputs], "outputs": [known[name] for name in network.outputs]}


def _create(watch: BoardWatch, artifacts: Path, name: str, network: TwinNetwork, level: int) -> Created:
    """A sub-graph, or zeros for one that the C7x could not create: the delegate's Init ignores the status."""
    if level >= 1:
        say("************ in TIDL_subgraphRtCreate ************ \n ")
    try:
        return creation.create(watch, artifacts, name, level)
    except Fail:
        return Created(network, name, None, zeros=True)


def _device_step(device: Device, stamps: dict[str, int]) -> Step:
    inputs, outputs = device.network.inputs, device.network.outputs

    def run(wanted: list[str], feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return device.run(wanted, {key: np.ascontiguousarray(feeds[key]) for key in inputs}, stamps)

    return Step(inputs, outputs, run)
