"""What the agent must not forget: one versioned document, replaced atomically.

A file that can't be read is set aside (`state.json.corrupt-<time>`) and start-up continues with a new acceptance; a
file of another schema version likewise, since evidence of unknown meaning is worse than none.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from tidegauge.agent.disk import Disk
from tidegauge.agent.limits import Taken
from tidegauge.agent.streams import StreamsState
from tidegauge.bundles.redaction import Hiding
from tidegauge.clocks import Stamp, wall
from tidegauge.detectors.acceptance import Accepted
from tidegauge.detectors.noise import Noise
from tidegauge.detectors.windows import DriftState
from tidegauge.files import write_durably
from tidegauge.log_kinds import STATE_SET_ASIDE

log = logging.getLogger(__name__)

VERSION = 1


class Golden(msgspec.Struct, frozen=True):
    """A golden input tensor (by the SHA-256 of its bytes) and the answers that are right for it.

    `steady`: the device gave the same bits each time it was asked at acceptance; None where it was not asked. `low`,
    `high`: losses against the reference that it then had. `role`: what it was chosen for; `ranges`: least and most of
    its inputs and of the reference's inner tensors and outputs, by tensor. `hiding`: what was done to its picture.
    """

    index: int
    sha256: str
    device_digest: str
    reference_digest: str
    steady: bool | None = None
    low: float = 0.0
    high: float = 0.0
    role: str = ""
    ranges: dict[str, tuple[float, float]] = {}
    hiding: Hiding = Hiding()


class Candidate(msgspec.Struct, frozen=True):
    """A tensor that acceptance may choose as golden, the `role` it would have, and how bright it is."""

    role: str
    level: float
    golden: Golden


class Latched(msgspec.Struct, frozen=True):
    """An alarm that stays until it is cleared (or, of camera and inputs, until what it is about is over).

    `severity` critical or warning. `replay`: what the same frame showed when it was run again, else empty. `terms`: of
    the decomposition (`attribution.TERMS`), where the change of the loss was decomposed.
    """

    id: str
    detector: str
    verdict: str
    message: str
    wall: float
    severity: str = "critical"
    replay: str = ""
    terms: dict[str, float] = {}


class TraceSize(msgspec.Struct, frozen=True):
    """What a whole capture took on this board: trace files by name and size in bytes, seconds from pause to proof.

    It belongs to the artifacts and the trace level it was measured with.
    """

    artifacts: str
    debug_level: int
    files: dict[str, int]
    seconds: float

    @property
    def bytes(self) -> int:
        return sum(self.files.values())


class AgentState(msgspec.Struct, frozen=True):
    """`artifacts`, `model`, `runtime` (versions and hashes of what computes, by name, both sides): what the reference
    and the evidence belong to; on a change they are void. `network`: hash of the network file among the artifacts.

    `accepted`: the reference of all samples, `gap` the mean seconds between samples that the CPU budget allows at what
    they cost then, `contexts` that of each light context which has one. `previous`: the
    reference before a change, to compare the new one with; `change`: what changed. `watching`: evidence by context,
    `inputs`: windows of input drift by context. `coverage`: share of the range that a tensor had during acceptance
    which the golden set spans, by tensor. `noise`: of each output of the healthy device. `deterministic`: whether the
    device repeats its bits, as acceptance found it, None before it was asked. `candidates`: for the golden set, while
    acceptance runs.

    `restarts`: replaced generations of the pipeline worker, for the bound a day. `latency`: median seconds of a device
    run, as at first. `capturing`: id of a capture under way, empty for none.
    """

    version: int = VERSION
    session: int = 0
    artifacts: str = ""
    network: str = ""
    model: str = ""
    runtime: dict[str, str] = {}
    accepted: Accepted | None = None
    accepted_at: Stamp | None = None
    gap: float = 0.0
    contexts: dict[str, Accepted] = {}
    previous: Accepted | None = None
    change: str = ""
    golden: tuple[Golden, ...] = ()
    coverage: dict[str, float] = {}
    noise: dict[str, Noise] = {}
    deterministic: bool | None = None
    candidates: tuple[Candidate, ...] = ()
    watching: dict[str, StreamsState] = {}
    inputs: dict[str, DriftState] = {}
    alarms: tuple[Latched, ...] = ()
    captures: tuple[Taken, ...] = ()
    restarts: tuple[Taken, ...] = ()
    core_restarts: tuple[Taken, ...] = ()
    latency: float | None = None
    capturing: str = ""
    traces: TraceSize | None = None


class StateStore:
    """The document in `folder`/state.json. One writer: the agent's event loop.

    `disk` knows whether it is written; while it isn't, `save` tries again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.disk = Disk(folder)
        self._path = folder / "state.json"
        self.state = self._load()

    def _load(self) -> AgentState:
        try:
            state = msgspec.json.decode(self._path.read_bytes(), type=AgentState)
        except FileNotFoundError:
            return AgentState()
        except msgspec.DecodeError as error:
            return self._set_aside(str(error))
        if state.version != VERSION:
            return self._set_aside(f"version {state.version}, known is {VERSION}")
        return state

    def _set_aside(self, why: str) -> AgentState:
        aside = self._path.with_name(f"state.json.corrupt-{int(wall())}")
        self._path.rename(aside)
        said = STATE_SET_ASIDE.of(file=aside.name)
        log.error(
            "%s can't be used (%s): set aside as %s; a new acceptance starts", self._path, why, aside.name, extra=said
        )
        return AgentState()

    def update(self, **changes: Any) -> None:
        """Change fields and make them durable, if the disk lets us."""
        self.state = msgspec.structs.replace(self.state, **changes)
        self.save()

    def save(self) -> None:
        data = msgspec.json.encode(self.state)
        self.disk.attempt("the agent's state", lambda: write_durably(self._path, data))
