"""`tidegauge bench …`: what the monitor costs on the machine it runs on."""

from __future__ import annotations

from pathlib import Path

import click

from tidegauge.cli.evaluate import finish, progress
from tidegauge.cli.numbers import FiniteRange
from tidegauge.evaluation import costs
from tidegauge.evaluation.overhead import Size

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group("bench")
def command() -> None:
    """Measure what the monitor costs on this machine. Exit code 1 where a goal is missed."""


@command.command("overhead")
@click.option("--json", "json_file", type=_FILE, help="Write the figures here.")
@click.option("--markdown", "tables", type=_FILE, help="Write the tables here.")
@click.option("--quick", is_flag=True, help="Five short rounds: half a minute instead of ten, with wider intervals.")
@click.option("--rounds", type=click.IntRange(min=2), default=20, show_default=True, help="Interleaved pairs.")
@click.option("--frames", type=click.IntRange(min=20), default=150, show_default=True, help="Of each loop in a round.")
@click.option("--device-ms", type=FiniteRange(min=0.1), default=1000 / 30, help="Of one device run; default 33.3.")
def _overhead(
    json_file: Path | None, tables: Path | None, quick: bool, rounds: int, frames: int, device_ms: float
) -> None:
    """Frames a second and latency without the monitor, with statistics only, and with shadow sampling.

    The workers are the product's own, the device is a wait. The monitor samples as often as its CPU budget lets it.
    """
    size = Size(5, 40, device_ms / 1000) if quick else Size(rounds, frames, device_ms / 1000)
    finish(costs.evaluate(size, quick, progress), json_file, tables)


@command.command("budget")
@click.option("--json", "json_file", type=_FILE, help="Write the figures here.")
@click.option("--markdown", "tables", type=_FILE, help="Write the tables here.")
@click.option("--quick", is_flag=True, help="A quarter of a minute a phase instead of a whole one.")
def _budget(json_file: Path | None, tables: Path | None, quick: bool) -> None:
    """Memory, CPU, start-up, wake-ups, threads and bytes written, of each process of an agent on the virtual board."""
    from tidegauge.evaluation import budget  # starts the virtual board: heavy

    finish(budget.evaluate(quick, progress), json_file, tables)


@command.command("soak")
@click.option("--minutes", type=FiniteRange(0.1), default=60.0, show_default=True)
@click.option("--json", "json_file", type=_FILE, help="Write the figures here.")
@click.option("--markdown", "tables", type=_FILE, help="Write the tables here.")
def _soak(minutes: float, json_file: Path | None, tables: Path | None) -> None:
    """An agent through 10,000 state changes, 1,000 reconnects and 500 replaced workers an hour: nothing may grow."""
    from tidegauge.evaluation import soak  # starts the virtual board: heavy

    finish(soak.evaluate(minutes, progress), json_file, tables)


@command.command("tap")
@click.option("--json", "json_file", type=_FILE, help="Write the figures here.")
@click.option("--markdown", "tables", type=_FILE, help="Write the tables here.")
@click.option("--quick", is_flag=True, help="A tenth of the frames.")
def _tap(json_file: Path | None, tables: Path | None, quick: bool) -> None:
    """What handing frames over costs an application that runs the model itself."""
    from tidegauge.evaluation import tap_cost  # loads the worker: heavy

    finish(tap_cost.evaluate(quick, progress), json_file, tables)
