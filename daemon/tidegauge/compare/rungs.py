"""Between which of the four rungs an error enters: float model, TIDL float on a PC, TIDL 8/16 bit on a PC, board.

The order in which TI's debugging guide climbs (TIDL user guide, "accuracy debugging": 32-bit first, then 8/16 bit in
emulation, then the target). Pure: it judges answers of comparisons, and reads no tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from tidegauge.compare.exact_types import DIFFERS, ExactComparison
from tidegauge.compare.exact_words import is_input, label

Stage = Literal["input", "import", "quantisation", "device"]
State = Literal["clean", "error", "undecided"]

#: A float kernel that adds in another order stays above this; a wrong layer does not.
FLOAT_SQNR_DB = 80.0
STAGES: tuple[Stage, ...] = ("input", "import", "quantisation", "device")
BETWEEN: dict[Stage, str] = {
    "input": "recorded input → input tensor on the device",
    "import": "float model → TIDL float on the PC",
    "quantisation": "TIDL float → TIDL 8/16 bit on the PC",
    "device": "TIDL 8/16 bit on the PC → board",
}


_OTHER_INPUT = "Undecided, since another input than the recorded one was fed: no layer was judged."


class Step(msgspec.Struct, frozen=True):
    """One stage between two rungs. `layers`: where the error enters, or between which stages it is undecided."""

    stage: Stage
    state: State
    sentence: str
    layers: tuple[str, ...] = ()


class Rung(msgspec.Struct, frozen=True):
    """One rung that was climbed or is missing. `outputs`: SQNR against the float model in dB, by output; None where it
    is not defined, as for those in `exact`, which don't differ at all."""

    name: Literal["host_float", "host", "device"]
    source: str | None
    outputs: dict[str, float | None]
    exact: tuple[str, ...] = ()


class Rungs(msgspec.Struct, frozen=True):
    """The whole ladder. `enters`: the stages at which an error enters for certain."""

    sentence: str
    enters: tuple[Stage, ...]
    steps: tuple[Step, ...]
    rungs: tuple[Rung, ...]
    notes: tuple[str, ...] = ()


class Seen(msgspec.Struct, frozen=True):
    """What the ladder needs of one comparison with the float model.

    `culprits`: layers wrong by themselves, with the input layer apart in `input_wrong`; `input_seen`: whether the input
    tensor was traced and compared; `enough`: coverage; `stopped`: no layer was judged, since
    another input ended the analysis; `diffuse`: the output is poor without a culprit.
    """

    source: str
    culprits: tuple[str, ...]
    input_wrong: str
    input_seen: bool
    enough: bool
    diffuse: bool
    outputs: dict[str, float | None]
    exact: tuple[str, ...] = ()
    stopped: bool = False

    @property
    def judged(self) -> bool:
        """Whether what it says of its layers, or leaves unsaid, tells anything."""
        return self.enough and not self.stopped


def decide(host_float: Seen | None, host: Seen | None, device: Seen | None, exact: ExactComparison | None) -> Rungs:
    """What the rungs that are there say, and what each missing one leaves undecided."""
    importing = _import(host_float, host, device)
    quantising = _quantisation(importing, host, device)
    steps = (
        _input([seen for seen in (device, host, host_float) if seen is not None], exact),
        importing,
        quantising,
        _device(importing, host, device, exact),
    )
    sides: tuple[tuple[Literal["host_float", "host", "device"], Seen | None], ...] = (
        ("host_float", host_float),
        ("host", host),
        ("device", device),
    )
    return Rungs(
        sentence=_sentence(steps),
        enters=tuple(step.stage for step in steps if step.state == "error"),
        steps=steps,
        rungs=tuple(
            Rung(name, seen.source, seen.outputs, seen.exact) if seen else Rung(name, None, {}) for name, seen in sides
        ),
    )


def _input(seen: Sequence[Seen], exact: ExactComparison | None) -> Step:
    fed = tuple(label(t) for t in exact.tensors if t.status in DIFFERS and is_input(t)) if exact is not None else ()
    if fed:
        return Step("input", "error", f"Host and device were fed different inputs: {_list(fed)} differs.", fed)
    wrong = next((each.input_wrong for each in seen if each.input_wrong), "")
    if wrong:
        return Step("input", "error", wrong)
    if any(each.input_seen for each in seen):
        return Step("input", "clean", "The recorded input fits the range that the calibration saw.")
    return Step("input", "undecided", "The input tensor was not traced, so a wrong pre-processing would not show.")


