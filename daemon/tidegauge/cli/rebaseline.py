"""`tidegauge rebaseline`."""

from __future__ import annotations

from pathlib import Path

import click

from tidegauge.agent.control_messages import Rebaseline
from tidegauge.cli.running import json_option, state_options, tell


@click.command("rebaseline")
@state_options
@json_option
def command(config: Path | None, state: Path | None, as_json: bool) -> None:
    """Start a new acceptance on this board: a new reference, all alarms cleared.

    Refused while a symptom or a golden mismatch holds, since a wrong device must not become its own reference.
    """
    tell(Rebaseline(), config, state, as_json=as_json)
