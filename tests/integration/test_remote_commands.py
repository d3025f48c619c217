"""Commands over a real broker: a board obeys its operator's key, and nobody else who may publish there."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ParamSpec

import msgspec
import pytest

from integration.link_peer import DEVICE, link, mosquitto, poll
from tidegauge import signing
from tidegauge.agent.bus import Bus
from tidegauge.agent.control_messages import ClearAlarms, Pull, Rebaseline, SetLogLevel
from tidegauge.agent.events import CaptureStep
from tidegauge.agent.remote import RemoteCommands, device_key
from tidegauge.clocks import wall
from tidegauge.errors import TidegaugeError
from tidegauge.link import mqtt
from tidegauge.link.command_wire import CommandAnswer, Order, Signed, answer_topic, command_topic, sign_order
from tidegauge.link.operator import NoAnswer, Operator, OperatorConfig
from tidegauge.link.uplink import Uplink
from tidegauge.link.wire import encode
from tidegauge.metrics import COMMAND_RESULTS, AgentMetrics
from tidegauge.signing import FileKey, Use
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.store import Spool

P = ParamSpec("P")
PATIENCE = 60.0


def in_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """The test, run by a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class FakeAgent:
    """Stands for what carries commands out: notes them, refuses a rebaseline; a log level waits for `go_on`."""

    def __init__(self) -> None:
        self.done: list[tuple[object, str]] = []
        self.notes: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def carry_out(self, command: object, who: str) -> str:
        self.done.append((command, who))
        if isinstance(command, Rebaseline):
            raise TidegaugeError("no new acceptance: band", "cure the device")
        if isinstance(command, SetLogLevel):
            await self.go_on.wait()
        return "done so"

    def note(self, who: str, command: str, done: bool, outcome: str) -> None:
        self.notes.append(outcome)

    def report(self) -> dict[str, str]:
        return {"phase": "watching"}


class Board:
    """The board's real link, gate, memory and key; a fake agent."""

    def __init__(self, folder: Path, port: int, *keys: str, session: int = 1) -> None:
        folder.mkdir(exist_ok=True)
        self.agent, self.bus, self.metrics = FakeAgent(), Bus(), AgentMetrics("m")
        spool = Spool(folder / "spool", SpoolLimits(headroom_mib=0, headroom_files=0))
        self.uplink = Uplink(link(port), DEVICE, spool, session)
        stand_in: Any = self.agent
        self.remote = RemoteCommands(
            DEVICE,
            keys,
            device_key(folder),
            folder,
            stand_in,
            stand_in,
            self.uplink,
            self.bus,
            self.metrics,
        )

    def count(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("tidegauge_commands_total", {"result": result}) or 0.0


@asynccontextmanager
async def running(board: Board) -> AsyncIterator[Board]:
    tasks = [asyncio.create_task(board.uplink.run()), asyncio.create_task(board.remote.run())]
    try:
        await poll(lambda: board.uplink.state.connected)
        yield board
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=30)


def person(folder: Path, port: int, key: FileKey | None) -> Operator:
    config = OperatorConfig(link=link(port), known_devices=str(folder / "known.json"))
    return Operator(config, key)


@pytest.fixture
def key(tmp_path: Path) -> FileKey:
    return signing.create(tmp_path / "operator.key")


async def ask(who: Operator, action: msgspec.Struct, **options: Any) -> CommandAnswer:
    times: dict[str, Any] = {"first": PATIENCE, "last": PATIENCE, "life": 300.0, **options}
    return await who.ask(DEVICE, action, **times)


@in_loop
async def test_an_operator_commands_and_hears_the_new_state(tmp_path: Path, key: FileKey) -> None:
    async with mosquitto(tmp_path) as broker, running(Board(tmp_path / "board", broker.port, key.public)) as board:
        operator = person(tmp_path, broker.port, key)
        answer = await ask(operator, ClearAlarms())
        assert (answer.state, answer.sentence, answer.status) == ("done", "done so", {"phase": "watching"})
        assert board.agent.done[0][0] == ClearAlarms()
        assert key.public[:16] in board.agent.done[0][1]
        refused = await ask(operator, Rebaseline())
        assert (refused.state, refused.reason, refused.cure) == ("refused", "declined", "cure the device")
        assert board.count("done") == 1
        assert board.count("declined") == 1


@in_loop
async def test_steps_are_told_while_a_command_is_under_way(tmp_path: Path, key: FileKey) -> None:
    from tidegauge.agent.control_messages import CaptureNow

    async with mosquitto(tmp_path) as broker, running(Board(tmp_path / "board", broker.port, key.public)) as board:
        heard: list[str] = []
        taken = asyncio.Event()

        async def capture(command: object, who: str) -> str:
            board.bus.emit(CaptureStep("tracing"))
            await taken.wait()
            return "captured"

        board.agent.carry_out = capture  # type: ignore[method-assign]

        def told(answer: CommandAnswer) -> None:
            heard.append(answer.step)
            if answer.step == "tracing":
                taken.set()

        answer = await ask(person(tmp_path, broker.port, key), CaptureNow(), told=told)
        assert answer.sentence == "captured"
        assert "tracing" in heard


