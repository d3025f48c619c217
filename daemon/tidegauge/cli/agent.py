"""`tidegauge agent run`."""

from __future__ import annotations

from pathlib import Path

import click

from tidegauge.agent import app
from tidegauge.agent.config import load


@click.group("agent")
def command() -> None:
    """The agent on the board."""


@command.command("run")
@click.option("--config", "config", type=click.Path(path_type=Path), required=True, help="agent.toml")
def run(config: Path) -> None:
    """Watch the accelerator until SIGTERM or Ctrl-C."""
    loaded = load(config)
    app.log_to_stderr()
    app.run(loaded)
