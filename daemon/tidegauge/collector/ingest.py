"""From MQTT messages to receptions: which message is for what, in order for each file, several devices at once."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from zlib import crc32

import msgspec
from sqlalchemy.exc import OperationalError

from tidegauge.clocks import monotonic, wall
from tidegauge.collector import waiting
from tidegauge.collector.log_kinds import DATABASE_FAILED, MESSAGE_IGNORED, NAME_REFUSED, board_alarm
from tidegauge.collector.reception import Reception
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.store import Store
from tidegauge.collector.uploads import UPLOADS
from tidegauge.link.answers import nonce_of, sign_response
from tidegauge.link.command_wire import ANSWER, COMMAND, MAX_ANSWER, command_topic
from tidegauge.link.commands import BadTopic, ChunkCommand, FileTopic, FinCommand, InitCommand, parse, response_topic
from tidegauge.link.receiver import FAILURE
from tidegauge.link.wire import PREFIX, AlarmChange, FileResponse, Status, decode
from tidegauge.signing import KeyProvider

_log = logging.getLogger(__name__)

#: What the collector subscribes to. Its own answers (`…/file-response`) are under none of these.
TOPICS = (f"{PREFIX}/+/status", f"{PREFIX}/+/alarm", f"{PREFIX}/+/file/#")
#: And where commands wait here for boards that are offline.
COMMAND_TOPICS = (f"{PREFIX}/+/{COMMAND}", f"{PREFIX}/+/{ANSWER}")

_SMALL = re.compile(rf"{PREFIX}/(?P<device>[A-Za-z0-9_-]{{1,64}})/(?P<kind>status|alarm|{COMMAND}|{ANSWER})", re.ASCII)
#: Names that no board may have: of bundles that people upload, and of runs, whose reports stand beside the boards'.
RESERVED = frozenset({UPLOADS, "runs"})
_NOT_A_NAME = "this name is the collector's own, give the board another one (key `device` of its agent.toml)"
#: Largest status or alarm, and largest of all that is small.
_SMALL_BYTES, _LARGEST = 64 << 10, MAX_ANSWER
#: Lanes work side by side; all messages of one device are in one lane, so they stay in order.
_LANES = 4
_LANE_MESSAGES = 64
#: Chunks of a file that are dealt with at once, where so many have come: half of what a board sends unanswered.
_CHUNKS_AT_ONCE = 4
#: Files whose beginning or end is being dealt with at a time.
_LANE_ENDING = 8
#: Answers on their way to the broker.
_LANE_ANSWERS = 64
#: Files whose state a lane keeps in memory; the database has all.
_LANE_FILES = 64
#: Seconds without a message after which what was written is recorded.
_IDLE_SECONDS = 1.0
#: Seconds between two notes of when a device was last seen.
_SEEN_SECONDS = 5.0

Publish = Callable[[str, bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Small:
    """A status, an alarm, a command or its answer."""

    device: str
    kind: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class _OfFile:
    """A message of the transfer of a file."""

    topic: str
    parsed: FileTopic
    payload: bytes

    @property
    def key(self) -> tuple[str, str]:
        return self.parsed.device, self.parsed.file_id

    @property
    def is_chunk(self) -> bool:
        return isinstance(self.parsed.command, ChunkCommand)


class Ingest:
    """`put` takes each message; `run` works until it is cancelled. `publish` sends an answer, QoS 1, not retained.

    `key`: signs the answers; None leaves them unsigned.
    """

    def __init__(self, shelf: Shelf, publish: Publish, key: KeyProvider | None = None) -> None:
        self._lanes = [_Lane(shelf, publish, key) for _ in range(_LANES)]
        self._metrics, self._publish, self._key, self._told = shelf.metrics, publish, key, set[str]()

    async def put(self, topic: str, payload: bytes) -> None:
        """One message, from anyone: it may be anything."""
        small = _SMALL.fullmatch(topic)
        device = small["device"] if small is not None else topic.removeprefix(f"{PREFIX}/").partition("/")[0]
        if device in RESERVED:
            await self._refuse(device, topic, payload)
            return
        if small is not None:
            await self._lane(small["device"]).put_small(small["device"], small["kind"], payload)
            return
        try:
            parsed = parse(topic)
        except BadTopic as error:
            self._metrics.refused("bad_topic")
            _log.warning("ignored: %s", error, extra=MESSAGE_IGNORED.of(device=device[:64], reason="bad_topic"))
            return
        await self._lane(parsed.device).put_file(topic, parsed, payload)

    async def _refuse(self, device: str, topic: str, payload: bytes) -> None:
        """A board may not be called what the collector calls something of its own: it hears so, and the log tells."""
        self._metrics.refused("reserved_name")
        if device not in self._told:
            self._told.add(device)
            _log.error("a board calls itself %s: %s", device, _NOT_A_NAME, extra=NAME_REFUSED.of(device=device))
        if topic.endswith("/init"):
            nonce = nonce_of(InitCommand(), payload)
            answer = FileResponse(topic, FAILURE, f"reserved_name: {_NOT_A_NAME}", nonce=nonce)
            await self._publish(response_topic(device), sign_response(answer, self._key))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes:
                group.create_task(lane.run())

    def _lane(self, device: str) -> _Lane:
        return self._lanes[crc32(device.encode()) % _LANES]


class _Lane:
    """The messages of some devices, one after another."""

    def __init__(self, shelf: Shelf, publish: Publish, key: KeyProvider | None) -> None:
        self._shelf, self._publish, self._key = shelf, publish, key
        self._queue: asyncio.Queue[_Small | _OfFile] = asyncio.Queue(_LANE_MESSAGES)
        self._ahead: _Small | _OfFile | None = None
        self._files: OrderedDict[tuple[str, str], Reception] = OrderedDict()
        self._seen: dict[str, float] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._unheard = asyncio.Semaphore(_LANE_ANSWERS)
        self._ending: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._opening: asyncio.Task[None] | None = None

    async def put_small(self, device: str, kind: str, payload: bytes) -> None:
        await self._queue.put(_Small(device, kind, payload))

    async def put_file(self, topic: str, parsed: FileTopic, payload: bytes) -> None:
        await self._queue.put(_OfFile(topic, parsed, payload))

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._tasks = group
                await self._work()
        finally:
            for reception in self._files.values():
                self._record(reception)

    async def _work(self) -> None:
        while True:
            message = self._at_hand()
            if message is None:
                try:
                    async with asyncio.timeout(self._patience()):
                        message = await self._queue.get()
                except TimeoutError:
                    await self._on_quiet()
                    continue
            if isinstance(message, _Small):
                await self._on_small(message)
            else:
                await self._on_file(message)
            if any(item.deadline is not None and item.deadline <= monotonic() for item in self._files.values()):
                await self._on_quiet()

    def _at_hand(self) -> _Small | _OfFile | None:
        """The next message, where it is here already."""
        message, self._ahead = self._ahead, None
        return message if message is not None or self._queue.empty() else self._queue.get_nowait()

    def _and_next(self, first: _OfFile) -> list[_OfFile]:
        """With further chunks of the same file that are here already: one hop into a thread serves them all, and one
        answer tells of them.
        """
        found = [first]
        while len(found) < _CHUNKS_AT_ONCE and (message := self._at_hand()) is not None:
            if not (isinstance(message, _OfFile) and message.is_chunk and message.key == first.key):
                self._ahead = message
                break
            found.append(message)
        return found

    def _patience(self) -> float:
        deadlines = [item.deadline for item in self._files.values() if item.deadline is not None]
        return max(0.01, min([*deadlines, monotonic() + _IDLE_SECONDS]) - monotonic())

    async def _on_quiet(self) -> None:
        for (device, file_id), reception in list(self._files.items()):
            try:
                answers = await asyncio.to_thread(reception.tick, monotonic())
            except OperationalError as error:
                self._database_failed(f"{file_id} of {device}", error)
                self._files.pop((device, file_id), None)  # its `fin` is noted, or will be said again
                continue
            await self._answer(device, answers, reception.nonce)
            await asyncio.to_thread(self._record, reception)

    def _record(self, reception: Reception) -> None:
        """What can't be recorded now is tried again; lost with the process, it is asked for again."""
        try:
            reception.record()
        except OperationalError as error:
            self._database_failed(f"the coverage of {reception.file_id} of {reception.device}", error)

    def _database_failed(self, what: str, error: OperationalError) -> None:
        self._shelf.metrics.postponed("database")
        _log.error("%s: the database failed (%s)", what, error.orig, extra=DATABASE_FAILED.of())

    async def _on_file(self, message: _OfFile) -> None:
        """The beginning and the end of a file take a sync of the disk: the others go on meanwhile, this one's next
        message waits. Files begin one after another, since each beginning counts against what a device may have open.
        """
        key = message.key
        await self._note_seen(message.parsed.device)
        await self._ended(key)
        messages = self._and_next(message) if message.is_chunk else [message]
        for _ in messages:
            self._shelf.metrics.message("file")
        reception = self._files.get(key)
        ending = isinstance(message.parsed.command, FinCommand) or (reception is not None and reception.closing)
        if not ending and not isinstance(message.parsed.command, InitCommand):
            await self._handle(messages)
            return
        opening = isinstance(message.parsed.command, InitCommand)
        if opening and self._opening is not None:
            await self._opening
        self._ending = {each: task for each, task in self._ending.items() if not task.done()}
        while len(self._ending) >= _LANE_ENDING:
            await self._ended(next(iter(self._ending)))
        assert self._tasks is not None, "`run` is not running"
        task = self._tasks.create_task(self._handle(messages))
        self._ending[key] = task
        self._opening = task if opening else self._opening

    async def _ended(self, key: tuple[str, str]) -> None:
        if key in self._ending:
            await self._ending.pop(key)

    async def _handle(self, messages: list[_OfFile]) -> None:
        """One message, or chunks of one file."""
        last = messages[-1]
        device, file_id = last.key
        try:
            reception = await self._reception(device, file_id)
            told = [(each.topic, each.parsed.command, each.payload) for each in messages]
            answers = await asyncio.to_thread(reception.handle, told, monotonic())
        except OperationalError as error:  # full disk, or locked for too long: the device asks again, and may be heard
            self._database_failed(f"{file_id} of {device}", error)
            self._files.pop(last.key, None)
            return
        await self._answer(device, answers, nonce_of(last.parsed.command, last.payload) or reception.nonce)

    async def _reception(self, device: str, file_id: str) -> Reception:
        key = (device, file_id)
        if key not in self._files:
            self._files[key] = await asyncio.to_thread(Reception, device, file_id, self._shelf)
        self._files.move_to_end(key)
        while len(self._files) > _LANE_FILES:
            _, oldest = self._files.popitem(last=False)
            await asyncio.to_thread(self._record, oldest)
        return self._files[key]

    async def _answer(self, device: str, answers: list[FileResponse], nonce: str) -> None:
        """Signed, in their order, but without waiting for the broker: else a lane would do nothing for a round trip."""
        assert self._tasks is not None, "`run` is not running"
        for answer in answers:
            await self._unheard.acquire()
            payload = sign_response(msgspec.structs.replace(answer, nonce=nonce), self._key)
            self._tasks.create_task(self._say(response_topic(device), payload))

    async def _say(self, topic: str, payload: bytes) -> None:
        try:
            await self._publish(topic, payload)
        finally:
            self._unheard.release()

    async def _note_seen(self, device: str) -> None:
        now = monotonic()
        if now - self._seen.get(device, -_SEEN_SECONDS) >= _SEEN_SECONDS:
            self._seen[device] = now
            try:
                await asyncio.to_thread(self._shelf.store.seen, device, wall())
            except OperationalError as error:
                self._database_failed(f"when {device} was last seen", error)

    async def _on_small(self, message: _Small) -> None:
        device, kind, payload = message.device, message.kind, message.payload
        self._shelf.metrics.message(kind)
        if not payload:
            return  # a retained message was deleted at the broker: it says nothing
        try:
            limit = _LARGEST if kind == ANSWER else _SMALL_BYTES
            if len(payload) > limit:
                raise msgspec.ValidationError(f"{len(payload)} bytes, the limit is {limit}")
            take = {"status": take_status, "alarm": take_alarm, COMMAND: waiting.keep, ANSWER: waiting.answered}[kind]
            await asyncio.to_thread(take, self._shelf.store, device, payload)
            if kind == "status":
                for envelope in await asyncio.to_thread(waiting.due, self._shelf.store, device, payload):
                    await self._publish(command_topic(device), envelope)
        except (msgspec.DecodeError, RecursionError) as error:
            reason = "bad_command" if kind in (COMMAND, ANSWER) else f"bad_{kind}"
            self._shelf.metrics.refused(reason)
            said = MESSAGE_IGNORED.of(device=device, reason=reason)
            _log.warning("ignored a %s of %s: %s", kind, device, error, extra=said)
        except OperationalError as error:
            self._database_failed(f"a {kind} of {device} is lost", error)


def take_status(store: Store, device: str, payload: bytes) -> None:
    """Raises msgspec.DecodeError."""
    status: Status = decode(Status, payload)
    if not store.set_status(device, status, wall()):
        said = MESSAGE_IGNORED.of(device=device, reason="old_status")
        _log.info("ignored a status of session %d of %s: a newer one is known", status.session, device, extra=said)


def take_alarm(store: Store, device: str, payload: bytes) -> None:
    """Raises msgspec.DecodeError."""
    alarm: AlarmChange = decode(AlarmChange, payload)
    store.set_alarm(device, alarm, wall())
    said = board_alarm(alarm.active).of(device=device, alarm=alarm.id, detector=alarm.detector, verdict=alarm.verdict)
    _log.warning("%s: alarm %s", device, alarm.message if alarm.active else f"cleared: {alarm.message}", extra=said)
