"""`tidegauge collector run`."""

from __future__ import annotations

from pathlib import Path

import click

from tidegauge.collector import config, serve


@click.group("collector")
def command() -> None:
    """The collector: takes bundles in, compares them, shows the result."""


@command.command("run")
@click.option("--config", "path", type=click.Path(path_type=Path), required=True, help="collector.toml")
def run(path: Path) -> None:
    """Run until SIGTERM or Ctrl-C. Prints the address of its pages when they can be opened."""
    serve.run(config.load(path))
