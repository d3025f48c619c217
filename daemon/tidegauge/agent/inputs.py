"""Whether the inputs still look like those of acceptance: windows of a day, and what an alarm is decomposed by."""

from __future__ import annotations

import logging
from collections import deque

from tidegauge.agent.reference import UNSEEN, InputReference, bins
from tidegauge.agent.samples import Sample
from tidegauge.agent.watch_config import InputDriftConfig
from tidegauge.attribution import Decomposition, decompose
from tidegauge.clocks import Monotonic
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.newest import NewestInputs
from tidegauge.detectors.windows import DriftState, InputDrift

log = logging.getLogger(__name__)

#: Newest samples that an alarm is decomposed by; fewer than the second tell nothing.
RECENT, FEWEST = 64, 8
#: The inputs have changed when so many of the newest are unlike any that acceptance saw.
MOST_UNSEEN = 0.5


class InputWatch:
    """Of one accepted reference. `states`: windows under way, from before a restart."""

    def __init__(
        self,
        reference: InputReference | None,
        config: InputDriftConfig,
        now: Monotonic,
        states: dict[str, DriftState] | None = None,
    ) -> None:
        self._reference = reference
        self._recent: deque[tuple[str, float]] = deque(maxlen=RECENT)
        self._windows: dict[str, InputDrift] = {}
        self._drifted: dict[str, Alarm] = {}
        self._newest: dict[str, NewestInputs] = {}
        self._context = ""
        for context, features in (reference.features if reference is not None else {}).items():
            if not features or min(len(values) for values in features.values()) < config.window:
                continue
            window = InputDrift(features, now, config.window, config.interval)
            if states and context in states and set(states[context].values) == set(features):
                window.restore(states[context], now)
            self._windows[context] = window
            self._newest[context] = NewestInputs(features)

    def update(self, now: Monotonic, sample: Sample) -> tuple[bool, Alarm | None]:
        """One sample of a healthy camera. Whether a verdict was given on the inputs of its context, and the warning."""
        if self._reference is not None:
            self._recent.append((self._reference.kind_of(sample.context, sample.features), sample.loss))
        window = self._windows.get(sample.context)
        if window is None or not sample.settled:
            return False, None
        self._context = sample.context
        self._newest[sample.context].update(sample.features)
        judged, alarm = window.update(now, sample.features)
        if judged:
            self._drifted.pop(sample.context, None)
            if alarm is not None:
                self._drifted[sample.context] = alarm
        return judged, alarm

    def limit(self, sample: Sample) -> float | None:
        """m0 of the sample's kind of input; None for a kind that acceptance never saw."""
        if self._reference is None:
            return None
        return self._reference.limits.get(self._reference.kind_of(sample.context, sample.features))

    @property
    def drifted(self) -> Alarm | None:
        """A context's warning that its latest window gave, while there is one."""
        return next(iter(self._drifted.values()), None)

    @property
    def contexts(self) -> tuple[str, ...]:
        """Light contexts whose inputs are judged."""
        return tuple(sorted(self._windows))

    @property
    def changed(self) -> bool:
        """Whether the inputs are others than at acceptance, as far as is known now: for a verdict that can't wait."""
        if self._drifted or (self._context in self._newest and self._newest[self._context].differ()):
            return True
        unseen = sum(kind == UNSEEN for kind, _ in self._recent)
        return len(self._recent) >= FEWEST and unseen > MOST_UNSEEN * len(self._recent)

    def decomposition(self) -> Decomposition | None:
        """The change of the mean loss since acceptance, of the newest samples; None while there are too few."""
        if self._reference is None or len(self._recent) < FEWEST:
            return None
        return decompose(self._reference.kinds, bins(self._recent))

    def clear(self) -> None:
        """Forget the newest samples and the warnings; windows under way go on."""
        self._recent.clear()
        self._drifted.clear()
        for newest in self._newest.values():
            newest.clear()

    def states(self, now: Monotonic) -> dict[str, DriftState]:
        return {context: window.state(now) for context, window in self._windows.items()}
