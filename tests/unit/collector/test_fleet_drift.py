"""Which boards stand out from a fleet: chance is not named, a fault is, and how many say it makes it surer."""

from __future__ import annotations

from math import exp, log, log1p
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.collector.fleet_drift import FALSE_SHARE, LEAST_LOG_E, Drifting, log_e, standing_out
from tidegauge.collector.tables import Device
from tidegauge.detectors.betting import BettingDetector
from tidegauge.link import vitals
from unit.collector.test_device_metrics import board


def told(name: str, evidence: float, observations: float = 1000.0, detector: str = "loss") -> Device:
    detail = {vitals.EVIDENCE + detector: evidence, vitals.OBSERVATIONS + detector: observations}
    return board(device=name, detail=detail)


def drifting(devices: list[Device]) -> list[Drifting]:
    """As the collector judges a fleet: the database gives only those that could be named at all."""
    weighed = [Drifting(each.device, each.model, e) for each in devices if (e := log_e(each.detail)) is not None]
    found = standing_out([each for each in weighed if each.log_e >= LEAST_LOG_E], len(devices))
    assert found == standing_out(weighed, len(devices))
    return found


def quiet(count: int) -> list[Device]:
    return [told(f"cam-{number:04}", 0.5) for number in range(count)]


def needed(devices: int, rank: int = 1, observations: float = 1000.0) -> float:
    """Least ln(1 + M) that is named, by the formula."""
    return log1p(devices / (rank * FALSE_SHARE) * observations)


def test_one_board_needs_more_the_larger_the_fleet_is() -> None:
    for size in (1, 10, 1000):
        others = quiet(size - 1)
        assert drifting([*others, told("bad", needed(size) - 1e-6)]) == []
        (found,) = drifting([*others, told("bad", needed(size) + 1e-6)])
        assert (found.device, found.model) == ("bad", "enhancer")
        assert abs(exp(found.log_e) * FALSE_SHARE / size - 1) < 1e-3


def test_many_boards_at_once_each_need_less() -> None:
    least = needed(200, rank=20) + 1e-6
    assert least < needed(200)
    bad = [told(f"bad-{number:02}", least) for number in range(20)]
    assert [each.device for each in drifting([*quiet(180), *bad])] == [device.device for device in bad]
    assert drifting([*quiet(181), *bad[:19]]) == []


def test_evidence_is_worth_less_the_longer_it_was_waited_for() -> None:
    enough = needed(50, observations=100.0) + 1e-6
    assert drifting([*quiet(49), told("bad", enough, 100.0)])
    assert not drifting([*quiet(49), told("bad", enough, 10_000.0)])


def test_a_board_s_detectors_are_one_word() -> None:
    both = {
        vitals.EVIDENCE + "loss": needed(10) + log(2),
        vitals.OBSERVATIONS + "loss": 1000.0,
        vitals.EVIDENCE + "nmse": 0.0,
        vitals.OBSERVATIONS + "nmse": 1000.0,
    }
    assert drifting([*quiet(9), board(device="bad", detail=both)])
    assert drifting([*quiet(9), board(device="bad", detail={**both, vitals.EVIDENCE + "loss": needed(10)})]) == []


@settings(max_examples=100)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([p + d for p in (vitals.EVIDENCE, vitals.OBSERVATIONS) for d in ("loss", "nmse", "")]),
            st.floats(),
        ),
        max_size=20,
    )
)
def test_whatever_boards_say_only_they_are_named(details: list[dict[str, float]]) -> None:
    devices = [board(device=f"cam-{number}", detail=detail) for number, detail in enumerate(details)]
    found = drifting(devices)
    assert len({each.device for each in found}) == len(found)
    assert {each.device for each in found} <= {device.device for device in devices}
    assert [each.log_e for each in found] == sorted((each.log_e for each in found), reverse=True)


def test_of_a_healthy_fleet_hardly_any_board_is_named_and_of_a_faulty_one_the_faulty() -> None:
    """400 looks at fleets of 50 at their limit m0; expected false namings per look are at most 5 %."""
    rng, m0 = Random(7), 0.05

    def after(mean: float, name: str) -> Device:
        detector = BettingDetector("loss", m0, 1e-6)
        for _ in range(120):
            detector.update(float(rng.random() < mean))
        return told(name, detector.log_evidence, detector.observations)

    healthy = [after(m0, f"cam-{number}") for number in range(2000)]
    looks = [rng.sample(healthy, 50) for _ in range(400)]
    assert sum(bool(drifting(look)) for look in looks) <= 0.05 * len(looks)
    bad = [after(0.5, f"bad-{number}") for number in range(3)]
    assert {each.device for each in drifting([*healthy[:47], *bad])} == {device.device for device in bad}