def _import(host_float: Seen | None, host: Seen | None, device: Seen | None) -> Step:
    if host_float is not None and host_float.judged:
        if host_float.culprits:
            text = f"Wrong already in float: {_list(host_float.culprits)}. Bits and calibration can't cure that."
            return Step("import", "error", text, host_float.culprits)
        return Step("import", "clean", "TIDL's float run agrees with the model.")
    lower = host or device
    if lower is not None and lower.judged and not lower.culprits:
        return Step("import", "clean", "Every layer of the quantised run is right by itself, so the import is too.")
    if any(seen is not None and seen.stopped for seen in (host_float, lower)):
        return Step("import", "undecided", _OTHER_INPUT)
    thin = "too little of the 32-bit rung could be compared" if host_float is not None else "the 32-bit rung is missing"
    layers = lower.culprits if lower is not None else ()
    text = f"Undecided, since {thin}: what is wrong in the quantised run may come from the import."
    return Step("import", "undecided", text, layers)


def _quantisation(importing: Step, host: Seen | None, device: Seen | None) -> Step:
    lower = host or device
    if lower is None or not lower.enough:
        why = "there is no quantised run" if lower is None else "too few of its layers could be compared"
        return Step("quantisation", "undecided", f"Undecided, since {why}.")
    if lower.stopped:
        return Step("quantisation", "undecided", _OTHER_INPUT)
    fresh = tuple(name for name in lower.culprits if name not in importing.layers or importing.state != "error")
    if not fresh:
        if lower.diffuse and host is not None and importing.state == "clean":
            return Step("quantisation", "error", "No single layer: rounding adds up until the output is poor.")
        beyond = "besides what the import did" if importing.state == "error" else "by itself"
        return Step("quantisation", "clean", f"No layer of the quantised run is wrong {beyond}.")
    if importing.state == "undecided":
        text = f"Undecided: {_list(fresh)} may be wrong since the import. Compile with tensor_bits=32 and compare."
        return Step("quantisation", "undecided", text, fresh)
    if host is None:
        text = f"Undecided: {_list(fresh)} may be wrong in the emulation too. Dump the same input on the PC."
        return Step("quantisation", "undecided", text, fresh)
    return Step("quantisation", "error", f"Right in float, wrong in codes: {_list(fresh)}.", fresh)


def _device(importing: Step, host: Seen | None, device: Seen | None, exact: ExactComparison | None) -> Step:
    if exact is not None and exact.counts.compared and exact.exit_code != 3:
        starts = [t for t in exact.tensors if t.origin == "origin"]
        if not starts and exact.first is not None:
            starts = [exact.tensors[exact.first]]
        layers = tuple(dict.fromkeys(label(t) for t in starts if not is_input(t)))
        if starts and not layers:
            return Step("device", "undecided", "Undecided, since host and device were fed different inputs.")
        if exact.exit_code == 1:
            return Step(
                "device", "error", f"The board computes other bits than the emulation: {exact.sentence}", layers
            )
        return Step("device", "clean", "The board computes the same bits as the emulation.")
    if device is None:
        return Step("device", "undecided", "Undecided, since there is no run of the board.")
    fresh = tuple(name for name in device.culprits if importing.state != "error" or name not in importing.layers)
    if host is None and exact is None:
        if device.enough and not fresh:
            return Step("device", "clean", "No layer of the board's run is wrong by itself.")
        text = "Undecided, since the PC's dump of the same artifacts (--host) is missing"
        return Step("device", "undecided", f"{text}: {_list(fresh)} may be wrong there too.", fresh)
    return Step("device", "undecided", "Undecided, since too few traces are on both sides.", fresh)


_WORDS: dict[Stage, str] = {
    "input": "at the input",
    "import": "at the import (float model to TIDL's graph)",
    "quantisation": "at the quantisation",
    "device": "on the device only",
}


def _sentence(steps: Sequence[Step]) -> str:
    errors = [step for step in steps if step.state == "error"]
    doubts = [step for step in steps if step.state == "undecided"]
    parts = []
    if errors:
        named = [_WORDS[s.stage] + (f" ({_list(s.layers)})" if s.layers else "") for s in errors]
        parts.append(f"The error enters {' and '.join(named)}.")
    suspects = [step for step in doubts if step.layers]
    if suspects:
        stages = " or ".join(_WORDS[s.stage] for s in suspects)
        layers = tuple(dict.fromkeys(name for step in suspects for name in step.layers))
        parts.append(f"{'Something else' if errors else 'The error'} enters {stages}, undecided: {_list(layers)}.")
    elif doubts:
        parts.append(f"Not decided: {', '.join(step.stage for step in doubts)}.")
    return " ".join(parts) or "No error enters at any rung."


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
