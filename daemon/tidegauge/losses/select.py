"""From the profile's output to its loss."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.losses import image, raw_tensor
from tidegauge.losses.elements import Array
from tidegauge.profile import Output

Loss = Callable[[Array, Array], float]


def loss_for(output: Output) -> Loss:
    """The loss of device output and reference output, in [0, 1]."""
    measure = {"image": image.loss, "raw": raw_tensor.loss}[output.kind]
    return lambda device, reference: measure(device, reference, output.step)
