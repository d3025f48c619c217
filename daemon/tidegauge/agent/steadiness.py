"""Whether the device gives the same bits for the same input at all, as acceptance finds it. Pure.

TI's kernels do; where a device does not, its known answers are judged by how far it is from the reference, within the
spread that acceptance saw, and `status` says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidegauge.agent.events import Evidence
from tidegauge.agent.state import Golden

#: Runs of a golden tensor from which its spread is measured.
RUNS = 4
#: A spread is widened by its own width, and by so much loss at least: few runs do not show all of it.
LEAST_WIDTH = 0.005


def measured(golden: Golden, runs: Sequence[Evidence]) -> Golden:
    """With what these runs of it show. Raises ValueError for fewer than two."""
    if len(runs) < 2:
        raise ValueError(f"{len(runs)} runs show no spread")
    losses = [each.measured.loss for each in runs]
    steady = len({each.digest for each in runs}) == 1
    return msgspec.structs.replace(golden, steady=steady, low=min(losses), high=max(losses))


def answer(golden: Golden, evidence: Evidence) -> str:
    """The device's digest as it is to be compared: an unsteady device's counts as right within its spread."""
    if golden.steady is not False:
        return evidence.digest
    room = max(golden.high - golden.low, LEAST_WIDTH)
    within = golden.low - room <= evidence.measured.loss <= golden.high + room
    return golden.device_digest if within else evidence.digest
