"""`tidegauge collector run`."""

from __future__ import annotations

from pathlib import Path

import click

from tidegauge.cli.collector_keys import keys
from tidegauge.collector import config, startup


@click.group("collector")
def command() -> None:
    """The collector: takes bundles in, compares them, shows the result."""


command.add_command(keys)


@command.command("run")
@click.option("--config", "path", type=click.Path(path_type=Path), required=True, help="collector.toml")
def run(path: Path) -> None:
    """Run until SIGTERM or Ctrl-C. Prints the address of its pages when they can be opened."""
    loaded = config.load(path)
    with startup.claimed(loaded) as listener:
        from tidegauge.collector import serve  # seconds of imports, which a refusal need not wait for

        serve.run(loaded, listener)
