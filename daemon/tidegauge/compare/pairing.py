"""Which layer of one compile is which of another, without the model: names, then structure, weights and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidegauge.compare import evidence, lineage
from tidegauge.compare.compiled import Subgraph, WeightScales
from tidegauge.compare.fingerprints import Breaker, Skeleton, contract, pair
from tidegauge.compare.lineage import device_key
from tidegauge.compare.types import Matched

#: Names are believed where at least this share of the edges between the layers that they match is in both.
_BELIEVED = 0.8
#: Pieces of one chain resemble each other. One that explains less of another (in decades) has a broken trace.
_STRANGER = 0.05
#: Correlation of the device's own tensors of two compiles, in the units of `evidence.Values.score`; None: no values.
Score = Callable[[str, str], float | None]


@dataclass(frozen=True)
class Paired:
    """A layer of the first compile (key `sub-graph:data id`), its twin in the second, and how it was found."""

    before: str
    after: str
    how: Matched


@dataclass
class Pairing:
    """`fused_before`, `fused_after`: layers of one side only, with the layer of the other that computes them too."""

    pairs: list[Paired]
    fused_before: dict[str, str]
    fused_after: dict[str, str]


def names_of(subgraphs: Mapping[str, Subgraph]) -> dict[str, str]:
    """Names by key."""
    return {device_key(s.name, i): name for s in subgraphs.values() for i, name in s.names.items()}


def pair_compiles(
    before: Mapping[str, Subgraph], after: Mapping[str, Subgraph], values: Score | None = None
) -> Pairing:
    """Layers of two compiles of one model. Without netLogs only whole names can tell."""
    graphs = [[n for s in side.values() for n in lineage.device_graph(s)] for side in (before, after)]
    names = names_of(before), names_of(after)
    if not graphs[0] or not graphs[1]:
        return Pairing([Paired(a, b, "name") for a, b in _same_names(*names).items()], {}, {})
    work = _Work(contract(graphs[0]), contract(graphs[1]), names, before, after, values)
    return work.solve()


def _same_names(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Keys whose whole names are equal, where each name is there once on either side."""
    counts = Counter(ours.values()), Counter(theirs.values())
    by_name = {name: key for key, name in theirs.items() if name and counts[1][name] == 1}
    return {key: by_name[name] for key, name in ours.items() if name in by_name and counts[0][name] == 1}


