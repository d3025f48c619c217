"""The example files are valid, and the configuration reference is the one that the code generates."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tidegauge.agent.config import AgentConfig
from tidegauge.collector.config import CollectorConfig
from tidegauge.configuration import load_toml
from tidegauge.link.operator import OperatorConfig
from tidegauge.profile import Profile

ROOT = Path(__file__).resolve().parents[3]


def test_examples_hold_what_the_code_reads() -> None:
    load_toml(ROOT / "agent_config" / "agent.toml", AgentConfig)
    load_toml(ROOT / "agent_config" / "collector.toml", CollectorConfig)
    load_toml(ROOT / "agent_config" / "operator.toml", OperatorConfig)
    for path in (ROOT / "agent_config" / "profiles").glob("*.toml"):
        load_toml(path, Profile)


def test_the_reference_is_current() -> None:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "configuration_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "configuration.md").read_text()
    assert written == module.reference(), "run `make docs`"
