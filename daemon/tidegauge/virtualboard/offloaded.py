"""The TIDL side of a session: its sub-graphs on the virtual C7x, and what ONNX Runtime does between them on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tidegauge.tidl import artifacts as formats
from tidegauge.tidl.artifacts import MetaData
from tidegauge.tidl.errors import FormatError
from tidegauge.virtualboard import creation, host_lines, partition, remote_log
from tidegauge.virtualboard.device import Device
from tidegauge.virtualboard.faults import check_all
from tidegauge.virtualboard.network import TwinNetwork
from tidegauge.virtualboard.plan import Plan, Step, cpu_step
from tidegauge.virtualboard.state import BoardWatch
from tidegauge.virtualboard.waiting import say

Array = NDArray[Any]
Groups = tuple[tuple[int, ...], ...]


class Offloaded:
    """A model whose `allowedNode.txt` gives the C7x one sub-graph or more. Not thread-safe."""

    def __init__(self, watch: BoardWatch, source: str | bytes, artifacts: Path, level: int) -> None:
        """Creates every sub-graph in turn. Raises `Fail` where TIDL's create fails or the model isn't that of the
        artifacts, `TidegaugeError` where the board can't have the faults it is told to have."""
        self._artifacts = artifacts
        groups, meta = _read(artifacts)
        names = [item.name for item in meta.subgraphs]
        alone = len(groups) == 1
        self.devices = [Device(watch, creation.create(watch, artifacts, name, level), level, alone) for name in names]
        networks = [device.network for device in self.devices]
        if not alone:
            check_all(networks, watch.current().faults)
        self._stamps: dict[str, int] = {}
        offloaded = sum(len(group) for group in groups)
        self._plan = self._mixed(source, groups) if needs_model(artifacts) else None
        if level >= 1:
            say(host_lines.onnx(len(groups), offloaded, meta.graph_nodes))
            for network in networks:
                remote_log.append(watch.folder, *_alg_lines(network))

    def run(self, wanted: list[str], feeds: Mapping[str, Array], stamps: dict[str, int]) -> dict[str, Array]:
        """The wanted outputs by name. Adds each sub-graph's time stamps, in nanoseconds, to `stamps`."""
        if self._plan is None:
            return self.devices[0].run(wanted, feeds, stamps)
        self._stamps = stamps
        return self._plan.run(wanted, feeds)

    def refuse_other_model(self, cpu: Any) -> None:
        """Raises `Fail` if the session's model has other inputs or outputs than the network that holds all of it."""
        network = self.devices[0].network
        inputs, outputs = {i.name for i in cpu.get_inputs()}, {o.name for o in cpu.get_outputs()}
        if self._plan is None and (inputs != set(network.inputs) or outputs != set(network.outputs)):
            raise Fail(
                f"the artifacts in {self._artifacts} belong to a model with inputs {sorted(network.inputs)} and "
                f"outputs {sorted(network.outputs)}, this one has {sorted(inputs)} and {sorted(outputs)}"
            )

    def _mixed(self, source: str | bytes, groups: Groups) -> Plan:
        model = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source)
        divided = partition.by_groups(model, groups)
        ends = [(set(part.inputs), set(part.outputs)) for part in divided.subgraphs]
        if ends != [(set(d.network.inputs), set(d.network.outputs)) for d in self.devices]:
            raise Fail(f"the artifacts in {self._artifacts} belong to another model: its sub-graphs have other ends")
        steps: list[Step] = []
        ready = iter(self.devices)
        for offloaded, part in divided.parts:
            steps.append(self._step(next(ready)) if offloaded else cpu_step(part))
        return Plan(tuple(steps))

    def _step(self, device: Device) -> Step:
        return Step(device.network.inputs, device.network.outputs, partial(self._run, device))

    def _run(self, device: Device, wanted: list[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        return device.run(wanted, feeds, self._stamps)


def needs_model(artifacts: Path) -> bool:
    """Whether the CPU has nodes to run, so that the artifacts alone aren't enough. Raises `Fail`."""
    groups, meta = _read(artifacts)
    return len(groups) != 1 or len(groups[0]) != meta.graph_nodes


def _read(artifacts: Path) -> tuple[Groups, MetaData]:
    """Raises `Fail` where the folder's text files can't be used."""
    try:
        groups = formats.parse_allowed_nodes((artifacts / formats.ALLOWED_NODES).read_text())
        meta = formats.parse_metadata((artifacts / formats.METADATA).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Fail(f"the artifacts in {artifacts} can't be read: {error}") from error
    except FormatError as error:
        raise Fail(f"the artifacts in {artifacts} can't be read: {error.problem}") from error
    if len(groups) != len(meta.subgraphs):
        raise Fail(f"allowedNode.txt in {artifacts} has {len(groups)} groups, onnxrtMetaData.txt {len(meta.subgraphs)}")
    return groups, meta


def _alg_lines(network: TwinNetwork) -> list[str]:
    count = len(network.layers)
    lines = ["TIDL Memory requiement", "MemRecNum , Space     , Attribute ,    SizeinBytes"]
    lines.append(f" {0:<9}, {'DDR':<10}, {'Persistent'}, {len(network.twin):>8}")
    return [*lines, *(f"Alg Init for Layer # - {x.layer_id:4d} out of {count:4d}" for x in network.layers)]
