"""The adapter to aiomqtt 2.5, the one file that imports it.

What it adds, since the library leaves it out: the reason code of each PUBACK; publishes in flight fail when the
connection does, not at their time-out; the broker's packet limit from CONNACK; TCP_NODELAY (without it a packet over
TLS waits some 40 ms for a delayed ACK); a connect that can be cancelled; errors by name. A `Connection` is used once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiomqtt
from paho.mqtt.client import MQTT_ERR_SUCCESS
from paho.mqtt.client import Client as Paho

from tidegauge.clocks import monotonic
from tidegauge.link import socket_io, tls_slots
from tidegauge.link.config import LinkConfig
from tidegauge.link.dial import check_dates, dial, password, tls_context
from tidegauge.link.errors import (
    AuthRefused,
    BrokerRefused,
    CertificateExpired,
    LinkError,
    LinkLost,
    LinkSilent,
    PublishRefused,
    SubscribeRefused,
    TakenOver,
    TlsFailed,
    Unreachable,
)
from tidegauge.log_kinds import CERTIFICATE_REFUSED

__all__ = [
    "AuthRefused",
    "BrokerRefused",
    "CertificateExpired",
    "Connection",
    "LinkConfig",
    "LinkError",
    "LinkLost",
    "LinkSilent",
    "PublishRefused",
    "SubscribeRefused",
    "TakenOver",
    "TlsFailed",
    "Unreachable",
    "Will",
    "connect",
]

log = logging.getLogger(__name__)
#: The library's own lines: the errors raised here say the same with a cure.
_quiet = logging.getLogger(f"{__name__}.library")
_quiet.setLevel(logging.CRITICAL)

AUTH_CODES = {0x86, 0x87, 0x8C}
#: Reason of a DISCONNECT: session taken over (MQTT 5, 3.14.2.1).
TAKEN_OVER = 0x8E
#: Longest wait for a clean DISCONNECT, seconds.
GOODBYE = 2.0


Will = aiomqtt.Will


def _both(first: Callable[..., None], then: Callable[..., Any] | None) -> Callable[..., Any]:
    """A callback of the library that also tells us."""

    def call(*args: Any) -> Any:
        first(*args)
        return None if then is None else then(*args)

    return call


def _seen(future: asyncio.Future[None]) -> None:
    """Look at how it has ended, so that asyncio doesn't report its exception as one that nobody has seen."""
    if not future.cancelled():
        future.exception()


class _Inbox(asyncio.Queue[aiomqtt.Message]):
    """A bounded queue that counts what did not fit. The peer's retry brings it back."""

    dropped = 0

    def put_nowait(self, item: aiomqtt.Message) -> None:
        if self.full():
            self.dropped += 1
        else:
            super().put_nowait(item)


