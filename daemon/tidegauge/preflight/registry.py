"""The checks in the order in which they are told: what is most often wrong first."""

from __future__ import annotations

import importlib

from tidegauge.preflight.probe import Probe

_PROBES = "tidegauge.preflight.probes"
#: Modules with a `PROBE`.
MODULES = tuple(
    f"{_PROBES}.{name}"
    for name in (
        "artifacts",
        "network_version",
        "runtime",
        "python",
        "model",
        "optimization",
        "subgraphs",
        "compile",
        "remote_log",
        "trace_folder",
        "clients",
        "carveouts",
        "remoteproc",
        "firmware",
        "soc",
        "virtual_board",
        "heap",
        "camera_device",
        "camera",
        "clock",
        "watchdog",
        "state_folder",
        "broker",
        "rights",
    )
)


def load(module: str) -> Probe:
    probe: Probe = importlib.import_module(module).PROBE
    return probe
