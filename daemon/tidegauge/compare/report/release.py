"""A release comparison for people: terminal, and a page of its own."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegauge.compare.release_types import Difference, LayerPair, ReleaseComparison
from tidegauge.compare.report.words import decibels, number

_HEADLINES = {0: "not moved", 1: "moved", 2: "unusable", 3: "coverage too low"}
_STYLES = {0: "bold green", 1: "bold red", 2: "bold red", 3: "bold yellow"}
_COLUMNS = ("before", "after", "layer", "matched by", "changes", "SQNR", "moved", "detail")


def release_headline(answer: ReleaseComparison) -> str:
    if answer.exit_code == 0 and all(pair.difference is None for pair in answer.layers):
        return "values not compared"
    return _HEADLINES[answer.exit_code]


def print_release(answer: ReleaseComparison, console: Console, top: int | None = None) -> None:
    """Verdict, blame, layers that changed or moved (the `top` furthest, all without), what has no twin, the proto."""
    console.print(Text(f"{release_headline(answer).upper()}: {answer.sentence}", style=_STYLES[answer.exit_code]))
    for each in answer.blamed:
        console.print(Text(f"{'since after' if each.since == 'after' else each.since}: {each.sentence}"))
    shown = [pair for pair in answer.layers if pair.changes or (pair.difference is not None and pair.difference.moved)]
    if top is not None:
        shown = sorted(shown, key=_distance, reverse=True)[:top]
    if shown:
        table = Table(show_edge=False, pad_edge=False)
        for name in _COLUMNS:
            table.add_column(name, overflow="fold")
        for pair in shown:
            table.add_row(*(Text(cell) for cell in _cells(pair)))
        console.print(table)
    for item in answer.alone:
        console.print(Text(f"only {item.side}: {item.name or item.data_id} ({item.kind}): {item.reason}", style="dim"))
    for line in answer.proto.differences:
        console.print(Text(f"networks differ: {line}", style="yellow"))
    for note in answer.notes:
        console.print(Text(f"note: {note}", style="yellow"))
    console.print(f"{answer.coverage:.0%} of the later compile's layers matched in {answer.seconds} s.")


def _distance(pair: LayerPair) -> float:
    if pair.difference is None:
        return -1.0
    return pair.difference.excess if pair.difference.excess is not None else float("inf")


def _cells(pair: LayerPair) -> tuple[str, ...]:
    return (
        str(pair.before_id),
        str(pair.after_id),
        pair.after_name or pair.before_name,
        pair.matched,
        ", ".join(change.replace("_", " ") for change in pair.changes),
        _quality(pair.difference),
        _moved(pair.difference),
        pair.detail or pair.reason,
    )


def _quality(difference: Difference | None) -> str:
    if difference is None:
        return "–"
    return "exact" if difference.exact else decibels(difference.sqnr_db)


def _moved(difference: Difference | None) -> str:
    if difference is None or not difference.moved:
        return ""
    times = f" {number(difference.excess)}×" if difference.excess is not None else ""
    return ("begins here" if difference.begins else "moved") + times


def release_body(answer: ReleaseComparison) -> str:
    """The page's body. Escaped."""
    kind = {0: "", 1: " bad", 2: " thin", 3: " thin"}[answer.exit_code]
    head = (
        f'<div class="verdict{kind}"><b class="word">{escape(release_headline(answer))}</b>'
        f"<h1>{escape(answer.sentence)}</h1></div>"
    )
    blamed = _list(f"{each.since}: {each.sentence}" for each in answer.blamed)
    heads = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in _COLUMNS)
    rows = "".join(
        f"<tr{' class=faulty' if pair.difference is not None and pair.difference.begins else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(pair))
        + "</tr>"
        for pair in answer.layers
    )
    alone = _list(
        f"only {item.side}: {item.name or item.data_id} ({item.kind}): {item.reason}" for item in answer.alone
    )
    differences = _list(answer.proto.differences)
    return (
        f"<main>{head}<p>before: {escape(answer.before)} · after: {escape(answer.after)}</p>{blamed}"
        f'<h2>Layers</h2><div class="scroll"><table class="sortable"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div><h2>Without a twin</h2>{alone or '<p>None.</p>'}"
        f"<h2>Quantisation proto</h2><p>{escape(answer.proto.sentence)}.</p>{differences}{_list(answer.notes)}</main>"
    )


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""