class Connection:
    """An open connection. `max_packet`: bytes of a packet that the broker takes, None where it didn't say.

    `answered`: when the broker last said anything at all; with nothing to say it answers a ping each `keepalive`.
    """

    def __init__(self, client: aiomqtt.Client, config: LinkConfig) -> None:
        self.max_packet: int | None = None
        self.answered = monotonic()
        self._client, self._config = client, config
        self._paho: Paho = client._client
        client._disconnected.add_done_callback(_seen)  # the library may forget it for another, with its exception
        socket_io.install(self._paho, asyncio.get_running_loop(), self._socket_failed)
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._lost = self._hung_up = False
        self._reason = 0
        self._paho.on_publish = self._on_publish
        for name, first in (("on_connect", self._on_connect), ("on_disconnect", self._on_disconnect)):
            setattr(self._paho, name, _both(first, getattr(self._paho, name)))
        setattr(self._paho, "_handle_pingresp", _both(self._on_answer, self._paho._handle_pingresp))  # noqa: B010

    def _socket_failed(self, error: Exception) -> None:
        if not self._client._disconnected.done():
            self._client._disconnected.set_exception(error)

    def _on_answer(self, *_: Any) -> None:
        self.answered = monotonic()

    def _on_connect(self, *args: Any) -> None:
        self.max_packet = getattr(args[4], "MaximumPacketSize", None) if len(args) > 4 else None
        self._on_answer()

    def _on_disconnect(self, *args: Any) -> None:
        self._hung_up = True
        self._reason = self._reason or getattr(args[3], "value", 0)

    @property
    def inbound_dropped(self) -> int:
        """Messages that came while the inbox was full."""
        queue = self._client._queue
        return queue.dropped if isinstance(queue, _Inbox) else 0

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout: float | None = None
    ) -> None:
        """Publish; with QoS 1 return when the broker has taken it, which says nothing about anybody behind it.

        Raises `LinkLost`, and `PublishRefused` where the broker says so.
        """
        if self._lost:
            raise self._ended()
        info = self._paho.publish(topic, payload, qos, retain)
        if info.rc != MQTT_ERR_SUCCESS:
            raise self._ended()
        if qos == 0:
            return
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[info.mid] = future
        seconds = timeout or self._config.publish_timeout
        try:
            async with asyncio.timeout(seconds):
                code = await future
        except TimeoutError as error:
            raise LinkSilent(
                f"the broker {self._where} did not acknowledge {len(payload)} bytes within {seconds:g} s",
                "check the link's speed against `link.chunk_bytes`, and the broker's packet limit",
            ) from error
        finally:
            self._waiting.pop(info.mid, None)
        if code >= 0x80:
            raise PublishRefused(
                f"the broker {self._where} refused a publish to {topic} (reason {code:#04x})",
                "let this device write there in the broker's access list",
            )

    async def subscribe(self, topic: str, *, qos: int = 1) -> None:
        """Subscribe. Raises `LinkLost`, or `BrokerRefused` where the broker says no."""
        try:
            codes = await self._client.subscribe(topic, qos=qos, timeout=self._config.connect_timeout)
        except aiomqtt.MqttError as error:
            raise self._ended(str(error)) from error
        values = [code if isinstance(code, int) else code.value for code in codes]
        if any(value >= 0x80 for value in values):
            raise SubscribeRefused(
                f"the broker {self._where} refused the subscription to {topic}", "allow it in the broker's access list"
            )
        self._on_answer()

    async def messages(self) -> AsyncIterator[tuple[str, bytes]]:
        """Topic and payload of each message. Raises `LinkLost` when the connection ends."""
        queue, arriving = self._client._queue, self._client.messages
        try:
            while True:
                # The library makes a task to wait for each message; one that is here already needs none.
                message = await anext(arriving) if queue.empty() else queue.get_nowait()
                self._on_answer()
                payload = message.payload
                yield str(message.topic), payload if isinstance(payload, bytes) else b""
        except aiomqtt.MqttError as error:
            raise self._ended(str(error)) from error

    async def watch(self, patience: float) -> None:
        """Wait until the broker has answered nothing for so many seconds, then raise `LinkSilent`.

        The age of its last answer decides, since a library's flag stays set where its loop stands still.
        """
        while (age := monotonic() - self.answered) <= patience:  # noqa: ASYNC110 # nothing tells of what doesn't come
            await asyncio.sleep(max(0.1, patience - age))
        raise LinkSilent(
            f"the broker {self._where} has answered nothing for {age:.0f} s", "check the network; it is tried again"
        )

    def _watch(self) -> None:
        """Fail what waits as soon as the library notices that the connection is gone."""

        def ended(future: asyncio.Future[None]) -> None:
            _seen(future)
            self._abandon()

        self._client._disconnected.add_done_callback(ended)

    def _abandon(self) -> None:
        self._lost = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._ended())
        self._waiting.clear()

    def _on_publish(self, _client: Any, _data: Any, mid: int, reason: Any, _properties: Any) -> None:
        self._on_answer()
        future = self._waiting.get(mid)
        if future is not None and not future.done():
            future.set_result(int(reason.value))

    def _ended(self, detail: str = "") -> LinkLost:
        if self._reason == TAKEN_OVER:
            return TakenOver(
                f"another client has connected to the broker {self._where} under this name",
                "give each board a name of its own (key `device`), and look for a copy of its disk",
            )
        return LinkLost(f"the connection to the broker {self._where} was lost", detail or "it is tried again")

    @property
    def _where(self) -> str:
        return f"{self._config.host}:{self._config.port}"


