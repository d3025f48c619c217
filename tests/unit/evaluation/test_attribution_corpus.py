"""The corpus draws what it says, the stack gives the agent's verdicts on it, and a wrong verdict is a miss."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tidegauge.cli.board_parts import freeze
from tidegauge.detectors.acceptance import AcceptanceRules, Accepted, Rejected
from tidegauge.evaluation import attribution, corpus, first_frame
from tidegauge.evaluation.corpus import Case, Outcome
from tidegauge.evaluation.fixed_camera import CAMERA_CHANGES, DATA_CHANGES, Change, FixedCamera
from tidegauge.evaluation.pairs import Pair
from tidegauge.evaluation.stack import Settled, accept, settle
from tidegauge.virtualboard.faults import ALL_KINDS, Fault


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"), "classifier", 1)


@pytest.fixture(scope="module")
def settled(pair: Pair) -> Settled:
    return settle(pair, AcceptanceRules(samples=220), freeze)


def try_case(pair: Pair, settled: Settled, case: Case) -> Outcome:
    return corpus.try_case(pair, settled, case, np.random.default_rng(3))


def test_each_kind_is_drawn_and_sizes_differ(pair: Pair) -> None:
    many = corpus.Sizes(device=1, data=8, camera=2, reference=3, both=1, acceptance=200)
    found = corpus.cases(pair, many, np.random.default_rng(1))
    assert {case.kind for case in found if case.group == "device"} == set(ALL_KINDS)
    assert {case.kind for case in found if case.group == "data"} == set(DATA_CHANGES)
    assert {case.kind for case in found if case.group == "camera"} == set(CAMERA_CHANGES)
    sizes = [case.size for case in found if case.group == "data"]
    assert min(sizes) < 0.06 and max(sizes) > 0.5 and len(set(sizes)) == len(sizes)
    assert Counter(case.group for case in found)["reference"] == 3
    assert corpus.cases(pair, many, np.random.default_rng(1)) == found


def test_a_picture_is_the_same_again_and_a_change_changes_it() -> None:
    one, same = (FixedCamera(64, 48, 0, (0.6, 1.0), 5) for _ in range(2))
    assert np.array_equal(one.frame(7), same.frame(7))
    assert not np.array_equal(one.frame(7), one.frame(8))
    for kind in (*DATA_CHANGES, *CAMERA_CHANGES):
        assert np.array_equal(one.frame(7, Change(kind, 0.7)), one.frame(7)) == (kind == "frozen")


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        (Case("device", "gain", 1.3, Fault("b2_side", "gain", 1.3)), "accelerator"),
        (Case("device", "stale", 1.0, Fault("b1", "stale")), "accelerator"),
        (Case("device", "nan", 8.0, Fault("prob", "nan", 8.0)), "accelerator"),
        (Case("device on live inputs", "gain", 3.0, Fault("logits", "gain", 3.0)), "accelerator"),
        (Case("reference", "weights", 0.2, weights="w6"), "reference"),
        (Case("camera", "frozen", 1.0, change=Change("frozen")), "camera"),
        (Case("camera", "blurred", 1.0, change=Change("blurred")), "camera"),
        (Case("data", "light", 0.5, change=Change("light", 0.5)), "data"),
    ],
)
def test_the_verdict_on_a_gross_case(pair: Pair, settled: Settled, case: Case, verdict: str) -> None:
    found = try_case(pair, settled, case)
    assert found.expected == (verdict,) and found.verdicts[0] == verdict and found.right
    assert found.accuses_device == (verdict == "accelerator")


def test_what_cannot_be_seen_is_not_expected(pair: Pair, settled: Settled) -> None:
    """The session's first run is one of the warm-up: no golden tensor and no frame ever shows it."""
    found = try_case(pair, settled, Case("device", "first_frame", 1.0, Fault("b1", "first_frame")))
    assert (found.expected, found.verdicts, found.right) == ((), (), False)


def test_a_wrong_verdict_is_a_miss_and_an_accusation_counts() -> None:
    case = Case("data", "fog", 0.5)
    right = Outcome(case, ("data",), ("data",), 5, 1.0)
    accused = Outcome(case, ("data",), ("data", "accelerator"), 5, 1.0)
    silent = Outcome(case, ("data",), (), 0, 1.0)
    small = Outcome(case, (), ("accelerator",), 5, 0.1)
    device = Outcome(Case("device", "gain", 1.1, Fault("a", "gain")), ("accelerator",), ("accelerator",), 2, 0.2)
    figures = {(f.group, f.name): f for f in attribution.figures([right, accused, silent, small, device])}
    rate = figures["the right verdict, above the detectable size", "all"]
    assert rate.value == 75 and rate.met is False and "3 of 4" in rate.note
    assert figures["no fault of the device", "verdicts against it"].value == 2
    assert figures["below the detectable size", "changed scenes"].note == "accelerator 1"
    assert figures["the right verdict by size, faults of the device", "mean loss less m0 0.1 to 0.3"].value == 100


def test_a_device_wrong_from_the_first_frame_is_not_accepted(pair: Pair, tmp_path: Path) -> None:
    rules = AcceptanceRules(samples=60)
    assert isinstance(accept(pair, pair.device(), rules), Accepted)
    rejected = accept(pair, pair.device([Fault("prob", "zero")]), rules)
    assert isinstance(rejected, Rejected) and "everywhere" in rejected.reason
    tiny = first_frame.try_fault(pair, Fault("stem", "tiny", 1.0), first_frame.QUICK)
    assert not tiny.shown and not tiny.failed
    gross = first_frame.try_fault(pair, Fault("logits", "gain", 0.2), first_frame.QUICK)
    assert gross.shown and gross.failed
    missed = first_frame.Outcome("a", True, False, 1.0, 0.3, "")
    found = first_frame.figures([first_frame.Measured([gross, tiny, missed], [True], [], [])])
    assert found[0].value == 50 and found[0].met is False
    assert found[1].value == 1 and found[2].value == 100


def test_an_upgrade_that_costs_is_named_and_one_compiled_anew_is_not(pair: Pair, tmp_path: Path) -> None:
    part = first_frame.Part("classifier", first_frame.QUICK, 1, "upgrades")
    (costly,), (free,) = first_frame.upgrades(pair, first_frame.QUICK, tmp_path, part)
    assert costly.named and costly.accepted and costly.cost == pytest.approx(first_frame.COST, abs=0.01)
    assert free.accepted and not free.named and abs(free.cost) < 0.01
