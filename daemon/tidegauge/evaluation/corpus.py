"""Cases for the verdict: faults of the device and of the reference, changed scenes, faulty cameras, each drawn anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from tidegauge.detectors.camera import conditions
from tidegauge.detectors.contexts import LightContext
from tidegauge.detectors.windows import compare
from tidegauge.evaluation import trial
from tidegauge.evaluation.fixed_camera import CAMERA_CHANGES, DATA_CHANGES, NONE, Change
from tidegauge.evaluation.pairs import FIRST_WATCH, Array, Device, Pair
from tidegauge.evaluation.stack import GAP, GOLDEN_INTERVAL, Settled, Stack, mean_loss
from tidegauge.pipeline.process import output_digest
from tidegauge.virtualboard.faults import ALL_KINDS, INSIDE, Fault, Kind, eligible

#: "device on live inputs": a fault that no stored input shows, as in a buffer, by heat, or on certain content.
Group = Literal["device", "device on live inputs", "reference", "data", "camera", "device and data"]
#: Detectable faults, fixed before any case was drawn: a golden output changes, or the mean loss is so far above m0.
LOSS_ABOVE = 0.1
#: Detectable changes of the scene: a PSI of twice the warning's limit in so many frames, hardly any of them a camera's
#: fault.
CLEAR_PSI, CLEAR_FRAMES = 0.5, 100
#: A camera's fault: its condition holds in nearly every frame. Between the two shares nothing is expected.
CAMERA_SHARE, DATA_SHARE = 0.95, 0.05
#: Samples that a case is watched for: eight golden rounds, and four times what the loss's detector needs for the least
#: detectable rise; a changed scene for a window of inputs and some.
WATCHED, WATCHED_SCENE = 120, 260
#: Sizes of scenes and cameras, log-uniform.
SMALLEST = 0.02
_DRAWS = 5000


class Case(NamedTuple):
    """`size` as the fault's amount, or of the change. `weights`: of the reference that are wrong, empty for none."""

    group: Group
    kind: str
    size: float
    fault: Fault | None = None
    change: Change = NONE
    weights: str = ""

    @property
    def what(self) -> str:
        layer = self.fault.layer if self.fault is not None else self.weights
        return f"{self.group}: {self.kind} {self.size:.3g} {layer}".rstrip()


class Outcome(NamedTuple):
    """`expected`: faults of which one is right; empty where the case is below the detectable size.

    `verdicts`: faults in the order in which they were named. `samples`: to the first of them. `effect`: mean loss over
    m0 for a device, PSI for a scene, the condition's share of frames for a camera.
    """

    case: Case
    expected: tuple[str, ...]
    verdicts: tuple[str, ...]
    samples: int
    effect: float

    @property
    def right(self) -> bool:
        return bool(self.verdicts) and self.verdicts[0] in self.expected

    @property
    def accuses_device(self) -> bool:
        return "accelerator" in self.verdicts


class Sizes(msgspec.Struct, frozen=True):
    """Cases of each kind, for one model; samples of its acceptance."""

    device: int
    data: int
    camera: int
    reference: int
    both: int
    acceptance: int
    live: int = 1


#: A run of the enhancer takes thirty times as long as one of the classifier.
FULL = {"enhancer": Sizes(2, 1, 1, 3, 2, 240, 2), "classifier": Sizes(4, 2, 2, 4, 3, 240, 4)}
QUICK = {"enhancer": Sizes(1, 0, 0, 1, 0, 120, 0), "classifier": Sizes(1, 1, 1, 2, 1, 240)}


def draw_fault(rng: np.random.Generator, pair: Pair, kind: Kind) -> Fault | None:
    """One fault of this kind, on a random layer and of a random size; None where no layer can have it."""
    able = eligible(pair.network)[kind]
    if not able:
        return None
    if kind not in trial.KINDS["any"] or kind == "coarse":
        return Fault(able[int(rng.integers(len(able)))], kind, float(rng.integers(1, 8)) if kind == "coarse" else None)
    bench = trial.Bench(pair.path, Path(), Path(), pair.network, ())
    for _ in range(_DRAWS):
        fault = trial.draw(rng, bench, "inside" if kind in INSIDE else "any")
        if fault is not None and fault.kind == kind:
            return fault
    raise AssertionError(f"{_DRAWS} draws gave no fault of kind {kind}")


def cases(pair: Pair, sizes: Sizes, rng: np.random.Generator) -> list[Case]:
    """Every kind of fault and change, sizes log-uniform."""
    found: list[Case] = []
    for kind in ALL_KINDS:
        for _ in range(sizes.device):
            fault = draw_fault(rng, pair, kind)
            if fault is not None:
                found.append(Case("device", kind, fault.strength, fault))
    for what in DATA_CHANGES:
        found += [Case("data", what, size, change=Change(what, size)) for size in _sizes(rng, sizes.data)]
    for broken in CAMERA_CHANGES:
        found += [Case("camera", broken, size, change=Change(broken, size)) for size in _sizes(rng, sizes.camera)]
    for size in _sizes(rng, sizes.reference):
        found.append(Case("reference", "weights", size, weights=pair.weights[int(rng.integers(len(pair.weights)))]))
    for size in _sizes(rng, sizes.both):
        kind = ALL_KINDS[int(rng.integers(len(ALL_KINDS)))]
        fault, scene = draw_fault(rng, pair, kind), DATA_CHANGES[int(rng.integers(len(DATA_CHANGES)))]
        if fault is not None:
            found.append(Case("device and data", f"{kind}, {scene}", fault.strength, fault, Change(scene, size)))
    for any_kind in ALL_KINDS * sizes.live:
        fault = draw_fault(rng, pair, any_kind)
        if fault is not None:
            found.append(Case("device on live inputs", any_kind, fault.strength, fault))
    return found


