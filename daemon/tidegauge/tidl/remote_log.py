"""Lines of the remote log and of the TIDL libraries' stdout, taken apart; what they mean is in `log_causes`.

Source: app_log (`[%-6s] %s`, message mostly `%6d.%06u s: text`), SDK 11.1; excerpts of real logs.
"""

from __future__ import annotations

import re

import msgspec

from tidegauge.tidl.log_causes import LONGEST, LogCause, cause

__all__ = ["LogCause", "LogLine", "ScaleLine", "cause", "parse", "scale_line"]

_LINE = re.compile(r"(?:\[(?P<core>[A-Za-z0-9_]{1,16}) *\] )?(?P<text>.*)", re.DOTALL)
_TIME = re.compile(r" *(?P<seconds>\d{1,10}\.\d{6}) s: ?(?P<text>.*)", re.DOTALL | re.ASCII)
_NUMBER = r"(-?(?:\d{1,40}\.\d{5}|nan|inf))"
_SCALES = re.compile(rf" *(\d{{1,9}}) +{_NUMBER} +{_NUMBER} +{_NUMBER} +(\d{{1,3}}) *", re.ASCII)


class LogLine(msgspec.Struct, frozen=True):
    """`core`: "C7x_1", "MCU1_0", "MPU1_0"; None in a process's own output. `seconds`: since boot (GTC), or None."""

    core: str | None
    seconds: float | None
    text: str


class ScaleLine(msgspec.Struct, frozen=True):
    """What the C7x prints for each tensor that it dumps. Numbers as printed, five decimals; `element` a type's code."""

    data_id: int
    scale: str
    minimum: str
    maximum: str
    element: int


def parse(line: str) -> LogLine:
    """Core, time and text of a line, each where present. Any text is a line; a longer one than 4096 is cut."""
    whole = line[:LONGEST].rstrip("\r\n")
    match = _LINE.fullmatch(whole)
    core, text = (match["core"], match["text"]) if match else (None, whole)
    timed = _TIME.fullmatch(text)
    if timed is None:
        return LogLine(core, None, text)
    return LogLine(core, float(timed["seconds"]), timed["text"])


def scale_line(text: str) -> ScaleLine | None:
    """A tensor's scale line (its text, without core and time); None for every other line."""
    match = _SCALES.fullmatch(text[:LONGEST])
    if match is None:
        return None
    return ScaleLine(int(match[1]), match[2], match[3], match[4], int(match[5]))
