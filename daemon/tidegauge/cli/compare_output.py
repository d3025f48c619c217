"""What `tidegauge compare` writes besides page and JSON: a table for spreadsheets, one layer, a progress bar."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tidegauge.compare import Comparison, LayerResult
from tidegauge.compare.run import Progress as Watch
from tidegauge.errors import TidegaugeError

_PLAIN = (
    "index",
    "name",
    "tensor",
    "matched",
    "data_id",
    "file",
    "operators",
    "nodes",
    "dims",
    "dtype",
    "scale",
    "zero_point",
    "scale_source",
    "status",
    "verdict",
    "reason",
    "excess",
    "float_excess",
    "clipping_excess",
    "clipped_share",
    "weights",
    "low_share",
    "high_share",
    "codes_off_by_one",
    "codes_off_by_more",
)
_METRICS = ("count", "sqnr_db", "cosine", "gain", "offset", "mse", "max_error", "max_steps", "bias_steps", "excess")
_RANGE = ("used", "clipped")


def to_csv(comparison: Comparison) -> bytes:
    """One row a layer, UTF-8, a header first. Empty where a value is undefined; lists are separated by blanks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    parts = [f"{part}_{name}" for part in ("cumulative", "local") for name in _METRICS]
    culprits = {c.index: c for c in (*comparison.culprits, *comparison.recovered)}
    writer.writerow([*_PLAIN, *parts, *(f"range_{name}" for name in _RANGE), "cause", "frames_flagged"])
    for layer in comparison.layers:
        row = [_cell(getattr(layer, name)) for name in _PLAIN]
        for metrics in (layer.cumulative, layer.local):
            row += [_cell(getattr(metrics, name)) if metrics is not None else "" for name in _METRICS]
        use = layer.range_use
        row += [_cell(getattr(use, name)) if use is not None else "" for name in _RANGE]
        culprit = culprits.get(layer.index)
        frames = comparison.frames.layers.get(layer.name) if comparison.frames is not None else None
        row += [culprit.cause if culprit is not None else "", str(frames.flagged) if frames is not None else ""]
        writer.writerow(row)
    return text.getvalue().encode()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " ".join(str(part) for part in value)
    text = repr(value) if isinstance(value, float) else str(value)
    # A spreadsheet takes a cell that begins so for a formula; names come from a model.
    return f"'{text}" if text[:1] in "=@+" or (text[:1] == "-" and not isinstance(value, int | float)) else text


def only_top(comparison: Comparison, top: int) -> Comparison:
    """The same answer with its `top` worst layers, worst first, for the terminal."""
    worst = sorted(
        comparison.layers, key=lambda x: (x.verdict in ("faulty", "recovers"), x.excess or 0.0), reverse=True
    )
    return msgspec.structs.replace(comparison, layers=tuple(worst[:top]))


def find_layer(comparison: Comparison, name: str) -> LayerResult:
    """A layer by its name, the float tensor's, or its data id. Raises `TidegaugeError` where none has it."""
    for layer in comparison.layers:
        if name in (layer.name, layer.tensor, str(layer.data_id)):
            return layer
    some = ", ".join(layer.name for layer in comparison.layers[:5])
    raise TidegaugeError(f"no compared layer is called {name}", f"use a name of the table, for instance {some}")


def print_layer(layer: LayerResult, console: Console) -> None:
    """Everything that is known of one layer."""
    table = Table(show_header=False, show_edge=False, pad_edge=False)
    table.add_column("", style="bold", no_wrap=True)
    table.add_column("", overflow="fold")
    for name in _PLAIN:
        table.add_row(name.replace("_", " "), Text(_cell(getattr(layer, name)) or "–"))
    for part, metrics in (("cumulative", layer.cumulative), ("local", layer.local)):
        words = [f"{n.replace('_', ' ')} {v:.6g}" for n in _METRICS if (v := getattr(metrics, n, None)) is not None]
        table.add_row(part, Text(", ".join(words) or "–"))
    if layer.range_use is not None:
        use = layer.range_use
        text = f"{use.live_low:.4g} to {use.live_high:.4g} of {use.low:.4g} to {use.high:.4g}: {use.used:.0%} used"
        table.add_row("range", Text(f"{text}, {use.clipped:.2%} clipped"))
    console.print(table)


@contextmanager
def watching(console: Console) -> Iterator[Watch | None]:
    """A progress bar with the name of the layer, where a person looks on."""
    if not console.is_terminal:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total, name: bar.update(task, completed=done, total=total, description=name[-48:])
