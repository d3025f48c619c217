"""Commands from the collector's API, signed by a key that it is given, to a board on a real broker."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec

import httpx

from integration.collector_peer import Process, publish
from integration.link_peer import DEVICE, mosquitto
from integration.test_remote_commands import Board, running
from tidegauge import signing
from tidegauge.link.command_wire import CommandAnswer, answer_topic, sign_answer
from tidegauge.link.wire import Status, encode, topic

P = ParamSpec("P")
CLEAR: dict[str, object] = {"type": "ClearAlarms"}


def in_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run


@contextmanager
def collector(folder: Path, port: int, more: str = "") -> Iterator[tuple[Process, httpx.Client]]:
    folder.mkdir()
    process = Process(folder, port, more)
    process.start()
    try:
        with httpx.Client(base_url=process.url, timeout=60, trust_env=False) as client:
            client.headers["x-csrf-token"] = client.get("api/v1/session").json()["csrf_token"]
            process.until("api/v1/health", lambda health: health["broker_connected"])
            yield process, client
    finally:
        process.kill()


def ended(process: Process, command: str) -> Any:
    over = ("done", "refused", "failed")
    return process.until(f"api/v1/commands/{command}", lambda row: row["state"] in over)


@in_loop
async def test_board_obeys_the_key_that_it_pins_and_the_answer_is_its_own(tmp_path: Path) -> None:
    key = signing.create(tmp_path / "operator.key")
    more = f'[commands]\nkey = "{tmp_path / "operator.key"}"'
    async with mosquitto(tmp_path) as broker:
        with collector(tmp_path / "collector", broker.port, more) as (process, client):
            place = f"api/v1/devices/{DEVICE}/commands"
            assert client.post(place, json=CLEAR).status_code == 404, "nobody has heard of it yet"
            async with running(Board(tmp_path / "board", broker.port, key.public)) as board:
                await publish(broker.port, (topic(DEVICE, "status"), encode(Status("online", 1))))
                await asyncio.to_thread(process.until, "api/v1/devices", bool)
                assert client.get("api/v1/session").json()["commands"] is True
                for wrong in ({"type": "Reboot"}, {"type": "SetSampling"}, {"type": "Pull", "bundle": "../x"}, {}, []):
                    assert client.post(place, json=wrong).status_code == 400
                sent = client.post(place, json=CLEAR).json()
                row = await asyncio.to_thread(ended, process, sent["command"])
                assert (row["state"], row["sentence"], row["who"]) == ("done", "done so", "local")
                assert row["verified"] is False, "no key is known as the device's yet"
                known = signing.load(tmp_path / "board" / "device.key").public
                register = ["tidegauge", "collector", "keys", "register", "--config", str(process.config)]
                await _run(*register, DEVICE, known)
                sent = client.post(place, json={"type": "Rebaseline"}).json()
                row = await asyncio.to_thread(ended, process, sent["command"])
                assert (row["state"], row["reason"], row["verified"]) == ("refused", "declined", True)
                events = await asyncio.to_thread(client.get, f"api/v1/commands/{sent['command']}/events")
                assert json.loads(events.text.split("data: ", 1)[1].splitlines()[0])["state"] == "refused"
                assert len(board.agent.done) == 2
                deeds = client.get("api/v1/audit", params={"device": DEVICE}).json()
                assert [deed["detail"]["type"] for deed in deeds] == ["Rebaseline", "ClearAlarms"]
                viewer = client.get("api/v1/session").json()
                assert viewer["role"] == "operator"
            await _forged(tmp_path, broker.port, process, client)


async def _forged(folder: Path, port: int, process: Process, client: httpx.Client) -> None:
    """An answer that a stranger signed ends no command, neither here nor in the row of those that wait."""
    other, device, stranger = "cam-8", signing.create(folder / "device.key"), signing.create(folder / "stranger.key")
    await publish(port, (topic(other, "status"), encode(Status("online", 1))))
    await asyncio.to_thread(process.until, "api/v1/devices", lambda rows: len(rows) == 2)
    await _run("tidegauge", "collector", "keys", "register", "--config", str(process.config), other, device.public)
    place = f"api/v1/devices/{other}/commands"
    sent = (await asyncio.to_thread(client.post, place, json=CLEAR, params={"life": 600})).json()

    def answered(key: signing.FileKey, state: Any, step: str = "") -> bytes:
        return sign_answer(CommandAnswer("x", sent["digest"], state, sentence="so it is", step=step), key)

    at, path = answer_topic(other), f"api/v1/commands/{sent['command']}"
    await publish(port, (at, answered(stranger, "done")), (at, answered(device, "running", "two")))
    row = await asyncio.to_thread(process.until, path, lambda row: row["step"] == "two")
    assert row["state"] == "running" and row["verified"], "messages of one device come in order"
    await publish(port, (at, answered(device, "done")))
    row = await asyncio.to_thread(ended, process, sent["command"])
    assert (row["state"], row["verified"]) == ("done", True)


async def _run(*command: str) -> None:
    done = await asyncio.create_subprocess_exec(sys.executable, "-m", *command)
    assert await done.wait() == 0
