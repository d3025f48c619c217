"""What a change is worth: the output's error if a region were right, and the smallest set of regions that cures it.

All figures are of the captured input. An error is relative: rms of the difference to the float run over rms of the
float run, of the worst output; its SQNR is −20 log10 of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegauge.compare import advice as options
from tidegauge.compare.compiled import Subgraph
from tidegauge.compare.culprits import Suspect
from tidegauge.compare.emulate import Change, Emulator, recorded_error
from tidegauge.compare.layers import Evaluation, Layer
from tidegauge.compare.model import NET_FORMAT, ORIGINAL
from tidegauge.compare.subset import Candidate, greedy, last, leave_out, pruned, reached, useful
from tidegauge.compare.types import Advice, CauseName, Culprit, Cure, CureStep, Finding, WhatIf
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

#: Of more culprits than this no single figure is given; of more than that only the worst are cured together; of more
#: regions than the last none is tried for a target.
MOST_CULPRITS, MOST_CURED, MOST_REGIONS = 8, 16, 96
#: Without a culprit and without a target, an output below the first is brought above the second (dB).
POOR_DB, DEFAULT_TARGET_DB = 20.0, 30.0
#: The emulation must give the device's error to within this factor, else its figures are marked.
FAITHFUL = 1.2
#: Fewer values than this share beyond the code range: it is not the range that cuts the others off.
_BEYOND = 1e-3
#: An input this many times its calibrated range is no brighter picture but another scale.
_OTHER_SCALE = 8.0

_CHANGES: dict[str, Change] = {
    options.OUTPUT_16: "wide",
    options.PARAMS_16: "params",
    options.DENY: "cpu",
    options.FRAMES: "range",
}


@dataclass(frozen=True)
class Study:
    """`advice`: for each culprit (by layer identity) what to do; `single`: the figure of each change.

    `cure` None: there is nothing to cure, or, with `unknown`, the network can't be emulated in one piece.
    """

    advice: Mapping[int, tuple[Advice, ...]]
    single: Mapping[int, Mapping[Change, WhatIf]]
    cure: Cure | None
    unknown: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Why there are no figures, where there are none."""
        if not self.unknown:
            return ()
        text = f"What a change would be worth is not known: {self.unknown}."
        return (Finding("no_what_if", "note", text),)

    def complete(self, suspect: Suspect, culprit: Culprit) -> Culprit:
        """A culprit with its advice and with what each line of it is worth."""
        single = self.single.get(id(suspect.layer), {})
        lines = tuple(
            msgspec.structs.replace(item, what_if=single[_CHANGES[item.option]])
            if item.option in _CHANGES and _CHANGES[item.option] in single
            else item
            for item in self.advice[id(suspect.layer)]
        )
        return msgspec.structs.replace(culprit, advice=lines, what_if=single.get("exact"))


def study(
    work: Evaluation,
    wrong: Sequence[Suspect],
    harmless: Sequence[Suspect],
    device_outputs: Mapping[str, Array],
    subgraphs: Mapping[str, Subgraph],
    target_db: float | None,
    scaled: bool = True,
) -> Study:
    """`target_db`: the SQNR that every output shall reach; None to cure the culprits, whatever comes of it.

    `scaled` False: the input is off by a factor, so that no change of any layer would mend the outputs.
    """
    advice = {id(s.layer): _advise(work, s) for s in (*wrong, *harmless)}
    now = worst(work.reference.outputs, device_outputs)
    if not scaled:
        return Study(advice, {}, None)
    goal = target_db
    if goal is None and not wrong and now is not None and _poor(now):
        goal = DEFAULT_TARGET_DB
    if not wrong and goal is None:
        return Study(advice, {}, None)
    errors = {}
    for suspect in (*wrong, *harmless):
        if suspect.narrow:
            continue  # right arithmetic, narrow range: nothing is added to it
        local = work.reference.local([suspect.layer.twin], suspect.layer.scheme)[suspect.layer.twin]
        errors[suspect.layer.twin] = recorded_error(work, suspect.layer, local)
    try:
        emulator = Emulator(work, errors, subgraphs)
        search = _Search(work, emulator)
        single = {id(s.layer): _single(search, s.layer, advice[id(s.layer)]) for s in wrong[:MOST_CULPRITS]}
        return Study(advice, single, _cure(search, wrong, advice, goal, now))
    except TidegaugeError as error:  # a network that can't run in one piece keeps its report, without these figures
        return Study(advice, {}, None, error.problem)


