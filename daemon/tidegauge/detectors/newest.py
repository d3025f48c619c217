"""Whether the newest inputs look unlike acceptance's: asked when device and reference disagree, for the verdict.

The daily verdict of `windows` comes too late for it: a paired detector may alarm minutes after the light has changed,
and would accuse the accelerator of what the inputs did. Nothing is raised here; it is only an observable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from tidegauge.detectors.defaults import LOOKS, LOOKS_LEVEL
from tidegauge.detectors.windows import compare, verdict


class NewestInputs:
    """The newest values of each feature, against the `reference` of one light context. ValueError for no features."""

    def __init__(self, reference: Mapping[str, Sequence[float]]) -> None:
        if not reference:
            raise ValueError("a reference of input features needs at least one")
        self._reference = reference
        self._values: dict[str, deque[float]] = {name: deque(maxlen=LOOKS[-1]) for name in reference}

    def update(self, features: Mapping[str, float]) -> None:
        """Take one sample's features. Raises KeyError for a missing one."""
        for name, value in {name: float(features[name]) for name in self._reference}.items():
            self._values[name].append(value)

    def clear(self) -> None:
        for values in self._values.values():
            values.clear()

    def differ(self) -> bool:
        """Whether the newest 16, 32, 64, 128 or 200 of them are others than the reference's, by the daily test.

        The test is for independent values: a scene that stays long looks like a change, too.
        """
        kept = len(next(iter(self._values.values())))
        for count in LOOKS:
            if count > kept:
                break
            newest = {name: list(values)[-count:] for name, values in self._values.items()}
            if verdict(compare(self._reference, newest), LOOKS_LEVEL / len(LOOKS)) is not None:
                return True
        return False
