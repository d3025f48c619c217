"""The operator's side of a command: sign, send, hear what became of it. `operator.toml` names key and broker."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tidegauge import signing
from tidegauge.clocks import wall
from tidegauge.configuration import load_toml
from tidegauge.errors import TidegaugeError
from tidegauge.exitcodes import ExitCode
from tidegauge.files import write_durably
from tidegauge.link.command_wire import (
    MAX_ANSWER,
    CommandAnswer,
    Signed,
    answer_topic,
    command_topic,
    digest,
    new_order,
    sign_order,
)
from tidegauge.link.config import LinkConfig
from tidegauge.link.files import located
from tidegauge.link.mqtt import Connection, connect
from tidegauge.link.wire import PREFIX, Status, decode, topic
from tidegauge.signing import KeyProvider, Use, verify

log = logging.getLogger(__name__)

#: Seconds after which a command without an answer is sent again: the board does it once all the same.
AGAIN = 5.0
#: Retained statuses come at once; after so many seconds without one, that was all.
QUIET = 1.0


class OperatorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`operator.toml`: who sends commands, over which broker. Relative paths are relative to its own folder.

    `key`: file with the private key (`tidegauge keys new`), whose public half is in each board's `commands.operators`.
    `known_devices`: file in which the keys of devices are noted at their first answer; another key is not believed
    afterwards.
    """

    link: LinkConfig
    key: str = "operator.key"
    known_devices: str = "known_devices.json"


class NoAnswer(TidegaugeError):
    """The device said nothing, or not the last word, in time."""

    exit_code = ExitCode.NO_ANSWER


def load(path: Path) -> OperatorConfig:
    """Paths absolute. Raises ConfigurationError."""
    config = load_toml(path, OperatorConfig)
    folder = path.resolve().parent
    return msgspec.structs.replace(
        config,
        link=located(path, config.link, os.environ),
        key=str(folder / Path(config.key).expanduser()),
        known_devices=str(folder / Path(config.known_devices).expanduser()),
    )


class KnownDevices:
    """The keys of devices by their first answer, in a JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._keys = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            self._keys = {}
        except (OSError, msgspec.DecodeError) as error:
            cure = "correct it, or remove it to learn the devices' keys anew"
            raise TidegaugeError(f"{path} can't be read ({error})", cure) from error

    def believes(self, device: str, envelope: Signed) -> bool:
        """Whether an answer is the device's own; a first one is."""
        known = self._keys.get(device)
        if not envelope.signature:
            return known is None
        if not verify(envelope.key, Use.ANSWER, envelope.signature, envelope.payload) or known not in (
            None,
            envelope.key,
        ):
            return False
        if known is None:
            self._keys[device] = envelope.key
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self._path, msgspec.json.format(msgspec.json.encode(self._keys), indent=1))
        return True


class Operator:
    """An operator at a broker. `key` None: only what needs none can be asked for."""

    def __init__(self, config: OperatorConfig, key: KeyProvider | None) -> None:
        self._config, self._key = config, key
        self._known = KnownDevices(Path(config.known_devices))

    async def devices(self, seconds: float) -> dict[str, Status]:
        """What devices last said of themselves, by name: the statuses that the broker retains."""
        found: dict[str, Status] = {}
        async with self._connected() as connection:
            await connection.subscribe(f"{PREFIX}/+/status")
            messages = connection.messages()
            try:
                async with asyncio.timeout(seconds):
                    while True:
                        async with asyncio.timeout(QUIET):
                            at, payload = await anext(messages)
                        if (status := _status(payload)) is not None:
                            found[at.split("/")[2]] = status
            except TimeoutError:
                return found

    async def ask(
        self,
        device: str,
        action: msgspec.Struct,
        *,
        first: float,
        last: float,
        life: float,
        told: Callable[[CommandAnswer], None] = lambda answer: None,
    ) -> CommandAnswer:
        """Send a command; returns its last answer. `told` hears those before.

        `first`: seconds until the first answer, `last`: until the last. `life`: seconds after which the board refuses
        it. Raises NoAnswer, LinkError.
        """
        order = new_order(device, action, wall(), life)
        envelope = sign_order(order, self._key)
        command = digest(msgspec.json.decode(envelope, type=Signed).payload)
        status: list[Status] = []
        heard = False
        async with self._connected() as connection:
            for at in (answer_topic(device), topic(device, "status")):
                await connection.subscribe(at)
            sending = asyncio.create_task(self._send(connection, device, envelope))
            try:
                async with asyncio.timeout(first) as limit:
                    async for at, payload in connection.messages():
                        if at != answer_topic(device):
                            status += [each for each in [_status(payload)] if each is not None]
                            continue
                        answer = self._answer(device, payload)
                        if answer is None or answer.command != command:
                            continue
                        sending.cancel()
                        if answer.state != "running":
                            return answer
                        if not heard:
                            heard = True
                            limit.reschedule(asyncio.get_running_loop().time() + last)
                        told(answer)
            except TimeoutError as error:
                raise _no_answer(device, heard, last if heard else first, status, order.expires) from error
            finally:
                sending.cancel()
                await asyncio.wait([sending])
        raise NoAnswer(f"the broker has ended the connection before {device} answered", "try again")

    async def _send(self, connection: Connection, device: str, envelope: bytes) -> None:
        while True:
            await connection.publish(command_topic(device), envelope)
            await asyncio.sleep(AGAIN)

    def _answer(self, device: str, payload: bytes) -> CommandAnswer | None:
        try:
            if len(payload) > MAX_ANSWER:
                raise msgspec.ValidationError(f"{len(payload)} bytes")
            envelope: Signed = decode(Signed, payload)
            if not self._known.believes(device, envelope):
                log.warning("an answer is ignored: it is not signed by the key that %s had before", device)
                return None
            answer: CommandAnswer = decode(CommandAnswer, envelope.payload)
        except (msgspec.DecodeError, RecursionError) as error:
            log.warning("an answer of %s can't be read: %s", device, error)
            return None
        return answer

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        name = self._config.link.username or f"operator-{uuid.uuid4().hex[:12]}"
        async with connect(self._config.link, name) as connection:
            yield connection


def operator(config: OperatorConfig, *, needs_key: bool) -> Operator:
    """With the key of the configuration; without one where none is needed and none is there. Raises KeyUnusable."""
    path = Path(config.key)
    return Operator(config, signing.load(path) if needs_key or path.exists() else None)


def _status(payload: bytes) -> Status | None:
    try:
        status: Status = decode(Status, payload)
    except (msgspec.DecodeError, RecursionError):
        return None  # anybody may write there; it is shown, never obeyed
    return status


def _no_answer(device: str, heard: bool, seconds: float, status: list[Status], expires: float) -> NoAnswer:
    if heard:
        return NoAnswer(f"{device} has not come to an end within {seconds:.0f} s", "see `tidegauge device status`")
    if not status:
        return NoAnswer(
            f"nothing is known of a device {device} at this broker, and none answered within {seconds:.0f} s",
            "see `tidegauge device list`; its name and the broker's access list",
        )
    if status[-1].state != "online":
        return NoAnswer(
            f"{device} is not connected ({status[-1].state})",
            f"a collector that keeps commands sends it when the board is back, for {expires - wall():.0f} s more",
        )
    return NoAnswer(
        f"{device} is connected and did not answer within {seconds:.0f} s",
        "the broker's access list may forbid `command` or `command-answer`; see the agent's log",
    )
