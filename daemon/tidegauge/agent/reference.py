"""How inputs looked at acceptance: features by light context, the camera's view, and the loss by kind of input.

It is what input drift, blur and cover, and the decomposition of an alarm are judged by. `inputs.json` in the state
folder, beside the state that names the reference itself; each says what it belongs to.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tidegauge.agent.samples import Belongs, Sample
from tidegauge.attribution import Bin
from tidegauge.detectors.camera import CameraReference, reference_of
from tidegauge.detectors.defaults import WINDOW
from tidegauge.files import write_durably

log = logging.getLogger(__name__)

VERSION = 1
#: Values of a feature that are kept for a context, spread evenly over acceptance; frames for the camera's view.
MOST_VALUES, MOST_LOOKS = 400, 200
#: Fewer frames make no view that a camera could be turned away from.
FEWEST_LOOKS = 16
#: A feature is outside when it lies beyond what acceptance saw by more than this share of its range.
BEYOND = 0.1
#: The kind of an input that is outside.
UNSEEN = "unseen"
#: Numbers of objects, and confidences, at which a kind of input ends.
COUNT_EDGES, CONFIDENCE_EDGES = (1.0, 3.0), (0.5, 0.8)
#: Not of every input: no drift is looked for in it.
SOMETIMES = frozenset({"confidence"})


class InputReference(msgspec.Struct, frozen=True):
    """`features`: by context and feature. `ranges`: least and most by feature, over all contexts. `light`: tertiles
    of luma by context. `camera`: by context, where enough frames were looked at. `kinds`: `kind_of` → samples, mean
    loss. `limits`: m0 of each kind.
    """

    version: int
    belongs: Belongs
    features: dict[str, dict[str, tuple[float, ...]]]
    ranges: dict[str, tuple[float, float]]
    light: dict[str, tuple[float, ...]]
    camera: dict[str, CameraReference]
    kinds: dict[str, Bin]
    limits: dict[str, float] = {}

    def outside(self, features: Mapping[str, float]) -> bool:
        """Whether acceptance saw nothing like it: a feature is well beyond its range."""
        for name, (low, high) in self.ranges.items():
            room = BEYOND * (high - low)
            if name in features and not low - room <= features[name] <= high + room:
                return True
        return False

    def kind_of(self, context: str, features: Mapping[str, float]) -> str:
        """A name for the kind of input: light context, light within it, objects and confidence where they are told."""
        if self.outside(features):
            return UNSEEN
        return _kind(context, features, self.light.get(context, ()))


def from_samples(
    belongs: Belongs, samples: Sequence[Sample], limit: Callable[[Sequence[float]], float] | None = None
) -> InputReference:
    """`limit`: m0 of losses of one kind, in the order in which they came. Raises ValueError for no samples."""
    if not samples:
        raise ValueError("no samples to take a reference of the inputs from")
    contexts: dict[str, list[Sample]] = defaultdict(list)
    for each in samples:
        contexts[each.context].append(each)
    names = set.intersection(*(set(each.features) for each in samples)) - SOMETIMES
    light = {
        context: tuple(float(edge) for edge in np.quantile([s.features["luma"] for s in seen], (1 / 3, 2 / 3)))
        for context, seen in contexts.items()
        if "luma" in names
    }
    losses: dict[str, list[float]] = defaultdict(list)
    for each in samples:
        losses[_kind(each.context, each.features, light.get(each.context, ()))].append(each.loss)
    return InputReference(
        VERSION,
        belongs,
        {
            context: {name: _spread([s.features[name] for s in seen], MOST_VALUES) for name in sorted(names)}
            for context, seen in contexts.items()
        },
        {name: _range(each.features[name] for each in samples) for name in sorted(names)},
        light,
        {context: view for context, seen in contexts.items() if (view := _view(seen)) is not None},
        {kind: Bin(len(seen), sum(seen) / len(seen)) for kind, seen in losses.items()},
        {} if limit is None else {kind: limit(seen) for kind, seen in losses.items()},
    )


def bins(samples: Iterable[tuple[str, float]]) -> dict[str, Bin]:
    """Losses by kind → samples and mean loss."""
    losses: dict[str, list[float]] = defaultdict(list)
    for kind, loss in samples:
        losses[kind].append(loss)
    return {kind: Bin(len(seen), sum(seen) / len(seen)) for kind, seen in losses.items()}


def _kind(context: str, features: Mapping[str, float], light: Sequence[float]) -> str:
    parts = [context]
    for name, edges in (("luma", light), ("count", COUNT_EDGES), ("confidence", CONFIDENCE_EDGES)):
        if name in features:
            parts.append(f"{name} {bisect_right(edges, features[name])}")
    return ", ".join(parts)


def _view(samples: Sequence[Sample]) -> CameraReference | None:
    looks = [each.look for each in samples if each.look is not None]
    if len(looks) < FEWEST_LOOKS:
        return None
    step = -(-len(looks) // MOST_LOOKS)
    return reference_of(looks[::step])


def _spread(values: Sequence[float], most: int) -> tuple[float, ...]:
    step = -(-len(values) // most)
    return tuple(values[::step])


def _range(values: Iterable[float]) -> tuple[float, float]:
    seen = list(values)
    return min(seen), max(seen)


def save(folder: Path, reference: InputReference) -> None:
    write_durably(folder / "inputs.json", msgspec.json.encode(reference))


def load(folder: Path, belongs: Belongs) -> InputReference | None:
    """What is stored for this; None where there is none: then inputs are not judged."""
    path = folder / "inputs.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=InputReference)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        log.error("%s can't be read (%s): inputs are not judged until the next acceptance", path, error)
        return None
    if (found.version, found.belongs) != (VERSION, belongs):
        log.warning("%s belongs to another reference: inputs are not judged until the next acceptance", path)
        return None
    return found


def judged_contexts(folder: Path, window: int = WINDOW) -> tuple[str, ...]:
    """Light contexts of a state folder whose inputs have a reference of `window` values; none where none is stored."""
    try:
        found = msgspec.json.decode((folder / "inputs.json").read_bytes(), type=InputReference)
    except (FileNotFoundError, msgspec.DecodeError):
        return ()
    return tuple(name for name, values in sorted(found.features.items()) if _fewest(values) >= window)


def _fewest(features: Mapping[str, Sequence[float]]) -> int:
    return min((len(values) for values in features.values()), default=0)
