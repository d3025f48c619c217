"""`tidegauge status`: what the agent on this board is at."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tidegauge.agent.control import ask
from tidegauge.agent.control_messages import GetStatus
from tidegauge.agent.status import StatusReport
from tidegauge.cli.running import json_option, state_folder, state_options


@click.command("status")
@state_options
@json_option
def command(config: Path | None, state: Path | None, as_json: bool) -> None:
    """Print phase, reference, alarms, captures, link, spool, workers and camera of the running agent."""
    report = ask(state_folder(config, state), GetStatus()).status
    assert report is not None  # GetStatus is always answered with one
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
        return
    Console(soft_wrap=True).print(render(report))


def render(report: StatusReport) -> Group:
    """The report as tables for a terminal."""
    parts: list[Table | Text] = [_overview(report)]
    if report.alarms:
        parts.append(_alarms(report))
    parts.append(_workers(report))
    return Group(*parts)


def _overview(report: StatusReport) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    virtual = " VIRTUAL" if report.virtual else ""
    table.add_row("device", f"{report.device}, model {report.model}, version {report.version}{virtual}")
    health = Text(f"{report.health}: {report.health_sentence}", style="green" if report.healthy else "red")
    table.add_row("health", health)
    table.add_row("phase", f"{report.phase}, {100 * report.progress:.0f} %")
    table.add_row("acceptance", _acceptance(report))
    for name, share in (("20 %", "0.2"), ("50 %", "0.5")):
        if report.reference is not None:
            hours = report.reference.hours[share]
            found = "never" if hours is None else f"after {hours:.2g} hours on average"
            table.add_row(f"{name} disagreement", f"found {found}")
    for detector, evidence in report.evidence.items():
        table.add_row(f"evidence {detector}", f"{evidence.value:.2f} of {evidence.limit:.2f}")
    if report.holding:
        table.add_row("wrong now", Text(report.holding, style="red"))
    suspect = ", suspect since a hang" if report.suspect else ""
    table.add_row("accelerator", f"{report.accelerator}{suspect}, {report.replaced_today} workers replaced in 24 hours")
    table.add_row("camera", _camera(report))
    table.add_row("captures", _captures(report))
    table.add_row("link", _link(report))
    spool = report.spool
    table.add_row("spool", f"{spool.bundles} bundles, {spool.bytes / 2**20:.1f} of {spool.limit / 2**20:.0f} MiB")
    return table


def _acceptance(report: StatusReport) -> str:
    acceptance, reference = report.acceptance, report.reference
    if reference is not None:
        return (
            f"accepted: limit m0 {reference.m0:.4f}, mean loss {reference.mean:.4f}, block of {reference.block} samples"
        )
    if acceptance.left is None:
        return acceptance.state
    return f"{acceptance.state}, {100 * acceptance.progress:.0f} %, ends in about {_duration(acceptance.left)}"


def _camera(report: StatusReport) -> str:
    camera = report.camera
    age = "no frame yet" if camera.frame_age is None else f"last frame {camera.frame_age:.1f} s ago"
    return f"{camera.description or 'not open'}, {age}{f', {camera.problem}' if camera.problem else ''}"


def _captures(report: StatusReport) -> str:
    captures = report.captures
    counts = ", ".join(f"{count} {result}" for result, count in captures.results.items())
    refused = ", ".join(f"{reason} {count}" for reason, count in captures.refusals.items() if count)
    step = f"; now {captures.step}" if captures.step else ""
    last = f"; last {captures.last}" if captures.last else ""
    return f"{counts}{f' ({refused})' if refused else ''}{step}{last}"


def _link(report: StatusReport) -> str:
    link = report.link
    state = "connected" if link.connected else f"not connected{f' ({link.error})' if link.error else ''}"
    age = "never answered" if link.answer_age is None else f"last answer {_duration(link.answer_age)} ago"
    return f"{state}, collector {age}, {link.bundles_sent} bundles sent"


def _alarms(report: StatusReport) -> Table:
    table = Table(title="alarms, latched until `tidegauge alarm clear`", title_justify="left")
    for name in ("since", "detector", "verdict", "what"):
        table.add_column(name, overflow="fold")
    for alarm in report.alarms:
        since = datetime.fromtimestamp(alarm.wall).astimezone().isoformat(" ", "seconds")
        table.add_row(since, alarm.detector, alarm.verdict, Text(alarm.message))
    return table


def _workers(report: StatusReport) -> Table:
    table = Table(title="workers", title_justify="left")
    for name in ("name", "pid", "generation", "restarts", "state"):
        table.add_column(name, overflow="fold")
    for worker in report.workers:
        pid = "-" if worker.pid is None else str(worker.pid)
        table.add_row(worker.name, pid, str(worker.generation), str(worker.restarts), Text(worker.state))
    return table


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"