@in_loop
async def test_whoever_runs_the_broker_commands_nothing(tmp_path: Path, key: FileKey) -> None:
    """With every right on every topic: forging, repeating, redirecting and changing a true command, without effect."""
    thief = signing.create(tmp_path / "thief.key")
    async with mosquitto(tmp_path) as broker, running(Board(tmp_path / "board", broker.port, key.public)) as board:
        async with mqtt.connect(link(broker.port), "broker-operator") as wire:
            await wire.subscribe(command_topic(DEVICE))
            await wire.subscribe(answer_topic(DEVICE))
            await ask(person(tmp_path, broker.port, key), ClearAlarms())
            seen = wire.messages()
            true = next_command = b""
            while not true:
                at, next_command = await anext(seen)
                true = next_command if at == command_topic(DEVICE) else b""
            envelope = msgspec.json.decode(true, type=Signed)
            now = wall()

            def order(device: str = DEVICE, **changes: Any) -> Order:
                fields: dict[str, Any] = {
                    "id": f"forged-{len(attempts):04}",
                    "device": device,
                    "issued": now,
                    "expires": now + 300,
                    "counter": 1 << 52,
                    "action": msgspec.Raw(b'{"type":"Rebaseline"}'),
                    **changes,
                }
                return Order(**fields)

            attempts: list[bytes] = []
            attempts.append(sign_order(order(), None))
            attempts.append(sign_order(order(), thief))
            changed = encode(order())
            attempts.append(encode(Signed(changed, key.public, envelope.signature)))
            attempts.append(encode(Signed(changed, key.public, thief.sign(Use.COMMAND, changed))))
            attempts.append(encode(Signed(envelope.payload, thief.public, thief.sign(Use.COMMAND, envelope.payload))))
            attempts.append(true)  # again: answered, not done
            attempts.append(b"{}")
            attempts.append(bytes(20_000))
            for attempt in attempts:
                for retain in (False, True):
                    await wire.publish(command_topic(DEVICE), attempt, retain=retain)
            refused = ("forged", "unknown")
            await poll(lambda: sum(board.count(each) for each in refused) >= 2 * (len(attempts) - 1))
            # The board is there, and still obeys its operator.
            assert (await ask(person(tmp_path, broker.port, key), ClearAlarms())).state == "done"
        assert [type(command) for command, _ in board.agent.done] == [ClearAlarms, ClearAlarms]
        assert board.count("forged") >= 10


@in_loop
async def test_a_true_command_is_no_use_to_another_board_later_or_again(tmp_path: Path, key: FileKey) -> None:
    async with mosquitto(tmp_path) as broker:
        async with (
            running(Board(tmp_path / "board", broker.port, key.public)) as board,
            mqtt.connect(link(broker.port), "operator") as wire,
        ):
            now = wall()

            async def send(**changes: Any) -> None:
                fields: dict[str, Any] = {
                    "id": "command-0001",
                    "device": DEVICE,
                    "issued": now,
                    "expires": now + 300,
                    "counter": 5,
                    "action": msgspec.Raw(b'{"type":"ClearAlarms"}'),
                    **changes,
                }
                await wire.publish(command_topic(DEVICE), sign_order(Order(**fields), key))

            await send()
            await poll(lambda: board.count("done") == 1)
            for result, changes in {
                "wrong_device": {"id": "command-0002", "device": "cam-8", "counter": 6},
                "expired": {"id": "command-0003", "issued": now - 400, "expires": now - 100, "counter": 7},
                "future": {"id": "command-0004", "issued": now + 4000, "expires": now + 4300, "counter": 8},
                "replayed": {"id": "command-0005", "counter": 5},
                "unknown": {"id": "command-0006", "counter": 9, "action": msgspec.Raw(b'{"type":"Reboot"}')},
            }.items():
                before = board.count(result)
                await send(**changes)
                await poll(lambda result=result, before=before: board.count(result) == before + 1)
            assert len(board.agent.done) == 1
            assert len(board.agent.notes) == 5, "each refusal of an authentic command is in the audit log"
        # The board restarts: what it had obeyed it does not obey again, and it remembers its answer.
        async with (
            running(Board(tmp_path / "board", broker.port, key.public, session=2)) as board,
            mqtt.connect(link(broker.port), "operator") as wire,
        ):
            await wire.subscribe(answer_topic(DEVICE))
            order = Order("command-0001", DEVICE, now, now + 300, 5, msgspec.Raw(b'{"type":"ClearAlarms"}'))
            await wire.publish(command_topic(DEVICE), sign_order(order, key))
            async with asyncio.timeout(PATIENCE):
                _, payload = await anext(wire.messages())
            answer = msgspec.json.decode(msgspec.json.decode(payload, type=Signed).payload, type=CommandAnswer)
            assert (answer.id, answer.state, answer.sentence) == ("command-0001", "done", "done so")
            assert board.agent.done == []


