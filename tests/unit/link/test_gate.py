"""Which commands a board obeys: with a pinned key, for it, in time, once; everything else is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge import signing
from tidegauge.agent.control_messages import (
    COMMANDS,
    KEYLESS,
    AnyCommand,
    Pull,
    SetLogLevel,
    SetSampling,
    decode_command,
)
from tidegauge.clocks import Wall
from tidegauge.link.command_wire import LONGEST_LIFE, MAX_COMMAND, Order, Signed, digest, sign_order
from tidegauge.link.gate import (
    CLOCK_TOLERANCE,
    COUNTED_AS,
    REMEMBERED,
    Accepted,
    Known,
    Memory,
    Refusal,
    Refused,
    Remembered,
    Rules,
    ended,
    interrupted,
    judge,
)
from tidegauge.link.wire import encode
from tidegauge.metrics import COMMAND_RESULTS
from tidegauge.signing import FileKey, Use, verify

DEVICE = "cam-07"
NOW = Wall(1_800_000_000.0)


def make_key() -> FileKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return FileKey(Ed25519PrivateKey.generate().private_bytes_raw())


KEY, OTHER = make_key(), make_key()


def rules(*keys: str) -> Rules[AnyCommand]:
    def check(key: str, signature: bytes, payload: bytes) -> bool:
        return verify(key, Use.COMMAND, signature, payload)

    return Rules(DEVICE, keys or (KEY.public,), check, COMMANDS, KEYLESS, decode_command)


def order(action: object = SetLogLevel("debug"), **changes: Any) -> Order:
    fields: dict[str, Any] = {
        "id": "command-0001",
        "device": DEVICE,
        "issued": NOW,
        "expires": NOW + 300,
        "counter": 10,
        "action": msgspec.Raw(msgspec.json.encode(action)),
        **changes,
    }
    return Order(**fields)


def accepted(data: bytes, memory: Memory | None = None, now: float = NOW) -> Accepted[AnyCommand]:
    verdict = judge(data, rules(), memory or Memory(), Wall(now))
    assert isinstance(verdict, Accepted), verdict
    return verdict


def refusal(data: bytes, memory: Memory | None = None, now: float = NOW, *keys: str) -> Refusal:
    verdict = judge(data, rules(*keys), memory or Memory(), Wall(now))
    assert isinstance(verdict, Refused), verdict
    assert verdict.sentence
    return verdict.reason


def test_a_signed_command_is_obeyed_once_and_answered_twice() -> None:
    data = sign_order(order(), KEY)
    first = accepted(data)
    assert first.action == SetLogLevel("debug")
    assert first.key == KEY.public
    assert first.memory.counters == {KEY.public: 10}
    again = judge(data, rules(), first.memory, NOW)
    assert isinstance(again, Known)
    assert again.answer.state == "running"
    done = ended(first.memory, Remembered(first.order.id, first.command, "done", "the log level is now debug"))
    late = judge(data, rules(), done, Wall(NOW + 10_000))  # its answer outlives it
    assert isinstance(late, Known)
    assert late.answer.sentence == "the log level is now debug"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "cam-08"}, Refusal.WRONG_DEVICE),
        ({"issued": NOW - 400, "expires": NOW}, Refusal.EXPIRED),
        ({"issued": NOW + CLOCK_TOLERANCE + 1, "expires": NOW + CLOCK_TOLERANCE + 60}, Refusal.FUTURE),
        ({"expires": NOW + LONGEST_LIFE + 1}, Refusal.TOO_LONG),
        ({"expires": NOW}, Refusal.TOO_LONG),
        ({"version": 2}, Refusal.UNKNOWN_VERSION),
        ({"action": msgspec.Raw(b'{"type":"RunShell","command":"reboot"}')}, Refusal.UNKNOWN_COMMAND),
        ({"action": msgspec.Raw(b'"SetLogLevel"')}, Refusal.UNKNOWN_COMMAND),
        ({"action": msgspec.Raw(b'{"type":"SetLogLevel","level":"loud"}')}, Refusal.BAD_PARAMETERS),
        ({"action": msgspec.Raw(b'{"type":"SetSampling","gap_mean":-1}')}, Refusal.BAD_PARAMETERS),
        ({"action": msgspec.Raw(b'{"type":"CaptureNow","debug_level":9}')}, Refusal.BAD_PARAMETERS),
        ({"id": "../../etc"}, Refusal.MALFORMED),
        ({"counter": 0}, Refusal.MALFORMED),
    ],
)
def test_signed_and_wrong(changes: dict[str, Any], reason: Refusal) -> None:
    assert refusal(sign_order(order(**changes), KEY)) is reason


def test_forgeries() -> None:
    payload = encode(order())
    assert refusal(sign_order(order(), None)) is Refusal.UNSIGNED
    assert refusal(sign_order(order(), OTHER)) is Refusal.UNKNOWN_KEY
    assert refusal(encode(Signed(payload, KEY.public, OTHER.sign(Use.COMMAND, payload)))) is Refusal.BAD_SIGNATURE
    # The same key's signature of something else, of the same bytes for another use, and over changed bytes.
    assert refusal(encode(Signed(payload, KEY.public, KEY.sign(Use.MANIFEST, payload)))) is Refusal.BAD_SIGNATURE
    signature = KEY.sign(Use.COMMAND, payload)
    changed = payload.replace(b"debug", b"error")
    assert refusal(encode(Signed(changed, KEY.public, signature))) is Refusal.BAD_SIGNATURE
    assert refusal(b"no json") is Refusal.MALFORMED
    assert refusal(b"[" * 10_000) is Refusal.MALFORMED
    assert refusal(bytes(MAX_COMMAND + 1)) is Refusal.TOO_LARGE


def test_every_refusal_is_counted_as_something_that_is_exported_from_the_start() -> None:
    assert set(COUNTED_AS) == set(Refusal)
    assert set(COUNTED_AS.values()) <= set(COMMAND_RESULTS)


def test_none_pinned_none_obeyed() -> None:
    nobody = Rules(DEVICE, (), rules().verify, COMMANDS, KEYLESS, decode_command)
    verdict = judge(sign_order(order(), KEY), nobody, Memory(), NOW)
    assert isinstance(verdict, Refused)
    assert verdict.reason is Refusal.NO_OPERATOR_KEY


def test_replays_of_every_kind() -> None:
    memory = accepted(sign_order(order(counter=10), KEY)).memory
    assert refusal(sign_order(order(id="command-0002", counter=10), KEY), memory) is Refusal.REPLAYED
    assert refusal(sign_order(order(id="command-0002", counter=9), KEY), memory) is Refusal.REPLAYED
    reused = sign_order(order(SetLogLevel("error"), counter=11), KEY)
    assert refusal(reused, memory) is Refusal.ID_REUSED
    # So many later commands that the first is forgotten: its counter still is not.
    for number in range(REMEMBERED + 5):
        memory = accepted(sign_order(order(id=f"later-{number:06}", counter=11 + number), KEY), memory).memory
    assert len(memory.answered) == REMEMBERED
    assert refusal(sign_order(order(counter=10), KEY), memory) is Refusal.REPLAYED


def test_a_clock_that_jumps_back_revives_nothing() -> None:
    old = sign_order(order(id="command-0000", issued=NOW - 1000, expires=NOW - 700, counter=99), KEY)
    memory = accepted(sign_order(order(), KEY)).memory
    assert refusal(old, memory, now=NOW - 900) is Refusal.EXPIRED
    assert refusal(sign_order(order(), KEY), now=0.0) is Refusal.FUTURE  # 1970: no command can be judged


def test_lost_memory_refuses_what_was_issued_before() -> None:
    lost = Memory(not_before=NOW + 1)
    assert refusal(sign_order(order(), KEY), lost) is Refusal.REPLAYED
    assert accepted(sign_order(order(issued=NOW + 2), KEY), lost, now=NOW + 3)


def test_what_was_under_way_is_not_begun_again() -> None:
    data = sign_order(order(), KEY)
    memory = interrupted(accepted(data).memory)
    again = judge(data, rules(), memory, NOW)
    assert isinstance(again, Known)
    assert again.answer.state == "failed"


def test_a_pull_needs_no_key_and_leaves_no_trace() -> None:
    pull = order(Pull("bundle-0001"), counter=1)
    verdict = accepted(sign_order(pull, None))
    assert verdict.key == ""
    assert verdict.memory == Memory()
    late = order(Pull("bundle-0001"), issued=NOW - 400, expires=NOW - 1)
    assert refusal(sign_order(late, None)) is Refusal.EXPIRED
    assert refusal(sign_order(order(Pull("bundle-0001"), device="cam-08"), None)) is Refusal.WRONG_DEVICE
    # A signature that is there must be right, even where none is needed.
    assert refusal(sign_order(pull, OTHER)) is Refusal.UNKNOWN_KEY


def test_two_keys_count_apart() -> None:
    both = (KEY.public, OTHER.public)
    first = judge(sign_order(order(counter=100), KEY), rules(*both), Memory(), NOW)
    assert isinstance(first, Accepted)
    second = judge(sign_order(order(id="command-0002", counter=5), OTHER), rules(*both), first.memory, NOW)
    assert isinstance(second, Accepted)
    assert second.memory.counters == {KEY.public: 100, OTHER.public: 5}


actions = st.one_of(
    st.builds(SetLogLevel, st.sampled_from(["debug", "info"])),
    st.builds(SetSampling, st.floats(0.5, 1000)),
    st.builds(Pull, st.just("bundle-0001")),
)
events = st.tuples(
    actions,
    st.integers(1, 6),  # counter
    st.integers(0, 3),  # id
    st.sampled_from([None, KEY, OTHER]),
    st.integers(-500, 500),  # issued, against the present
    st.integers(-2000, 2000),  # the board's clock, against the present
    st.booleans(),  # sent once more
    st.booleans(),  # the agent restarts before
)


@given(st.lists(events, max_size=12))
@settings(max_examples=150, deadline=None)
def test_whatever_comes_nothing_is_done_twice_and_nothing_unsigned(history: list[Any]) -> None:
    """The counter of each key only grows over accepted commands; no payload is accepted twice; all signed by KEY."""
    memory, done, counters = Memory(), set[str](), [0]
    for action, counter, number, key, issued, clock, twice, restarts in history:
        memory = interrupted(memory) if restarts else memory
        what = order(
            action, id=f"command-{number:04}", counter=counter, issued=NOW + issued, expires=NOW + issued + 300
        )
        data = sign_order(what, key)
        for _ in range(1 + twice):
            verdict = judge(data, rules(), memory, Wall(NOW + clock))
            if not isinstance(verdict, Accepted):
                continue
            if isinstance(action, Pull) and key is None:
                assert verdict.memory == memory
                continue
            assert key is KEY
            assert verdict.command not in done
            assert counter > counters[-1]
            counters.append(counter)
            done.add(verdict.command)
            memory = msgspec.json.decode(msgspec.json.encode(verdict.memory), type=Memory)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_refused(data: bytes) -> None:
    assert isinstance(judge(data, rules(), Memory(), NOW), Refused)


@given(st.integers(0, 400), st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_any_bit_that_flips_spoils_a_command(at: int, bit: int) -> None:
    data = bytearray(sign_order(order(), KEY))
    data[at % len(data)] ^= 1 << bit
    verdict = judge(bytes(data), rules(), Memory(), NOW)
    if isinstance(verdict, Accepted):  # base64 has a bit or two that mean nothing
        assert verdict.command == digest(encode(order()))


def test_a_key_signs_for_one_use_only() -> None:
    signature = KEY.sign(Use.ANSWER, b"data")
    assert signing.verify(KEY.public, Use.ANSWER, signature, b"data")
    assert not signing.verify(KEY.public, Use.COMMAND, signature, b"data")
    assert not signing.verify(OTHER.public, Use.ANSWER, signature, b"data")
    assert not signing.verify("00" * 32, Use.ANSWER, bytes(64), b"data")
    assert not signing.verify("zz", Use.ANSWER, signature, b"data")


def test_points_of_small_order_are_no_keys() -> None:
    """By the point 0 a signature of zeros would fit any text."""
    assert len(signing._NO_KEYS) == 7
    for point in signing._NO_KEYS:
        for raw in (bytes.fromhex(point), bytes.fromhex(point)[:31] + bytes([int(point[62:], 16) | 0x80])):
            for start in (bytes(32), b"\1" + bytes(31), raw):
                assert not signing.verify(raw.hex(), Use.COMMAND, start + bytes(32), b"anything")
