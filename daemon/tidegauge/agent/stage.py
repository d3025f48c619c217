"""What the pipeline is at, and the kinds of its ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tidegauge.agent.workers import WorkerEnded
from tidegauge.clocks import Monotonic
from tidegauge.errors import TidegaugeError
from tidegauge.exitcodes import ExitCode


class Stage(msgspec.Struct, frozen=True):
    """What the pipeline is at: starting, running, paused, backing_off or stopped; since when, and for how long at most.

    `seconds` 0: it has no end of its own.
    """

    name: str
    since: Monotonic
    seconds: float


class AcceleratorGone(TidegaugeError):
    """The accelerator was given up, and the agent is configured to end then."""

    exit_code = ExitCode.ACCELERATOR_DOWN


def symptoms_of(reason: str) -> tuple[str, ...]:
    """The symptom (DESIGN §6.2) of a reason of `metrics.RESTART_REASONS`."""
    if reason == "not_offloaded":
        return ("not_offloaded",)
    return ("hung",) if reason.endswith("hung") else ()


@contextmanager
def during(step: str) -> Iterator[None]:
    """Name the end of a worker by the step in which it came: `create_hung`, `first_run_hung`, `create_failed`, …"""
    try:
        yield
    except WorkerEnded as error:
        kind = error.kind
        if error.failure is not None and error.failure.kind == "not_offloaded":
            kind = "not_offloaded"
        elif kind == "hung":
            kind = f"{step}_hung"
        elif kind == "failed" and step == "create":
            kind = "create_failed"
        raise WorkerEnded(kind, str(error), error.failure) from error
