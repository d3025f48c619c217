"""What a check is, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from tidegauge.preflight.context import Context

Status = Literal["ok", "warning", "failed", "not_applicable"]
#: Where a check makes sense: on a TI board, over the virtual board, or on both.
Place = Literal["board", "virtual", "anywhere"]
#: Longest text of a finding, characters: a C library can print anything.
LONGEST = 2000


class Finding(msgspec.Struct, frozen=True):
    """The answer of one check: what was found, and the cure where something is to be done."""

    status: Status
    found: str
    cure: str = ""


class Result(msgspec.Struct, frozen=True):
    """A check's answer with its own duration, seconds."""

    id: str
    title: str
    status: Status
    found: str
    cure: str
    seconds: float


def ok(found: str) -> Finding:
    return Finding("ok", found[:LONGEST])


def warning(found: str, cure: str) -> Finding:
    return Finding("warning", found[:LONGEST], cure[:LONGEST])


def failed(found: str, cure: str) -> Finding:
    return Finding("failed", found[:LONGEST], cure[:LONGEST])


def not_applicable(found: str) -> Finding:
    return Finding("not_applicable", found[:LONGEST])


def ten_seconds(_context: Context) -> float:
    return 10.0


@dataclass(frozen=True)
class Probe:
    """One check. `title` says what is looked at, `why` what goes wrong otherwise; both are printed in the docs.

    `run` reads and judges; it may hang, abort or exit, since it runs in a process of its own for at most
    `deadline(context)` seconds. `needs_settings`: it can't say anything without a configuration.
    """

    id: str
    title: str
    why: str
    place: Place
    run: Callable[[Context], Finding]
    needs_settings: bool = True
    deadline: Callable[[Context], float] = ten_seconds
