"""The four rungs for people: terminal and page."""

from __future__ import annotations

from html import escape

from rich.console import Console
from rich.text import Text

from tidegauge.compare.report.words import decibels
from tidegauge.compare.rungs import BETWEEN, Rung, Rungs

_STYLES = {"clean": "green", "error": "bold red", "undecided": "yellow"}
_STATES = {"clean": "no error enters", "error": "the error enters here", "undecided": "undecided"}
_NAMES = {"host_float": "TIDL float on the PC", "host": "TIDL 8/16 bit on the PC", "device": "board"}


def print_rungs(rungs: Rungs, console: Console) -> None:
    """The verdict on the rungs, a line a stage."""
    console.print()
    console.print(Text(f"Rungs: {rungs.sentence}", style="bold"))
    for step in rungs.steps:
        console.print(
            Text(f"  {BETWEEN[step.stage]}: {_STATES[step.state]}. {step.sentence}", style=_STYLES[step.state])
        )
    for rung in rungs.rungs:
        console.print(Text(f"  {_rung(rung)}", style="" if rung.source is not None else "dim"))


def _rung(rung: Rung) -> str:
    if rung.source is None:
        return f"{_NAMES[rung.name]}: missing"
    told = ", ".join(
        f"{name} {'exact' if name in rung.exact else decibels(value)}" for name, value in rung.outputs.items()
    )
    return f"{_NAMES[rung.name]}: {rung.source}" + (f" (output SQNR: {told})" if told else "")


def rungs_section(rungs: Rungs) -> str:
    """The section of the page. Escaped."""
    rows = "".join(
        f"<tr{' class=faulty' if step.state == 'error' else ''}><td>{escape(BETWEEN[step.stage])}</td>"
        f"<td>{escape(_STATES[step.state])}</td><td>{escape(step.sentence)}</td></tr>"
        for step in rungs.steps
    )
    items = "".join(f"<li>{escape(_rung(rung))}</li>" for rung in rungs.rungs)
    return (
        f"<h2>Where the error enters: the four rungs</h2><p>{escape(rungs.sentence)}</p>"
        '<div class="scroll"><table><thead><tr><th scope="col">Between</th><th scope="col">Verdict</th>'
        f'<th scope="col">Why</th></tr></thead><tbody>{rows}</tbody></table></div><ul class="small">{items}</ul>'
    )
