"""What says that the device's answers must not be taken for right: it goes out with each of them. Pure.

An alarm of supervision is none of it: an accelerator that hung and has been proven by a device run answers rightly, one
that doesn't run gives no answer. Nor is an alarm whose verdict is that the reference is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegauge.agent.state import Latched
from tidegauge.agent.supervision import NAMES


def doubts(alarms: Iterable[Latched]) -> tuple[str, ...]:
    """Detectors of those latched alarms that put the answers in doubt."""
    return tuple(each.detector for each in alarms if each.verdict != "reference" and each.detector not in NAMES)
