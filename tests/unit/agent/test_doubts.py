"""Which latched alarms put the device's answers in doubt."""

from __future__ import annotations

from tidegauge.agent.doubts import doubts
from tidegauge.agent.state import Latched


def latched(detector: str, verdict: str) -> Latched:
    return Latched("1", detector, verdict, "", 0.0)


def test_only_alarms_that_blame_the_answers_doubt_them() -> None:
    alarms = (
        latched("known_answer_device", "accelerator"),
        latched("accelerator_hung", "accelerator"),
        latched("accelerator_slow", "accelerator"),
        latched("known_answer_reference", "reference"),
        latched("nmse", "undecided"),
        latched("frozen", "camera"),
    )
    assert doubts(alarms) == ("known_answer_device", "nmse", "frozen")
    assert doubts(()) == ()
