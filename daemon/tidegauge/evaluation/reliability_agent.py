"""The agents of the reliability evaluation: how they are configured, and what a healthy one has left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tidegauge.evaluation.reliability_modes import FRAMES, GOLDEN, KILL, RUN, STOP, TRACED, Pace
from tidegauge.evaluation.small_board import SmallBoard


class Template(msgspec.Struct, frozen=True):
    """An agent's folder after its acceptance, with a bundle in its spool, the digests of all right answers, and how
    fast it was."""

    board: SmallBoard
    right: frozenset[str]
    pace: Pace


def settings(pace: Pace) -> dict[str, dict[str, Any]]:
    """Of the agents under test, on top of the small board's."""
    return {
        "camera": {"kind": "folder", "read_timeout": 5.0, "frames_per_second": FRAMES},
        "runtime": {
            "start_timeout": pace.start,
            "first_run_timeout": pace.start,
            "run_timeout": RUN * pace.factor,
            "stop_timeout": STOP,
            "kill_timeout": KILL,
        },
        "shadow": {"gap_mean": 0.15, "gap_floor": 0.02},
        "acceptance": {"samples": 40, "max_loss": 0.5},
        "detector": {"alpha": 0.001, "block": 4},
        "golden": {"interval": GOLDEN},
        "capture": {"timeout": TRACED, "per_cause_hour": 20, "per_hour": 50, "per_day": 50},
        "results": {"socket": "results.socket", "mqtt": False},
    }


def configured(board: SmallBoard, pace: Pace, extra: dict[str, dict[str, Any]]) -> Path:
    """Write the configuration; `extra` on top."""
    tables = settings(pace)
    for table, values in extra.items():
        tables[table] = {**tables.get(table, {}), **values}
    return board.configure(**tables)