def _poor(now: WhatIf) -> bool:
    """Whether an output is far off; one without any error has no SQNR either."""
    return now.error is None or (now.sqnr_db is not None and now.sqnr_db < POOR_DB)


def _advise(work: Evaluation, suspect: Suspect) -> tuple[Advice, ...]:
    layer, cause = suspect.layer, suspect.cause
    if suspect.narrow and layer.match.how == "input" and not _range_is_narrow(work, layer):
        return (Advice("", "", options.SCALE_ONCE),)
    bits = np.dtype(layer.encoding.dtype).itemsize * 8 if layer.encoding is not None else None
    together = [option_name(work.by_twin[name]) for name in wide_with(work, layer)]
    fused = fused_names(work, layer)
    name: CauseName = cause.name
    if name in ("saturation_low", "saturation_high") and not _range_is_narrow(work, layer):
        name = "unknown"
    return options.advise(name, option_name(layer), layer.operators, cause.detail, bits, fused, together)


def _range_is_narrow(work: Evaluation, layer: Layer) -> bool:
    """Whether other calibration frames can help: right values go beyond the code range, and not by another scale."""
    if layer.clipped_share < _BEYOND or layer.encoding is None:
        return False
    if layer.reads_input not in work.reference.inputs or layer.operators != ("Identity",):
        return True
    given = float(np.abs(work.reference.inputs[layer.reads_input]).max())
    return given <= _OTHER_SCALE * max(abs(end) for end in layer.encoding.value_range)


def worst(reference: Mapping[str, Array], outputs: Mapping[str, Array]) -> WhatIf | None:
    """The error of the output that is furthest off; None without a comparable output."""
    found = [_error(name, reference[name], value) for name, value in outputs.items() if name in reference]
    return max(found, key=lambda item: math.inf if item.error is None else item.error, default=None)


def _error(name: str, reference: Array, value: Array) -> WhatIf:
    if value.size != reference.size:
        return WhatIf(name, None, None)
    difference = value.reshape(reference.shape).astype(np.float64) - reference
    energy, own = float(np.sum(difference**2)), float(np.sum(np.square(reference, dtype=np.float64)))
    if not math.isfinite(energy) or own == 0:
        return WhatIf(name, None, None)
    error = math.sqrt(energy / own)
    return WhatIf(name, error, -20 * math.log10(error) if error > 0 else None)


class _Search:
    """Figures of sets of changes."""

    def __init__(self, work: Evaluation, emulator: Emulator) -> None:
        self.work, self.emulator = work, emulator

    def figure(self, changes: Mapping[str, Change]) -> WhatIf:
        found = worst(self.work.reference.outputs, self.emulator.run(changes))
        if found is None:
            raise TidegaugeError("the network has no output", "give the model that was compiled")
        return found

    def changes(self, layer: Layer, change: Change) -> dict[str, Change]:
        """A layer's change with those that it brings along: other calibration frames change every range."""
        if change == "range":
            everywhere: dict[str, Change] = dict.fromkeys(self.emulator.changeable, change)
            return everywhere
        found: dict[str, Change] = {layer.twin: change}
        if change == "wide":
            found |= dict.fromkeys(wide_with(self.work, layer), change)
        if change == "cpu":  # at either end of the network it reads, or gives, floats that are never codes
            if layer.match.how == "original":
                found[layer.twin] = "exact"
            readers = [one for one in self.work.by_twin.values() if set(one.reads) & set(layer.reads)]
            found |= {name: "exact" for name in layer.reads if name.endswith(NET_FORMAT) and readers == [layer]}
        return found


def _single(search: _Search, layer: Layer, advice: Sequence[Advice]) -> dict[Change, WhatIf]:
    wanted: list[Change] = ["exact"]
    wanted += [_CHANGES[item.option] for item in advice if item.option in _CHANGES]
    return {change: search.figure(search.changes(layer, change)) for change in dict.fromkeys(wanted)}


