"""Which layer of one network is which of another: by lineage and by Weisfeiler-Lehman fingerprints, whatever the names.

A graph is contracted first: what a compiler may fuse into the layer before it (activations, batch norms, reshapes,
converts) joins that layer's vertex, so that two compiles that fuse differently, and the float model, have one
skeleton. Vertices are paired from anchors outwards; a pair that is not unique on both sides is none. Pure.

Source of the fingerprint: Weisfeiler and Lehman's colour refinement; a vertex's colour after n rounds tells its
neighbourhood up to distance n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

How = Literal["anchor", "lineage", "fingerprint", "renamed", "weights", "value"]

#: One input, and element by element: fused into the layer before, where nothing else reads that layer.
UNARY = frozenset(
    {"scale", "sigmoid", "tanh", "hardsigmoid", "elu", "gelu", "silu", "softplus", "erf", "exp", "log", "sqrt", "abs"}
    | {"neg", "floor", "pow", "mish", "asin", "sin", "cos"}
)
ABSORBED = UNARY | {"shape", "convert"}
#: Operators whose inputs have no order.
_UNORDERED = frozenset({"eltwise"})
#: Rounds of refinement: a layer's neighbourhood up to this distance.
ROUNDS = 4


@dataclass(frozen=True)
class Node:
    """A tensor with what makes it: `family` of the operator, the tensors it reads (no constants), its dims above 1."""

    key: str
    family: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...] | None
    output: bool = False


@dataclass
class Vertex:
    """A layer and what may be fused into it, in order. `inputs`: vertices it reads."""

    chain: list[str]
    family: str
    shape: tuple[int, ...] | None
    inputs: tuple[int, ...]

    @property
    def ordered(self) -> bool:
        return self.family not in _UNORDERED


@dataclass
class Skeleton:
    """A contracted graph. `of`: the vertex of each tensor; `consumers`: vertex and position, by vertex."""

    nodes: Mapping[str, Node]
    vertices: list[Vertex] = field(default_factory=list)
    of: dict[str, int] = field(default_factory=dict)
    consumers: list[list[tuple[int, int]]] = field(default_factory=list)


@dataclass(frozen=True)
class Breaker:
    """Evidence that tells vertices of one colour apart. `score` of a pair, higher is likelier, None where it tells
    nothing; a pair is taken where it is the best of both sides by `margin` and reaches `least`."""

    how: How
    score: Callable[[int, int], float | None]
    least: float
    margin: float


def contract(nodes: Sequence[Node]) -> Skeleton:
    """The skeleton of nodes in topological order."""
    readers: Counter[str] = Counter()
    for node in nodes:
        readers.update(node.inputs)
    by_key = {node.key: node for node in nodes}
    found = Skeleton(by_key)
    for node in nodes:
        known = [name for name in node.inputs if name in found.of]
        before = known[0] if len(known) == 1 else None
        if (
            node.family in ABSORBED
            and before is not None
            and len(node.inputs) == 1
            and readers[before] == 1
            and not by_key[before].output
        ):
            found.vertices[found.of[before]].chain.append(node.key)
            found.of[node.key] = found.of[before]
            continue
        place = len(found.vertices)
        found.vertices.append(Vertex([node.key], node.family, node.shape, tuple(found.of[name] for name in known)))
        found.of[node.key] = place
    found.consumers = [[] for _ in found.vertices]
    for place, vertex in enumerate(found.vertices):
        for position, source in enumerate(vertex.inputs):
            found.consumers[source].append((place, position))
    return found


def pair(
    one: Skeleton, other: Skeleton, anchors: Mapping[int, int], breakers: Sequence[Breaker] = ()
) -> dict[int, tuple[int, How]]:
    """Vertices of `one` with their twins in `other`; those without certainty are left out."""
    work = _Pairing(one, other)
    for a, b in anchors.items():
        work.accept(a, b, "anchor")
    while work.lineage() or work.fingerprints() or any(work.breaks(each) for each in breakers):
        pass
    return {a: (b, how) for a, (b, how) in work.found.items()}


class _Pairing:
    def __init__(self, one: Skeleton, other: Skeleton) -> None:
        self.one, self.other = one, other
        self.found: dict[int, tuple[int, How]] = {}
        self.back: dict[int, int] = {}

    def accept(self, a: int, b: int, how: How) -> bool:
        if a in self.found or b in self.back:
            return False
        self.found[a], self.back[b] = (b, how), a
        return True

    def _try(self, a: int, b: int, how: How) -> bool:
        return self._consistent(a, b) and self.accept(a, b, how)

    def _consistent(self, a: int, b: int) -> bool:
        """Whether all neighbours that are paired already are paired with neighbours of the other."""
        if not _alike(self.one.vertices[a], self.other.vertices[b]):
            return False
        inputs, theirs = self.one.vertices[a].inputs, self.other.vertices[b].inputs
        ordered = self.one.vertices[a].ordered and len(inputs) == len(theirs)
        for position, source in enumerate(inputs):
            twin = self.found.get(source)
            if twin is not None and (theirs[position] != twin[0] if ordered else twin[0] not in theirs):
                return False
        if any(s in self.back and self.back[s] not in inputs for s in theirs):
            return False
        readers = {place for place, _ in self.other.consumers[b]}
        paired = [self.found[place][0] for place, _ in self.one.consumers[a] if place in self.found]
        return all(place in readers for place in paired)

    # --- from what it reads, and from what reads it ------------------------------------------------------------

    def lineage(self) -> bool:
        """Vertices whose inputs are all paired, or that one paired vertex reads at one place, where unique."""
        return self._forward() or self._backward()

    def _forward(self) -> bool:
        mine = self._by_inputs(self.one, {a: b for a, (b, _) in self.found.items()}, self.found)
        theirs = self._by_inputs(self.other, {b: b for b in self.back}, self.back)
        hits = [(mine[k][0], theirs[k][0]) for k in mine.keys() & theirs.keys() if len(mine[k]) == len(theirs[k]) == 1]
        return _count(self._try(a, b, "lineage") for a, b in sorted(hits))

    def _by_inputs(
        self, graph: Skeleton, names: Mapping[int, int], done: Mapping[int, object]
    ) -> dict[tuple[object, ...], list[int]]:
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, vertex in enumerate(graph.vertices):
            if place in done or not vertex.inputs or any(source not in names for source in vertex.inputs):
                continue
            read = [names[source] for source in vertex.inputs]
            key = (vertex.family, vertex.shape, tuple(read if vertex.ordered else sorted(read)))
            groups.setdefault(key, []).append(place)
        return groups

    def _backward(self) -> bool:
        hits = []
        for a, (b, _) in list(self.found.items()):
            first, second = self.one.vertices[a], self.other.vertices[b]
            if len(first.inputs) != len(second.inputs):
                continue
            if first.ordered:
                hits += [(x, y) for x, y in zip(first.inputs, second.inputs, strict=True)]
                continue
            mine = [x for x in first.inputs if x not in self.found]
            theirs = [y for y in second.inputs if y not in self.back]
            if len(mine) == len(theirs) == 1:
                hits.append((mine[0], theirs[0]))
        fresh = [(a, b) for a, b in hits if a not in self.found and b not in self.back]
        return _count(self._try(a, b, "lineage") for a, b in sorted(set(fresh)))

    # --- by neighbourhood --------------------------------------------------------------------------------------

    def fingerprints(self) -> bool:
        """Vertices whose neighbourhood is unique on both sides, the widest neighbourhood first."""
        mine, theirs = self._colours()
        for round_ in range(ROUNDS, 0, -1):
            groups = _groups(mine[round_], self.found), _groups(theirs[round_], self.back)
            hits = [
                (places[0], groups[1][colour][0])
                for colour, places in groups[0].items()
                if len(places) == 1 and len(groups[1].get(colour, ())) == 1
            ]
            if round_ == 1:  # so near a neighbourhood says too little without a neighbour that is known
                hits = [(a, b) for a, b in hits if self._near(a)]
            if _count(self._try(a, b, "fingerprint") for a, b in hits):
                return True
        return False

    def _near(self, place: int) -> bool:
        beside = (*self.one.vertices[place].inputs, *(reader for reader, _ in self.one.consumers[place]))
        return any(each in self.found for each in beside)

    def _colours(self) -> tuple[list[list[int]], list[list[int]]]:
        known: dict[object, int] = {}
        names = {a: b for a, (b, _) in self.found.items()}
        return _refine(self.one, names, known), _refine(self.other, {b: b for b in self.back}, known)

    # --- by other evidence -------------------------------------------------------------------------------------

    def breaks(self, breaker: Breaker) -> bool:
        """Pairs among vertices of one colour that other evidence tells apart; last among all of one kind and shape."""
        mine, theirs = self._colours()
        for round_ in (ROUNDS, 0):
            ours, other = _groups(mine[round_], self.found), _groups(theirs[round_], self.back)
            hits = []
            for colour, places in ours.items():
                hits += _best(places, other.get(colour, []), breaker)
            if _count(self._try(a, b, breaker.how) for a, b in hits):
                return True
        return False


def _count(taken: Iterable[bool]) -> bool:
    """Whether one was taken, after all were tried."""
    return sum(taken) > 0


def _alike(one: Vertex, other: Vertex) -> bool:
    same = one.shape is None or other.shape is None or one.shape == other.shape
    return one.family == other.family and same


def _groups(colours: Sequence[int], done: Mapping[int, object]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for place, colour in enumerate(colours):
        if place not in done:
            groups.setdefault(colour, []).append(place)
    return groups


def _refine(graph: Skeleton, anchors: Mapping[int, int], known: dict[object, int]) -> list[list[int]]:
    """The colours after each round; equal numbers mean equal neighbourhoods in all graphs that share `known`."""

    def number(what: object) -> int:
        return known.setdefault(what, len(known))

    now = [number(("label", v.family, v.shape, anchors.get(i))) for i, v in enumerate(graph.vertices)]
    rounds = [now]
    for _ in range(ROUNDS):
        before = rounds[-1]
        now = []
        for place, vertex in enumerate(graph.vertices):
            read = [before[source] for source in vertex.inputs]
            readers = sorted(
                (before[reader], position if graph.vertices[reader].ordered else 0)
                for reader, position in graph.consumers[place]
            )
            now.append(number((before[place], tuple(read if vertex.ordered else sorted(read)), tuple(readers))))
        rounds.append(now)
    return rounds


def _best(places: Sequence[int], others: Sequence[int], breaker: Breaker) -> list[tuple[int, int]]:
    """A vertex is told apart only where the evidence speaks about all its candidates."""
    rows = {a: [breaker.score(a, b) for b in others] for a in places}
    scores = {
        (a, b): score
        for a, row in rows.items()
        if None not in row
        for b, score in zip(others, row, strict=True)
        if score is not None
    }
    hits = []
    for (a, b), score in scores.items():
        rivals = [s for (x, y), s in scores.items() if (x == a) != (y == b)]
        if score >= breaker.least and all(score - rival >= breaker.margin for rival in rivals):
            hits.append((a, b))
    return hits
