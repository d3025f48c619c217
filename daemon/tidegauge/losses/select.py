"""From the profile's output to its loss, and to its decoded summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata

from tidegauge.errors import TidegaugeError
from tidegauge.losses import (
    classification,
    depth,
    detection,
    embedding,
    image,
    keypoints,
    output_stats,
    raw_tensor,
    segmentation,
)
from tidegauge.losses.elements import Array, ShapeMismatch, all_finite
from tidegauge.pipeline.messages import OutputStats
from tidegauge.profile import Output

Loss = Callable[[Array, Array], float]
#: A loss of all tensors that the profile names: the watched one, then those of `output.also`.
TensorsLoss = Callable[[Sequence[Array], Sequence[Array], Output], float]
#: Entry points of a user's own losses: each names a `TensorsLoss`.
GROUP = "tidegauge.losses"


class WrongLoss(TidegaugeError):
    """A loss of the profile that does not exist, or gives no number in [0, 1]."""


def _classification(device: Sequence[Array], reference: Sequence[Array], output: Output) -> float:
    if output.loss == "top1":
        return classification.top1(device[0], reference[0])
    return classification.loss(device[0], reference[0], output.activation)


def _segmentation(device: Sequence[Array], reference: Sequence[Array], output: Output) -> float:
    measure = segmentation.pixels if output.loss == "pixels" else segmentation.loss
    return measure(device[0], reference[0], output.layout)


LOSSES: dict[str, TensorsLoss] = {
    "image": lambda device, reference, output: image.loss(device[0], reference[0], output.step),
    "raw": lambda device, reference, output: raw_tensor.loss(device[0], reference[0], output.step),
    "classification": _classification,
    "detection": detection.loss,
    "segmentation": _segmentation,
    "keypoints": lambda device, reference, output: keypoints.loss(device[0], reference[0], output),
    "depth": lambda device, reference, output: depth.loss(device[0], reference[0]),
    "embedding": lambda device, reference, output: embedding.loss(device[0], reference[0]),
}
SUMMARIES: dict[str, Callable[[Sequence[Array], Output], dict[str, float]]] = {
    "classification": lambda arrays, output: classification.summary(arrays[0], output.activation),
    "detection": detection.summary,
    "segmentation": lambda arrays, output: segmentation.summary(arrays[0], output.layout),
    "keypoints": keypoints.summary,
    "depth": lambda arrays, output: depth.summary(arrays[0]),
    "embedding": lambda arrays, output: embedding.summary(arrays[0]),
}


#: Kinds whose answer may be "nothing there", and whether both sides gave it.
EMPTY: dict[str, Callable[[Sequence[Array], Sequence[Array], Output], bool]] = {
    "detection": detection.both_empty,
    "keypoints": keypoints.both_empty,
}


def outputs_loss(output: Output) -> Callable[[Mapping[str, Array], Mapping[str, Array]], float]:
    """The loss of both sides' outputs by name, in [0, 1]. Raises `WrongLoss`; the loss also `ShapeMismatch`."""
    measure = _own(output.loss) if output.kind == "custom" else LOSSES[output.kind]

    def both(device: Mapping[str, Array], reference: Mapping[str, Array]) -> float:
        found = float(measure(tensors(output, device), tensors(output, reference), output))
        if not 0 <= found <= 1:  # also for NaN
            raise WrongLoss(f"the loss of kind {output.kind} gave {found}", "let it give a number in [0, 1]")
        return found

    return both


def loss_for(output: Output) -> Loss:
    """The loss of the watched output alone. Raises `WrongLoss` where the profile names further ones."""
    if output.also:
        raise WrongLoss("the profile's loss needs several outputs", "compare all outputs by name")
    measure = outputs_loss(output)
    return lambda device, reference: measure({output.name: device}, {output.name: reference})


def both_empty(output: Output, device: Mapping[str, Array], reference: Mapping[str, Array]) -> bool:
    """Whether neither side found an object or a pose, where the output can hold none. Raises `ShapeMismatch`."""
    measure = EMPTY.get(output.kind)
    if measure is None:
        return False
    sides = tensors(output, device), tensors(output, reference)
    return all(all_finite(each) for side in sides for each in side) and measure(*sides, output)


def tensors(output: Output, named: Mapping[str, Array]) -> list[Array]:
    """The watched output and those of `also`, in this order. Raises `ShapeMismatch` for one that is not there."""
    names = (output.name, *output.also)
    missing = [name for name in names if name not in named]
    if missing:
        raise ShapeMismatch(f"the model has no output {missing[0]}", "correct `output.name` or `output.also`")
    return [named[name] for name in names]


def outputs_summary(output: Output, named: Mapping[str, Array], known: OutputStats | None = None) -> dict[str, float]:
    """The decoded result of one side by name; empty where an element is not finite. `known`: statistics of the watched
    output, which then need not be taken twice. Raises `ShapeMismatch`."""
    arrays = tensors(output, named)
    if output.kind not in SUMMARIES:
        return output_stats.summary(output, arrays[0], known)
    return SUMMARIES[output.kind](arrays, output) if all(all_finite(each) for each in arrays) else {}


def _own(name: str) -> TensorsLoss:
    found = [each for each in metadata.entry_points(group=GROUP) if each.name == name]
    if len(found) != 1:
        known = ", ".join(sorted(each.name for each in metadata.entry_points(group=GROUP))) or "none"
        raise WrongLoss(
            f"{len(found)} installed packages offer the loss {name!r}; installed: {known}",
            f"install one with an entry point of that name in group {GROUP}",
        )
    loaded: TensorsLoss = found[0].load()
    return loaded