class _Work:
    def __init__(
        self,
        one: Skeleton,
        other: Skeleton,
        names: tuple[dict[str, str], dict[str, str]],
        before: Mapping[str, Subgraph],
        after: Mapping[str, Subgraph],
        values: Score | None,
    ) -> None:
        self.one, self.other, self.values = one, other, values
        self.names = tuple({k: n for k, n in names[i].items() if k in g.of} for i, g in enumerate((one, other)))
        self.scales = tuple(_scales(side) for side in (before, after))
        same = _same_names(self.names[0], self.names[1])
        self.same = same if self._borne_out(self._vertices(same)) else {}
        rule = lineage.common_rename(list(self.names[0].values()), list(self.names[1].values()))
        self.renamed = self._renamed(rule) if rule is not None else {}
        if not self._borne_out(self._vertices(self.renamed)):
            self.renamed = {}

    def _renamed(self, rule: tuple[str, str]) -> dict[str, str]:
        changed = {key: lineage.apply_rename(rule, name) or "" for key, name in self.names[0].items()}
        return _same_names({k: n for k, n in changed.items() if n}, self.names[1])

    def _vertices(self, keys: Mapping[str, str]) -> dict[int, int]:
        votes: dict[int, set[int]] = {}
        for a, b in keys.items():
            votes.setdefault(self.one.of[a], set()).add(self.other.of[b])
        single = {a: next(iter(b)) for a, b in votes.items() if len(b) == 1}
        claimed = Counter(single.values())
        return {a: b for a, b in single.items() if claimed[b] == 1}

    def _borne_out(self, anchors: Mapping[int, int]) -> bool:
        fits = [
            anchors[source] in self.other.vertices[b].inputs
            for a, b in anchors.items()
            for source in self.one.vertices[a].inputs
            if source in anchors
        ]
        return sum(fits) >= _BELIEVED * len(fits)

    def solve(self) -> Pairing:
        breakers = [
            Breaker("renamed", self._rename_score, 1.0, 1.0),
            Breaker("weights", self._weight_score, evidence.WEIGHT_LEAST, evidence.WEIGHT_MARGIN),
        ]
        if self.values is not None:
            breakers.append(Breaker("value", self._value_score, evidence.VALUE_LEAST, evidence.VALUE_MARGIN))
        vertices = pair(self.one, self.other, self._vertices(self.same), breakers)
        found = Pairing([Paired(a, b, "name") for a, b in self.same.items()], {}, {})
        done = set(self.same), set(self.same.values())
        for a, (b, how) in vertices.items():
            for x, y, said in self._chain(a, b, "lineage" if how == "anchor" else how):
                if x not in done[0] and y not in done[1]:
                    found.pairs.append(Paired(x, y, said))
                    done[0].add(x)
                    done[1].add(y)
            self._fused(found, self.one.vertices[a].chain, self.other.vertices[b].chain)
        return found

    def _chain(self, a: int, b: int, how: Matched) -> list[tuple[str, str, Matched]]:
        """The pieces of two chains: the last ones are one tensor; those between by name, or where only one way fits."""
        ours, theirs = self.one.vertices[a].chain, self.other.vertices[b].chain
        found: list[tuple[str, str, Matched]] = [
            (x, y, "renamed") for x in ours for y in theirs if self.renamed.get(x) == y
        ]
        families = [[g.nodes[k].family for k in c] for g, c in ((self.one, ours), (self.other, theirs))]
        if families[0] == families[1] and ("scale" not in families[0] or len(ours) == 1):
            return [*found, *((x, y, how) for x, y in zip(ours, theirs, strict=True))]
        found += [(ours[i], theirs[j], how) for i, j in _from_the_end(*families)]
        return [*found, *self._by_values(ours, theirs)]

    def _by_values(self, ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[str, str, Matched]]:
        if self.values is None:
            return []
        scores = {(x, y): s for x in ours for y in theirs if (s := self.values(x, y)) is not None}
        if len(scores) < len(ours) * len(theirs):
            return []
        found: list[tuple[str, str, Matched]] = []
        for (x, y), score in scores.items():
            rivals = [s for (p, q), s in scores.items() if (p == x) != (q == y)]
            if min(rivals, default=1.0) < _STRANGER:
                continue  # a trace is broken, it may be the twin's
            if score >= evidence.VALUE_LEAST and all(score - r >= evidence.VALUE_MARGIN for r in rivals):
                found.append((x, y, "value"))
        return found

    def _fused(self, found: Pairing, ours: Sequence[str], theirs: Sequence[str]) -> None:
        """Layers of one side only: the next layer of the chain that both have computes them too."""
        twins = {p.before: p.after for p in found.pairs}
        back = {p.after: p.before for p in found.pairs}
        for chain, known, into in ((ours, twins, found.fused_before), (theirs, back, found.fused_after)):
            for place, key in enumerate(chain):
                if key not in known:
                    later = next((known[k] for k in chain[place + 1 :] if k in known), None)
                    if later is not None:
                        into[key] = later

    def _rename_score(self, a: int, b: int) -> float | None:
        if not self.renamed:
            return None
        twins = {self.other.of[self.renamed[k]] for k in self.one.vertices[a].chain if k in self.renamed}
        return 1.0 if b in twins else 0.0

    def _weight_score(self, a: int, b: int) -> float | None:
        ours, theirs = self.one.vertices[a].chain, self.other.vertices[b].chain
        if len(ours) != len(theirs):
            return None  # what is fused changes the weights
        return evidence.scales_score(self.scales[0].get(ours[0]), self.scales[1].get(theirs[0]))

    def _value_score(self, a: int, b: int) -> float | None:
        if self.values is None:
            return None
        return self.values(self.one.vertices[a].chain[-1], self.other.vertices[b].chain[-1])


def _from_the_end(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """Places of one tensor in two chains: both end with it, and before a reshape or a convert that both have comes one
    tensor again. A convert that only one has is passed by."""
    found = []
    i, j = len(ours) - 1, len(theirs) - 1
    while i >= 0 and j >= 0:
        if (ours[i] == "convert") != (theirs[j] == "convert"):
            i, j = i - (ours[i] == "convert"), j - (theirs[j] == "convert")
            continue
        found.append((i, j))
        if ours[i] != theirs[j] or ours[i] not in ("shape", "convert"):
            break
        i, j = i - 1, j - 1
    return found


def _scales(side: Mapping[str, Subgraph]) -> dict[str, WeightScales]:
    return {
        device_key(s.name, i): s.weights[name]
        for s in side.values()
        for i, name in s.names.items()
        if name in s.weights
    }
