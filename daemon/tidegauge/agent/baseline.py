"""The accepted reference as a document of its own: read from a state folder, exported, compared between boards."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegauge.agent.state import VERSION as STATE_VERSION
from tidegauge.agent.state import AgentState, Golden
from tidegauge.clocks import Stamp
from tidegauge.detectors.acceptance import Accepted, difference
from tidegauge.detectors.defaults import LEAST_NMSE
from tidegauge.detectors.noise import Noise
from tidegauge.errors import TidegaugeError

VERSION = 1


class Baseline(msgspec.Struct, frozen=True):
    """`artifacts` (one hash for the folder), `model` and `runtime`: what it belongs to.

    `contexts`: the reference of each light context that is tested; others collect. `golden`: digests of known answers;
    `coverage`: share of each tensor's range during acceptance that the golden set spans. `gap`: mean seconds between
    samples on that board with its CPU budget, 0 where it was not told. `noise`: how far each output of the healthy
    device is from the reference's.
    """

    version: int
    device: str
    artifacts: str
    model: str
    accepted: Accepted
    accepted_at: Stamp | None
    golden: tuple[Golden, ...]
    contexts: dict[str, Accepted] = {}
    runtime: dict[str, str] = {}
    coverage: dict[str, float] = {}
    gap: float = 0.0
    noise: dict[str, Noise] = {}


class Comparison(msgspec.Struct, frozen=True):
    """`difference`: of the mean losses, new minus old; `low`, `high`: it lies between them with 90 % confidence.

    `verdict`: "worse" or "better" with 99 % confidence. `same_answers`: by golden tensor that both know, whether the
    device's answer is the same bits. `noise`: by output that both know, how many times the old median NMSE the new one
    is, None where one of them has none.
    """

    difference: float
    low: float
    high: float
    verdict: str
    same_artifacts: bool
    same_model: bool
    same_answers: dict[str, bool]
    noise: dict[str, float | None] = {}


def from_state(folder: Path, device: str = "") -> Baseline:
    """The reference that the agent of this folder has accepted. Raises TidegaugeError where there is none."""
    path = folder / "state.json"
    try:
        state = msgspec.json.decode(path.read_bytes(), type=AgentState)
    except FileNotFoundError as error:
        raise TidegaugeError(f"{path} does not exist", "give the state folder of an agent that has run") from error
    except (OSError, msgspec.DecodeError) as error:
        raise TidegaugeError(f"{path} can't be read ({error})", "see the agent's log") from error
    if state.version != STATE_VERSION:
        raise TidegaugeError(f"{path} is of version {state.version}, not {STATE_VERSION}", "use the agent's version")
    if state.accepted is None:
        raise TidegaugeError(
            f"{path} holds no accepted reference", "wait until acceptance has ended (`tidegauge status`)"
        )
    return Baseline(
        VERSION,
        device,
        state.artifacts,
        state.model,
        state.accepted,
        state.accepted_at,
        state.golden,
        state.contexts,
        state.runtime,
        state.coverage,
        state.gap,
        state.noise,
    )


def load(path: Path) -> Baseline:
    """An exported baseline, or the one in a state folder. Raises TidegaugeError."""
    if path.is_dir():
        return from_state(path)
    try:
        baseline = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except (OSError, msgspec.DecodeError) as error:
        raise TidegaugeError(
            f"{path} is no baseline ({error})", "export one with `tidegauge baseline export`"
        ) from error
    if baseline.version != VERSION:
        raise TidegaugeError(f"{path} is of version {baseline.version}, known is {VERSION}", "export it again")
    return baseline


def compare(old: Baseline, new: Baseline) -> Comparison:
    """How much worse `new` is. Each bound holds with 95 %, so the interval with at least 90 %."""
    found = difference(old.accepted, new.accepted)
    verdict = "worse" if found.worse else "better" if found.better else "no difference beyond chance"
    known = {golden.sha256: golden.device_digest for golden in old.golden}
    same = {
        golden.sha256[:12]: golden.device_digest == known[golden.sha256]
        for golden in new.golden
        if golden.sha256 in known
    }
    louder = {name: _louder(old.noise[name], new.noise[name]) for name in sorted(old.noise.keys() & new.noise.keys())}
    alike = (old.artifacts == new.artifacts, old.model == new.model)
    return Comparison(found.mean, found.low, found.high, verdict, *alike, same, louder)


def _louder(old: Noise, new: Noise) -> float | None:
    """Equal sides have an NMSE of zero, of which nothing is a multiple: it counts as what is just told apart."""
    if old.nmse is None or new.nmse is None:
        return None
    return max(new.nmse[0], LEAST_NMSE) / max(old.nmse[0], LEAST_NMSE)
