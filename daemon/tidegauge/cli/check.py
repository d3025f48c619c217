"""`tidegauge check`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from tidegauge.agent.config import read
from tidegauge.agent.configuration_probe import settings_of
from tidegauge.exitcodes import ExitCode
from tidegauge.preflight.context import VARIABLES, Context
from tidegauge.preflight.probe import Result
from tidegauge.preflight.registry import MODULES
from tidegauge.preflight.runner import run_all, run_one

#: The one check that the agent itself brings along, since the file is its own.
CONFIGURATION = "tidegauge.agent.configuration_probe"
WORDS = {"ok": "ok", "warning": "warning", "failed": "failed", "not_applicable": "not applicable"}
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "not_applicable": "bright_black"}


class Report(msgspec.Struct, frozen=True):
    """`--json`. `passed`: no check failed."""

    version: int
    passed: bool
    virtual: bool
    checks: tuple[Result, ...]


@click.command("check")
@click.option("--config", "config", type=click.Path(path_type=Path), help="agent.toml; without it, only the board.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout instead of lines.")
def command(config: Path | None, as_json: bool) -> None:
    """Try every precondition of the agent, before anything is opened on the accelerator.

    One line a check. Exit code 0 when no check failed (warnings are allowed), else 2.
    """
    results, context = run_checks(config, quiet=as_json)
    failures = [result.id for result in results if result.status == "failed"]
    if as_json:
        report = Report(1, not failures, context.virtual, tuple(results))
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        click.echo(summary(results))
    sys.exit(ExitCode.UNUSABLE if failures else ExitCode.FINE)


def run_checks(config: Path | None, *, quiet: bool) -> tuple[list[Result], Context]:
    """All checks, each told in a line as it is known, unless `quiet`; and what they looked at."""
    environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    context = Context(str(config) if config else "", environment=environment, checker=os.getpid())
    results: list[Result] = []
    first = run_one(CONFIGURATION, context)
    _tell(first, results, quiet=quiet)
    if config is not None and first.status == "ok":
        context = msgspec.structs.replace(context, settings=settings_of(read(config)))
    for result in _others(context):
        _tell(result, results, quiet=quiet)
    return results, context


def _others(context: Context) -> Iterable[Result]:
    return run_all(MODULES, context)


def _tell(result: Result, results: list[Result], *, quiet: bool) -> None:
    results.append(result)
    if quiet:
        return
    # click leaves the colours out where stdout is no terminal
    word = click.style(f"{WORDS[result.status]:<14}", fg=_COLOURS[result.status], bold=result.status == "failed")
    cure = f"  → {result.cure}" if result.cure else ""
    click.echo(f"{result.id:<16} {word} {result.found}{cure}")


def summary(results: list[Result]) -> str:
    counts = {status: sum(result.status == status for result in results) for status in WORDS}
    return ", ".join(f"{counts[status]} {word}" for status, word in WORDS.items())
