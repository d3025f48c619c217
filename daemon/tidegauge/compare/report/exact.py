"""A bit-exact comparison for people: terminal, and a section of the page or a page of its own."""

from __future__ import annotations

from html import escape

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegauge.compare.exact_types import ExactComparison, ExactTensor
from tidegauge.compare.exact_words import ORIGINS, STATUSES, label, place

_HEADLINES = {0: "equal", 1: "different", 2: "unusable", 3: "coverage too low"}
_STYLES = {"exact": "green", "off_by_one": "yellow", "larger": "bold red", "not_dumped": "dim"}
_VERDICT_STYLES = {0: "bold green", 1: "bold red", 2: "bold red", 3: "bold yellow"}


def exact_headline(answer: ExactComparison) -> str:
    return _HEADLINES[answer.exit_code]


def print_exact(answer: ExactComparison, console: Console, top: int | None = None) -> None:
    """Verdict, the tensors that are not equal (with `top` the first so many, in the order of execution), notes."""
    style = _VERDICT_STYLES[answer.exit_code]
    console.print(Text(f"{exact_headline(answer).upper()}: {answer.sentence}", style=style))
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("id", justify="right")
    table.add_column("tensor", overflow="fold")
    table.add_column("class", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in ("±1", "more", "largest"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    unequal = [tensor for tensor in answer.tensors if tensor.status not in ("exact", "not_dumped")]
    for tensor in unequal[:top]:
        table.add_row(
            str(tensor.data_id),
            Text(_name(tensor)),
            Text(STATUSES[tensor.status], style=_STYLES.get(tensor.status, "yellow")),
            ORIGINS[tensor.origin],
            *_numbers(tensor),
            Text(_where(tensor)),
        )
    if table.row_count:
        console.print(table)
    if top is not None and len(unequal) > top:
        console.print(Text(f"… and {len(unequal) - top} more", style="dim"))
    for note in answer.notes:
        console.print(Text(f"note: {note}", style="yellow"))
    counts = answer.counts
    console.print(f"{counts.compared} of {counts.total} traces compared bit by bit in {answer.seconds} s.")


def _name(tensor: ExactTensor) -> str:
    return label(tensor) + (" (float)" if tensor.kind == "float" else "")


def _numbers(tensor: ExactTensor) -> tuple[str, str, str]:
    if tensor.status not in ("off_by_one", "larger"):
        return "–", "–", "–"
    return str(tensor.off_by_one), str(tensor.off_by_more), str(tensor.largest)


def _where(tensor: ExactTensor) -> str:
    return place(tensor) if tensor.status in ("off_by_one", "larger") else tensor.reason


def exact_section(answer: ExactComparison) -> str:
    """The section "bit by bit" of a page. Escaped."""
    heads = ("Id", "Tensor", "Class", "", "±1", "More", "Largest", "Where", "xxh3 host", "xxh3 device")
    head = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in heads)
    rows = "".join(_row(tensor) for tensor in answer.tensors)
    notes = "".join(f"<li>{escape(note)}</li>" for note in answer.notes)
    return (
        f'<h2>Host against device, bit by bit</h2><p>{escape(answer.sentence)}</p><ul class="small">{notes}</ul>'
        f'<p class="soft small">host: {escape(answer.host)} · device: {escape(answer.device)} · '
        f"order from: {escape(answer.order)}</p>"
        f'<div class="scroll"><table class="sortable"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _row(tensor: ExactTensor) -> str:
    cells = [
        str(tensor.data_id),
        _name(tensor),
        STATUSES[tensor.status],
        ORIGINS[tensor.origin],
        *_numbers(tensor),
        "" if tensor.status == "exact" else _where(tensor),
        tensor.host_xxh3[:16],
        tensor.device_xxh3[:16],
    ]
    kind = " class=faulty" if tensor.origin in ("origin", "undecided") else ""
    return f"<tr{kind}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
