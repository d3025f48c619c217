"""`tidegauge version`."""

from __future__ import annotations

import platform

import click

from tidegauge import __version__


@click.command("version")
def command() -> None:
    """Print the version of Tidegauge and of Python."""
    click.echo(f"tidegauge {__version__} (Python {platform.python_version()}, {platform.machine()})")
