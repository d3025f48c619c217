"""The planner: never over the limits, deterministic, and it keeps first, worst and newest."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.planner import Candidate, DropReason, Room, by_value, plan

MIB = 1 << 20
DAY = 86_400.0


def candidate(number: int, mib: int = 10, **changes: object) -> Candidate:
    fields: dict[str, object] = {
        "id": f"bundle-{number:04d}",
        "bytes": mib * MIB,
        "inodes": 10,
        "sequence": number,
        "age": 60.0,
        "severity": 0.5,
        "kind": "loss",
    }
    return Candidate(**{**fields, **changes})  # type: ignore[arg-type]


def limits(mib: int = 100, **changes: object) -> SpoolLimits:
    fields: dict[str, object] = {"max_mib": mib, "headroom_mib": 0, "headroom_files": 0}
    return SpoolLimits(**{**fields, **changes})  # type: ignore[arg-type]


PLENTY = Room(free_bytes=1 << 40, free_inodes=1 << 30)

candidates = st.lists(
    st.builds(
        candidate,
        number=st.integers(0, 30),
        mib=st.integers(0, 60),
        inodes=st.integers(1, 40),
        age=st.none() | st.floats(0, 200 * DAY),
        severity=st.floats(0, 1),
        kind=st.sampled_from("abc"),
    ),
    max_size=25,
    unique_by=lambda item: item.id,
)
some_limits = st.builds(
    SpoolLimits,
    max_mib=st.integers(1, 400),
    max_files=st.integers(16, 300),
    max_age_days=st.floats(1, 100),
    headroom_mib=st.integers(0, 200),
    headroom_files=st.integers(0, 100),
    first_share=st.floats(0, 1),
    worst_share=st.floats(0, 1),
)
rooms = st.builds(
    Room,
    free_bytes=st.integers(0, 500 * MIB),
    free_inodes=st.integers(0, 300),
    incoming_bytes=st.integers(0, 300 * MIB),
    incoming_inodes=st.integers(0, 100),
    other_bytes=st.integers(0, 100 * MIB),
    other_inodes=st.integers(0, 50),
)


@settings(max_examples=300, deadline=None)
@given(candidates, some_limits, rooms, st.randoms(), st.integers(0, 30))
def test_never_over_the_limits(entries, bounds, room, rng, moving) -> None:  # type: ignore[no-untyped-def]
    busy = f"bundle-{moving:04d}"
    entries = [Candidate(e.id, e.bytes, e.inodes, e.sequence, e.age, e.severity, e.kind, e.id == busy) for e in entries]
    made = plan(entries, bounds, room)
    gone = {name for name, _ in made.evict}
    kept = [entry for entry in entries if entry.id not in gone]
    incoming = (room.incoming_bytes, room.incoming_inodes) if made.fits else (0, 0)
    used_bytes, used_inodes = sum(e.bytes for e in kept), sum(e.inodes for e in kept)
    freed_bytes = sum(e.bytes for e in entries) - used_bytes
    freed_inodes = sum(e.inodes for e in entries) - used_inodes
    if kept or made.fits:
        assert used_bytes + incoming[0] + room.other_bytes <= bounds.bytes
        assert used_inodes + incoming[1] + room.other_inodes <= bounds.max_files
        assert room.free_bytes + freed_bytes - incoming[0] >= bounds.headroom_bytes
        assert room.free_inodes + freed_inodes - incoming[1] >= bounds.headroom_files

    shuffled = list(entries)
    rng.shuffle(shuffled)
    assert plan(shuffled, bounds, room) == made

    # Whatever is in transfer stays where it alone fits.
    for entry in entries:
        if entry.in_transfer and plan([entry], bounds, _without_others(room, entries, entry)).evict == ():
            assert entry.id not in gone


def _without_others(room: Room, entries: list[Candidate], alone: Candidate) -> Room:
    """The room as it is when all others are gone."""
    rest = [entry for entry in entries if entry is not alone]
    return Room(
        room.free_bytes + sum(e.bytes for e in rest),
        room.free_inodes + sum(e.inodes for e in rest),
        room.incoming_bytes,
        room.incoming_inodes,
        room.other_bytes,
        room.other_inodes,
    )


def test_nothing_goes_while_there_is_room() -> None:
    assert plan([candidate(n) for n in range(10)], limits(100), PLENTY).evict == ()


def test_first_worst_and_newest_stay_and_the_middle_goes() -> None:
    entries = [candidate(n, severity=0.9 if n in (7, 8, 9, 10) else 0.1) for n in range(20)]
    gone = [name for name, _ in plan(entries, limits(100), PLENTY).evict]
    kept = [entry.sequence for entry in entries if entry.id not in gone]
    assert kept == [0, 1, 7, 8, 9, 10, 16, 17, 18, 19]


def test_each_kind_keeps_its_first() -> None:
    entries = [candidate(n, kind="new" if n >= 10 else "old") for n in range(20)]
    gone = {name for name, _ in plan(entries, limits(100, worst_share=0.0), PLENTY).evict}
    assert "bundle-0000" not in gone
    assert "bundle-0010" not in gone
    assert "bundle-0001" in gone


def test_room_is_made_for_what_comes() -> None:
    entries = [candidate(n) for n in range(10)]
    room = Room(free_bytes=1 << 40, free_inodes=1 << 30, incoming_bytes=25 * MIB)
    made = plan(entries, limits(100), room)
    assert made.fits
    assert len(made.evict) == 3


def test_nothing_is_given_up_for_what_can_never_fit() -> None:
    entries = [candidate(n) for n in range(10)]
    made = plan(entries, limits(100), Room(free_bytes=1 << 40, free_inodes=1 << 30, incoming_bytes=101 * MIB))
    assert not made.fits
    assert made.evict == ()


def test_old_ones_expire_and_unknown_age_does_not() -> None:
    entries = [
        candidate(1, age=91 * DAY),
        candidate(2, age=None),
        candidate(3, age=89 * DAY),
        candidate(4, age=99 * DAY, in_transfer=True),
    ]
    assert plan(entries, limits(), PLENTY).evict == (("bundle-0001", DropReason.EXPIRED),)


def test_headroom_counts_what_others_have_taken() -> None:
    entries = [candidate(n) for n in range(5)]
    made = plan(entries, limits(100, headroom_mib=30), Room(free_bytes=5 * MIB, free_inodes=1 << 30))
    assert len(made.evict) == 3


def test_inodes_are_a_limit_of_their_own() -> None:
    entries = [candidate(n, mib=0) for n in range(10)]
    assert len(plan(entries, limits(100, max_files=35), PLENTY).evict) == 7


def test_in_transfer_is_last_to_go() -> None:
    entries = [candidate(n, severity=0.0 if n == 5 else 1.0, in_transfer=n == 5) for n in range(10)]
    gone = {name for name, _ in plan(entries, limits(10), PLENTY).evict}
    assert gone == {entry.id for entry in entries} - {"bundle-0005"}
    assert plan([candidate(5, in_transfer=True)], limits(5), PLENTY).evict == (("bundle-0005", DropReason.EVICTED),)


@settings(max_examples=200, deadline=None)
@given(candidates, st.integers(1, 300))
def test_each_class_may_hold_one_however_small_its_share(entries, quota) -> None:  # type: ignore[no-untyped-def]
    bounds = limits(quota, first_share=0.0, worst_share=0.0, max_age_days=1000)
    made = plan(entries, bounds, PLENTY)
    kept = {entry.id for entry in entries} - {name for name, _ in made.evict}
    ordered = sorted(entries, key=lambda item: (item.sequence, item.id))
    if not ordered:
        return
    worst = min(entries, key=lambda item: (-item.severity, item.sequence, item.id))
    three = {each.id: each for each in (ordered[0], worst, ordered[-1])}
    if sum(each.bytes for each in three.values()) <= bounds.bytes:
        assert three.keys() <= kept


def test_the_first_of_each_class_is_sent_before_the_worst() -> None:
    entries = [candidate(n, severity=n / 10, kind="b" if n >= 5 else "a") for n in range(8)]
    order = [each.sequence for each in by_value(entries)]
    assert order == [0, 5, 7, 6, 4, 3, 2, 1]
    assert [each.sequence for each in by_value([candidate(n) for n in range(4)])] == [0, 3, 2, 1], "then the newest"
