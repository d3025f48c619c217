"""What supervision found becomes an alarm: hung, crashed, slow, not offloaded, given up. Never a capture."""

from __future__ import annotations

from tidegauge.agent.alarms import AlarmBook
from tidegauge.agent.bus import Bus
from tidegauge.agent.events import AcceleratorDown, AcceleratorSlow, PipelineDown, TracesLeft
from tidegauge.agent.stage import symptoms_of
from tidegauge.bundles.manifest import Cause

#: Reason of `metrics.RESTART_REASONS` → detector's name. A session that can't be created is tried again first, and
#: becomes an alarm when it is given up.
DETECTORS = {
    "hung": "accelerator_hung",
    "create_hung": "accelerator_hung",
    "first_run_hung": "accelerator_hung",
    "stop_hung": "accelerator_hung",
    "not_offloaded": "not_offloaded",
    "exited": "accelerator_crashed",
    "failed": "accelerator_crashed",
}
#: Every detector of this module. None of them says that an answer is wrong.
NAMES = frozenset({*DETECTORS.values(), "accelerator_down", "accelerator_slow", "accelerator_traces"})


class Supervision:
    """Registers its handlers on the bus. An alarm of one name is latched once."""

    def __init__(self, alarms: AlarmBook, bus: Bus) -> None:
        self._alarms = alarms
        bus.on(PipelineDown, self._on_down)
        bus.on(AcceleratorDown, self._on_given_up)
        bus.on(AcceleratorSlow, self._on_slow)
        bus.on(TracesLeft, lambda event: self._raise("accelerator_traces", event.sentence, ("slow",), {}))

    def _on_down(self, event: PipelineDown) -> None:
        detector = DETECTORS.get(event.reason)
        if detector is not None:
            self._raise(detector, event.sentence, symptoms_of(event.reason), {})

    def _on_given_up(self, event: AcceleratorDown) -> None:
        self._raise("accelerator_down", event.sentence, event.symptoms, {})

    def _on_slow(self, event: AcceleratorSlow) -> None:
        sentence = (
            f"a device run takes {1000 * event.present:.1f} ms (median), {event.present / event.first:.1f} times as"
            f" long as at first ({1000 * event.first:.1f} ms)"
        )
        seconds = {"seconds": event.present, "first_seconds": event.first}
        self._raise("accelerator_slow", sentence, ("slow",), seconds)

    def _raise(self, detector: str, sentence: str, symptoms: tuple[str, ...], evidence: dict[str, float]) -> None:
        if self._alarms.is_latched(detector):
            return
        cause = Cause(detector, "accelerator", symptoms, evidence, sentence)
        self._alarms.latch([(detector, sentence)], cause, None, capture=False)
