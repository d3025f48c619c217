"""`tidegauge evaluate …`: measure what is promised, print each figure beside its goal."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tidegauge.errors import TidegaugeError
from tidegauge.evaluation import detectors
from tidegauge.evaluation.figures import Report, goal, markdown, shown
from tidegauge.files import write_durably

_LOG_WIDTH = 140
F = TypeVar("F", bound=Callable[..., Any])


@click.group("evaluate")
def command() -> None:
    """Measure what is promised. Exit code 1 where a goal is missed."""


def _options(quick: str, seed: int | None = None) -> Callable[[F], F]:
    """The options of every evaluation. Without a `seed` a new one is drawn, and printed."""
    kind = click.Path(dir_okay=False, path_type=Path)
    drawn: dict[str, Any] = {"default": seed, "show_default": True} if seed is not None else {}
    words = "" if drawn else "Draws faults and pictures; without it a new one, which is printed."
    options = [
        click.option("--json", "json_file", type=kind, help="Write the figures here."),
        click.option("--markdown", "tables", type=kind, help="Write the tables here."),
        click.option("--quick", is_flag=True, help=quick),
        click.option("--seed", type=int, help=words, **drawn),
        click.option("--jobs", type=click.IntRange(min=0), default=0, help="Processes; 0 for one a core."),
    ]

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@command.command("detectors")
@_options("Fewer streams: seconds instead of minutes, with wider errors.", 1)
@click.option("--only", default="", help="Only the parts whose name holds this text, such as `side by side`.")
def _detectors(json_file: Path | None, tables: Path | None, quick: bool, seed: int, jobs: int, only: str) -> None:
    """Simulate run lengths and delays of the detectors, side by side with others."""
    finish(detectors.evaluate(quick=quick, seed=seed, jobs=jobs, progress=progress, only=only), json_file, tables)


@command.command("attribution")
@_options("Fewer cases: a minute or two instead of a quarter of an hour.", 1)
def _attribution(json_file: Path | None, tables: Path | None, quick: bool, seed: int, jobs: int) -> None:
    """Faults of device and reference, changed scenes and faulty cameras: count how often the verdict is right."""
    from tidegauge.cli.board_parts import freeze
    from tidegauge.evaluation import attribution  # compiles and runs networks: heavy

    click.echo(attribution.conditions())
    finish(attribution.evaluate(freeze, quick, seed, jobs, progress), json_file, tables)


@command.command("acceptance")
@_options("Fewer cases: a minute or two instead of ten.", 1)
def _acceptance(json_file: Path | None, tables: Path | None, quick: bool, seed: int, jobs: int) -> None:
    """Devices that are wrong from the first frame, healthy ones, and upgrades: count what acceptance makes of them."""
    from tidegauge.evaluation import first_frame  # compiles and runs networks: heavy

    click.echo(first_frame.conditions())
    finish(first_frame.evaluate(quick, seed, jobs, progress), json_file, tables)


@command.command("comparison")
@_options("Fewer cases: about a minute instead of several.")
def _comparison(json_file: Path | None, tables: Path | None, quick: bool, seed: int | None, jobs: int) -> None:
    """Put faults drawn at random into networks on the virtual board, and count how often the comparison is right."""
    from tidegauge.evaluation import comparison  # compiles and runs networks: heavy

    drawn = secrets.randbelow(1 << 31) if seed is None else seed
    click.echo(f"Seed {drawn}. {comparison.conditions()}")
    finish(comparison.evaluate(quick, drawn, jobs, progress), json_file, tables)


@command.command("advice")
@_options("One case of each kind a network: a minute or two instead of ten.")
def _advice(json_file: Path | None, tables: Path | None, quick: bool, seed: int | None, jobs: int) -> None:
    """Paste the report's advice into a compile, run again, and compare the error with what the report foretold."""
    from tidegauge.evaluation import advice  # compiles and runs networks: heavy

    drawn = secrets.randbelow(1 << 31) if seed is None else seed
    click.echo(f"Seed {drawn}. {advice.conditions()}")
    finish(advice.evaluate(quick, drawn, jobs, progress), json_file, tables)


@command.command("durability")
@_options("Every tenth step is cut instead of every one.", 1)
@click.option("--histories", type=click.IntRange(min=1), default=10_000, show_default=True, help="Random ones.")
def _durability(json_file: Path | None, tables: Path | None, quick: bool, seed: int, jobs: int, histories: int) -> None:
    """Cut the power at every step of random histories of the spool, on a disk that keeps only what was synced."""
    from tidegauge.evaluation import durability

    finish(durability.evaluate(histories, seed, jobs, progress, 0.1 if quick else 1.0), json_file, tables)


