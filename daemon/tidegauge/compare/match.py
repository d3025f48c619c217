"""Which float tensor a device tensor is: by whole names, then by lineage, fingerprint and evidence; never by substring
or order.

In this order, and each match says how it was made: the whole name; the name with `/` as `_`; TIDL's aliases at the ends
of a sub-graph; the place in the graph (`lineage`, `fingerprint`: see `fingerprints.py`); a prefix that a whole compile
renamed; the weights' scales; the values. What stays open is unmatched, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegauge.compare import evidence, lineage
from tidegauge.compare.compiled import Subgraph
from tidegauge.compare.evidence import Values
from tidegauge.compare.fingerprints import Breaker, Node, contract, pair
from tidegauge.compare.lineage import device_key
from tidegauge.compare.model import NET_FORMAT, ORIGINAL, Model, add_aliases
from tidegauge.compare.traces import DeviceTensor
from tidegauge.compare.types import Matched

#: Names are believed where at least this share of their edges is an edge of the model too.
_BELIEVED = 0.5
#: A renaming is believed where this share of the edges that it maps is.
_BORNE_OUT = 0.8


@dataclass(frozen=True)
class Match:
    """A device tensor's twin: `tensor` in the model with aliases, or None and the `reason` why there is none."""

    tensor: str | None
    how: Matched
    reason: str = ""


@dataclass
class Matches:
    """A match for each device tensor, in order, and what a reader must know of how they came about."""

    found: list[Match]
    notes: list[str] = field(default_factory=list)


def sanitise(name: str) -> str:
    """A tensor name as it stands in file names: TI's tools write `_` for `/` and touch nothing else."""
    return name.replace("/", "_")


# --- by name -----------------------------------------------------------------------------------------------------


def match(model: Model, names: Sequence[str]) -> list[Match]:
    """A match for each device tensor name, in order; adds TIDL's aliases to the model.

    Two device tensors of one name, or a sanitised name that fits two float tensors, stay unmatched: a wrong pair is
    worse than none.
    """
    device = set(names) | {sanitise(name) for name in names}
    possible = [tensor + suffix for tensor in model.tensors for suffix in (NET_FORMAT, ORIGINAL)]
    ends = {*model.inputs, *model.outputs}
    aliases = add_aliases(model, [alias for alias in possible if alias in device or sanitise(alias) in device])
    known = set(model.tensors)
    by_file_name: dict[str, list[str]] = {}
    for tensor in known:
        by_file_name.setdefault(sanitise(tensor), []).append(tensor)
    matches = [_one(name, known, by_file_name, {a: t for a, t in aliases.items() if t in ends}) for name in names]
    times = Counter(found.tensor for found in matches if found.tensor is not None)
    return [
        Match(None, "none", f"{times[found.tensor]} device tensors claim the name {found.tensor}")
        if found.tensor is not None and times[found.tensor] > 1
        else found
        for found in matches
    ]


def _one(name: str, known: set[str], by_file_name: dict[str, list[str]], aliases: dict[str, str]) -> Match:
    if not name:
        return Match(None, "none", "neither layer_info nor netLog names this data id")
    if name in known:
        return Match(name, _how(name, aliases, "name"))
    twins = by_file_name.get(sanitise(name), [])
    if len(twins) == 1:
        return Match(twins[0], _how(twins[0], aliases, "sanitised"))
    if twins:
        return Match(None, "none", f"the name fits {len(twins)} tensors of the model: {', '.join(sorted(twins))}")
    return Match(None, "none", "the model has no tensor of this name; the compiler added or renamed it")


def _how(tensor: str, aliases: dict[str, str], otherwise: Matched) -> Matched:
    if tensor not in aliases:
        return otherwise
    return "input" if tensor.endswith(NET_FORMAT) else "original"


# --- by structure ------------------------------------------------------------------------------------------------


