"""`tidegauge alarm clear`."""

from __future__ import annotations

from pathlib import Path

import click

from tidegauge.agent.control_messages import ClearAlarms
from tidegauge.cli.running import json_option, state_options, tell


@click.group("alarm")
def command() -> None:
    """Alarms of the agent on this board."""


@command.command("clear")
@state_options
@json_option
def clear(config: Path | None, state: Path | None, as_json: bool) -> None:
    """Unlatch all alarms: evidence to zero, the reference kept. An accelerator that was given up is tried again."""
    tell(ClearAlarms(), config, state, as_json=as_json)