@contextlib.asynccontextmanager
async def connect(
    config: LinkConfig, client_id: str, *, will: Will | None = None, inbound_limit: int = 1000
) -> AsyncIterator[Connection]:
    """Connect with a clean session; leaving disconnects within `GOODBYE` seconds.

    `inbound_limit`: messages held for a slow reader; further ones are dropped and counted. A renewed certificate is
    tried first, and the one that has worked where it doesn't. Raises `Unreachable`, `TlsFailed`, `AuthRefused`,
    `BrokerRefused`.
    """
    *first, last = await asyncio.to_thread(tls_slots.slots, config)
    opened: _Opened | None = None
    slot = last
    for slot in first:
        try:
            opened = await _open(slot.config, client_id, will, inbound_limit)
            break
        except LinkError as error:
            log.warning(
                "the renewed certificate did not connect, the old one is used: %s",
                error,
                extra=CERTIFICATE_REFUSED.of(),
            )
    if opened is None:
        slot, opened = last, await _open(last.config, client_id, will, inbound_limit)
    try:
        try:
            await asyncio.to_thread(tls_slots.connected, slot, config)
        except OSError as error:
            log.warning("the renewed certificate has connected, but can't be made the one in use: %s", error)
        yield opened.connection
    finally:
        await opened.close()


class _Opened:
    """A connection, and what must be closed after it."""

    def __init__(self, connection: Connection, client: aiomqtt.Client, sockets: list[socket.socket]) -> None:
        self.connection, self._client, self._sockets = connection, client, sockets
        self.entered = False

    async def close(self) -> None:
        self.connection._abandon()
        paho: Any = self._client._client
        try:
            if self.entered:
                async with asyncio.timeout(GOODBYE):
                    await self._client.__aexit__(None, None, None)
        except (TimeoutError, aiomqtt.MqttError):
            log.debug("no clean goodbye")
        finally:
            paho._sock_close()
            for each in self._sockets:
                each.close()


async def _open(config: LinkConfig, client_id: str, will: Will | None, inbound_limit: int) -> _Opened:
    context = tls_context(config)
    login = password(config)
    sock = await dial(config)
    client = aiomqtt.Client(
        config.host,
        config.port,
        identifier=client_id,
        username=config.username or None,
        password=login,
        protocol=aiomqtt.ProtocolVersion.V5 if config.protocol == "5" else aiomqtt.ProtocolVersion.V311,
        clean_session=None if config.protocol == "5" else True,
        keepalive=config.keepalive,
        timeout=config.connect_timeout,
        will=will,
        queue_type=_Inbox,
        max_queued_incoming_messages=inbound_limit,
        tls_context=context,
        logger=_quiet,
    )
    paho: Any = client._client
    opened = _Opened(Connection(client, config), client, [sock])

    def wrap(plain: socket.socket) -> ssl.SSLSocket:
        assert context is not None
        secure = context.wrap_socket(plain, server_hostname=config.host, do_handshake_on_connect=False)
        opened._sockets.append(secure)
        secure.settimeout(config.connect_timeout)
        try:
            secure.do_handshake()
        except (ConnectionError, TimeoutError) as error:  # a peer that doesn't speak TLS just hangs up
            raise ssl.SSLError(f"handshake failed: {error}") from error
        return secure

    paho._create_socket_connection = lambda: sock
    paho._ssl_wrap_socket = wrap
    try:
        await _enter(client, config)
        opened.entered = True
        if opened.connection._hung_up:  # right behind its CONNACK, which the library forgets: it would wait for ever
            raise opened.connection._ended()
        opened.connection._watch()
    except BaseException:
        await opened.close()
        raise
    return opened


async def _enter(client: aiomqtt.Client, config: LinkConfig) -> None:
    where = f"{config.host}:{config.port}"
    try:
        await client.__aenter__()
    except aiomqtt.exceptions.MqttConnectError as error:
        code = error.rc if isinstance(error.rc, int) else getattr(error.rc, "value", 0x80)
        if code in AUTH_CODES or code in (4, 5):
            raise AuthRefused(
                f"the broker {where} refused this device's identity ({error})",
                "check `link.username`, `link.password_file` and `link.cert`",
            ) from error
        raise BrokerRefused(
            f"the broker {where} refused the connection ({error})", "see the broker's log; try `link.protocol`"
        ) from error
    except aiomqtt.MqttError as error:
        await asyncio.to_thread(check_dates, config, error.__context__)
        if isinstance(error.__context__, ssl.SSLError):
            raise TlsFailed(
                f"no TLS with the broker {where}: {error.__context__}", "check `link.ca`, `link.cert`, `link.key`"
            ) from error
        raise Unreachable(
            f"the broker {where} did not answer a connection ({error})",
            "check that an MQTT broker listens there, and whether it wants TLS or a client certificate",
        ) from error
