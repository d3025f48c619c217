"""The board's link: one connection at a time, for ever. Alarms first, then status and results, then bundles.

The spool is the session: nothing is left to the broker's queues, and a bundle is deleted only when the collector says
that it holds all that it wants of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import msgspec

from tidegauge.bundles.errors import BundleError
from tidegauge.clocks import monotonic
from tidegauge.errors import TidegaugeError
from tidegauge.link.answers import Dropped, judge
from tidegauge.link.command_wire import ANSWER, command_topic
from tidegauge.link.commands import chunk_topic, response_topic
from tidegauge.link.config import LinkConfig
from tidegauge.link.errors import LinkError, LinkLost, PublishRefused, SubscribeRefused, first_of, rival
from tidegauge.link.governor import Governor
from tidegauge.link.mqtt import Connection, Will, connect
from tidegauge.link.outbox import Outbox, UplinkState
from tidegauge.link.reconnect import Reconnect
from tidegauge.link.record_lane import RecordLane
from tidegauge.link.sender import Action, Done, Outgoing, Publish, Refused, SendChunk, Sender, SenderLimits, Wait
from tidegauge.link.shelf import file_path, outgoing, read_paid
from tidegauge.link.turns import Turn, Turns
from tidegauge.link.wire import AlarmChange, Result, Status, encode, topic
from tidegauge.log_kinds import BUNDLE_REFUSED, BUNDLE_SET_ASIDE, BUNDLE_STORED, LINK_UP
from tidegauge.restartable import Restartable
from tidegauge.spool.store import Entry, Spool

#: Packets of a transfer handed to the broker at a time. An alarm waits behind this many at most.
PACKETS_IN_FLIGHT = 2
#: Bytes a second that are assumed until the link's speed is known: 1 Mbit/s.
UNKNOWN_SPEED = 125_000.0
#: Bundles looked at in advance.
QUEUED = 8
#: Seconds after which a refused bundle is offered again: the collector may have been reconfigured.
REFUSED_AGAIN = 6 * 3600.0
FAREWELL = 2.0
#: A broker that has answered nothing for so many keep-alives is gone: it answers a ping in each.
PATIENCE = 2.5
#: Seconds between two looks at hours and budget.
HOLDS_PERIOD = 1.0
#: Connection numbers of one run of the agent; a later run's are all larger.
RUN = 1 << 20


class Uplink:
    """The link of one device. `session`: number of this run of the agent, larger than that of any run before.

    All methods but `run` return at once and may be called at any time from the event loop's thread.
    """

    def __init__(
        self,
        config: LinkConfig,
        device: str,
        spool: Spool,
        session: int,
        log: logging.Logger | None = None,
        account: Path | None = None,
    ) -> None:
        """`account`: file with what the link has cost today, kept over restarts; None forgets it with the process."""
        self.state = UplinkState(pinned=bool(config.collector_keys))
        #: Takes a command, as it came, from whoever may publish at the broker.
        self.on_command: Callable[[bytes], None] | None = None
        #: Makes the status anew whenever it is sent, so that a repeated one says how the board is at that moment.
        self.fresh_status: Callable[[], Status] | None = None
        self._config, self._device, self._spool = config, device, spool
        self._log, self._nonce = log or logging.getLogger(__name__), SystemRandom().randbytes(16).hex()
        self._account, self._governor = account, Governor(config, account)
        self._rng = Random()
        self._reconnect, self._cut_off = Reconnect(self._rng), False
        self._session = session * RUN
        limits = SenderLimits(config.chunk_bytes, config.window_chunks, config.answer_timeout)
        self._sender = Sender(device, limits, self._rng, self._nonce)
        self._sender.link_speed(UNKNOWN_SPEED)
        self._records = RecordLane(device, limits, self._rng, spool, self._log, self._nonce)
        self._outbox = Outbox(self.state)
        self._outbox.put_status(Status(state="online", session=0))
        self._actions: deque[Publish | SendChunk] = deque()
        self._queued: dict[str, tuple[Entry, Outgoing]] = {}
        self._refused_until: dict[str, float] = {}
        self._finished: deque[str] = deque()
        self._look = True
        self._until = self._status_at = self._holds_at = self._paced_until = 0.0
        self._wake = asyncio.Event()
        self._packets, self._turns = 0, Turns()
        self._restartable = Restartable()

    def set_status(self, status: Status) -> None:
        """The retained status; only the newest is sent. `session` is filled in here."""
        self._outbox.put_status(status)
        self._wake.set()

    def publish_alarm(self, change: AlarmChange) -> None:
        """Send at once, ahead of everything else; kept until the broker has taken it."""
        self._outbox.put_alarm(change)
        self._wake.set()

    def publish_answer(self, answer: bytes) -> None:
        """The answer to a command, as `command_wire.sign_answer` made it; kept until the broker has taken it."""
        self._outbox.put_answer(answer)
        self._wake.set()

    def publish_result(self, result: Result) -> None:
        """Send now or never (QoS 0)."""
        self._outbox.put_result(result)
        self._wake.set()

    def wake(self) -> None:
        """There is a new bundle or record in the spool."""
        self._look = True
        self._records.look()
        self._wake.set()

    def reconfigure(self, config: LinkConfig) -> None:
        """Connect anew, with these settings. Chunks keep the size and number that they had."""
        self._config, self._governor = config, Governor(config, self._account)
        self._holds_at, self.state.pinned = 0.0, bool(config.collector_keys)
        self._restartable.restart()

    @property
    def held(self) -> str:
        """Why no blob may go now, empty where they may."""
        return self._governor.why()

    async def pull(self, bundle: str) -> None:
        """Send a bundle before all others, whatever the hour. Raises TidegaugeError where the spool has none such."""
        pending = {entry.id: entry for entry in await asyncio.to_thread(self._spool.pending)}
        if bundle not in pending:
            held = f"it holds {', '.join(sorted(pending)[:8])}" if pending else "it is empty"
            raise TidegaugeError(f"there is no bundle {bundle} in the spool", held)
        self._refused_until.pop(bundle, None)
        if bundle not in self._sender.keys:
            await self._queue(pending[bundle])
        self._take(self._sender.prefer(bundle, monotonic()))

    async def run(self) -> None:
        """Connect, serve, reconnect with back-off, until cancelled; then say "stopped"."""
        while await self._restartable.run(self._connections):
            self._log.info("link: connecting anew, to %s:%d", self._config.host, self._config.port)

    async def _connections(self) -> None:
        while True:
            config = self._config
            await asyncio.sleep(self._reconnect.pause(config.backoff_first, config.backoff_most, config.connect_jitter))
            began = monotonic()
            try:
                await self._connection()
            except* LinkError as group:
                error = first_of(group)
                self._reconnect.ended(monotonic() - began, cut_off=self._cut_off and isinstance(error, LinkLost))
                self.state.fails(rival(config) if self._reconnect.rivalled else error, self._log)

    async def _connection(self) -> None:
        self._session += 1
        will = Will(topic(self._device, "status"), encode(self._status("lost")), qos=1, retain=True)
        async with connect(self._config, self._device, will=will) as connection:
            try:
                await self._serve(connection)
            except asyncio.CancelledError:
                await self._farewell(connection)
                raise
            finally:
                self._cut_off = self.state.heard is not None and not self._packets and not self._actions
                self.state.heard = None
                self._outbox.disconnected()
                self._sender.disconnected()
                self._records.disconnected()
                self._actions.clear()
                self._packets, self._turns = 0, Turns()

    async def _serve(self, connection: Connection) -> None:
        await connection.subscribe(response_topic(self._device))
        try:
            await connection.subscribe(command_topic(self._device))
        except SubscribeRefused as error:  # without commands a board still does its work
            self.state.denies(error, self._log)
        await self._send_status(connection)
        self.state.works()
        self._log.info("connected to the broker %s:%d", self._config.host, self._config.port, extra=LINK_UP.of())
        self.state.patience = PATIENCE * self._config.keepalive
        self.state.heard = lambda: connection.answered
        self.state.connections += 1
        self._look = True
        self._take(self._sender.connected(connection.max_packet, monotonic()))
        self._records.connected(connection.max_packet, monotonic())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(connection))
            group.create_task(connection.watch(self.state.patience))
            while True:
                self._wake.clear()
                if not await self._step(connection, group):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._idle()):
                            await self._wake.wait()

    async def _step(self, connection: Connection, group: asyncio.TaskGroup) -> bool:
        """Do the most urgent thing; False where there is none."""
        now, outbox = monotonic(), self._outbox
        if now >= self._holds_at:
            self._holds_at = now + HOLDS_PERIOD
            self._take(self._sender.hold(*self._governor.holds(), now))
        if outbox.alarms:
            await self._send_first(connection, "alarm", outbox.alarms)
        elif outbox.status_due or now >= self._status_at:
            await self._send_status(connection)
        elif outbox.answers:
            await self._send_first(connection, ANSWER, outbox.answers)
        elif outbox.results:
            await self._send_first(connection, "result", outbox.results, qos=0)
        elif self._records.due(now):
            await self._records.step(lambda at, payload: self._deliver(connection, at, payload))
        elif self._actions and self._packets < PACKETS_IN_FLIGHT and self._may_go(now):
            self._packets += 1
            group.create_task(self._transmit(connection, self._actions.popleft(), self._turns.take()))
            await asyncio.sleep(0)  # it reaches the socket before the next one is looked for
        elif self._finished:
            await asyncio.to_thread(self._spool.remove, self._finished[0])
            self._finished.popleft()
        elif self._look:
            await self._look_into_spool()
        elif self._until and now >= self._until:
            self._until = 0.0
            self._take(self._sender.tick(now))
        else:
            return False
        return True

    def _may_go(self, now: float) -> bool:
        """Whether the rate limit lets the next packet go."""
        action = self._actions[0]
        self._paced_until = now + (self._governor.pause(action.length) if isinstance(action, SendChunk) else 0.0)
        return self._paced_until <= now

    def _idle(self) -> float:
        """Seconds until something is due by time alone."""
        due = [self._status_at, *([self._until] if self._until else [])]
        if self._actions and self._packets < PACKETS_IN_FLIGHT:
            due.append(self._paced_until)
        if self._records.until is not None:
            due.append(self._records.until)
        return max(0.0, min(due) - monotonic())

    async def _listen(self, connection: Connection) -> None:
        commands = command_topic(self._device)
        async for at, payload in connection.messages():
            if at == commands:
                if self.on_command is not None:
                    self.on_command(payload)
                continue
            response = judge(payload, self._config.collector_keys, self._nonce)
            if isinstance(response, Dropped):
                self.state.drops(response, self._log)
                continue
            self.state.last_answer_monotonic = monotonic()
            self._records.response(response, monotonic())
            self._take(self._sender.response(response, monotonic()))

    async def _transmit(self, connection: Connection, action: Publish | SendChunk, turn: Turn) -> None:
        try:
            if isinstance(action, Publish):
                await turn.come()  # no `fin` before its chunks
                await self._deliver(connection, action.topic, action.payload)
            else:
                await self._transmit_chunk(connection, action, turn)
        finally:
            turn.over()
            self._packets = max(0, self._packets - 1)
            self._wake.set()
        self._take(self._sender.sent(monotonic()))

    async def _transmit_chunk(self, connection: Connection, action: SendChunk, turn: Turn) -> None:
        if (queued := self._queued.get(action.key)) is None:
            return  # given up meanwhile
        entry, item = queued
        path = file_path(entry.path, item, action.file_id)
        spend = self._governor.spend if action.file_id != item.head.file_id else None
        try:
            read = await asyncio.to_thread(read_paid, path, action.offset, action.length, spend)
        except (BundleError, OSError) as error:
            await self._unreadable(action.key, error)
            return
        if read is None:
            self._holds_at = 0.0  # the day's budget is spent: the sender is told at the next step
            return
        data, sha256 = read
        self._governor.sent(len(data))
        await turn.come()
        began = monotonic()
        if await self._deliver(connection, chunk_topic(self._device, action.file_id, action.offset, sha256), data):
            self.state.bytes_sent += len(data)
            self._sender.link_speed(len(data) / max(1e-6, monotonic() - began))

    async def _unreadable(self, key: str, error: Exception) -> None:
        """Evicted while it was being sent, or damaged: the spool sets aside what it still has."""
        self._log.warning("bundle %s can't be read any more: %s", key, error, extra=BUNDLE_SET_ASIDE.of(bundle=key))
        await asyncio.to_thread(self._spool.quarantine, key)
        self._forget(key)
        self._take(self._sender.remove(key, monotonic()))

    async def _deliver(
        self, connection: Connection, at: str, payload: bytes, qos: int = 1, retain: bool = False
    ) -> bool:
        """Publish and count. A refusal by the broker is not a lost link: the sender's time-out deals with it."""
        try:
            await connection.publish(at, payload, qos=qos, retain=retain)
        except PublishRefused as error:
            self.state.publishes["refused"] += 1
            self.state.denies(error, self._log)
            return False
        except LinkError:
            self.state.publishes["lost"] += 1
            raise
        self.state.publishes["ok"] += 1
        return True

    async def _send_first(self, connection: Connection, leaf: str, queue: deque[Any], qos: int = 1) -> None:
        """Publish the first of a queue; it leaves it when the broker has taken it."""
        first = queue[0]
        payload = first if isinstance(first, bytes) else encode(first)
        await self._deliver(connection, topic(self._device, leaf), payload, qos)
        if queue and queue[0] is first:
            queue.popleft()

    async def _send_status(self, connection: Connection) -> None:
        self._outbox.status_due = False
        self.wake()  # now and then, for what the spool has given up and for what was refused long ago
        self._status_at = monotonic() + self._config.status_interval
        await self._deliver(connection, topic(self._device, "status"), encode(self._status("online")), retain=True)

    def _status(self, state: str) -> Status:
        known = self.fresh_status() if self.fresh_status else self._outbox.status or Status(state="online", session=0)
        return msgspec.structs.replace(known, state=state, session=self._session)

    async def _farewell(self, connection: Connection) -> None:
        with contextlib.suppress(LinkError, TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await connection.publish(topic(self._device, "status"), encode(self._status("stopped")), retain=True)

    def _take(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Publish() | SendChunk():
                    self._actions.append(action)
                case Wait():
                    self._until = action.until
                case Done(key):
                    self.state.bundles_sent += 1
                    self._log.info("bundle %s is stored at the collector", key, extra=BUNDLE_STORED.of(bundle=key))
                    self._finished.append(key)
                    self._forget(key)
                case Refused():
                    self._turned_down(action)
        self._spool.in_transfer = frozenset(filter(None, [self._sender.active]))
        self._wake.set()

    def _turned_down(self, refused: Refused) -> None:
        said = BUNDLE_REFUSED.of(bundle=refused.key, reason=refused.reason)
        self._log.error("bundle %s is refused: %s (file %s)", refused.key, refused.reason, refused.file_id, extra=said)
        self.state.refused.append(refused)
        self._refused_until[refused.key] = monotonic() + REFUSED_AGAIN
        self._forget(refused.key)

    def _forget(self, key: str) -> None:
        self._queued.pop(key, None)
        self._look = True

    async def _look_into_spool(self) -> None:
        """Queue the bundles that tell most and may be sent, and drop from the queue what the spool has given up."""
        self._look, now = False, monotonic()
        pending = {entry.id: entry for entry in await asyncio.to_thread(self._spool.by_priority)}
        for key in self._sender.keys - pending.keys():
            self._forget(key)
            self._take(self._sender.remove(key, now))
        for key, entry in pending.items():
            if len(self._sender.keys) >= QUEUED:
                break
            if key in self._sender.keys or key in self._finished or self._refused_until.get(key, 0.0) > now:
                continue
            await self._queue(entry)

    async def _queue(self, entry: Entry) -> None:
        try:
            item = await asyncio.to_thread(outgoing, entry)
        except BundleError as error:
            await self._unreadable(entry.id, error)
            return
        self._queued[entry.id] = entry, item
        self._take(self._sender.add(item, monotonic()))
