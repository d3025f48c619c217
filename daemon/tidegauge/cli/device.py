"""`tidegauge device`: boards from the operator's side, over the broker: commands signed, answers with the state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegauge.agent.control import CommandRefused
from tidegauge.agent.control_messages import (
    AnyCommand,
    CaptureNow,
    ClearAlarms,
    GetStatus,
    LogLevel,
    Pull,
    Rebaseline,
    Reload,
    SelfTest,
    SetLogLevel,
    SetSampling,
)
from tidegauge.agent.status import StatusReport
from tidegauge.cli.numbers import FiniteRange
from tidegauge.cli.running import json_option
from tidegauge.cli.status import render
from tidegauge.errors import TidegaugeError
from tidegauge.link.command_wire import CommandAnswer
from tidegauge.link.operator import load, operator
from tidegauge.link.wire import Status

#: Longest that a capture, a golden round and anything else takes from its beginning, seconds.
CAPTURE_SECONDS, ROUND_SECONDS, SHORT_SECONDS = 3600.0, 400.0, 60.0

config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    default=Path("~/.config/tidegauge/operator.toml").expanduser(),
    envvar="TIDEGAUGE_OPERATOR",
    show_default=True,
    help="operator.toml: the broker, and the operator's key.",
)


def device_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """DEVICE, and how long to wait for it."""
    wait = click.option("--timeout", type=FiniteRange(1), default=30.0, help="Seconds until it must have answered.")
    life = click.option("--life", type=FiniteRange(1, 7 * 86400), default=300.0, help="Seconds until it expires.")
    return click.argument("device")(config_option(wait(life(json_option(function)))))


@click.group("device")
def command() -> None:
    """Command boards over the broker. A board obeys keys that it pins (`commands.operators` in its agent.toml)."""


@command.command("list")
@config_option
@click.option("--timeout", type=FiniteRange(1), default=30.0, help="Seconds to listen at most.")
@json_option
def list_devices(path: Path, timeout: float, as_json: bool) -> None:
    """Print the boards that this broker knows, as they last told of themselves."""
    found = asyncio.run(operator(load(path), needs_key=False).devices(timeout))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=2).decode())
        return
    table = Table("device", "state", "phase", "alarm", "model", "version")
    for name, status in sorted(found.items()):
        table.add_row(*(Text(cell) for cell in _row(name, status)))
    Console(soft_wrap=True).print(table)


def _row(name: str, status: Status) -> tuple[str, ...]:
    """A lost board's phase and alarm are those of its will: nothing is known of them."""
    phase = f"{status.phase}, {100 * status.progress:.0f} %" if status.phase else ""
    return (
        name,
        status.state,
        phase,
        status.alarm,
        status.model,
        status.version + (" VIRTUAL" if status.virtual else ""),
    )


@command.command("status")
@device_options
def status(device: str, path: Path, timeout: float, life: float, as_json: bool) -> None:
    """Print what the agent on DEVICE is doing."""
    _ask(device, GetStatus(), path, timeout, life, as_json, whole=True)


@command.command("capture")
@device_options
def capture(device: str, path: Path, timeout: float, life: float, as_json: bool) -> None:
    """Take a capture of the next frame now. All limits of the board hold."""
    _ask(device, CaptureNow(), path, timeout, life, as_json, last=CAPTURE_SECONDS)


@command.command("pull")
@device_options
@click.argument("bundle")
def pull(device: str, bundle: str, path: Path, timeout: float, life: float, as_json: bool) -> None:
    """Send a bundle of the board's spool before all others, whatever the hour.

    It needs no key: the board sends what the collector wants and its privacy allows, within its bytes a day.
    """
    _ask(device, Pull(bundle), path, timeout, life, as_json, needs_key=False)


@command.command("set-sampling")
@device_options
@click.argument("gap_mean", type=FiniteRange(0, 86400, min_open=True))
@click.option("--floor", type=FiniteRange(0, 86400), help="Seconds at least; a third of the mean by default.")
def set_sampling(
    device: str, gap_mean: float, floor: float | None, path: Path, timeout: float, life: float, as_json: bool
) -> None:
    """Take a shadow sample every GAP_MEAN seconds on average, within the CPU budget, until agent.toml is read again."""
    _ask(device, SetSampling(gap_mean, floor), path, timeout, life, as_json)


@command.command("alarm-clear")
@device_options
def alarm_clear(device: str, path: Path, timeout: float, life: float, as_json: bool) -> None:
    """Unlatch all alarms: evidence to zero, the reference kept."""
    _ask(device, ClearAlarms(), path, timeout, life, as_json)


@command.command("rebaseline")
@device_options
def rebaseline(device: str, path: Path, timeout: float, life: float, as_json: bool) -> None:
    """Start a new acceptance. The board refuses while a symptom or a golden mismatch holds."""
    _ask(device, Rebaseline(), path, timeout, life, as_json)


@command.command("self-test")
@device_options
def self_test(device: str, path: Path, timeout: float, life: float, as_json: bool) -> None:
    """Run the golden tensors now, on both sides."""
    _ask(device, SelfTest(), path, timeout, life, as_json, last=ROUND_SECONDS)


@command.command("log-level")
@device_options
@click.argument("level", type=click.Choice(["debug", "info", "warning", "error"]))
def log_level(device: str, level: LogLevel, path: Path, timeout: float, life: float, as_json: bool) -> None:
    """Set the log level of the agent until it ends."""
    _ask(device, SetLogLevel(level), path, timeout, life, as_json)


@command.command("reload")
@device_options
def reload(device: str, path: Path, timeout: float, life: float, as_json: bool) -> None:
    """Read agent.toml again; says what was taken, and what waits for a restart."""
    _ask(device, Reload(), path, timeout, life, as_json)


def _ask(
    device: str,
    action: AnyCommand,
    path: Path,
    first: float,
    life: float,
    as_json: bool,
    *,
    last: float = SHORT_SECONDS,
    needs_key: bool = True,
    whole: bool = False,
) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    person = operator(load(path), needs_key=needs_key)
    console = Console(stderr=True)
    with console.status(f"{device}: waiting for its answer") as shown:

        def told(answer: CommandAnswer) -> None:
            shown.update(f"{device}: {answer.step}")
            if not console.is_terminal:
                click.echo(f"{device}: {answer.step}", err=True)

        answer = asyncio.run(person.ask(device, action, first=first, last=last, life=life, told=told))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    if answer.state != "done":
        raise CommandRefused(f"{device} {answer.state}{_why(answer)}: {answer.sentence}", answer.cure)
    if not as_json:
        _show(answer, whole)


def _why(answer: CommandAnswer) -> str:
    return f" ({answer.reason})" if answer.reason else ""


def _show(answer: CommandAnswer, whole: bool) -> None:
    if answer.sentence:
        click.echo(answer.sentence)
    if answer.status is None:
        return
    try:
        report = msgspec.convert(answer.status, StatusReport)
    except msgspec.ValidationError as error:
        problem = f"the device's state is of another version ({error})"
        raise TidegaugeError(problem, "see it by --json, or update this computer") from error
    if whole:
        Console(soft_wrap=True).print(render(report))
        return
    alarms = ", ".join(alarm.detector for alarm in report.alarms) or "none"
    click.echo(f"now: {report.health}, {report.phase} {100 * report.progress:.0f} %, alarms: {alarms}")