def match_tensors(
    model: Model, tensors: Sequence[DeviceTensor], subgraphs: Mapping[str, Subgraph], values: Values | None = None
) -> Matches:
    """A match for each device tensor, in order; adds TIDL's aliases to the model.

    The netLog's edges are needed for all but names. `values`: of both sides, for what nothing else tells apart.
    """
    named = match(model, [tensor.name for tensor in tensors])
    nodes = [node for subgraph in subgraphs.values() for node in lineage.device_graph(subgraph)]
    if not nodes:
        return Matches(named)
    work = _Structure(model, tensors, subgraphs, nodes, named, values)
    doubted = work.doubt()
    if not doubted and all(found.tensor is not None for found in named):
        return Matches(named)
    work.solve()
    return Matches([work.answer(i) for i in range(len(tensors))], work.notes)


class _Structure:
    """Device graph and float graph side by side."""

    def __init__(
        self,
        model: Model,
        tensors: Sequence[DeviceTensor],
        subgraphs: Mapping[str, Subgraph],
        nodes: Sequence[Node],
        named: Sequence[Match],
        values: Values | None,
    ) -> None:
        self.model, self.tensors, self.subgraphs = model, tensors, subgraphs
        self.named, self.values = list(named), values
        self.notes: list[str] = []
        self.by_key = {device_key(t.subgraph, t.data_id): i for i, t in enumerate(tensors)}
        self.names = {device_key(s.name, i): name for s in subgraphs.values() for i, name in s.names.items()}
        self.device = contract(nodes)
        self.aliases = self._aliases()
        self.model_side = contract(lineage.float_graph(model, self.aliases))
        self.trusted = [found.tensor is not None for found in named]
        self.candidates: dict[str, tuple[str, ...]] = {}
        self.how: dict[str, Matched] = {}
        self.extra: set[str] = set()
        self._renames_known = False
        self._renames_found: tuple[str, str] | None = None

    def _aliases(self) -> dict[str, str]:
        """Data-convert layers at the ends are identities of the model, whatever they are called."""
        wanted = []
        nodes = self.device.nodes
        ends = self._ends()
        for node in nodes.values():
            if node.family != "convert" or len(node.inputs) != 1:
                continue
            source = node.inputs[0]
            if source in ends and nodes[source].family == "input":
                wanted.append(ends[source] + NET_FORMAT)
            elif node.key in ends and node.output:
                wanted.append(ends[node.key] + ORIGINAL)
        add_aliases(self.model, wanted)
        tensors = set(self.model.tensors)
        return {t + s: t for t in tensors for s in (NET_FORMAT, ORIGINAL) if t + s in tensors}

    def _ends(self) -> dict[str, str]:
        """Graph inputs and outputs by device key: by name, else where only one is left of a shape."""
        found: dict[str, str] = {}
        for inputs, names in ((True, self.model.inputs), (False, self.model.outputs)):
            keys = [k for k, n in self.device.nodes.items() if (n.family == "input" if inputs else n.output)]
            for key in keys:
                name = self.names.get(key, "")
                twin = next((n for n in names if n == name or sanitise(n) == sanitise(name)), None)
                if twin is not None and twin not in found.values():
                    found[key] = twin
            left = [n for n in names if n not in found.values()]
            open_keys = [k for k in keys if k not in found]
            for key in open_keys:
                shape = self._shape(key)
                fits = [n for n in left if _shape_of(self.model, n) in (shape, None)]
                rivals = [k for k in open_keys if self._shape(k) == shape]
                if len(fits) == 1 and len(rivals) == 1:
                    found[key] = fits[0]
        return found

    def _shape(self, key: str) -> tuple[int, ...] | None:
        """A tensor's shape; behind a data-convert layer, which may change the layout, that of what it converts."""
        node = self.device.nodes[key]
        return self.device.nodes[node.inputs[0]].shape if node.family == "convert" and node.inputs else node.shape

    def doubt(self) -> bool:
        """Whether names contradict the graph: then they are of another numbering, and say nothing."""
        checked = 0
        for i, found in enumerate(self.named):
            key = device_key(self.tensors[i].subgraph, self.tensors[i].data_id)
            node, twin = self.device.nodes.get(key), self.model_side.nodes.get(found.tensor or "")
            shapes = (node.shape if node is not None else None), (twin.shape if twin is not None else None)
            if None in shapes:
                continue
            checked += 1
            self.trusted[i] = shapes[0] == shapes[1]
        wrong = sum(found.tensor is not None and not self.trusted[i] for i, found in enumerate(self.named))
        edges, good = self._edges(self._anchors())
        if wrong > _BELIEVED * checked or (edges and good < _BELIEVED * edges):
            self.trusted = [False] * len(self.trusted)
            self.notes.append(
                f"Names say nothing here: {wrong} of {checked} that both sides have stand for other shapes, and "
                f"{edges - good} of {edges} edges between the rest are none of the model. The compile was made from "
                "another export; layers are matched by structure."
            )
        return not all(trusted or found.tensor is None for trusted, found in zip(self.trusted, self.named, strict=True))

    def _edges(self, anchors: Mapping[int, int]) -> tuple[int, int]:
        """Edges between these vertices, and how many of them the model has too."""
        fits = [
            anchors[source] in self.model_side.vertices[b].inputs or anchors[source] == b
            for a, b in anchors.items()
            for source in self.device.vertices[a].inputs
            if source in anchors
        ]
        return len(fits), sum(fits)

    def _anchors(self) -> dict[int, int]:
        """Vertices whose named pieces all say the same twin, one vertex each."""
        votes: dict[int, set[int]] = {}
        for i, found in enumerate(self.named):
            key = device_key(self.tensors[i].subgraph, self.tensors[i].data_id)
            if self.trusted[i] and found.tensor in self.model_side.of and key in self.device.of:
                votes.setdefault(self.device.of[key], set()).add(self.model_side.of[found.tensor])
        for key, name in self._ends().items():
            if self.device.nodes[key].family == "input" and name in self.model_side.of:
                votes.setdefault(self.device.of[key], set()).add(self.model_side.of[name])
        single = {a: next(iter(b)) for a, b in votes.items() if len(b) == 1}
        claimed = Counter(single.values())
        return {a: b for a, b in single.items() if claimed[b] == 1}

    def solve(self) -> None:
        anchors = self._anchors()
        breakers = [
            Breaker("renamed", self._rename_score, 1.0, 1.0),
            Breaker("weights", self._weight_score, evidence.WEIGHT_LEAST, evidence.WEIGHT_MARGIN),
        ]
        if self.values is not None:
            breakers.append(Breaker("value", self._value_score, evidence.VALUE_LEAST, evidence.VALUE_MARGIN))
        self.pairs = pair(self.device, self.model_side, anchors, breakers)
        for a, (b, how) in self.pairs.items():
            aligned = lineage.align(self.device, a, self.model_side, b)
            self.extra.update(aligned.extra)
            for key, names in aligned.candidates.items():
                self.candidates[key] = names
                self.how[key] = "lineage" if how == "anchor" else how

    def answer(self, i: int) -> Match:
        """The match of one tensor."""
        key = device_key(self.tensors[i].subgraph, self.tensors[i].data_id)
        if self.named[i].tensor is not None and self.trusted[i]:
            return self.named[i]
        taken = {found.tensor for j, found in enumerate(self.named) if self.trusted[j] and j != i}
        names = [name for name in self.candidates.get(key, ()) if name not in taken]
        if len(names) == 1:
            return Match(names[0], self._said(names[0], self.how[key]))
        if len(names) > 1:
            return self._choose(i, key, names)
        if self.named[i].tensor is not None and not self.notes:
            return self.named[i]  # one name against the tables: its own status will say what does not fit
        return Match(None, "none", self._why(key, self.named[i].reason))

    def _said(self, name: str, how: Matched) -> Matched:
        if name in self.aliases and self.aliases[name] in (*self.model.inputs, *self.model.outputs):
            return "input" if name.endswith(NET_FORMAT) else "original"
        return how

    def _choose(self, i: int, key: str, names: Sequence[str]) -> Match:
        """The pieces of a chain that could be cut at several places: a renamed name, else the values tell."""
        rule = self._renames or self._rule()
        wanted = lineage.apply_rename(rule, self.names.get(key, "")) if rule is not None else None
        if wanted in names:
            return Match(wanted, "renamed")
        if self.values is not None:
            self.values.want(names)
            scored = [(self.values.score(self.tensors[i], name), name) for name in names]
            known = sorted((score, name) for score, name in scored if score is not None)
            all_known = len(known) == len(names) and known[-1][0] >= evidence.VALUE_LEAST
            if all_known and known[-1][0] - known[-2][0] >= evidence.VALUE_MARGIN:
                return Match(known[-1][1], "value")
        return Match(None, "none", f"{len(names)} tensors of the model fit its place: {', '.join(names)}")

    def _why(self, key: str, named: str) -> str:
        if key in self.extra:
            return "the compiler added this layer: it converts the layout of the tensor before it, which is compared"
        vertex = self.device.of.get(key)
        if "claim the name" in named:
            return f"{named}; one of them is compared with it"
        if vertex is None:
            return named or "no table tells its place in the graph"
        if vertex in self.pairs:
            return "the model has fewer operators here than the compile has layers; the compiler split or added it"
        node = self.device.nodes[self.device.vertices[vertex].chain[0]]
        rivals = [v for v in self.model_side.vertices if v.family == node.family and v.shape in (node.shape, None)]
        if not rivals:
            return "the model has no operator of this kind and shape; the compiler added or changed it"
        return f"the model has {len(rivals)} operators of this kind and shape, and neither name nor place tells which"

    # --- evidence ------------------------------------------------------------------------------------------------

    def _rule(self) -> tuple[str, str] | None:
        pairs = []
        for key, names in self.candidates.items():
            if len(names) == 1 and self.names.get(key):
                pairs.append((self.names[key], names[0]))
        return lineage.renamed(pairs)

    def _rename_score(self, a: int, b: int) -> float | None:
        """Whether one prefix that holds between the names of both graphs makes the vertex's name the other's."""
        if self._renames is None:
            return None
        name = self.names.get(self.device.vertices[a].chain[-1], "")
        wanted = lineage.apply_rename(self._renames, name)
        return 1.0 if wanted in self.model_side.vertices[b].chain else 0.0

    @property
    def _renames(self) -> tuple[str, str] | None:
        """The rule, if the edges of the graph bear it out: numbers that only look alike are no renaming."""
        if not self._renames_known:
            self._renames_known = True
            names = {key: name for key, name in self.names.items() if key in self.device.nodes}
            rule = lineage.common_rename(list(names.values()), list(self.model_side.nodes))
            if rule is not None:
                mapped: dict[int, int] = {}
                for key, name in names.items():
                    twin = self.model_side.of.get(lineage.apply_rename(rule, name) or "")
                    if twin is not None:
                        mapped[self.device.of[key]] = twin
                edges, good = self._edges(mapped)
                self._renames_found = rule if edges >= 2 and good >= _BORNE_OUT * edges else None
        return self._renames_found

    def _weight_score(self, a: int, b: int) -> float | None:
        key = self.device.vertices[a].chain[-1]
        scales = self.subgraphs[key.rpartition(":")[0]].weights.get(self.names.get(key, ""))
        return evidence.weight_score(scales, evidence.weight_peaks(self.model, self.model_side.vertices[b].chain[0]))

    def _value_score(self, a: int, b: int) -> float | None:
        """The last tensors of both chains."""
        place = self.by_key.get(self.device.vertices[a].chain[-1])
        if place is None or self.values is None:
            return None
        self.values.want([v.chain[-1] for v in self.model_side.vertices])
        return self.values.score(self.tensors[place], self.model_side.vertices[b].chain[-1])


def _shape_of(model: Model, name: str) -> tuple[int, ...] | None:
    shape = model.shapes.get(name)
    return lineage.squeezed(shape) if shape is not None and all(n > 0 for n in shape) else None
