"""The agent's pure parts: back-off, bus, capture limits, suspicion, streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.agent.backoff import Backoff
from tidegauge.agent.bus import Bus
from tidegauge.agent.events import GoldenRoundEnded
from tidegauge.agent.limits import DAY, HOUR, Taken, forget_old, refusal
from tidegauge.agent.streams import Streams
from tidegauge.agent.suspicion import Suspicion
from tidegauge.clocks import Monotonic, Wall
from tidegauge.detectors.acceptance import Accepted
from tidegauge.detectors.alarm import Alarm


def test_backoff_doubles_to_its_limit_and_forgets_after_a_healthy_run() -> None:
    backoff = Backoff(first=1.0, limit=5.0, healthy=60.0)
    assert [backoff.delay(Monotonic(0)) for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    backoff.started(Monotonic(100))
    assert backoff.delay(Monotonic(130)) == 5.0  # 30 s is not healthy yet
    backoff.started(Monotonic(200))
    assert backoff.delay(Monotonic(260)) == 1.0


def test_bus_hands_events_on_in_order_and_never_nested() -> None:
    bus, seen = Bus(), []

    def first(event: str) -> None:
        seen.append(("first", event))
        if event == "a":
            bus.emit("b")

    bus.on(str, first)
    bus.on(str, lambda event: seen.append(("second", event)))
    bus.emit("a")
    assert seen == [("first", "a"), ("second", "a"), ("first", "b"), ("second", "b")]


def test_bus_is_usable_after_a_handler_has_failed() -> None:
    bus, seen = Bus(), []

    def fail(event: int) -> None:
        raise ValueError(event)

    bus.on(int, fail)
    bus.on(str, seen.append)
    with pytest.raises(ValueError, match="1"):
        bus.emit(1)
    bus.emit("later")
    assert seen == ["later"]


class TestCaptureLimits:
    NOW = Wall(1_800_000_000.0)

    def refuse(self, *taken: Taken, cause: str = "loss") -> str | None:
        return refusal(taken, cause, self.NOW, per_hour=3, per_day=5, per_cause_hour=1)

    def test_first_is_allowed(self) -> None:
        assert self.refuse() is None

    def test_one_an_hour_for_one_cause(self) -> None:
        assert "per_cause_hour" in (self.refuse(Taken(self.NOW - 60, "loss")) or "")
        assert self.refuse(Taken(self.NOW - 60, "nmse")) is None
        assert self.refuse(Taken(self.NOW - HOUR - 1, "loss")) is None

    def test_hour_and_day(self) -> None:
        hour = [Taken(self.NOW - 60 * i, f"c{i}") for i in range(3)]
        assert "capture.per_hour" in (self.refuse(*hour) or "")
        day = [Taken(self.NOW - HOUR * (2 + i), f"c{i}") for i in range(5)]
        assert "capture.per_day" in (self.refuse(*day) or "")

    def test_a_capture_in_the_clocks_future_counts(self) -> None:
        """A board that boots in 1970 must not forget that it has just taken one."""
        assert self.refuse(Taken(self.NOW + 1e8, "loss")) is not None

    @given(st.lists(st.floats(-3 * DAY, 3 * DAY), max_size=30))
    def test_what_is_forgotten_never_mattered(self, ages: list[float]) -> None:
        taken = tuple(Taken(self.NOW - age, "loss") for age in ages)
        assert self.refuse(*taken) == self.refuse(*forget_old(taken, self.NOW))


class TestSuspicion:
    ALARM = Alarm("loss", "…", {})

    @staticmethod
    def ended(started: float, device: tuple[int, ...] = ()) -> GoldenRoundEnded:
        return GoldenRoundEnded(Monotonic(started), 3, device, (), (), "")

    def test_nothing_suspected_concludes_nothing(self) -> None:
        assert not Suspicion().round_ended(self.ended(5))

    def test_a_round_that_began_before_does_not_conclude(self) -> None:
        suspicion = Suspicion()
        suspicion.add(self.ALARM, Monotonic(10))
        suspicion.forced_pair_came()
        assert not suspicion.round_ended(self.ended(9))
        assert suspicion.round_ended(self.ended(11))

    def test_a_wrong_known_answer_concludes_at_once(self) -> None:
        suspicion = Suspicion()
        suspicion.add(self.ALARM, Monotonic(10))
        assert suspicion.round_ended(self.ended(9, device=(0,)))

    def test_waits_one_round_for_a_pair_to_capture_from_but_not_for_ever(self) -> None:
        suspicion = Suspicion()
        suspicion.add(self.ALARM, Monotonic(10))
        assert not suspicion.round_ended(self.ended(11))
        assert suspicion.round_ended(self.ended(12))

    def test_one_suspicion_for_each_detector_and_a_clean_start_after(self) -> None:
        suspicion = Suspicion()
        assert suspicion.add(self.ALARM, Monotonic(10))
        assert not suspicion.add(self.ALARM, Monotonic(11))
        assert suspicion.take() == [self.ALARM]
        assert suspicion.suspects == []
        assert not suspicion.round_ended(self.ended(20))


class TestStreams:
    ACCEPTED = Accepted(
        m0=0.05,
        mean=0.01,
        lower95=0.0,
        upper95=0.03,
        nmse_quantile=1e-4,
        exceedance_m0=0.15,
        correlation_time=1.0,
        block=4,
        alpha=0.001,
        samples=100,
        gap=1.0,
    )

    def feed(self, streams: Streams, loss: float, nmse: float | None, count: int) -> list[str]:
        return [alarm.detector for _ in range(count) for alarm in streams.update(loss, nmse)]

    def test_healthy_pairs_raise_nothing(self) -> None:
        assert self.feed(Streams(self.ACCEPTED, None), 0.01, 5e-5, 2000) == []

    def test_a_high_loss_is_found_within_a_dozen_observations(self) -> None:
        assert "loss" in self.feed(Streams(self.ACCEPTED, None), 0.9, 5e-5, 12 * 4)

    def test_unusual_tensor_errors_are_found_though_the_loss_is_low(self) -> None:
        assert self.feed(Streams(self.ACCEPTED, None), 0.0, 1.0, 12 * 4)[:1] == ["nmse"]

    def test_an_undefined_nmse_is_not_healthy(self) -> None:
        assert "nmse" in self.feed(Streams(self.ACCEPTED, None), 0.0, None, 12 * 4)

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.integers(0, 60))
    def test_a_restart_changes_nothing(self, losses: list[float], cut: int) -> None:
        whole, before = Streams(self.ACCEPTED, None), Streams(self.ACCEPTED, None)
        for loss in losses:
            whole.update(loss, 5e-5)
        for loss in losses[:cut]:
            before.update(loss, 5e-5)
        after = Streams(self.ACCEPTED, before.state())
        for loss in losses[cut:]:
            after.update(loss, 5e-5)
        assert after.state() == whole.state()
