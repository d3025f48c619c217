"""`*_tidl_net.bin.layer_info.txt`: which data id carries which tensor.

Source: TIDL's import tool writes `"%d %d %s \\n"` (layer, data id, name; trailing blank), with one more number before
the name for several cores; checked against a real AM62A compile of tools 10_00_08_00.
"""

from __future__ import annotations

import re

import msgspec

from tidegauge.tidl.errors import FormatError

_ROW = re.compile(r"\s*(\d{1,9})\s+(\d{1,9})\s+(\S.*?)\s*", re.ASCII)
_FOURTH = re.compile(r"(\d{1,9})\s+(\S.*)", re.ASCII)


class LayerRow(msgspec.Struct, frozen=True):
    """A layer in order of execution, the data id of its output and that tensor's name.

    The layers at the graph's end repeat data id 0 under a name that is not theirs; key by data id and take the first.
    """

    layer: int
    data_id: int
    name: str


def parse(text: str) -> tuple[LayerRow, ...]:
    """All rows in order, repeated data ids kept. Raises FormatError."""
    rows: list[LayerRow] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        match = _ROW.fullmatch(line)
        if match is None:
            raise FormatError(f"layer_info: {line[:80]!r} is not 'layer dataId name'", line=number)
        rows.append(LayerRow(int(match[1]), int(match[2]), match[3]))
    if not rows:
        raise FormatError("layer_info: the file names no layer")
    return _without_fourth_column(rows)


def _without_fourth_column(rows: list[LayerRow]) -> tuple[LayerRow, ...]:
    # A name may begin with a number and a blank: the column is there only if every row has it.
    matches = [_FOURTH.fullmatch(row.name) for row in rows]
    named = [match[2] for match in matches if match is not None]
    if len(named) < len(rows):
        return tuple(rows)
    return tuple(LayerRow(row.layer, row.data_id, name) for row, name in zip(rows, named, strict=True))
