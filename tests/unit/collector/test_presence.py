"""Which of two collectors serves a broker."""

from __future__ import annotations

import msgspec
import pytest

from tidegauge.collector.presence import SILENT, Neighbours, Presence, word


def presence(name: str, made: float, **changes: object) -> Presence:
    made_so = Presence(name * 32, f"collector-{name}", f"host-{name}", made, "serving")
    return msgspec.structs.replace(made_so, **changes)


def heard(me: Presence, *others: Presence, at: float = 0.0) -> Neighbours:
    neighbours = Neighbours(me)
    for each in others:
        neighbours.hear(each.topic, word(each), at)
    return neighbours


def test_the_older_database_serves_and_both_agree() -> None:
    old, new = presence("a", 1.0), presence("b", 2.0)
    assert heard(new, old).rival(1.0) == old
    assert heard(old, new).rival(1.0) is None
    twin = presence("b", 1.0)  # made in the same moment: the names decide, for both alike
    assert (heard(old, twin).rival(1.0) is None) != (heard(twin, old).rival(1.0) is None)


def test_processes_of_one_collector_are_no_rivals() -> None:
    me = presence("a", 5.0)
    assert heard(me, presence("a", 5.0, instance="collector-other")).rival(1.0) is None


def test_one_that_is_gone_or_says_nothing_new_is_no_rival() -> None:
    me, other = presence("b", 2.0), presence("a", 1.0)
    neighbours = heard(me, other)
    assert neighbours.rival(SILENT - 1) == other and neighbours.rival(SILENT + 1) is None
    neighbours.hear(other.topic, word(other), SILENT)  # the broker repeats what it retains: no sign of life
    assert neighbours.rival(SILENT + 1) is None
    alive = msgspec.structs.replace(other, beat=1)
    neighbours.hear(alive.topic, word(alive), SILENT)
    assert neighbours.rival(SILENT + 1) == alive
    gone = msgspec.structs.replace(other, state="gone")
    neighbours.hear(gone.topic, word(gone), SILENT + 2)
    assert neighbours.rival(SILENT + 3) is None


@pytest.mark.parametrize("payload", [b"", b"{", b"[" * 4000, b"\xff", b'{"collector": 5}', b"x" * 5000])
def test_junk_is_ignored(payload: bytes) -> None:
    neighbours = Neighbours(presence("b", 2.0))
    neighbours.hear(presence("a", 1.0).topic, payload, 0.0)
    neighbours.hear("tidegauge/collectors/v1/x/y", payload, 0.0)
    assert neighbours.rival(0.0) is None


def test_a_word_under_anothers_topic_is_ignored() -> None:
    me, other = presence("b", 2.0), presence("a", 1.0)
    neighbours = Neighbours(me)
    neighbours.hear(presence("c", 1.0).topic, word(other), 0.0)
    assert neighbours.rival(0.0) is None and not neighbours.hears_itself
    neighbours.hear(me.topic, word(me), 0.0)
    assert neighbours.hears_itself
