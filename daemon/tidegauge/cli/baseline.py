"""`tidegauge baseline`: the accepted reference of a board: shown, exported, compared with another."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tidegauge.agent.baseline import Baseline, Comparison, compare, from_state, load
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.reference import judged_contexts
from tidegauge.agent.state import Golden
from tidegauge.agent.status import hours_to_find, rates_of
from tidegauge.agent.watch_config import InputDriftConfig
from tidegauge.cli.running import json_option, state_folder, state_options
from tidegauge.cli.status import false_alarms, found_after
from tidegauge.configuration import load_toml
from tidegauge.detectors.acceptance import samples_to_name
from tidegauge.detectors.contexts import WORDS
from tidegauge.detectors.noise import Noise
from tidegauge.exitcodes import ExitCode
from tidegauge.files import write_durably

#: What an upgrade costs that people ask about: one answer in twenty.
COST = 0.05
#: Tensors that are named, of those that the golden set covers least.
WORST_COVERED = 5


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
    interval = InputDriftConfig().interval if config is None else load_toml(config, AgentConfig).input_drift.interval
    Console(soft_wrap=True).print(_table(baseline, judged_contexts(state_folder(config, state)), interval))


def _table(baseline: Baseline, judged: tuple[str, ...], interval: float) -> Table:
    accepted = baseline.accepted
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    if baseline.accepted_at is not None:
        when = datetime.fromtimestamp(baseline.accepted_at.wall, UTC).isoformat(" ", "seconds")
        table.add_row("accepted", f"{when}, after {accepted.samples} samples")
    table.add_row("artifacts", baseline.artifacts[:12])
    table.add_row("model", baseline.model[:12])
    if baseline.runtime:
        table.add_row("runtimes", ", ".join(f"{name} {version[:12]}" for name, version in baseline.runtime.items()))
    table.add_row("mean loss", f"{accepted.mean:.4f} (95 % bounds {accepted.lower95:.4f} and {accepted.upper95:.4f})")
    table.add_row("limit m0", f"{accepted.m0:.4f}")
    table.add_row(
        "NMSE quantile", f"{accepted.nmse_quantile:.3g}, limit of the share above {accepted.exceedance_m0:.3f}"
    )
    table.add_row("correlation time", f"{accepted.correlation_time:.1f} samples of {accepted.gap:g} s")
    table.add_row("observation", f"{accepted.block} samples, alpha {accepted.alpha:.3g}")
    gap = baseline.gap or accepted.gap
    table.add_row(
        f"an upgrade that costs {COST:g}", _named_after(samples_to_name(accepted, COST), accepted.samples, gap)
    )
    for share, hours in hours_to_find(accepted, gap).items():
        table.add_row(f"{100 * float(share):.0f} % disagreement", found_after(hours, gap))
    for context, each in baseline.contexts.items():
        table.add_row(
            WORDS[context],
            f"tested: limit m0 {each.m0:.4f}, mean loss {each.mean:.4f} of {each.samples} samples, "
            f"{each.block} in an observation",
        )
    others = "not tested: they collect samples first" if baseline.contexts else "no light context is tested yet"
    table.add_row("other light", others)
    rates = rates_of(accepted, baseline.contexts, len(judged), interval)
    table.add_row("false alarms", false_alarms(rates, judged))
    table.add_row("golden tensors", ", ".join(_golden(each) for each in baseline.golden))
    if baseline.coverage:
        table.add_row("they span", _covered(baseline.coverage))
    for name, each_noise in baseline.noise.items():
        table.add_row(f"noise of {name}", _noise(each_noise))
    return table


def _covered(coverage: dict[str, float]) -> str:
    """How many tensors, the median, and those that are covered worst; `baseline export` has them all."""
    ranked = sorted(coverage.items(), key=lambda each: each[1])
    worst = ", ".join(f"{name} {100 * share:.0f} %" for name, share in ranked[:WORST_COVERED])
    middle = 100 * median(coverage.values())
    return f"of the range of {len(ranked)} tensors during acceptance: median {middle:.0f} %; least {worst}"


def _named_after(needed: int, samples: int, gap: float) -> str:
    if needed <= samples:
        return "is named by an acceptance like this one, 19 times in 20"
    return f"is named 19 times in 20 where either acceptance has {needed} samples, {needed * gap / 3600:.3g} h"


def _noise(noise: Noise) -> str:
    parts = [
        f"{what} {found[0]:.3g} (median), {found[1]:.3g} (95 %)"
        for what, found in (("NMSE", noise.nmse), ("largest difference in steps", noise.max_steps))
        if found is not None
    ]
    if noise.undefined:
        parts.append(f"no NMSE in {noise.undefined} of {noise.samples} samples")
    return "; ".join(parts)


def _golden(golden: Golden) -> str:
    steady = "" if golden.steady is not False else ", by its spread"
    return f"{golden.sha256[:12]} ({golden.role.replace('_', ' ') or 'first'}{steady})"


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
    louder = [f"{name} {times:.3g}" for name, times in found.noise.items() if times is not None]
    if louder:
        lines.append(f"noise of outputs, median NMSE as a multiple of the old one: {', '.join(louder)}")
    return "\n".join(lines)
