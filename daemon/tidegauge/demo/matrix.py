"""The demo over many seeds, and over all faults × several layers: the table for the docs.

`python -m tidegauge.demo.matrix [--seeds 20] [--layers 4] [--jobs 1] [--json FILE]`. Each cell is a whole run of
`tidegauge demo --once`, with its own broker, collector and agent. Exit 1 when a run was not right.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from tidegauge.demo.board import compile_demo
from tidegauge.demo.processes import tidegauge
from tidegauge.demo.run import Outcome
from tidegauge.demo.settings import Places
from tidegauge.virtualboard.faults import KINDS, eligible_layers

RUN_SECONDS = 400


class Run(msgspec.Struct, frozen=True):
    """One run of the demo: what was asked for, and what came out (None where it printed no result)."""

    arguments: tuple[str, ...]
    exit_code: int
    outcome: Outcome | None
    said: str


def run_once(arguments: tuple[str, ...]) -> Run:
    with tempfile.TemporaryDirectory(prefix="tidegauge-matrix-") as folder:
        result = Path(folder) / "result.json"
        done = subprocess.run(
            [*tidegauge("demo", "--once", "--json", str(result)), *arguments],
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        outcome = msgspec.json.decode(result.read_bytes(), type=Outcome) if result.exists() else None
        last = (done.stderr or done.stdout).strip().splitlines()
        return Run(arguments, done.returncode, outcome, last[-1] if last else "")


def cells(seeds: int, layers: int) -> list[tuple[str, ...]]:
    """Arguments of each run: seeds, then every fault on `layers` layers spread over the network, then no fault."""
    runs: list[tuple[str, ...]] = [("--seed", str(seed)) for seed in range(1, seeds + 1)]
    with tempfile.TemporaryDirectory(prefix="tidegauge-matrix-") as folder:
        places = Places(Path(folder))
        compile_demo(places, 1)
        eligible = eligible_layers(places.board / "artifacts")
    for kind in KINDS:
        names = eligible[kind]
        count = min(layers, len(names))
        chosen = [names[round(index * (len(names) - 1) / max(1, count - 1))] for index in range(count)]
        runs += [("--fault", kind, "--layer", name) for name in dict.fromkeys(chosen)]
    return [*runs, ("--fault", "none"), ("--from-start", "--seed", "1")]


def row(run: Run) -> str:
    """A line of the table in Markdown."""
    found = run.outcome
    if found is None:
        return f"| `{' '.join(run.arguments)}` | – | – | – | – | – | no: {run.said} |"
    took = found.seconds.get("total", 0.0)
    injected = f"`{found.injected_layer}` {found.injected_fault}" if found.injected_layer else "none"
    named = f"`{found.named_layer}`" if found.named_layer else "none"
    right = "yes" if found.right else f"no: {found.why}"
    return (
        f"| `{' '.join(run.arguments)}` | {injected} | {found.detector or '–'} | {named} | {found.named_cause or '–'} "
        f"| {took:.0f} s | {right} |"
    )


@click.command()
@click.option("--seeds", default=20, show_default=True)
@click.option("--layers", default=4, show_default=True, help="Layers for each fault.")
@click.option("--jobs", default=1, show_default=True, help="Runs at a time.")
@click.option("--json", "json_file", type=click.Path(path_type=Path))
def main(seeds: int, layers: int, jobs: int, json_file: Path | None) -> None:
    """Run the matrix and print its table."""
    console = Console(stderr=True)
    runs: list[Run] = []
    print("| arguments | injected | detector | named layer | cause | time | right |\n|---|---|---|---|---|---|---|")
    planned = cells(seeds, layers)
    with ThreadPoolExecutor(jobs) as pool, Progress(console=console, transient=True) as bar:
        for run in bar.track(pool.map(run_once, planned), total=len(planned), description="runs of tidegauge demo"):
            runs.append(run)
            print(row(run), flush=True)
    right = sum(1 for run in runs if run.outcome is not None and run.outcome.right)
    print(f"\n{right} of {len(runs)} right (goal: all)")
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(runs)) + b"\n")
    sys.exit(0 if right == len(runs) else 1)


if __name__ == "__main__":
    main()
