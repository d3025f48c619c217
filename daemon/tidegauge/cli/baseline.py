"""`tidegauge baseline`: the accepted reference of a board: shown, exported, compared with another."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tidegauge.agent.baseline import Baseline, Comparison, compare, from_state, load
from tidegauge.agent.config import AgentConfig
from tidegauge.cli.running import json_option, state_folder, state_options
from tidegauge.configuration import load_toml
from tidegauge.detectors.rates import detection
from tidegauge.exitcodes import ExitCode
from tidegauge.files import write_durably


@click.group("baseline")
def command() -> None:
    """The reference that acceptance froze."""


def _of(config: Path | None, state: Path | None) -> Baseline:
    device = "" if config is None else load_toml(config, AgentConfig).device
    return from_state(state_folder(config, state), device)


def _json(document: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


@command.command("show")
@state_options
@json_option
def show(config: Path | None, state: Path | None, as_json: bool) -> None:
    """Print the reference of the agent on this board; the agent needn't run."""
    baseline = _of(config, state)
    if as_json:
        click.echo(_json(baseline).decode())
        return
    Console(soft_wrap=True).print(_table(baseline))


def _table(baseline: Baseline) -> Table:
    accepted = baseline.accepted
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    if baseline.accepted_at is not None:
        when = datetime.fromtimestamp(baseline.accepted_at.wall, UTC).isoformat(" ", "seconds")
        table.add_row("accepted", f"{when}, after {accepted.samples} samples")
    table.add_row("artifacts", baseline.artifacts[:12])
    table.add_row("model", baseline.model[:12])
    table.add_row("mean loss", f"{accepted.mean:.4f} (95 % bounds {accepted.lower95:.4f} and {accepted.upper95:.4f})")
    table.add_row("limit m0", f"{accepted.m0:.4f}")
    table.add_row(
        "NMSE quantile", f"{accepted.nmse_quantile:.3g}, limit of the share above {accepted.exceedance_m0:.3f}"
    )
    table.add_row("correlation time", f"{accepted.correlation_time:.1f} samples of {accepted.gap:g} s")
    table.add_row("observation", f"{accepted.block} samples, alpha {accepted.alpha:.3g}")
    for share in (0.2, 0.5):
        found = detection(accepted.m0, accepted.alpha, accepted.block, accepted.gap, share, accepted.correlation_time)
        table.add_row(f"{100 * share:.0f} % disagreement", f"found after {found.hours:.2g} hours on average")
    table.add_row("golden tensors", ", ".join(golden.sha256[:12] for golden in baseline.golden))
    return table


@command.command("export")
@state_options
@click.argument("file", type=click.Path(path_type=Path))
def export(config: Path | None, state: Path | None, file: Path) -> None:
    """Write the reference as FILE (JSON), for `baseline compare` elsewhere."""
    baseline = _of(config, state)
    write_durably(file.resolve(), _json(baseline) + b"\n")
    click.echo(f"{file}: mean loss {baseline.accepted.mean:.4f}, limit m0 {baseline.accepted.m0:.4f}")


@command.command("compare")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@json_option
def compare_command(old: Path, new: Path, as_json: bool) -> None:
    """Compare two references (exported files, or state folders). Exit code 1 where NEW is worse beyond chance."""
    found = compare(load(old), load(new))
    if as_json:
        click.echo(_json(found).decode())
    else:
        click.echo(_sentence(found))
    sys.exit(ExitCode.FINDING if found.verdict == "worse" else ExitCode.FINE)


def _sentence(found: Comparison) -> str:
    lines = [
        f"mean loss {found.difference:+.4f}, with 90 % confidence between {found.low:+.4f} and {found.high:+.4f}: "
        f"{found.verdict}",
        f"artifacts {'the same' if found.same_artifacts else 'differ'}, "
        f"model {'the same' if found.same_model else 'differs'}",
    ]
    if found.same_answers:
        same = sum(found.same_answers.values())
        lines.append(f"device's answers to {len(found.same_answers)} golden tensors that both know: {same} are equal")
    return "\n".join(lines)
