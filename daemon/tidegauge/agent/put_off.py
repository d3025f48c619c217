"""A capture that could not be taken while an application held its session, until that application starts again.

It is taken before the application opens its next session, of the pair that was recorded when it was put off. It does
not outlive the agent: recorded frames are not written to the disk for it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidegauge.agent.events import AlarmRaised
from tidegauge.agent.pipeline import PipelineService, PipelineUnavailable
from tidegauge.agent.preconditions import Refused
from tidegauge.agent.privacy import PrivatePairs
from tidegauge.agent.shadow import ShadowUnavailable
from tidegauge.agent.state import StateStore


class PutOff:
    """The newest one only. `seconds`: how long a capture may take; `take` begins it."""

    def __init__(
        self,
        pipeline: PipelineService,
        private: PrivatePairs,
        store: StateStore,
        seconds: Callable[[], float],
        take: Callable[[AlarmRaised], None],
    ) -> None:
        self._pipeline, self._private, self._store = pipeline, private, store
        self._seconds, self._take = seconds, take
        self._waiting: tuple[AlarmRaised, str, Callable[[], None]] | None = None
        pipeline.on_held = self._on_held

    async def add(self, alarm: AlarmRaised) -> str:
        """What to add to the refusal; empty for an application that never waits."""
        hold = self._pipeline.hold_next
        if hold is None or alarm.evidence is None:
            return ""
        try:  # now, while there is a session that could run it anew
            evidence = await self._private.for_capture(alarm.evidence)
        except (Refused, PipelineUnavailable, ShadowUnavailable, TimeoutError) as error:
            why = str(error) or "the run for privacy took too long"
            return f"; nor can it be taken at its next start: {why}"
        # With the artifacts that it belongs to: they may be others by then.
        self._waiting = msgspec.structs.replace(alarm, evidence=evidence), self._store.state.artifacts, hold
        hold()
        return f"; it is put off until its next start, with `before_opening` of {self._seconds():.0f} s: restart it"

    def _on_held(self, seconds: float) -> str:
        """An application waits with its session. Why no capture is begun, empty where one is."""
        if self._waiting is None:
            return "none was put off"
        alarm, artifacts, hold = self._waiting
        if artifacts != self._store.state.artifacts:
            self._waiting = None
            return "what was put off belongs to other artifacts"
        if seconds < self._seconds():
            hold()
            return (
                f"it waits for {seconds:g} s only, and a capture may take {self._seconds():.0f} s:"
                " let `before_opening` wait so long"
            )
        self._waiting = None
        self._take(alarm)
        return ""
