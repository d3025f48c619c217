"""A comparison in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegauge.compare.report import words
from tidegauge.compare.report.exact import print_exact
from tidegauge.compare.report.ladder import print_rungs
from tidegauge.compare.report.words import number
from tidegauge.compare.types import Comparison, Cure

_STYLES = {"healthy": "green", "inherits": "yellow", "faulty": "bold red", "recovers": "magenta", "undecided": "dim"}
#: So many of what was not compared are told one by one: the verdict must not scroll away.
_UNMATCHED = 8
#: So many tensors that differ bit by bit: the first of them tell, and the others inherit.
_UNEQUAL = 10
_VERDICT_STYLES = {0: "bold green", 1: "bold red", 2: "bold red", 3: "bold yellow"}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Verdict, culprits with what to change, the table of layers, findings and what was not compared."""
    style = _VERDICT_STYLES[comparison.exit_code]
    console.print(Text(f"{words.headline(comparison).upper()}: {comparison.sentence}", style=style))
    if comparison.rungs is not None:
        print_rungs(comparison.rungs, console)
    if not comparison.culprits and words.fed_wrong(comparison) and (deed := words.to_do(comparison)) is not None:
        console.print()
        console.print(Text(f"{deed[0]}.", style="cyan"))
    for culprit in comparison.culprits:
        console.print()
        said = culprit.layer if culprit.rank == 1 and culprit.sentence in comparison.sentence else culprit.sentence
        console.print(Text(f"{culprit.rank}. {said}"))
        console.print(Text(words.paste(culprit.advice, comparison), style="cyan"))
    if comparison.cure is not None and words.foretold(comparison.cure):
        _print_cure(comparison.cure, console, len(comparison.culprits))
    console.print()
    console.print(_table(comparison))
    if comparison.exact is not None:
        console.print()
        print_exact(comparison.exact, console, _UNEQUAL)
    for finding in comparison.findings:
        console.print(Text(f"{finding.severity}: {finding.sentence}", style="yellow"))
    for item in comparison.unmatched[:_UNMATCHED]:
        console.print(Text(f"not compared: {item.name} ({item.side}): {item.reason}", style="dim"))
    if len(comparison.unmatched) > _UNMATCHED:
        rest = len(comparison.unmatched) - _UNMATCHED
        console.print(Text(f"not compared: {rest} more, which --html and --json list", style="dim"))
    coverage = comparison.coverage
    console.print(f"{coverage.compared} of {coverage.traced} traced layers compared in {comparison.seconds} s.")


def _print_cure(cure: Cure, console: Console, culprits: int) -> None:
    """All in one, where it is more than the advice that stands with a single culprit."""
    console.print()
    console.print(Text(words.prediction(cure)))
    if cure.advice and (culprits != 1 or len(cure.steps) > 1):
        console.print("All together:")
        console.print(Text(words.paste(cure.advice), style="cyan"))


def _table(comparison: Comparison) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("layer", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for name in ("local/noise", "local", "cumulative", "max steps"):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in comparison.layers:
        local, run = layer.local, layer.cumulative
        table.add_row(
            Text((layer.name or layer.file) + words.estimated(layer)),
            Text(words.verdict(layer), style=_STYLES[layer.verdict]),
            number(layer.excess),
            words.quality(local),
            words.quality(run),
            number(local.max_steps if local else None),
        )
    return table
