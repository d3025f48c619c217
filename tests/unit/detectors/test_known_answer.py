"""The known-answer test: equal bits, or an alarm at the second mismatch running."""

from __future__ import annotations

import msgspec
import pytest

from tidegauge.detectors.known_answer import KnownAnswer, KnownAnswerState

ACCEPTED = {0: "aa", 1: "bb"}


def test_right_answers_raise_nothing() -> None:
    test = KnownAnswer("device", ACCEPTED)
    assert all(test.update(index, digest) is None for _ in range(3) for index, digest in ACCEPTED.items())
    assert not test.failing


def test_two_mismatches_running_of_one_tensor_raise_an_alarm() -> None:
    test = KnownAnswer("device", ACCEPTED)
    assert test.update(0, "xx") is None
    assert test.update(1, "yy") is None  # another tensor's mismatch is not the same one again
    alarm = test.update(0, "xx")
    assert alarm is not None
    assert alarm.detector == "known_answer_device"
    assert alarm.evidence == {"golden": 0, "strikes": 2}
    assert test.failing
    assert test.update(0, "xx") is not None


def test_a_single_flip_is_forgiven() -> None:
    test = KnownAnswer("reference", ACCEPTED)
    assert [test.update(0, digest) for digest in ("xx", "aa", "xx", "aa")] == [None] * 4
    assert not test.failing


def test_strikes_survive_a_restart_but_not_a_new_reference() -> None:
    before = KnownAnswer("device", ACCEPTED)
    before.update(0, "xx")
    state = msgspec.json.decode(msgspec.json.encode(before.state()), type=KnownAnswerState)
    after = KnownAnswer("device", ACCEPTED)
    after.restore(state)
    assert after.update(0, "xx") is not None
    rebaselined = KnownAnswer("device", {0: "cc", 1: "bb"})
    rebaselined.restore(state)
    assert rebaselined.update(0, "xx") is None


def test_an_unknown_tensor_is_an_error() -> None:
    with pytest.raises(KeyError):
        KnownAnswer("device", ACCEPTED).update(7, "aa")
