"""Light contexts: day, low light, infrared, with hysteresis. What is compared is compared within one context.

An unstratified detector alarms at sunset. A context with too few reference samples collects, and does not test.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidegauge.detectors.defaults import BRIGHTER, CONTEXT_HOLD, CONTEXT_SAMPLES, DARKER, GREYER, MORE_COLOURFUL

Context = Literal["day", "low_light", "infrared"]

#: In words; "unknown" where no frame can be looked at.
WORDS = {"day": "daylight", "low_light": "low light", "infrared": "infrared light", "unknown": "unknown light"}


class Light(msgspec.Struct, frozen=True):
    """Of one frame: mean `luma` and mean `chroma`, 0…255 each; `gain` of the sensor relative to its most, if known."""

    luma: float
    chroma: float
    gain: float | None = None


class ContextState(msgspec.Struct, frozen=True):
    """`wanted` since `since` (monotonic seconds), where frames look unlike `context`."""

    context: Context | None
    wanted: Context | None
    since: float


class LightContext:
    """Feed it every frame that may be judged; it says which context the frame belongs to."""

    def __init__(self, hold: float = CONTEXT_HOLD) -> None:
        self.hold = hold
        self.context: Context | None = None
        self._wanted: Context | None = None
        self._since = 0.0

    def update(self, now: float, light: Light) -> Context:
        """The context at `now`. The first frame decides at once, later ones when they agree for `hold` seconds."""
        looks = _looks(light, self.context)
        if self.context is None:
            self.context = looks
        if looks == self.context:
            self._wanted = None
        elif looks != self._wanted:
            self._wanted, self._since = looks, now
        elif now - self._since >= self.hold:
            self.context, self._wanted = looks, None
        return self.context

    @property
    def changing(self) -> bool:
        """Whether frames look unlike the context: a sample of dusk belongs to neither, and is not tested."""
        return self._wanted is not None

    def state(self) -> ContextState:
        return ContextState(self.context, self._wanted, self._since)

    def restore(self, state: ContextState, now: float) -> None:
        """Go on after a restart; waiting begins anew, since the clock has."""
        self.context, self._wanted, self._since = state.context, state.wanted, now


def _looks(light: Light, context: Context | None) -> Context:
    """A threshold lies beyond the middle for what would end the present context."""
    chroma = MORE_COLOURFUL if context == "infrared" else GREYER
    if light.chroma < chroma:
        return "infrared"
    # A sensor at its highest gain has low light, however bright it makes the picture.
    dark = light.luma < (BRIGHTER if context == "low_light" else DARKER)
    strained = light.gain is not None and light.gain >= (0.7 if context == "low_light" else 0.9)
    return "low_light" if dark or strained else "day"


class Commissioning(msgspec.Struct):
    """How many reference samples each context has."""

    counts: dict[str, int] = msgspec.field(default_factory=dict)
    fewest: int = CONTEXT_SAMPLES

    def collect(self, context: Context) -> None:
        self.counts[context] = self.counts.get(context, 0) + 1

    def testable(self, context: Context) -> bool:
        """Whether the context has a reference to test against."""
        return self.counts.get(context, 0) >= self.fewest
