"""`*_tidl_net.bin_netLog.txt`: the compiled network as a table, with its edges.

Source: a real AM62A compile of tools 10_00_08_00 (122 layers). Columns, separated by `|`: number, TIDL layer name,
out data name, group, #ins, #outs, inbuf ids (`x` where unused), outbuf id, in dims, out dims (N dim1 dim2 C H W), MACs.
"""

from __future__ import annotations

import re

import msgspec

from tidegauge.tidl.errors import FormatError

_COUNT = re.compile(r"Num of Layer Detected\s*:\s*(\d{1,9})\s*", re.ASCII)
_MACS = re.compile(r"Total Giga Macs\s*:\s*(\d{1,12}(?:\.\d{0,12})?)\s*", re.ASCII)
_ROW = re.compile(r"\s*\d{1,9}\s*\|", re.ASCII)
_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)
_COLUMNS = 11
_MOST_DIFFERENCES = 20


class NetLayer(msgspec.Struct, frozen=True):
    """A layer. `inputs`, `outputs`: data ids, without unused places; a graph output has no `outputs`.

    `input_count`: the number of inputs that TIDL states, -1 at a graph input; larger than `len(inputs)` where the
    table has no place for all. Dims: (batch, dim1, dim2, channels, height, width); zeros where there is none.
    """

    number: int
    kind: str
    name: str
    group: int
    input_count: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_dims: tuple[int, ...]
    output_dims: tuple[int, ...]
    macs: int

    @property
    def output(self) -> int | None:
        """The data id of the (first) output; None at a graph output."""
        return self.outputs[0] if self.outputs else None


class NetLog(msgspec.Struct, frozen=True):
    """The table in order of execution. `giga_macs`: None where the file does not end with the sum."""

    layers: tuple[NetLayer, ...]
    giga_macs: float | None


def parse(text: str) -> NetLog:
    """Raises FormatError; also where fewer rows follow than the head promises."""
    layers: list[NetLayer] = []
    promised: int | None = None
    giga_macs: float | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if _ROW.match(line):
            layers.append(_row(line, number))
        elif count := _COUNT.fullmatch(line):
            promised = int(count[1])
        elif macs := _MACS.fullmatch(line):
            giga_macs = float(macs[1])
    if promised is None:
        raise FormatError("netLog: there is no line 'Num of Layer Detected'")
    if promised != len(layers):
        raise FormatError(f"netLog: the head promises {promised} layers, {len(layers)} follow")
    return NetLog(tuple(layers), giga_macs)


def differences(first: NetLog, second: NetLog) -> tuple[str, ...]:
    """Where two compiles' networks differ, a sentence each, at most 20; empty: the same layers, edges and shapes.

    The network alone: scales, types and bits are not in a netLog, and may differ between equal ones.
    """
    found: list[str] = []
    if len(first.layers) != len(second.layers):
        found.append(f"{len(first.layers)} layers against {len(second.layers)}")
    for one, other in zip(first.layers, second.layers, strict=False):
        parts = [
            f"{what} {before!r} against {after!r}"
            for what, before, after in (
                ("kind", one.kind, other.kind),
                ("name", one.name, other.name),
                ("inputs", one.inputs, other.inputs),
                ("output", one.outputs, other.outputs),
                ("shape", one.output_dims, other.output_dims),
            )
            if before != after
        ]
        if parts:
            found.append(f"layer {one.number}: {', '.join(parts)}")
        if len(found) == _MOST_DIFFERENCES:
            break
    return tuple(found)


def _row(line: str, number: int) -> NetLayer:
    cells = line.split("|")
    if len(cells) <= _COLUMNS or cells[-1].strip():
        raise FormatError(f"netLog: a row of {len(cells) - 1} columns, not {_COLUMNS}, or without its end", line=number)
    ins, outs = _integer(cells[-8], number), _integer(cells[-7], number)
    return NetLayer(
        number=_integer(cells[0], number),
        kind=cells[1].strip(),
        name="|".join(cells[2:-9]).strip(),
        group=_integer(cells[-9], number),
        input_count=ins,
        inputs=_integers(cells[-6], number) if ins > 0 else (),
        outputs=_integers(cells[-5], number) if outs > 0 else (),
        input_dims=_dims(cells[-4], number),
        output_dims=_dims(cells[-3], number),
        macs=_integer(cells[-2], number),
    )


def _integer(cell: str, line: int) -> int:
    text = cell.strip()
    if _INTEGER.fullmatch(text) is None:
        raise FormatError(f"netLog: {text[:40]!r} is not an integer", line=line)
    return int(text)


def _integers(cell: str, line: int) -> tuple[int, ...]:
    return tuple(_integer(word, line) for word in cell.split() if word != "x")


def _dims(cell: str, line: int) -> tuple[int, ...]:
    values = _integers(cell, line)
    if len(values) == 4:  # releases before 9.x: N C H W
        return (values[0], 1, 1, *values[1:])
    if len(values) != 6:
        raise FormatError(f"netLog: {len(values)} dimensions, not six", line=line)
    return values
