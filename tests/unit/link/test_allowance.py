"""What a board may spend on its link: bytes a second, hours of the day, bytes a day; when it tries the broker again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.link import governor as governor_module
from tidegauge.link.allowance import DAY, DayBudget, Spent, TokenBucket, in_span, until_open
from tidegauge.link.config import LinkConfig
from tidegauge.link.governor import AHEAD, Governor
from tidegauge.link.reconnect import STEADY, Reconnect

SIZE = 4096


@given(st.floats(1000, 1e6), st.lists(st.tuples(st.integers(1, 300_000), st.floats(0, 5)), min_size=1, max_size=40))
def test_over_any_time_no_more_than_the_rate_and_a_burst_goes(rate: float, pieces: list[tuple[int, float]]) -> None:
    bucket, now, sent = TokenBucket(rate), 100.0, list[tuple[float, int]]()
    for size, pause in pieces:
        now += pause
        now += bucket.wait(size, now)
        assert bucket.wait(size, now) < 1e-6, "what one has waited for goes"
        bucket.take(size, now)
        sent.append((now, size))
    for first, (began, _) in enumerate(sent):
        for ended, _ in sent[first:]:
            between = sum(size for at, size in sent[first:] if at <= ended)
            assert between <= rate * (ended - began + 1) + max(size for size, _ in pieces) + 1


def test_no_rate_is_no_limit() -> None:
    bucket = TokenBucket(0)
    bucket.take(1 << 40, 0.0)
    assert bucket.wait(1 << 40, 0.0) == 0.0


@given(st.integers(0, 1439), st.integers(0, 1439), st.floats(0, DAY - 1))
def test_a_window_opens_when_it_says(begin: int, end: int, second: float) -> None:
    window = f"{begin // 60:02}:{begin % 60:02}-{end // 60:02}:{end % 60:02}"
    wait = until_open(window, second)
    assert 0 <= wait < DAY
    opened = (second + wait) % DAY
    if begin != end:
        assert in_span(window, int(opened // 60) if wait == 0 else round(opened / 60) % 1440)
    assert (wait == 0) == (in_span(window, int(second // 60)) or round(second + wait) % DAY == second)


def test_without_a_window_it_is_always_open() -> None:
    assert until_open("", 5.0) == 0.0
    assert until_open("22:00-06:00", 12 * 3600) == 10 * 3600
    assert until_open("22:00-06:00", 23 * 3600) == 0.0
    assert until_open("22:00-06:00", 3 * 3600) == 0.0


@given(
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(0, 30), st.integers(-2, 2), st.booleans()), max_size=40),
)
def test_a_day_never_costs_more_whatever_the_clock_does(limit: int, steps: list[tuple[int, int, bool]]) -> None:
    budget, day, spent = DayBudget(limit, Spent()), 20_000, dict[int, int]()
    for size, move, restarts in steps:
        day = max(0, day + move)
        if restarts:
            budget = DayBudget(limit, budget.spent)
        if budget.spend(size, day):
            spent[budget.spent.day] = spent.get(budget.spent.day, 0) + size
    assert all(total <= limit for total in spent.values())


def test_a_clock_in_1970_buys_no_new_day() -> None:
    budget = DayBudget(10, Spent(20_000, 10))
    assert not budget.spend(1, 0)
    assert budget.spend(1, 20_001)


def test_the_account_outlives_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(governor_module, "_day", lambda moment: 20_000)
    config = LinkConfig(mib_per_day=8)
    first = Governor(config, tmp_path / "today.json")
    assert first.spend(SIZE)
    assert first.holds() == (0.0, 0.0)
    second = Governor(config, tmp_path / "today.json")
    taken = sum(SIZE for _ in range(10_000) if second.spend(SIZE))
    assert (8 << 20) - AHEAD - SIZE <= taken + SIZE <= 8 << 20  # what was entered ahead is lost, never spent twice
    assert second.holds()[1] > 0
    assert "mib_per_day" in second.why()
    assert not Governor(config, tmp_path / "today.json").spend(SIZE)


def test_a_damaged_account_is_told_and_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "today.json").write_bytes(b"{")
    assert Governor(LinkConfig(), tmp_path / "today.json").spend(SIZE)
    assert "can't be read" in caplog.text


@given(st.lists(st.floats(0, 100), max_size=30), st.integers(0, 1 << 30))
def test_tries_spread_with_full_jitter_below_a_doubling_bound(lasted: list[float], seed: int) -> None:
    reconnect, failures = Reconnect(Random(seed)), 0
    assert 0 <= reconnect.pause(1.0, 60.0, 5.0) <= 5.0
    for seconds in lasted:
        reconnect.ended(seconds)
        failures = 0 if seconds > STEADY else failures + 1
        bound = 5.0 if failures == 0 else min(60.0, 2.0 ** (failures - 1))
        assert 0 <= reconnect.pause(1.0, 60.0, 5.0) <= bound


def test_a_fleet_does_not_come_back_at_once() -> None:
    """After a broker's restart a thousand boards spread over the whole time, not its beginning."""
    pauses = []
    for seed in range(1000):
        board = Reconnect(Random(seed))
        board.ended(3600.0)
        pauses.append(board.pause(1.0, 300.0, 5.0))
    per_second = [sum(second <= pause < second + 1 for pause in pauses) for second in range(5)]
    assert min(per_second) > 140