@in_loop
async def test_none_pinned_none_obeyed_but_a_pull(tmp_path: Path, key: FileKey) -> None:
    async with mosquitto(tmp_path) as broker, running(Board(tmp_path / "board", broker.port)) as board:
        refused = await ask(person(tmp_path, broker.port, key), ClearAlarms())
        assert (refused.state, refused.reason) == ("refused", "no_operator_key")
        pulled = await ask(person(tmp_path, broker.port, None), Pull("bundle-0001"))
        assert pulled.state == "done"
        assert [type(command) for command, _ in board.agent.done] == [Pull]
        assert "without a key" in board.agent.done[0][1]


@in_loop
async def test_a_flood_without_a_key_fills_neither_log_nor_link(tmp_path: Path, key: FileKey) -> None:
    thief = signing.create(tmp_path / "thief.key")
    async with (
        mosquitto(tmp_path) as broker,
        running(Board(tmp_path / "board", broker.port, key.public)) as board,
        mqtt.connect(link(broker.port), "broker-operator") as wire,
    ):
        now = wall()
        order = Order("forged-0001", DEVICE, now, now + 300, 1, msgspec.Raw(b'{"type":"ClearAlarms"}'))
        forged = sign_order(order, thief)
        for _ in range(300):
            await wire.publish(command_topic(DEVICE), forged)
        await poll(lambda: board.count("forged") + board.count("declined") == 300)
        assert board.uplink.state.publishes["ok"] < 100
        assert board.agent.notes == []
        assert (await ask(person(tmp_path, broker.port, key), ClearAlarms())).state == "done"


@in_loop
async def test_an_answer_by_another_key_is_not_believed(tmp_path: Path, key: FileKey) -> None:
    """Who runs the broker can't say "done" in the board's name, once the operator has heard the board."""
    liar = signing.create(tmp_path / "liar.key")
    async with mosquitto(tmp_path) as broker:
        async with running(Board(tmp_path / "board", broker.port, key.public)):
            await ask(person(tmp_path, broker.port, key), ClearAlarms())
        async with mqtt.connect(link(broker.port), "liar") as wire:
            await wire.subscribe(command_topic(DEVICE))
            asking = asyncio.create_task(ask(person(tmp_path, broker.port, key), ClearAlarms(), first=3.0))
            async with asyncio.timeout(PATIENCE):
                _, payload = await anext(wire.messages())
            envelope = msgspec.json.decode(payload, type=Signed)
            order = msgspec.json.decode(envelope.payload, type=Order)
            from tidegauge.link.command_wire import digest, sign_answer

            lie = CommandAnswer(order.id, digest(envelope.payload), "done", sentence="done, believe me")
            await wire.publish(answer_topic(DEVICE), sign_answer(lie, liar))
            await wire.publish(answer_topic(DEVICE), sign_answer(lie, None))
            with pytest.raises(NoAnswer, match="not connected"):
                await asking


@in_loop
async def test_an_unrecordable_command_is_not_obeyed(tmp_path: Path, key: FileKey) -> None:
    """Its counter could not be kept, so it could be repeated after a restart."""
    async with mosquitto(tmp_path) as broker, running(Board(tmp_path / "board", broker.port, key.public)) as board:
        (tmp_path / "board" / ".commands.json.part").mkdir()  # what the file would be written to
        refused = await ask(person(tmp_path, broker.port, key), ClearAlarms())
        assert (refused.state, refused.reason) == ("refused", "not_recorded")
        assert board.agent.done == []
        (tmp_path / "board" / ".commands.json.part").rmdir()
        assert (await ask(person(tmp_path, broker.port, key), ClearAlarms())).state == "done"


@in_loop
async def test_list_shows_what_devices_last_said(tmp_path: Path, key: FileKey) -> None:
    async with mosquitto(tmp_path) as broker:
        async with running(Board(tmp_path / "board", broker.port, key.public)):
            found = await person(tmp_path, broker.port, None).devices(PATIENCE)
            assert found[DEVICE].state == "online"
        assert (await person(tmp_path, broker.port, None).devices(PATIENCE))[DEVICE].state == "stopped"


def test_every_result_is_exported_at_zero() -> None:
    metrics = AgentMetrics("m")
    for result in COMMAND_RESULTS:
        assert metrics.registry.get_sample_value("tidegauge_commands_total", {"result": result}) == 0


def test_a_device_key_is_made_once_and_its_owners_alone(tmp_path: Path) -> None:
    first = device_key(tmp_path)
    assert first is not None
    assert (tmp_path / "device.key").stat().st_mode & 0o777 == 0o600
    again = device_key(tmp_path)
    assert again is not None
    assert again.public == first.public
    (tmp_path / "device.key").write_bytes(b"damaged")
    third = device_key(tmp_path)  # start-up goes on, with a key that the collector will not know
    assert third is not None
    assert third.public != first.public
    assert len(list(tmp_path.glob("device.key.unusable-*"))) == 1
