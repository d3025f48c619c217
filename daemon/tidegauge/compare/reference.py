"""Float values of every traced tensor, and their local twins, a group of tensors at a time.

The model is walked once in topological order. A group ends when its tensors fill the memory budget; the next group
starts from the float values that are still needed. Within a group the local reference of each region is computed
from the device's own tensors in one cut graph. So memory is bounded whatever the model's size, and each node of the
float run is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare import cores
from tidegauge.compare.convolution import Convolution, Convolutions
from tidegauge.compare.convolution import recognised as convolution
from tidegauge.compare.cutgraph import (
    Coded,
    Feed,
    Part,
    Room,
    Rounding,
    Runner,
    downstream_of,
    part_for,
    possible,
    run_part,
)
from tidegauge.compare.direct import Direct, pieces
from tidegauge.compare.direct import recognised as direct
from tidegauge.compare.machine_code import KINDS
from tidegauge.compare.model import Model, reads
from tidegauge.compare.statistics import Encoding

Array = NDArray[Any]

#: Bytes of float32 values of the traced tensors of one group.
GROUP_BYTES = 64 * 1024 * 1024
#: Elements that make a piece of a group worth a session of its own.
_PIECE = 1 << 19


@dataclass(frozen=True)
class Spec:
    """Shape and type of a tensor in the float model."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Recorded:
    """A device tensor: its codes, flat, and how they become values."""

    codes: Callable[[], Array]
    encoding: Encoding

    def __call__(self) -> Array:
        return self.encoding.values(self.codes())


@dataclass
class Group:
    """Traced tensors that are evaluated together, and the float tensors that later groups need."""

    tensors: list[str]
    end: int
    keep: list[str] = field(default_factory=list)


def plan(model: Model, tensors: Collection[str], sizes: Mapping[str, int], budget: int = GROUP_BYTES) -> list[Group]:
    """Cut the walk into groups. `sizes`: elements of each traced tensor."""
    order = sorted((name for name in tensors if name in model.producer), key=lambda name: model.producer[name])
    groups: list[Group] = []
    used = 0
    for name in order:
        size = 4 * sizes[name]
        index = model.producer[name]
        if not groups or (used + size > budget and index > groups[-1].end):
            groups.append(Group([], index))
            used = 0
        groups[-1].tensors.append(name)
        groups[-1].end = index
        used += size
    last = len(model.nodes) - 1
    if not groups:
        groups.append(Group([], last))
    groups[-1].end = max([groups[-1].end, *(model.producer[o] for o in model.outputs if o in model.producer)])
    for group in groups:
        later = {name for node in model.nodes[group.end + 1 :] for name in reads(node)} | set(model.outputs)
        group.keep = [n for node in model.nodes[: group.end + 1] for n in node.output if n in later]
    return groups