def _cure(
    search: _Search,
    wrong: Sequence[Suspect],
    advice: Mapping[int, Sequence[Advice]],
    target_db: float | None,
    now: WhatIf | None,
) -> Cure:
    before = search.figure({})
    must = [c for s in wrong[:MOST_CURED] if (c := _of_culprit(search, s.layer, advice[id(s.layer)]))]
    steps = useful(search, greedy(search, must, [], before, target_db))
    if target_db is not None and not reached(last(steps, before), target_db):
        taken = {step.candidate.layer.twin for step in steps}
        rest = [c for c in _of_regions(search) if c.layer.twin not in taken]
        more = greedy(search, rest, steps, before, target_db)
        if not reached(last([*steps, *more], before), target_db):
            kept = leave_out(search, rest, [step.candidate for step in steps], target_db)
            more = greedy(search, kept, steps, before, None) if kept else more
        steps += more
    steps = pruned(search, steps, before, target_db)
    after = last(steps, before)
    lines = options.joined([line for step in steps for line in step.candidate.lines])
    if not steps and not wrong and target_db is not None and not reached(after, target_db):
        lines = options.diffuse()  # no layer alone, and no set of layers: what is left is the whole network
    return Cure(
        target_db=target_db,
        reached=None if target_db is None else reached(after, target_db),
        before=before,
        after=after,
        steps=tuple(CureStep(s.candidate.layer.tensor.name, s.candidate.change, s.after) for s in steps),
        advice=lines,
        faithful=now is not None and _same(now.error, before.error),
    )


def _of_culprit(search: _Search, layer: Layer, advice: Sequence[Advice]) -> Candidate | None:
    lines = tuple(item for item in advice if item.option and not item.alternative)
    change = next((_CHANGES[item.option] for item in lines if item.option in _CHANGES), None)
    return None if change is None else Candidate(layer, change, search.changes(layer, change), lines)


def _of_regions(search: _Search) -> list[Candidate]:
    """Regions with an output of 8 bits that can be given 16, noisiest first."""
    found = []
    for name in search.emulator.changeable:
        layer = search.work.by_twin[name]
        if layer.encoding is None or np.dtype(layer.encoding.dtype).itemsize != 1:
            continue
        together = [option_name(search.work.by_twin[other]) for other in wide_with(search.work, layer)]
        line = options.wide(option_name(layer), together)
        found.append(Candidate(layer, "wide", search.changes(layer, "wide"), (line,)))
    found.sort(key=lambda c: _noise(c.layer), reverse=True)
    return found[:MOST_REGIONS]


def _noise(layer: Layer) -> float:
    """Local error energy over the tensor's own."""
    sums = layer.local_sums or layer.cumulative_sums
    return sums.d2 / sums.f2 if sums is not None and sums.f2 > 0 else 0.0


def _same(measured: float | None, emulated: float | None) -> bool:
    if measured is None or emulated is None:
        return measured is emulated
    small, large = sorted((measured, emulated))
    return large <= FAITHFUL * small


def option_name(layer: Layer) -> str:
    """The name that TIDL's lists want: the ONNX tensor's, without the alias of a graph output."""
    name = layer.match.tensor or layer.tensor.name
    return name.removesuffix(ORIGINAL) if layer.match.how == "original" else name


def wide_with(work: Evaluation, layer: Layer) -> tuple[str, ...]:
    """The 8-bit layers (by float tensor) that a layer at 16 bits makes 16 bits too: what it reads, where it is none of
    those that can change precision."""
    found: dict[str, None] = {}
    stack = [layer]
    while stack:
        one = stack.pop()
        if options.CHANGE_PRECISION & set(one.operators) or one.twin.endswith(NET_FORMAT):
            continue
        for name in one.reads:
            below = work.by_twin[name]
            narrow = below.encoding is not None and np.dtype(below.encoding.dtype).itemsize == 1
            if narrow and name not in found and name != layer.twin:
                found[name] = None
                stack.append(below)
    return tuple(found)


def fused_names(work: Evaluation, layer: Layer) -> tuple[str, ...]:
    """Output names of all ONNX nodes of a region, as the model has them."""
    part = work.reference.region(layer.twin)
    if part is None:
        return ()
    names = [name for index in part.nodes for name in work.reference.model.nodes[index].output if name]
    return tuple(name.removesuffix(ORIGINAL) if name == layer.twin else name for name in names)
