"""What the agent tells the collector of its phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegauge.agent.bus import Bus
from tidegauge.agent.events import PhaseChanged
from tidegauge.agent.reporting import Reporting
from tidegauge.agent.state import StateStore
from tidegauge.demo.settings import profile
from tidegauge.link.wire import Status
from tidegauge.metrics import AgentMetrics


class Heard:
    """Stands for the uplink: keeps what it is told to say."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []

    def set_status(self, status: Status) -> None:
        self.statuses.append(status)

    def wake(self) -> None:
        """Nothing waits here."""


def test_small_steps_of_the_progress_add_up(tmp_path: Path) -> None:
    bus, heard = Bus(), Heard()
    nothing: Any = None
    model = profile(tmp_path)
    uplink: Any = heard
    Reporting(nothing, model, StateStore(tmp_path), uplink, nothing, bus, AgentMetrics(model.name))
    for number in range(1001):
        bus.emit(PhaseChanged("acceptance", number / 1000))
    told = [status.progress for status in heard.statuses if status.phase == "acceptance"]
    assert 90 <= len(told) <= 110
    assert told[-1] >= 0.99
    assert told == sorted(told)