class Reference:
    """The float run and the local runs of one input.

    `inputs`: the recorded input tensors by name. `device`: for each cut tensor, a function that gives the device's
    values (float32, any shape of the right size); codes that are `Recorded` become values inside the graph.
    `rounding`: tensors that the device holds as codes though no trace shows them; local runs round them. After `walk`,
    `specs` holds every traced tensor's shape and type, and `outputs` the float run's outputs.
    """

    def __init__(
        self,
        model: Model,
        inputs: Mapping[str, Array],
        device: Mapping[str, Callable[[], Array]],
        sizes: Mapping[str, int],
        budget: int = GROUP_BYTES,
        rounding: Mapping[str, Rounding] | None = None,
    ) -> None:
        self.model = model
        self.rounding = dict(rounding or {})
        self.inputs = dict(inputs)
        self.device = device
        self.cut = set(device)
        self.specs: dict[str, Spec] = {n: Spec(v.shape, v.dtype) for n, v in inputs.items()}
        self.outputs: dict[str, Array] = {}
        self.groups = plan(model, sizes, sizes, budget)
        self.total = len(self.groups)
        self._convolutions = Convolutions(model)

    def walk(self, room: Room | None = None) -> Iterator[dict[str, Array]]:
        """The float values of each group's traced tensors, group by group; in `room` they last until the next group."""
        live: dict[str, Array] = dict(self.inputs)
        done: set[str] = set()
        for group in self.groups:
            wanted = list(dict.fromkeys([*group.tensors, *(n for n in group.keep if n not in live)]))
            values: dict[str, Array] = {}
            if wanted:
                shapes = [self.model.shapes.get(name, (0,)) for name in wanted]
                places = room.places(shapes) if room is not None else None
                values = run_part(self.model, part_for(self.model, wanted, done), done, live, places=places)
            self.specs.update({name: Spec(value.shape, value.dtype) for name, value in values.items()})
            kept = set(group.keep) | set(self.inputs)
            live.update({name: value.copy() if room else value for name, value in values.items() if name in kept})
            self.outputs.update({n: live[n] for n in self.model.outputs if n in live})
            live = {name: value for name, value in live.items() if name in kept}
            done.update(name for name in live if name not in self.inputs)
            yield {name: values[name] for name in group.tensors}

    def feed(self, name: str) -> Array:
        """The device's values of a cut tensor, shaped and typed as the float model's."""
        spec = self.specs[name]
        return self.device[name]().reshape(spec.shape).astype(spec.dtype, copy=False)

    def local(
        self, tensors: Sequence[str], weights: Mapping[str, Array] | None = None, room: Room | None = None
    ) -> dict[str, Array]:
        """The local reference of these tensors: their regions, fed the device's own inputs.

        A graph input has no region: its local reference is the recorded input. `room`: where the others may lie.
        """
        inputs = {name: self.inputs[name] for name in tensors if name not in self.model.producer}
        made = [name for name in tensors if name in self.model.producer]
        if not made:
            return inputs
        places = self._places(made, room)
        alone = {name: found for name in made if (found := self._alone(name, weights or {})) is not None}
        sessions = self._pieces([name for name in made if name not in alone])
        busy = len(sessions) + sum(isinstance(found, Convolution) for found in alone.values())
        threads = max(1, cores.count() // max(1, busy))

        def run(piece: Sequence[str]) -> dict[str, Array]:
            part = part_for(self.model, piece, self.cut)
            there = [places[name] for name in piece] if all(name in places for name in piece) else None
            return run_part(self.model, part, self.cut, self._feeds(part), weights, self.rounding, there, threads)

        def fill(piece: Callable[[], None]) -> dict[str, Array]:
            piece()
            return {}

        long, short = list[Callable[[], None]](), list[Callable[[], None]]()
        for name, found in alone.items():
            if name not in places:
                places[name] = np.empty(self.specs[name].shape, np.float32)
            coded = [source for other in found.reads if isinstance(source := self._coded(other), Coded)]
            if isinstance(found, Convolution):
                long.append(self._convolutions.filling(found, coded[0], places[name], threads))
            else:
                short += pieces(found, coded, places[name])
        # What takes longer first: what is left of the rest then fills the cores.
        work = [*(partial(run, piece) for piece in sessions), *(partial(fill, piece) for piece in (*long, *short))]
        values = inputs | {name: places[name] for name in alone}
        for computed in cores.share(lambda each: each(), work):
            values |= computed
        return {name: values[name] for name in tensors}

    def _alone(self, name: str, weights: Mapping[str, Array]) -> Direct | Convolution | None:
        """How a tensor is computed without a session of its own; None where it needs one."""
        part = part_for(self.model, [name], self.cut)
        hidden = {made for index in part.nodes for made in self.model.nodes[index].output} - {name}
        if hidden & set(self.rounding) or self.specs[name].dtype != np.float32 or not math.prod(self.specs[name].shape):
            return None
        if not all(self._as_codes(other) for other in part.reads_cut):
            return None
        found = direct(self.model, part, lambda other: self.specs[other].shape, weights)
        return found or convolution(self.model, part, weights)

    def _as_codes(self, name: str) -> bool:
        """Whether loops and sessions turn a device tensor into values themselves."""
        device = self.device[name]
        if not isinstance(device, Recorded) or self.specs[name].dtype != np.float32:
            return False
        return device.encoding.dtype in KINDS and possible(device.encoding)

    def _places(self, tensors: Sequence[str], room: Room | None) -> dict[str, Array]:
        """Where those that are float32 may be written."""
        if room is None:
            return {}
        floats = [name for name in tensors if self.specs[name].dtype == np.float32]
        return dict(zip(floats, room.places([self.specs[name].shape for name in floats]), strict=True))

    def _pieces(self, tensors: Sequence[str]) -> list[list[str]]:
        """Tensors to be made in one session each, neighbours together, of about the same size: opening a session and
        many an operator keep one core busy, so that several sessions at a time take less time than one with all cores.
        """
        sizes = [math.prod(self.specs[name].shape) for name in tensors]
        wanted = min(len(tensors), cores.count(), max(1, sum(sizes) // _PIECE))
        pieces: list[list[str]] = [[] for _ in range(wanted)]
        before = 0
        for name, size in zip(tensors, sizes, strict=True):
            pieces[min(wanted - 1, wanted * (2 * before + size) // (2 * max(1, sum(sizes))))].append(name)
            before += size
        return [piece for piece in pieces if piece]

    def region(self, tensor: str) -> Part | None:
        """The region that makes a tensor; None for a graph input."""
        return part_for(self.model, [tensor], self.cut) if tensor in self.model.producer else None

    def downstream(self, tensor: str, keep: Collection[str]) -> tuple[Runner, dict[str, Array]] | None:
        """A session from `tensor` to the outputs that depend on it, and the other values that it needs.

        Cut tensors in `keep` (those that don't depend on `tensor`) carry the device's values. None where `tensor`
        reaches no output but itself.
        """
        below = downstream_of(self.model, tensor)
        outputs = [name for name in self.model.outputs if name in below]
        if not outputs:
            return None
        cut = {tensor} | {name for name in keep if name not in below}
        part = part_for(self.model, outputs, cut)
        feeds = {name: self.feed(name) for name in part.reads_cut if name != tensor}
        feeds |= {name: self.inputs[name] for name in part.reads_inputs}
        spec = self.specs[tensor]
        typed = {**feeds, tensor: np.empty(0, spec.dtype)}
        return Runner(self.model, part, cut, typed), feeds

    def _feeds(self, part: Part) -> dict[str, Feed]:
        feeds: dict[str, Feed] = {name: self._coded(name) for name in part.reads_cut}
        return feeds | {name: self.inputs[name] for name in part.reads_inputs}

    def _coded(self, name: str) -> Feed:
        device, spec = self.device[name], self.specs[name]
        if isinstance(device, Recorded) and spec.dtype == np.float32 and possible(device.encoding):
            return Coded(device.codes().reshape(spec.shape), device.encoding)
        return self.feed(name)
