"""The known-answer round: strikes, replay, and a device that does not repeat its bits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tidegauge.agent import candidates
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import GoldenConfig
from tidegauge.agent.events import Evidence, GoldenRoundEnded
from tidegauge.agent.golden import GoldenService
from tidegauge.agent.state import Candidate, Golden, StateStore
from tidegauge.agent.stored_answers import changed, sentence
from tidegauge.bundles.redaction import Hiding
from tidegauge.detectors.acceptance import Accepted
from tidegauge.pipeline.messages import LossMeasured
from tidegauge.ram_folder import RamFolder
from tidegauge.tensors import TensorSpec

ACCEPTED = Accepted(0.05, 0.01, 0.0, 0.03, 1e-4, 0.15, 1.0, 4, 0.001, 100, 1.0)


RIGHT, WRONG = (np.array(values, np.float32).tobytes() for values in ((0.5, 0.25), (0.5, 0.75)))


def pair(inputs: bytes, device: bytes) -> Evidence:
    return Evidence(LossMeasured(1, 0, 1, 1, -1, 0.4, (), (), "r", 0.1), "live", (inputs,), (device,), (RIGHT,))


class Shadow:
    """Stands for both sides: gives the answers it was told to, in turn."""

    def __init__(self, device: list[str], losses: list[float] | None = None, reference: str = "r") -> None:
        self.device: Iterator[str] = cycle(device)
        self.losses: Iterator[float] = cycle(losses or [0.01])
        self.reference = reference
        self.runs = 0

    async def golden(self, path: Path, index: int, deadline: float) -> Evidence:
        self.runs += 1
        assert path.exists()
        loss = LossMeasured(1, 0, 1, -1, index, next(self.losses), (), (), self.reference, 0.1)
        digest = next(self.device)
        return Evidence(loss, digest, (b"i",), (RIGHT if digest == "d" else WRONG,), (RIGHT,))


class Rounds:
    def __init__(self, folder: Path, shadow: Shadow) -> None:
        self.store, self.shadow = StateStore(folder), shadow
        fakes: Any = (SimpleNamespace(ready=SimpleNamespace(outputs=[TensorSpec("y", (2,), "float32")])), shadow)
        private: Any = SimpleNamespace(at_rest=Hiding(), ram=RamFolder(folder, folder))
        self.service = GoldenService(GoldenConfig(), self.store, *fakes, private, Bus())
        golden = Golden(0, "ab", "d", "r")
        self.service.keep(golden, pair(b"i", RIGHT))
        self.store.update(golden=(golden,))

    def one(self) -> GoldenRoundEnded:
        return asyncio.run(self.service._round())


def rounds(folder: Path, device: list[str], losses: list[float] | None = None, reference: str = "r") -> Rounds:
    return Rounds(folder, Shadow(device, losses, reference))


def test_right_answers(tmp_path: Path) -> None:
    found = rounds(tmp_path, ["d"])
    ended = found.one()
    assert (ended.checked, ended.device, ended.reference, ended.alarms) == (1, (), (), ())
    assert found.store.state.deterministic is True
    before = found.shadow.runs
    found.one()
    assert found.shadow.runs == before + 1, "it is asked for its steadiness once"


def test_a_single_flip_is_no_finding_and_two_are(tmp_path: Path) -> None:
    found = rounds(tmp_path, ["d"])
    found.one()
    found.shadow.device = cycle(["x", "d"])
    assert found.one().device == ()
    found.shadow.device = cycle(["x"])
    ended = found.one()
    assert ended.device == (0,)
    [alarm] = ended.alarms
    assert alarm.detector == "known_answer_device"
    assert alarm.message.endswith("2 times running: 1 of 2 numbers differ from the accepted ones, by 0.5 at most")
    assert (alarm.evidence["changed_elements"], alarm.evidence["golden"]) == (1, 0)
    assert ended.replay is not None
    assert (ended.replay.live, ended.replay.again) == ("x", ("x",))


def test_a_wrong_reference_is_its_own(tmp_path: Path) -> None:
    found = rounds(tmp_path, ["d"])
    found.one()
    found.shadow.reference = "q"
    ended = found.one()
    assert (ended.device, ended.reference) == ((), (0,))


def test_a_device_without_repeatable_bits_is_judged_by_its_spread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = rounds(tmp_path, ["d", "e", "f"], [0.010, 0.014, 0.011])
    assert found.one().alarms == ()
    assert found.store.state.deterministic is False
    assert "other bits each time" in caplog.text
    assert found.one().alarms == ()
    found.shadow.device, found.shadow.losses = cycle(["e", "f"]), cycle([0.2])
    assert found.one().device == (0,)


def test_a_device_that_was_steady_is_not_excused_later(tmp_path: Path) -> None:
    found = rounds(tmp_path, ["d"])
    found.one()
    found.store.update(accepted=ACCEPTED)
    second = Golden(1, "cd", "d", "r")
    found.service.keep(second, pair(b"j", RIGHT))
    found.store.update(golden=(*found.store.state.golden, second))
    found.shadow.device = cycle(["x", "y", "z"])
    assert found.one().device == (0, 1)
    assert found.store.state.deterministic is True


def test_the_pair_under_suspicion_is_run_again_once(tmp_path: Path) -> None:
    found = rounds(tmp_path, ["d"])
    found.one()
    found.service.replay_next(pair(b"i", RIGHT))
    replay = found.one().replay
    assert replay is not None
    assert (replay.live, replay.again, replay.reference_again) == ("live", ("d", "d"), ("r", "r"))
    assert found.one().replay is None
    assert not (tmp_path / "replay.bin").exists()


def test_both_sides_outputs_are_kept_as_long_as_their_tensor(tmp_path: Path) -> None:
    found = rounds(tmp_path, ["d"])
    folder = tmp_path / "golden"
    assert {path.name for path in folder.iterdir()} == {"ab.bin", "ab.device.bin", "ab.reference.bin"}
    assert (folder / "ab.device.bin").read_bytes() == RIGHT
    found.service.forget_others()
    assert len(list(folder.iterdir())) == 3
    found.store.update(golden=())
    found.service.forget_others()
    assert list(folder.iterdir()) == []


def test_how_an_answer_differs_from_the_accepted_one() -> None:
    old = np.array([1.0, np.nan, np.inf, 2.0], np.float32).tobytes() + np.array([1, 2], np.int8).tobytes()
    now = np.array([1.0, np.nan, 3.0, 2.5], np.float32).tobytes(), np.array([1, -3], np.int8).tobytes()
    found = changed(old, now, ["float32", "int8"])
    assert found == {"changed_elements": 3, "elements": 6, "largest_change": 5}
    assert changed(old, (old[:16], old[16:]), ["float32", "int8"])["changed_elements"] == 0
    assert changed(old, now[:1], ["float32"]) == {}, "another size: nothing can be told"
    assert sentence({}) == ""


class TestChoice:
    """Which samples become golden, and how much of what acceptance saw they span."""

    @staticmethod
    def held(*levels: tuple[str, float]) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(role, level, Golden(0, f"{level:.0f}", "d", "r", ranges={"y": (0.0, level)}))
            for role, level in levels
        )

    def test_first_darkest_brightest_and_the_first_of_each_context(self) -> None:
        assert candidates.roles((), 10, "day") == ("first", "darkest", "brightest", "day")
        held = self.held(("first", 10), ("darkest", 10), ("brightest", 10), ("day", 10))
        assert candidates.roles(held, 10, "day") == ()
        assert candidates.roles(held, 5, "day") == ("darkest",)
        assert candidates.roles(held, 50, "infrared") == ("brightest", "infrared")

    def test_one_tensor_in_several_roles_is_taken_once_and_the_number_is_bounded(self) -> None:
        held = self.held(("day", 10), ("infrared", 3), ("brightest", 50), ("darkest", 10), ("first", 10))
        assert [(g.index, g.sha256, g.role) for g in candidates.chosen(held, 3)] == [
            (0, "10", "first"),
            (1, "50", "brightest"),
            (2, "3", "infrared"),
        ]
        assert len(candidates.chosen(held, 1)) == 1

    def test_coverage_is_the_share_of_each_tensors_range(self) -> None:
        golden = candidates.chosen(self.held(("first", 10), ("brightest", 40)), 3)
        seen = [{"y": (-10.0, 20.0), "z": (0.0, 1.0)}, {"y": (0.0, 40.0)}, {"y": (5.0, 5.0)}]
        assert candidates.coverage(golden, seen) == {"y": 40 / 50}
        assert candidates.coverage(golden, [{"y": (3.0, 3.0)}]) == {"y": 1.0}
        assert candidates.coverage((), seen) == {}

    def test_samples_keep_only_what_widens_the_ranges_before_and_lose_nothing_of_the_union(self) -> None:
        golden = candidates.chosen(self.held(("first", 10), ("brightest", 40)), 3)
        seen = [{"y": (-10.0, 20.0), "z": (0.0, 1.0)}, {"y": (0.0, 40.0)}, {"y": (5.0, 5.0), "z": (0.0, 1.0)}]
        spans = candidates.Spans()
        kept = [spans.widened(each) for each in seen]
        assert kept == [seen[0], seen[1], {}]
        assert candidates.coverage(golden, kept) == candidates.coverage(golden, seen)
