"""The demo's broker on loopback: mosquitto where it is installed, else amqtt inside the demo's own process."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tidegauge.demo.processes import running
from tidegauge.errors import TidegaugeError

START_SECONDS = 10.0


def free_port() -> int:
    """A port that was free a moment ago, on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def mosquitto() -> str | None:
    """The program, also where Debian keeps it for root only."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


async def until_listening(port: int, seconds: float, what: str) -> None:
    """Wait until something accepts connections on the port."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)
                    continue
                writer.close()
                await writer.wait_closed()
                return
    except TimeoutError as error:
        raise TidegaugeError(f"{what} does not listen on port {port}", "see its log") from error


@asynccontextmanager
async def broker(folder: Path, logs: Path) -> AsyncIterator[tuple[int, str]]:
    """Yields the port and the broker's name."""
    program = mosquitto()
    if program is not None:
        port = free_port()
        settings = [f"listener {port} 127.0.0.1", "allow_anonymous true", "persistence false", "set_tcp_nodelay true"]
        if os.geteuid() == 0:
            settings.append("user root")  # else it drops to a user that can't read a private folder
        path = folder / "mosquitto.conf"
        path.write_text("\n".join(settings) + "\n")
        async with running("mosquitto", [program, "-c", str(path)], logs):
            await until_listening(port, START_SECONDS, "mosquitto")
            yield port, "mosquitto"
        return
    async with _amqtt() as port:
        yield port, "amqtt"


@asynccontextmanager
async def _amqtt() -> AsyncIterator[int]:
    try:
        from amqtt.broker import Broker
    except ModuleNotFoundError as error:
        raise TidegaugeError(
            "no MQTT broker is installed", "install mosquitto, or the extra: pip install 'tidegauge[demo]'"
        ) from error
    port = free_port()
    server = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await server.start()
    try:
        yield port
    finally:
        await server.shutdown()
