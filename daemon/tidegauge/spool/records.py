"""Small records beside the bundles: an hour of drift history, and what became of a bundle that was given up.

A segment of the journal is a text of lines, each the CRC-32 of the rest in eight hex digits, a blank, and JSON. A line
that was being written when the power went is told by its CRC, and was never acknowledged.
"""

from __future__ import annotations

from typing import Annotated
from zlib import crc32

import msgspec
from msgspec import Meta

from tidegauge.clocks import Stamp
from tidegauge.spool.planner import DropReason

VERSION = 1
#: Longest line, bytes: a record of an hour is about one thousand.
MAX_LINE = 16 << 10

Text = Annotated[str, Meta(max_length=200)]
Id = Annotated[str, Meta(pattern=r"^[0-9A-Za-z._-]{1,100}$")]
Count = Annotated[int, Meta(ge=0)]
Counts = Annotated[dict[Text, Count], Meta(max_length=100)]


class Tombstone(msgspec.Struct, frozen=True, tag="tombstone", omit_defaults=True):
    """A bundle that was given up, or could not be kept: what, when, why. Void where the bundle arrives all the same.

    `bytes` as the spool counted them (0 where nothing was written), `kind` and `severity` as the planner saw them,
    None where they are unknown.
    """

    id: Id
    reason: DropReason
    dropped: Stamp
    created: Stamp | None = None
    kind: Text = ""
    severity: float | None = None
    bytes: Count = 0
    version: int = VERSION


class Sums(msgspec.Struct, frozen=True):
    """Of the values of an hour that are finite; `buckets`: how many are at most each edge of `edges`, and above all of
    them; `undefined`: how many were not finite.
    """

    count: Count = 0
    sum: float = 0.0
    squares: float = 0.0
    least: float | None = None
    most: float | None = None
    buckets: Annotated[tuple[Count, ...], Meta(max_length=32)] = ()
    edges: Annotated[tuple[float, ...], Meta(max_length=32)] = ()
    undefined: Count = 0


class HistoryRecord(msgspec.Struct, frozen=True, tag="history", omit_defaults=True):
    """What a board saw in about an hour (`began` to `ended`; less where the agent started or stopped in between).

    `session`: number of the agent's run, `number`: of the record within it, from 1: a gap is a record that was lost.
    `counts`: by name of the metric and its label, what was counted in this hour. `evidence`: logarithm and limit by
    detector, at the end. `alarms`: detectors that were latched at the end. `temperature`: °C at the board's hottest
    zone, `light`: samples by light context.
    """

    id: Id
    session: Count
    number: Count
    began: Stamp
    ended: Stamp
    model: Text
    artifacts: Text = ""
    program: Text = ""
    phase: Text = ""
    counts: Counts = {}
    loss: Sums = Sums()
    nmse: Sums = Sums()
    temperature: Sums = Sums()
    light: Counts = {}
    evidence: Annotated[dict[Text, tuple[float, float]], Meta(max_length=32)] = {}
    alarms: Annotated[tuple[Text, ...], Meta(max_length=32)] = ()
    version: int = VERSION


Record = Tombstone | HistoryRecord


class Segment(msgspec.Struct, frozen=True):
    """The records of a segment's text, and how many lines were not records."""

    records: tuple[Record, ...]
    damaged: int


def encode_line(record: Record) -> bytes:
    """A record as a line. Raises ValueError where it is longer than `MAX_LINE`."""
    body = msgspec.json.encode(record)
    line = b"%08x %s\n" % (crc32(body), body)
    if len(line) > MAX_LINE:
        raise ValueError(f"a record of {len(line)} bytes, the limit is {MAX_LINE}")
    return line


def parse(text: bytes) -> Segment:
    """All lines that are whole; anything else, from anywhere, is counted and left out."""
    records: list[Record] = []
    damaged = 0
    for line in text.split(b"\n"):
        if not line:
            continue
        record = _parse_line(line)
        if record is None:
            damaged += 1
        else:
            records.append(record)
    return Segment(tuple(records), damaged)


def _parse_line(line: bytes) -> Record | None:
    crc, blank, body = line[:8], line[8:9], line[9:]
    if len(line) >= MAX_LINE or blank != b" " or b"%08x" % crc32(body) != crc:
        return None
    try:
        record: Record = msgspec.json.decode(body, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record