def _sizes(rng: np.random.Generator, count: int) -> list[float]:
    return [exp(rng.uniform(log(SMALLEST), 0.0)) for _ in range(count)]


def try_case(pair: Pair, settled: Settled, case: Case, rng: np.random.Generator) -> Outcome:
    """Watch a board on which the case begins at once; the golden timer stands anywhere in its interval."""
    begun, first = float(rng.uniform(0, GOLDEN_INTERVAL)), FIRST_WATCH
    # What a fault of the device shows is settled after the first verdict; a scene's case is watched to its end.
    stops = case.group not in ("data", "camera")
    verdicts, samples = _watch(pair, settled, case, begun, stops)
    expected, effect = _expected(pair, settled, case, range(first, first + CLEAR_FRAMES))
    return Outcome(case, expected, tuple(verdicts), samples, effect)


def _watch(pair: Pair, settled: Settled, case: Case, golden_due: float, stops: bool) -> tuple[list[str], int]:
    device = pair.device([case.fault] if case.fault is not None else [])
    wrong = pair.wrong_reference(case.weights, 1 + case.size) if case.weights else None
    reference = wrong or pair.reference
    asked = _right_on_stored(pair, settled, device) if case.group == "device on live inputs" else device.run
    stack = Stack(pair.model.output, settled, asked, reference.run, golden_due)
    verdicts: list[str] = []
    samples = 0
    # One healthy sample: the board knew its light before.
    before = pair.frame(FIRST_WATCH - 1)
    stack.step(0.0, -1, before, pair.healthy(before))
    for number in range(WATCHED_SCENE if case.group == "data" else WATCHED):
        now = (number + 1) * GAP
        if case.kind == "frozen":
            found = stack.silence(now)
        else:
            frame = pair.frame(FIRST_WATCH + number, case.change)
            if wrong is not None:
                frame = frame._replace(reference=wrong.run(frame.tensor))
            found = stack.step(now, number, frame, device.run(frame.tensor))
        if found:
            samples = samples or number + 1
            verdicts += [verdict.fault for verdict in found]
            if stops:
                break
    return verdicts, samples


def _right_on_stored(pair: Pair, settled: Settled, device: Device) -> Callable[[Array], Array]:
    """What a device answers that is wrong, but not on a golden tensor."""
    healthy, stored = pair.device(), {golden.tensor.tobytes() for golden in settled.golden}
    return lambda tensor: (healthy if tensor.tobytes() in stored else device).run(tensor)


def _expected(pair: Pair, settled: Settled, case: Case, numbers: Sequence[int]) -> tuple[tuple[str, ...], float]:
    """What is at fault, as far as the case is large enough to be seen, and how large its effect is."""
    if case.group in ("data", "camera"):
        return _expected_of_pictures(pair, settled, case, numbers)
    if case.group == "reference":
        wrong = pair.wrong_reference(case.weights, 1 + case.size)
        changed = any(output_digest([wrong.run(g.tensor)]) != g.reference for g in settled.golden)
        return (("reference",) if changed else ()), float(changed)
    assert case.fault is not None
    device = pair.device([case.fault])
    device.run(pair.frame(FIRST_WATCH).tensor)
    live = case.group == "device on live inputs"
    changed = not live and any(output_digest([device.run(g.tensor)]) != g.device for g in settled.golden)
    above = mean_loss(pair, device, numbers) - settled.m0
    return (("accelerator",) if changed or above >= LOSS_ABOVE else ()), above


def _expected_of_pictures(
    pair: Pair, settled: Settled, case: Case, numbers: Sequence[int]
) -> tuple[tuple[str, ...], float]:
    if case.kind == "frozen":
        return ("camera",), 1.0
    (context,) = settled.frozen.camera  # the camera's light keeps to one
    frames = [pair.frame(number, case.change) for number in numbers]
    bad = float(np.mean([bool(conditions(frame.sight.look, settled.frozen.camera[context])) for frame in frames]))
    if bad >= CAMERA_SHARE:
        return ("camera",), bad
    light = LightContext(hold=0.0)
    elsewhere = float(np.mean([light.update(0.0, frame.sight.light) != context for frame in frames]))
    window = {name: [frame.features[name] for frame in frames] for name in settled.frozen.features[context]}
    psi = max(each.psi for each in compare(settled.frozen.features[context], window))
    clear = case.group == "data" and bad <= DATA_SHARE and elsewhere <= DATA_SHARE and psi >= CLEAR_PSI
    return (("data",) if clear else ()), psi
