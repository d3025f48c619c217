"""`tidegauge evaluate …`: measure what is promised, print each figure beside its goal."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tidegauge.evaluation import detectors
from tidegauge.evaluation.figures import Report, goal, markdown
from tidegauge.files import write_durably

_LOG_WIDTH = 140


@click.group("evaluate")
def command() -> None:
    """Measure what is promised. Exit code 1 where a goal is missed."""


@command.command("detectors")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here.")
@click.option("--markdown", "tables", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables here.")
@click.option("--quick", is_flag=True, help="Fewer streams: seconds instead of minutes, with wider errors.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--jobs", type=click.IntRange(min=0), default=0, help="Processes; 0 for one a core.")
def _detectors(json_file: Path | None, tables: Path | None, quick: bool, seed: int, jobs: int) -> None:
    """Simulate run lengths and delays of the detectors, side by side with others."""
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    report = detectors.evaluate(quick=quick, seed=seed, jobs=jobs, progress=lambda text: click.echo(text, err=True))
    if json_file is not None:
        write_durably(json_file, msgspec.json.format(msgspec.json.encode(report)))
    if tables is not None:
        write_durably(tables, markdown(report).encode())
    show(console, report)
    if report.missed:
        sys.exit(1)


@command.command("comparison")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here.")
@click.option("--markdown", "tables", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables here.")
@click.option("--quick", is_flag=True, help="Fewer cases: a minute or two instead of a quarter of an hour.")
@click.option("--seed", type=int, help="Draws faults and pictures; without it a new one, which is printed.")
@click.option("--jobs", type=click.IntRange(min=0), default=0, help="Processes; 0 for one a core.")
def _comparison(json_file: Path | None, tables: Path | None, quick: bool, seed: int | None, jobs: int) -> None:
    """Put faults drawn at random into networks on the virtual board, and count how often the comparison is right."""
    from tidegauge.evaluation import comparison  # compiles and runs networks: heavy

    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    drawn = secrets.randbelow(1 << 31) if seed is None else seed
    console.print(f"Seed {drawn}. {comparison.conditions()}", markup=False)
    report = comparison.evaluate(quick, drawn, jobs, progress=lambda text: click.echo(text, err=True))
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
            table.add_row(each.name, f"{each.value:.4g} {each.unit}", words, each.note)
        console.print(table)
        console.print()
    for row in report.not_run:
        console.print(f"{row.group}: {row.name}: {row.reason}")
    console.print(f"{len(report.missed)} of {sum(f.goal is not None for f in report.figures)} goals missed")
