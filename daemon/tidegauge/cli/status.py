"""`tidegauge status`: what the agent on this board is at."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tidegauge.agent.contexts import ContextStatus
from tidegauge.agent.control import ask
from tidegauge.agent.control_messages import GetStatus
from tidegauge.agent.state import Latched
from tidegauge.agent.status import ConfigurationStatus, StatusReport
from tidegauge.cli.running import json_option, state_folder, state_options
from tidegauge.detectors.contexts import WORDS
from tidegauge.detectors.distance import Distance
from tidegauge.detectors.rates import ClassRate, by_severity


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
            table.add_row(f"{name} disagreement", found_after(report.reference.hours[share], report.reference.gap))
    if report.deterministic is False:
        table.add_row("known answers", "the device gives other bits each time: judged by the spread acceptance saw")
    for context, status in report.contexts.items():
        table.add_row(WORDS[context], _context(status))
    if report.distance is not None:
        table.add_row("from acceptance", _distance(report.distance))
    if report.rates:
        table.add_row("false alarms", false_alarms(report.rates, report.judged_inputs))
    table.add_row("shadow", _shadow(report))
    if report.holding:
        table.add_row("wrong now", Text(report.holding, style="red"))
    suspect = ", suspect since a hang" if report.suspect else ""
    table.add_row("accelerator", f"{report.accelerator}{suspect}, {report.replaced_today} workers replaced in 24 hours")
    if report.last_end:
        table.add_row("last end", Text(report.last_end))
    table.add_row("camera", _camera(report))
    table.add_row("captures", _captures(report))
    table.add_row("link", _link(report))
    if report.configuration is not None:
        table.add_row("configuration", _configuration(report.configuration))
    spool = report.spool
    table.add_row("spool", f"{spool.bundles} bundles, {spool.bytes / 2**20:.1f} of {spool.limit / 2**20:.0f} MiB")
    if spool.faults:
        named = ", ".join(f"{name} {count} times" for name, count in sorted(spool.faults.items()))
        table.add_row("spool's faults", Text(named, style="red"))
    return table


def _distance(distance: Distance) -> str:
    found = distance.difference
    return (
        f"mean loss {found.mean:+.4f} ({found.low:+.4f} to {found.high:+.4f} with 90 % confidence), "
        f"{distance.samples} samples of {_duration(distance.seconds)}"
    )


def found_after(hours: float | None, gap: float) -> str:
    """When a disagreement is found, with samples every `gap` seconds."""
    when = "never" if hours is None else f"after {hours:.2g} hours on average"
    return f"found {when}, at a sample every {gap:.3g} s"


def false_alarms(rates: Sequence[ClassRate], judged: Sequence[str]) -> str:
    """The stack's rate by severity, and what it is made of."""
    parts = ", ".join(f"{each.part} {each.per_year:.2g}" for each in rates if each.per_year)
    sums = "; ".join(f"{severity} {rate:.2g}" for severity, rate in by_severity(rates).items())
    inputs = f"inputs judged in {', '.join(WORDS[each] for each in judged)}" if judged else "inputs are not judged yet"
    return f"at most a year: {sums} ({parts}; {inputs})"


def _context(context: ContextStatus) -> str:
    if context.reference is None:
        if context.failed:
            return f"not tested: {context.failed}"
        return f"collects, {context.samples} of {context.needed} samples: not tested yet"
    evidence = ", ".join(f"{name} {value:.2f} of {limit:.2f}" for name, (value, limit) in context.evidence.items())
    grown = f", grown from {context.reference.block}" if context.block > context.reference.block else ""
    time = context.correlation_time
    now = "" if time is None else f", now {time:.1f}"
    return (
        f"evidence {evidence}; limit m0 {context.reference.m0:.4f} from {context.samples} samples, "
        f"{context.block} in an observation{grown}, correlation time {context.reference.correlation_time:.1f}{now}"
    )


def _shadow(report: StatusReport) -> str:
    shadow = report.shadow
    held = ", ".join(f"{reason} {count}" for reason, count in shadow.held_out.items() if count)
    counts = ", ".join(f"{count} {result.replace('_', ' ')}" for result, count in shadow.results.items() if count)
    parts = [f"a sample every {shadow.gap:.3g} s", counts or "none yet", f"held out: {held or 'none'}"]
    if shadow.waiting:
        parts.insert(0, f"stands back ({shadow.waiting.replace('_', ' ')})")
    if shadow.mix_distance is not None:
        parts.append(f"light of skipped samples differs by {shadow.mix_distance:.2f} from that of run ones")
    return "; ".join(parts)


