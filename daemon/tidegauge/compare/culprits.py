"""Which regions are wrong by themselves, what that does to the output, why, and what to change.

A region is faulty where its local error exceeds ten times its healthy noise floor (or the limit that a baseline of
healthy runs sets), where sixteen codes or more are off by more than one, where codes are off that neither rounding nor
the arithmetic of healthy layers explains, or where it is the first to bring in values that are not finite. It is a
culprit if its effect reaches a network output, else it "recovers".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.bias_moved import find_moved
from tidegauge.compare.causes import Cause, Evidence, evidence, find_cause, find_clipping
from tidegauge.compare.effect import measure_effect, output_steps
from tidegauge.compare.layers import STATED, Evaluation, Layer
from tidegauge.compare.operators import find_operator
from tidegauge.compare.pictures import draw
from tidegauge.compare.preprocessing import find_preprocessing, other_picture
from tidegauge.compare.stale import Before, find_stale
from tidegauge.compare.tolerance import predictable
from tidegauge.compare.types import Culprit, Effect

Array = NDArray[Any]

Verdict = Literal["healthy", "inherits", "faulty", "recovers", "undecided"]

#: Local error over the noise floor. Healthy layers of a quantised twin stay below 3.3 even with float weights.
FAULTY = 10.0
#: A code range that is too narrow is a culprit where it cuts this share of a tensor, visibly moves this share of an
#: output, and leaves that output this SQNR: to clip a few values is what a calibration is for, and few values of a
#: small tensor (a pooled feature, a probability) past their range are the picture's, not the layer's.
CLIPPED, CLIPPED_MOVES, CLIPPED_SQNR_DB = 2e-3, 1e-2, 35.0
#: So many codes off by more than one are no rounding.
MANY = 16
#: Share of codes off by one that is no rounding: right integer kernels of others differ in up to 10 % of a tensor
#: (additions), spread over all channels. In a single channel, and as a number.
ONES, ONES_CHANNEL, FEW = 0.15, 0.3, 64
#: How many regions of one run a scheme of weights must explain before it is taken for the compile's.
_CONFIRMS = 2
#: Tensors that say nothing of what was fed.
_FLAT = ("non_finite", "all_zero", "constant")
#: A pattern that accounts for less of an input's error than this doesn't speak against another picture.
_SURE = 0.7
#: More culprits than this are ranked by their excess alone: each effect costs two runs of the network below.
MOST_EFFECTS = 48


@dataclass
class Suspect:
    """A faulty region, with what was found about it."""

    layer: Layer
    cause: Cause
    effect: Effect | None
    case: Evidence | None
    excess: float | None
    stops: bool = False
    """The input tensor is another one, by its pre-processing, and the analysis ended here."""

    @property
    def narrow(self) -> bool:
        """Whether its arithmetic is right and its code range too narrow."""
        return bool(self.layer.clipping) and self.excess == self.layer.clipping


def judge(work: Evaluation) -> dict[int, float | None]:
    """The excess of every layer (by identity) over its floor, weight rounding counted in where it is unknown.

    Where no scheme explains a region and none is confirmed elsewhere in this run, the difference that 8-bit weights
    make is part of the floor: it is not known to be a fault.
    """
    explained: dict[str, int] = {}
    for layer in work.layers:
        if layer.weights_fit:
            explained[layer.weights] = explained.get(layer.weights, 0) + 1
    found: dict[int, float | None] = {}
    for layer in work.layers:
        if layer.local is None or layer.local.mse is None:
            found[id(layer)] = None
            continue
        confirmed = layer.weights == STATED or explained.get(layer.weights, 0) >= _CONFIRMS
        floor = layer.floor + (0.0 if confirmed else layer.weight_noise)
        found[id(layer)] = layer.local.mse / floor if floor > 0 else (0.0 if layer.local.mse == 0 else np.inf)
    return found


def find(
    work: Evaluation,
    excess: Mapping[int, float | None],
    device_outputs: Mapping[str, Array],
    product_step: float | None,
    before: Before | None = None,
    past_input: bool = False,
) -> tuple[list[Suspect], list[Suspect]]:
    """Culprits, worst effect first, and the faulty regions that recover. `before`: the frame before this one.

    Where the pre-processing has fed another input than the recorded one, nothing else is named: the float run and the
    device have not seen the same picture. `past_input`: go on all the same; each layer is judged by what it read.
    """
    faulty = [layer for layer in work.layers if _faulty(work, layer, excess[id(layer)])]
    moved, unsure = find_moved(work, faulty)
    for layer in faulty:
        layer.bias_moved, layer.bias_unsure = moved.get(id(layer)), id(layer) in unsure
    faulty = [layer for layer in faulty if layer.bias_moved is None and not layer.bias_unsure]
    faulty.sort(key=lambda layer: -(excess[id(layer)] or np.inf))
    steps = output_steps(work, product_step)
    faulty.sort(key=lambda layer: layer.match.how != "input")
    suspects: list[Suspect] = []
    for number, layer in enumerate(faulty):
        if layer.match.how != "input" and any(suspect.stops for suspect in suspects):
            break
        local = work.reference.local([layer.twin], layer.scheme)[layer.twin]
        effect = None
        if number < MOST_EFFECTS:
            effect = measure_effect(work, layer, local, device_outputs, steps, product_step)
        suspects.append(_suspect(work, layer, local, effect, excess[id(layer)], before, past_input))
    stops = [suspect for suspect in suspects if suspect.stops]
    if stops:
        return stops, []
    culprits = [s for s in suspects if s.effect is None or s.effect.reaches]
    recovered = [s for s in suspects if s.effect is not None and not s.effect.reaches]
    culprits += _clipped(work, faulty, device_outputs, steps, product_step)
    culprits.sort(key=_weight, reverse=True)
    return culprits, recovered


def _clipped(
    work: Evaluation,
    faulty: Sequence[Layer],
    device_outputs: Mapping[str, Array],
    steps: Mapping[str, float],
    product_step: float | None,
) -> list[Suspect]:
    """Layers that compute right but whose code range is too narrow for this input, with a visible effect."""
    wide = [
        layer
        for layer in work.layers
        if layer.local is not None
        and layer.clipping > FAULTY
        and layer.clipped_share >= CLIPPED
        and layer.float_clipped * layer.tensor.count >= FEW
        and layer.float_clipped >= CLIPPED / 2  # else it is an earlier layer's error that does not fit
        and id(layer) not in {id(f) for f in faulty}
        and not _blind(work, layer)
    ]
    found = []
    for layer in sorted(wide, key=lambda item: -item.clipping)[:MOST_EFFECTS]:
        local = work.reference.local([layer.twin], layer.scheme)[layer.twin]
        effect = measure_effect(work, layer, local, device_outputs, steps, product_step)
        if effect is None or layer.encoding is None or not _visible(effect):
            continue
        case = evidence(work.codes(layer), local, layer.encoding, layer.floor)
        found.append(Suspect(layer, find_clipping(case), effect, case, layer.clipping))
    return found


def _visible(effect: Effect) -> bool:
    moves = effect.moved is not None and effect.moved >= CLIPPED_MOVES
    return moves and (effect.sqnr_db is None or effect.sqnr_db < CLIPPED_SQNR_DB)


def _weight(suspect: Suspect) -> tuple[bool, float, float]:
    """A wrong input comes first: all that follows has seen another picture than the one that was recorded."""
    effect, fed = suspect.effect, suspect.layer.match.how == "input"
    if effect is None:
        return (fed, -1.0, suspect.excess or 0.0)
    return (fed, np.inf if effect.mse_steps is None else effect.mse_steps, suspect.excess or 0.0)


def _faulty(work: Evaluation, layer: Layer, excess: float | None) -> bool:
    if layer.match.tensor is None or layer.match.tensor not in work.by_twin:
        return False
    if layer.status == "non_finite":
        return all(work.by_twin[name].status != "non_finite" for name in layer.reads)
    if excess is None or _blind(work, layer):
        return False
    if excess > limit(layer) or layer.unexplained > 0:
        return True
    return off_codes(work, layer) >= MANY or _rounds_otherwise(work, layer)


def off_codes(work: Evaluation, layer: Layer) -> int:
    """How many codes are off by more than one, beyond what a healthy baseline allows; 0 where they can't be predicted.

    Right arithmetic is never off by more than one code where scales and weights are known.
    """
    if layer.off_by_more is None or not predictable(work, layer):
        return 0
    return round(max(0.0, layer.off_by_more - layer.codes_allowed) * layer.tensor.count)


def _rounds_otherwise(work: Evaluation, layer: Layer) -> bool:
    """Whether more codes are off by one than other right kernels give, in the whole tensor or in one channel."""
    if layer.oracle is None or not predictable(work, layer):
        return False
    everywhere = layer.oracle.ones - layer.ones_allowed
    if everywhere > ONES and everywhere * layer.tensor.count >= FEW:
        return True
    return layer.oracle.worst_channel - layer.ones_allowed > ONES_CHANNEL


def limit(layer: Layer) -> float:
    """The excess above which a layer is wrong: its own from a healthy baseline, else the default."""
    return FAULTY if layer.limit is None else layer.limit


def _blind(work: Evaluation, layer: Layer) -> bool:
    """Whether the region holds a tensor that the device computed, of which neither trace nor scale is known."""
    return any(name not in work.reference.rounding for name in layer.hidden)


def _suspect(
    work: Evaluation,
    layer: Layer,
    local: Array,
    effect: Effect | None,
    excess: float | None,
    before: Before | None,
    past_input: bool,
) -> Suspect:
    if layer.encoding is None:
        raise ValueError(f"{layer.tensor.name} has no encoding")
    fitting = np.clip(local, *layer.encoding.value_range)
    case = evidence(work.codes(layer), fitting, layer.encoding, layer.floor, predictable(work, layer))
    found = find_cause(case)
    named: Cause | None = None
    if layer.match.how == "input":
        named = find_preprocessing(case, local.reshape(case.device.shape).astype(np.float32, copy=False))
        if named is not None and found.name not in _FLAT and (named.explained or 0.0) >= (found.explained or 0.0):
            found = named
    stops = named is not None and found is named and not past_input
    found = find_stale(work, layer, case, before, found)
    weak = found.name == "unknown" or (found.explained is not None and found.explained < _SURE)
    if layer.match.how == "input" and weak and (other := other_picture(case)) is not None:
        found, stops = other, not past_input
    if layer.match.how != "input" and found.name != "stale_frame":
        found = find_operator(work, layer, case, found)
    return Suspect(layer, found, effect, case, excess, stops=stops and found.name != "stale_frame")


def verdicts(
    work: Evaluation,
    culprits: Sequence[Suspect],
    recovered: Sequence[Suspect],
    excess: Mapping[int, float | None],
) -> dict[int, tuple[Verdict, str]]:
    """A verdict for each layer (by identity), and its reason in words."""
    found: dict[int, tuple[Verdict, str]] = {}
    stopped = any(suspect.stops for suspect in culprits)
    wrong = {id(s.layer): s for s in culprits}
    harmless = {id(s.layer) for s in recovered}
    spoiled: dict[str, str] = {}
    for layer in sorted(work.layers, key=lambda item: _position(work, item)):
        source = next((spoiled[name] for name in layer.reads if name in spoiled), None)
        value = excess[id(layer)]
        times = (
            f"{_rounded(value)} times its healthy noise" if value is not None and np.isfinite(value) else "not finite"
        )
        if value is not None and value <= limit(layer) and layer.clipping > FAULTY and not off_codes(work, layer):
            times = f"{layer.clipped_share:.1%} of its values do not fit its code range"
        elif value is not None and value <= limit(layer):
            times = (
                f"{off_codes(work, layer)} of its codes are off by more than one, {layer.off_by_one or 0:.1%} by one"
                + (f"; no rounding explains {layer.unexplained:.2%} of them" if layer.unexplained else "")
            )
        elif id(layer) in wrong:
            times = f"its local error is {times}"
        if stopped and id(layer) not in wrong:
            found[id(layer)] = ("undecided", STOPPED)
        elif id(layer) in wrong:
            found[id(layer)] = ("faulty", f"wrong by itself: {times}")
            spoiled[layer.twin] = layer.tensor.name
        elif id(layer) in harmless:
            found[id(layer)] = ("recovers", f"wrong by itself ({times}), but nothing of it reaches the output")
        elif layer.bias_moved is not None:
            words = f"right by itself, but for biases that calibration moved by up to {layer.bias_moved:.2g} steps"
            found[id(layer)] = ("healthy", words)
        elif layer.bias_unsure:
            found[id(layer)] = ("undecided", _UNSURE)
        elif value is None or (value > limit(layer) and _blind(work, layer)):
            found[id(layer)] = ("undecided", layer.reason or _why_undecided(work, layer))
        elif source is not None:
            found[id(layer)] = ("inherits", f"right by itself; its error comes from {source}")
        else:
            found[id(layer)] = ("healthy", "right by itself")
        if source is not None and layer.match.tensor is not None:
            spoiled.setdefault(layer.match.tensor, source)
    return found


def _rounded(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{float(f'{value:.3g}'):.0f}"


def _position(work: Evaluation, layer: Layer) -> int:
    return work.reference.model.producer.get(layer.match.tensor or "", -1)


def _why_undecided(work: Evaluation, layer: Layer) -> str:
    hidden = [name for name in layer.hidden if name not in work.reference.rounding]
    if hidden:
        return f"no trace and no scale of {hidden[0]}, which it reads: the error may come from there"
    return "it could not be compared"


def describe(suspect: Suspect, rank: int, index: int) -> Culprit:
    """The suspect as a part of the answer, without advice: `whatif.Study.complete` adds it with its figures."""
    layer, cause = suspect.layer, suspect.cause
    return Culprit(
        layer=layer.tensor.name,
        index=index,
        rank=rank,
        cause=cause.name,
        explained=None if cause.explained is None else min(1.0, max(0.0, cause.explained)),
        detail=cause.detail,
        excess=suspect.excess if suspect.excess is not None and np.isfinite(suspect.excess) else None,
        effect=suspect.effect,
        sentence=_sentence(suspect),
        advice=(),
        pictures=draw(suspect.case) if suspect.case is not None else (),
    )


#: The reason of every layer behind an input that ended the analysis.
STOPPED = "not judged: the device was fed another input than the recorded one"
_UNSURE = (
    "calibration moved biases in this compile, and with so few values a channel nothing tells that from a fault; "
    "compile with advanced_options:quant_params_proto_path"
)
_WORDS = {
    "gain": "multiplies its values",
    "offset": "shifts its values",
    "saturation_low": "cuts its values off at the low end",
    "saturation_high": "cuts its values off at the high end",
    "coarse_step": "uses too coarse a step",
    "row_band": "is wrong in a band of rows",
    "column_band": "is wrong in a band of columns",
    "boundary_column": "is wrong in the column at its border",
    "row_shear": "starts each row at the wrong place",
    "rounding": "rounds otherwise than to the nearest code",
    "channels": "is wrong in some channels",
    "channel_permutation": "puts channels in the wrong order",
    "transpose_hw": "swaps height and width",
    "normalisation": "is normalised otherwise",
    "layout": "is laid out otherwise",
    "flip": "is mirrored",
    "shift": "is moved",
    "padding_value": "has other bars",
    "other_input": "is another picture",
    "stale_frame": "repeats an earlier frame",
    "first_frame": "is wrong in the first frame only",
    "wrong_operator": "computes another operator than the model's",
    "non_finite": "brings in values that are not numbers",
    "all_zero": "puts out zeros only",
    "constant": "puts out a constant",
    "unknown": "computes other values than the float model, without a simple pattern",
}


def _sentence(suspect: Suspect) -> str:
    layer, cause, effect = suspect.layer, suspect.cause, suspect.effect
    operators = " + ".join(layer.operators)
    hidden = f" (or {layer.hidden[0]}, of which there is no trace)" if layer.hidden else ""
    text = f"Layer {layer.tensor.name} ({operators}){hidden} {_WORDS[cause.name]}: {cause.detail}"
    if layer.match.how == "input" and suspect.narrow:
        text = f"The recorded input goes past the calibrated range of {layer.tensor.name}: {cause.detail}"
    elif layer.match.how == "input":
        text = (
            f"The pre-processing differs: {layer.tensor.name} on the device is not the recorded input: {cause.detail}"
        )
    if effect is None:
        return text + "."
    if effect.moved is not None and effect.reaches:
        text += f"; alone it moves {effect.moved:.1%} of the values of output {effect.output} by more than one step"
        if effect.share is not None:
            text += f" and accounts for {min(effect.share, 1.0):.0%} of that output's error"
    elif not effect.reaches:
        text += f"; nothing of it reaches output {effect.output}"
    return text + "."
