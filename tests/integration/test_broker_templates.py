"""The shipped broker configuration, access list and certificates, on a real mosquitto: every right and every wrong."""

from __future__ import annotations

import asyncio
import functools
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ParamSpec

import pytest

from integration.link_peer import Mosquitto, free_port, link
from tidegauge.link import mqtt
from tidegauge.link.config import LinkConfig

P = ParamSpec("P")
SHIPPED = Path(__file__).parents[2] / "agent_config" / "broker"
DEVICE, OTHER = "cam-07", "cam-08"
FILE, DIGEST = "a" * 64, "b" * 64
#: Topics under tidegauge/v1/DEVICE/ that a device writes.
LEAVES = (
    "status",
    "alarm",
    "result",
    "command-answer",
    f"file/{FILE}/init",
    f"file/{FILE}/abort",
    f"file/{FILE}/0/{DIGEST}",
    f"file/{FILE}/fin/10/{DIGEST}",
)
ANSWER, COMMAND = "file-response", "command"


def in_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """The test, run by a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def certificates(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SHIPPED / "certificates", folder, *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ca")
    for action in (
        ["init"],
        ["server", "localhost", "127.0.0.1"],
        *(["client", n] for n in (DEVICE, OTHER, "collector", "operator")),
    ):
        done = certificates(folder, *action)
        assert done.returncode == 0, done.stderr
    return folder


@asynccontextmanager
async def broker(folder: Path, authority: Path) -> AsyncIterator[int]:
    """The shipped file, with another port and other paths, and nothing else changed."""
    port = free_port()
    text = (SHIPPED / "mosquitto.conf").read_text().replace("listener 8883", f"listener {port} 127.0.0.1")
    text = text.replace("/etc/mosquitto/tidegauge/acl", str(SHIPPED / "acl")).replace(
        "/etc/mosquitto/tidegauge", str(authority)
    )
    running = Mosquitto(folder)
    running.port = port
    (folder / "mosquitto.conf").write_text("user root\n" + text)
    running.start()
    try:
        yield port
    finally:
        running.kill()


def config(port: int, authority: Path, name: str, protocol: str = "5") -> LinkConfig:
    files = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key"}
    paths = {key: str(authority / file) for key, file in files.items()}
    return link(port, protocol=protocol, **paths)


async def try_to_write(connection: mqtt.Connection, topic: str) -> bool:
    try:
        await connection.publish(topic, b"{}")
    except mqtt.PublishRefused:
        return False
    return True


@in_loop
async def test_device_writes_its_leaves_and_nothing_else(tmp_path: Path, authority: Path) -> None:
    wrongs = [f"tidegauge/v1/{DEVICE}/{leaf}" for leaf in (ANSWER, COMMAND, "cmd/1", f"file/{FILE}", "anything", "")]
    wrongs += [f"tidegauge/v1/{OTHER}/{leaf}" for leaf in (*LEAVES, ANSWER, COMMAND)]
    wrongs += ["tidegauge/v1/collector/status", "tidegauge/v2/cam-07/status", "else"]
    async with broker(tmp_path, authority) as port, mqtt.connect(config(port, authority, DEVICE), DEVICE) as connection:
        for leaf in LEAVES:
            assert await try_to_write(connection, f"tidegauge/v1/{DEVICE}/{leaf}"), leaf
        for topic in wrongs:
            assert not await try_to_write(connection, topic), topic


@in_loop
async def test_collector_reads_devices_and_answers_them(tmp_path: Path, authority: Path) -> None:
    async with (
        broker(tmp_path, authority) as port,
        mqtt.connect(config(port, authority, "collector"), "collector") as collector,
        mqtt.connect(config(port, authority, DEVICE), DEVICE) as device,
        mqtt.connect(config(port, authority, OTHER), OTHER) as other,
    ):
        for leaf in ("status", "alarm", "result", "command-answer", "file/#"):
            await collector.subscribe(f"tidegauge/v1/+/{leaf}")
        await device.subscribe(f"tidegauge/v1/{DEVICE}/{ANSWER}")
        # Mosquitto grants any subscription and sends nothing: so the wrong ones are seen by what comes.
        for topic in (f"tidegauge/v1/{DEVICE}/{ANSWER}", f"tidegauge/v1/{DEVICE}/status", "tidegauge/v1/#"):
            await other.subscribe(topic)
        heard = {name: Heard(each) for name, each in (("collector", collector), ("device", device), ("other", other))}
        for leaf in LEAVES:
            await device.publish(f"tidegauge/v1/{DEVICE}/{leaf}", b"{}")
        assert await try_to_write(collector, f"tidegauge/v1/{DEVICE}/{ANSWER}")
        assert not await try_to_write(collector, f"tidegauge/v1/{DEVICE}/status")
        await collector.publish(f"tidegauge/v1/{OTHER}/{ANSWER}", b"last")
        await device.subscribe("nothing/more")  # answered after what was queued for it
        async with asyncio.timeout(10):
            assert await heard["collector"].topics(len(LEAVES)) == [f"tidegauge/v1/{DEVICE}/{leaf}" for leaf in LEAVES]
            assert await heard["device"].topics(1) == [f"tidegauge/v1/{DEVICE}/{ANSWER}"]
            assert await heard["other"].topics(1) == [f"tidegauge/v1/{OTHER}/{ANSWER}"]


@in_loop
async def test_operator_commands_and_hears_answers_and_nothing_else(tmp_path: Path, authority: Path) -> None:
    async with (
        broker(tmp_path, authority) as port,
        mqtt.connect(config(port, authority, "operator"), "operator") as operator,
        mqtt.connect(config(port, authority, "collector"), "collector") as collector,
        mqtt.connect(config(port, authority, DEVICE), DEVICE) as device,
        mqtt.connect(config(port, authority, OTHER), OTHER) as other,
    ):
        await device.subscribe(f"tidegauge/v1/{DEVICE}/{COMMAND}")
        await collector.subscribe(f"tidegauge/v1/+/{COMMAND}")
        for topic in (f"tidegauge/v1/{DEVICE}/{COMMAND}", f"tidegauge/v1/{DEVICE}/command-answer", "tidegauge/#"):
            await other.subscribe(topic)
            await operator.subscribe(topic)
        assert await try_to_write(operator, f"tidegauge/v1/{DEVICE}/{COMMAND}")
        for leaf in ("status", "alarm", "command-answer", ANSWER, f"file/{FILE}/init", f"{COMMAND}/1"):
            assert not await try_to_write(operator, f"tidegauge/v1/{DEVICE}/{leaf}"), leaf
        for thief in (device, other):
            for name in (DEVICE, OTHER):
                assert not await try_to_write(thief, f"tidegauge/v1/{name}/{COMMAND}"), name
        assert not await try_to_write(other, f"tidegauge/v1/{DEVICE}/command-answer")
        assert await try_to_write(collector, f"tidegauge/v1/{OTHER}/{COMMAND}")  # one that has waited for it
        for leaf in ("alarm", "status", "command-answer"):
            assert await try_to_write(device, f"tidegauge/v1/{DEVICE}/{leaf}")
        async with asyncio.timeout(30):
            assert await Heard(device).topics(1) == [f"tidegauge/v1/{DEVICE}/{COMMAND}"]
            assert await Heard(other).topics(1) == [f"tidegauge/v1/{OTHER}/{COMMAND}"]
            heard = [f"tidegauge/v1/{DEVICE}/{leaf}" for leaf in ("status", "command-answer")]
            assert await Heard(operator).topics(2) == heard


class Heard:
    """The messages of a connection, in order."""

    def __init__(self, connection: mqtt.Connection) -> None:
        self._messages = connection.messages()

    async def topics(self, count: int) -> list[str]:
        return [(await anext(self._messages))[0] for _ in range(count)]


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
@in_loop
async def test_stranger_and_revoked_are_shut_out(tmp_path: Path, authority: Path, protocol: str) -> None:
    stranger = tmp_path / "stranger"
    assert certificates(stranger, "init").returncode == 0
    assert certificates(stranger, "client", DEVICE).returncode == 0
    (stranger / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    thief = f"stolen-{protocol[0]}"
    for action in ("client", "revoke"):
        assert certificates(authority, action, thief).returncode == 0
    async with broker(tmp_path, authority) as port:
        for folder, name in ((stranger, DEVICE), (authority, thief)):
            with pytest.raises(mqtt.LinkError):
                async with mqtt.connect(config(port, folder, name, protocol), name):
                    pass
        with pytest.raises(mqtt.LinkError):
            async with mqtt.connect(link(port, protocol=protocol, ca=str(authority / "ca.pem")), DEVICE):
                pass
        async with mqtt.connect(config(port, authority, DEVICE, protocol), DEVICE):
            pass


@in_loop
async def test_certificate_decides_the_client_id(tmp_path: Path, authority: Path) -> None:
    """A board can't throw another out by taking its client id."""
    async with (
        broker(tmp_path, authority) as port,
        mqtt.connect(config(port, authority, DEVICE), DEVICE) as device,
        mqtt.connect(config(port, authority, OTHER), DEVICE),
    ):
        assert await try_to_write(device, f"tidegauge/v1/{DEVICE}/status")


def test_only_a_request_leaves_the_board(tmp_path: Path, authority: Path) -> None:
    board = tmp_path / "board"
    assert certificates(board, "request", "cam-20").returncode == 0
    (authority / "cam-20.csr").write_bytes((board / "cam-20.csr").read_bytes())
    assert certificates(authority, "sign", "cam-20").returncode == 0
    assert not (authority / "cam-20.key").exists()
    (authority / "cam-21.csr").write_bytes((board / "cam-20.csr").read_bytes())
    done = certificates(authority, "sign", "cam-21")
    assert done.returncode == 2
    assert "asks for another name" in done.stderr


@pytest.mark.parametrize("name", ["a/b", "+", "x" * 65, ""])
def test_names_that_topics_can_not_hold_are_refused(authority: Path, name: str) -> None:
    done = certificates(authority, "client", name)
    assert done.returncode == 2
    assert done.stderr.startswith("certificates: ")


def test_keys_are_for_their_owner_alone(authority: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in authority.glob("*.key")} == {0o600}
