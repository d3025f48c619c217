"""The log of a compile: versions, what runs where, and the warnings that are easily overlooked.

Source: real logs of AM62A compiles with tools 10_00_08_00. The versions are told to people nowhere else.
"""

from __future__ import annotations

import re

import msgspec

from tidegauge.tidl.errors import FormatError

_VERSION = re.compile(r"\|\s*(TIDL Tools|C7x Firmware|Runtime|Model Opset) Version\s*\|\s*(\S{1,64})\s*\|", re.ASCII)
_CORE = re.compile(r"\|\s*(C7x|CPU)\s*\|\s*(\d{1,9})\s*\|\s*(\d{1,9}|x)\s*\|", re.ASCII)
_INVALID = re.compile(r"Invalid Layer Name\s+(\S{1,512})")
#: A name that the progress bar, written by another process, has overwritten.
_TORN = re.compile(r"\[[=>\s]*>?\s*\]?|[\[\]]")
_WARNING = re.compile(r"\[TIDL Import\]\s+(?:\[[A-Z ]+\]\s+)?(WARNING|ERROR):\s*(.{1,400})")
_DONE = "Subgraph Compiled Successfully"
_MOST = 1000


class CompileLog(msgspec.Struct, frozen=True):
    """What the log says; None for what it does not.

    `invalid_names`: layer names of the 16-bit and deny lists that TIDL did not find, in order, once each: the option
    is silently not applied to them. `warnings`, `errors`: the importer's, once each.
    """

    tools: str | None
    firmware: str | None
    runtime: str | None
    opset: int | None
    c7x_nodes: int | None
    cpu_nodes: int | None
    subgraphs: int | None
    compiled: int
    invalid_names: tuple[str, ...]
    warnings: tuple[str, ...]
    errors: tuple[str, ...]


def parse(text: str) -> CompileLog:
    """Raises FormatError where the text is no log of a TIDL compile: no version, no summary, no warning of it."""
    versions: dict[str, str] = {}
    cores: dict[str, tuple[int, str]] = {}
    invalid: dict[str, None] = {}
    warnings: dict[str, None] = {}
    errors: dict[str, None] = {}
    compiled = 0
    for line in text.split("\n"):
        compiled += _DONE in line
        if found := _VERSION.search(line):
            versions.setdefault(found[1], found[2])
        elif found := _CORE.search(line):
            cores.setdefault(found[1], (int(found[2]), found[3]))
        elif (found := _INVALID.search(line)) and not _TORN.search(found[1]):
            _add(invalid, found[1])
        elif found := _WARNING.search(line):
            _add(warnings if found[1] == "WARNING" else errors, found[2].strip())
    if not (versions or cores or invalid or warnings or errors or compiled):
        raise FormatError("compile log: no line of a TIDL compile is in it", "give the log that the compile printed")
    opset = versions.get("Model Opset", "")
    c7x, subgraphs = cores.get("C7x", (None, "x"))
    return CompileLog(
        tools=versions.get("TIDL Tools"),
        firmware=versions.get("C7x Firmware"),
        runtime=versions.get("Runtime"),
        opset=int(opset) if opset.isdecimal() and opset.isascii() and len(opset) < 6 else None,
        c7x_nodes=c7x,
        cpu_nodes=cores["CPU"][0] if "CPU" in cores else None,
        subgraphs=None if subgraphs == "x" else int(subgraphs),
        compiled=compiled,
        invalid_names=tuple(invalid),
        warnings=tuple(warnings),
        errors=tuple(errors),
    )


def _add(found: dict[str, None], text: str) -> None:
    if len(found) < _MOST:
        found[text] = None
