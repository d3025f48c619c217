"""What the agent tells the collector of its phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegauge.agent.belonging import Belonging
from tidegauge.agent.bundling import Identity
from tidegauge.agent.bus import Bus
from tidegauge.agent.events import PhaseChanged
from tidegauge.agent.reporting import Reporting
from tidegauge.agent.state import Latched, StateStore
from tidegauge.demo.settings import profile
from tidegauge.detectors.acceptance import Accepted
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


def test_how_the_acceptance_of_what_runs_stands(tmp_path: Path) -> None:
    heard, store = Heard(), StateStore(tmp_path)
    nothing: Any = None
    model = profile(tmp_path)
    uplink: Any = heard
    reporting = Reporting(nothing, model, store, uplink, nothing, Bus(), AgentMetrics(model.name))
    assert (heard.statuses[-1].acceptance, heard.statuses[-1].sdk, heard.statuses[-1].artifacts) == ("", "", "")
    files = {"a_tidl_net.bin": "22" * 32, "b_tidl_net.bin": "11" * 32, "allowedNode.txt": "00" * 32}
    Belonging(store).begin(Identity("cam-1", model, files, "33" * 32, {"edgeai_sdk": "11.1", "kernel": "6.6"}, ""))
    told = reporting._status()
    assert (told.acceptance, told.sdk, told.artifacts) == ("running", "11.1", "11" * 32)
    store.update(accepted=Accepted(0.05, 0.01, 0.0, 0.02, 0.1, 0.05, 1.0, 10, 1e-4, 100, 60.0))
    assert reporting._status().acceptance == "accepted"
    store.update(alarms=(Latched("a-1", "acceptance", "accelerator", "It failed.", 1000.0),))
    assert reporting._status().acceptance == "failed"