@command.command("chaos")
@click.option("--rounds", type=click.IntRange(min=1), default=200, show_default=True, help="Kills, in turn.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the moments of the kills.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here.")
@click.option("--markdown", "tables", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables here.")
@click.option("--keep", type=click.Path(path_type=Path), help="Leave the folder, logs included, as this new one.")
def _chaos(rounds: int, seed: int, json_file: Path | None, tables: Path | None, keep: Path | None) -> None:
    """Kill board, broker and collector by SIGKILL in turn while bundles are on their way; count what was lost."""
    from tidegauge.evaluation import chaos

    if keep is not None and keep.exists():
        raise TidegaugeError(f"{keep} exists", "name a new folder for --keep")
    finish(chaos.evaluate(rounds, seed, keep and keep.resolve(), progress), json_file, tables)


def progress(text: str) -> None:
    click.echo(text, err=True)


def finish(report: Report, json_file: Path | None, tables: Path | None) -> None:
    """Write and show the figures; exit code 1 where a goal is missed."""
    if json_file is not None:
        write_durably(json_file, msgspec.json.format(msgspec.json.encode(report)))
    if tables is not None:
        write_durably(tables, markdown(report).encode())
    show(Console(width=None if sys.stdout.isatty() else _LOG_WIDTH), report)
    if report.missed:
        sys.exit(1)


@command.command("matching")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here.")
@click.option("--markdown", "tables", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables here.")
@click.option("--quick", is_flag=True, help="Two draws a network instead of twenty.")
@click.option("--seed", type=int, default=1, show_default=True)
def _matching(json_file: Path | None, tables: Path | None, quick: bool, seed: int) -> None:
    """Compile models twice with other data ids, fusing and names, and count the layers that are matched right."""
    from tidegauge.evaluation import matching  # runs networks: heavy

    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    report = matching.evaluate(quick, seed, progress=lambda text: click.echo(text, err=True))
    if json_file is not None:
        write_durably(json_file, msgspec.json.format(msgspec.json.encode(report)))
    if tables is not None:
        write_durably(tables, markdown(report).encode())
    show(console, report)
    if report.missed:
        sys.exit(1)


def show(console: Console, report: Report) -> None:
    """One table a group."""
    for group, figures in report.groups().items():
        table = Table(title=group, title_justify="left", box=None, pad_edge=False)
        for column in ("", "measured", "goal", ""):
            table.add_column(column, justify="right" if column == "measured" else "left")
        for each in figures:
            words = goal(each).replace("MISSED", "[bold red]MISSED[/]")
            table.add_row(each.name, f"{shown(each.value)} {each.unit}", words, each.note)
        console.print(table)
        console.print()
    for row in report.not_run:
        console.print(f"{row.group}: {row.name}: {row.reason}")
    console.print(f"{len(report.missed)} of {sum(f.goal is not None for f in report.figures)} goals missed")


@command.command("reliability")
@click.option("--mode", "names", multiple=True, help="Only this failure mode; may be given again. Without: all.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows here.")
@click.option("--markdown", "tables", type=click.Path(dir_okay=False, path_type=Path), help="Write the table here.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Agents at a time.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Leave each mode's folder, logs included, in this new one."
)
def _reliability(
    names: tuple[str, ...], json_file: Path | None, tables: Path | None, jobs: int, keep: Path | None
) -> None:
    """Inject each failure mode of a board into a real agent on the virtual board: seen, alarmed, recovered, lost?"""
    from tidegauge.evaluation import reliability  # starts the virtual board: heavy

    if keep is not None and keep.exists():
        raise TidegaugeError(f"{keep} exists", "name a new folder for --keep")
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)

    def each(table: reliability.Table) -> None:
        if json_file is not None:
            write_durably(json_file, table.encoded())
        if tables is not None:
            write_durably(tables, reliability.markdown(table).encode())

    table = reliability.evaluate(reliability.named(names), jobs, progress, keep and keep.resolve(), each)
    for row in table.rows:
        mark = "[bold red]MISSED[/]" if row.missed else "[green]met[/]"
        console.print(f"[bold]{row.mode.name}[/] ({row.mode.does}): {mark}")
        for name, cell in list(zip(reliability.COLUMNS, reliability.cells(row), strict=True))[1:]:
            console.print(f"  {name:<48} ", end="", markup=False)
            console.print(cell, markup=False, emoji=False, soft_wrap=True)
    for left in table.not_run:
        console.print(f"{left.name}: not run: {left.reason}", markup=False)
    console.print(f"{len(table.missed)} of {len(table.rows)} modes missed a goal")
    if table.missed:
        sys.exit(1)
