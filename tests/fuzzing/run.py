"""`make fuzz`: every reader of bytes from elsewhere, for a time; then what bombs cost. Exit code 1 for a finding.

Inputs that reach new lines, and all that fail, are kept in tests/fuzzing/corpus/, which the tests read again.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console

from fuzzing.bombs import BOMBS, MOST_MIB, MOST_SECONDS, cost
from fuzzing.engine import fuzz
from fuzzing.targets import targets
from tidegauge.cli.evaluate import show
from tidegauge.evaluation.figures import Figure, Report

CORPUS = Path(__file__).parent / "corpus"


def corpus(name: str) -> list[Path]:
    folder = CORPUS / name
    return sorted(folder.iterdir()) if folder.is_dir() else []


@click.command()
@click.option("--seconds", type=click.FloatRange(min=1), default=600.0, show_default=True, help="For all together.")
@click.option("--seed", type=int, help="Without it a new one, which is printed.")
@click.option("--only", help="One target.")
@click.option("--keep/--no-keep", default=True, show_default=True, help="Add what is found to the corpus.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here.")
def main(seconds: float, seed: int | None, only: str | None, keep: bool, json_file: Path | None) -> None:
    """Fuzz what reads bytes from elsewhere."""
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    console, report = Console(), Report(seed, seconds < 600, [], [])
    every = {name: target for name, target in targets().items() if only in (None, name)}
    for number, (name, target) in enumerate(every.items()):
        known = [path.read_bytes() for path in corpus(name)]
        found = fuzz(target, seconds / len(every), seed + number, known)
        for data, wrong in found.failures.items():
            console.print(f"[bold red]{name}[/]: {wrong} on {data[:60]!r}", markup=True, highlight=False)
        if keep:
            for data in [*found.fresh, *found.failures]:
                (CORPUS / name).mkdir(parents=True, exist_ok=True)
                (CORPUS / name / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        note = f"{found.runs} inputs, {len(found.reached)} lines, {len(found.fresh)} new, {len(known)} known"
        report.figures.append(Figure("readers", name, len(found.failures), "findings", 0.0, "<=", note))
    for name in BOMBS if only is None else ():
        found_cost = cost(name)
        values = (("mib", "MiB", MOST_MIB), ("seconds", "s", MOST_SECONDS))
        for key, unit, most in values:
            report.figures.append(Figure("bombs", f"{name}: {unit}", float(str(found_cost[key])), unit, most, "<="))
    if json_file is not None:
        json_file.write_bytes(msgspec.json.encode(report))
    console.print(f"seed {seed}")
    show(console, report)
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
