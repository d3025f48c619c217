"""`tidegauge lint`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from tidegauge.configuration import load_toml
from tidegauge.exitcodes import ExitCode
from tidegauge.preflight.lint.activations import measure
from tidegauge.preflight.lint.graph import Graph, Remark
from tidegauge.preflight.lint.load import load
from tidegauge.preflight.lint.rules import remarks
from tidegauge.profile import Profile


class Report(msgspec.Struct, frozen=True):
    """`--json`."""

    version: int
    model: str
    nodes: int
    passed: bool
    remarks: tuple[Remark, ...]


@click.command("lint")
@click.argument("model", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--profile", "profile_path", type=click.Path(path_type=Path), help="Finds a scale that is used twice.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Tensor as the model is fed (.npy, .npz, a folder of them): finds activations that 8 bits can't hold.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout instead of lines.")
def command(model: Path, profile_path: Path | None, inputs: tuple[Path, ...], as_json: bool) -> None:
    """Say what TIDL will do to MODEL (.onnx or .tflite) before it is compiled: one line a remark, each with its cure.

    Exit code 0 when nothing failed (warnings are allowed), else 2.
    """
    graph = load(model)
    profile = load_toml(profile_path, Profile) if profile_path else None
    found = remarks(graph, profile, measure(model, inputs) if inputs else ())
    failures = any(remark.status == "failed" for remark in found)
    if as_json:
        report = Report(1, str(model), len(graph.nodes), not failures, found)
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        _print(model, graph, found)
    sys.exit(ExitCode.UNUSABLE if failures else ExitCode.FINE)


def _print(model: Path, graph: Graph, found: tuple[Remark, ...]) -> None:
    for remark in found:
        failed = remark.status == "failed"
        word = click.style(f"{remark.status:<8}", fg="red" if failed else "yellow", bold=failed)
        click.echo(f"{remark.rule:<20} {word} {remark.where}: {remark.found}  → {remark.cure}")
    click.echo(f"{model}: {len(graph.nodes)} nodes, {len(found)} remarks")