def _acceptance(report: StatusReport) -> str:
    acceptance, reference = report.acceptance, report.reference
    if reference is not None:
        return (
            f"accepted: limit m0 {reference.m0:.4f}, mean loss {reference.mean:.4f}, block of {reference.block} samples"
        )
    if acceptance.left is None:
        return f"{acceptance.state}: {acceptance.why}" if acceptance.why else acceptance.state
    return f"{acceptance.state}, {100 * acceptance.progress:.0f} %, ends in about {_duration(acceptance.left)}"


def _camera(report: StatusReport) -> str:
    camera = report.camera
    age = "no frame yet" if camera.frame_age is None else f"last frame {camera.frame_age:.1f} s ago"
    parts = [camera.description or "not open", age, WORDS[camera.light]]
    if camera.problem:
        parts.append(camera.problem)
    if camera.faults:
        parts.append(f"at fault: {', '.join(camera.faults)}")
    elif camera.condition:
        parts.append(f"{camera.condition} at present")
    return ", ".join(parts)


def _captures(report: StatusReport) -> str:
    captures = report.captures
    counts = ", ".join(f"{count} {result}" for result, count in captures.results.items())
    refused = ", ".join(f"{reason} {count}" for reason, count in captures.refusals.items() if count)
    step = f"; now {captures.step}" if captures.step else ""
    last = f"; last {captures.last}" if captures.last else ""
    return f"{counts}{f' ({refused})' if refused else ''}{step}{last}"


def _link(report: StatusReport) -> str:
    link = report.link
    state = "connected" if link.connected else f"not connected{f' ({link.fault}: {link.error})' if link.error else ''}"
    if link.broker_age is not None:
        state += f", broker heard {link.broker_age:.0f} s ago"
    denied = f"; the broker forbids: {link.denied}" if link.denied else ""
    denied += f"; {link.renewal}" if link.renewal else ""
    if not link.answers_signed:
        denied += "; answers are believed without a signature: pin the collector's key (`link.collector_keys`)"
    if link.answers_dropped:
        denied += f"; {sum(link.answers_dropped.values())} answers ignored, at last {link.dropped_last}"
    held = f"; blobs wait: {link.held}" if link.held else ""
    age = "never answered" if link.answer_age is None else f"last answer {_duration(link.answer_age)} ago"
    return f"{state}, collector {age}, {link.bundles_sent} bundles sent{held}{denied}"


def _configuration(found: ConfigurationStatus) -> Text:
    since = datetime.fromtimestamp(found.taken_at).astimezone().isoformat(" ", "seconds")
    parts = [f"{found.path} as of {since}"]
    if found.problem:
        parts.append(f"changed since, and not taken: {found.problem}")
    if found.waiting:
        parts.append(f"waits for a restart of the agent: {', '.join(found.waiting)}")
    if found.files:
        parts.append(found.files)
    return Text("; ".join(parts), style="red" if found.problem or found.files else "")


def _alarms(report: StatusReport) -> Table:
    table = Table(title="alarms, latched until `tidegauge alarm clear`", title_justify="left")
    for name in ("since", "severity", "detector", "verdict", "what"):
        table.add_column(name, overflow="fold")
    for alarm in report.alarms:
        since = datetime.fromtimestamp(alarm.wall).astimezone().isoformat(" ", "seconds")
        table.add_row(since, alarm.severity, alarm.detector, alarm.verdict, Text(_what(alarm)))
    return table


def _what(alarm: Latched) -> str:
    """The alarm's sentence, the change by terms, and what the same frame showed when it was run again."""
    parts = [alarm.message]
    if alarm.terms:
        terms = alarm.terms
        parts.append(
            f"change of the mean loss: input mix {terms['input_mix']:+.3f}, device {terms['device_change']:+.3f}, "
            f"unknown {terms['unknown']:+.3f} ({100 * terms['unknown_share']:.0f} % of the inputs)"
        )
    if alarm.replay:
        parts.append(f"run again: {alarm.replay.replace('_', ' ')}")
    return "; ".join(parts)


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
