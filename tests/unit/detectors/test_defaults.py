"""The defaults of the stack are in one file; an agent that is told nothing goes by them."""

from __future__ import annotations

import msgspec

from tidegauge.agent.acceptance import rules
from tidegauge.agent.config import AgentConfig
from tidegauge.camera.config import CameraConfig
from tidegauge.detectors import defaults
from tidegauge.detectors.acceptance import AcceptanceRules
from tidegauge.link.config import LinkConfig


def test_an_agent_that_is_told_nothing_goes_by_the_defaults() -> None:
    config = AgentConfig("d", "s", "p", CameraConfig("synthetic", "x"), LinkConfig())
    told = rules(config)
    assert told == msgspec.structs.replace(AcceptanceRules(), samples=config.acceptance.samples)
    assert told.max_loss == defaults.MAX_LOSS
    assert told.false_alarms_per_year == defaults.FALSE_ALARMS_A_YEAR
    assert (config.input_drift.window, config.input_drift.interval) == (defaults.WINDOW, defaults.INTERVAL)
    assert (config.contexts.samples, config.contexts.hold) == (defaults.CONTEXT_SAMPLES, defaults.CONTEXT_HOLD)
    assert msgspec.structs.asdict(config.camera_health) == defaults.HOLD
