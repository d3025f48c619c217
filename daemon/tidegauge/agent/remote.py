"""Commands that come over the broker: judged by `link.gate`, carried out by the same `Operator` as the local ones.

What a command needs to be obeyed once only (its counter, its id) is on the disk before anything is done.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tidegauge import signing
from tidegauge.agent.bus import Bus
from tidegauge.agent.commands import Operator
from tidegauge.agent.control_messages import COMMANDS, KEYLESS, AnyCommand, CaptureNow, SelfTest, decode_command
from tidegauge.agent.events import CaptureStep, GoldenChecked
from tidegauge.agent.status import Observer
from tidegauge.clocks import monotonic, wall
from tidegauge.errors import TidegaugeError
from tidegauge.files import write_durably
from tidegauge.link.allowance import TokenBucket
from tidegauge.link.command_wire import AnswerState, CommandAnswer, sign_answer
from tidegauge.link.gate import (
    COUNTED_AS,
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
from tidegauge.link.uplink import Uplink
from tidegauge.log_kinds import COMMAND_REFUSED
from tidegauge.metrics import AgentMetrics
from tidegauge.signing import KeyProvider, KeyUnusable, Use, verify

log = logging.getLogger(__name__)

#: Commands under way at a time, and those that wait to be judged.
AT_ONCE, WAITING = 4, 64
#: What nobody has signed: answers, log lines and pulls a second.
STRANGERS_RATE = 5.0
#: `reason` of the answer where the command was right and the agent would not.
DECLINED = "declined"


@dataclass(slots=True)
class _Running:
    accepted: Accepted[AnyCommand]
    checked: int = 0


class RemoteCommands:
    """`run()` for ever. `keys`: public halves of the operators' keys; none: only what needs no key is obeyed.

    `key`: the device's own, which signs the answers. The memory is `commands.json` in `folder`.
    """

    def __init__(
        self,
        device: str,
        keys: tuple[str, ...],
        key: KeyProvider | None,
        folder: Path,
        operator: Operator,
        observer: Observer,
        uplink: Uplink,
        bus: Bus,
        metrics: AgentMetrics,
    ) -> None:
        self._device, self._key, self._operator, self._observer = device, key, operator, observer
        self._uplink, self._metrics = uplink, metrics
        self._rules = Rules(device, frozenset(keys), _signed, COMMANDS, KEYLESS, decode_command)
        self._path = folder / "commands.json"
        self._memory = interrupted(_read(self._path))
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(WAITING)
        self._running: dict[str, _Running] = {}
        self._strangers = TokenBucket(STRANGERS_RATE)
        #: The memory is read, judged by, and written by one at a time: a counter never goes back.
        self._deciding = asyncio.Lock()
        uplink.on_command = self.take
        bus.on(CaptureStep, self._on_step)
        bus.on(GoldenChecked, self._on_golden)

    def reconfigure(self, keys: tuple[str, ...]) -> None:
        """Obey these keys, and no others, from the next command on."""
        self._rules = dataclasses.replace(self._rules, keys=frozenset(keys))

    def take(self, data: bytes) -> None:
        """A command from anybody. Returns at once."""
        try:
            self._queue.put_nowait(data)
        except asyncio.QueueFull:
            self._count(DECLINED)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._handle(await self._queue.get(), group)

    async def _handle(self, data: bytes, group: asyncio.TaskGroup) -> None:
        async with self._deciding:
            verdict = judge(data, self._rules, self._memory, wall())
            if isinstance(verdict, Accepted):
                verdict = await self._admit(verdict)
        match verdict:
            case Refused():
                self._refuse(verdict)
            case Known(answer):
                await self._say(answer.id, answer.command, answer.state, answer.sentence, answer.cure)
            case Accepted(order, _, _, command):
                self._running[order.id] = _Running(verdict)
                self._publish(CommandAnswer(order.id, command, "running", step="begun"))
                group.create_task(self._carry_out(verdict))

    async def _admit(self, accepted: Accepted[AnyCommand]) -> Accepted[AnyCommand] | Refused:
        """Whether there is room for it now; then it is recorded."""
        order, command, signed = accepted.order, accepted.command, bool(accepted.key)
        if not signed and not self._stranger_may():
            return Refused(Refusal.RATE, "too many commands without a key", "", order.id, command)
        if len(self._running) >= AT_ONCE or order.id in self._running:
            said = f"{len(self._running)} commands are under way"
            return Refused(Refusal.BUSY, said, "wait for their end", order.id, command, signed)
        if signed and (problem := await asyncio.to_thread(self._record, accepted.memory)):
            said = f"the command can't be recorded ({problem}), so it could be repeated by others"
            return Refused(Refusal.NOT_RECORDED, said, "make room on the board's disk", order.id, command, signed)
        return accepted

    async def _carry_out(self, accepted: Accepted[AnyCommand]) -> None:
        order = accepted.order
        who = f"operator {accepted.key[:16]}" if accepted.key else "somebody without a key"
        state: AnswerState = "done"
        cure = reason = ""
        try:
            sentence = await self._operator.carry_out(accepted.action, f"{who}, over the broker, command {order.id}")
        except TidegaugeError as error:
            state, sentence, cure, reason = "refused", error.problem, error.cure, DECLINED
        finally:
            self._running.pop(order.id, None)
        self._count("done" if state == "done" else DECLINED)
        if accepted.key:
            async with self._deciding:
                memory = ended(self._memory, Remembered(order.id, accepted.command, state, sentence, cure))
                await asyncio.to_thread(self._record, memory)
        await self._say(order.id, accepted.command, state, sentence, cure, reason)

    def _record(self, memory: Memory) -> str:
        """Make the memory durable. What is wrong with the disk, empty for nothing: then the memory is the old one."""
        try:
            write_durably(self._path, msgspec.json.encode(memory))
        except OSError as error:
            log.error("%s can't be written: %s", self._path, error)
            return str(error.strerror)
        self._memory = memory
        return ""

    async def _say(
        self, order: str, command: str, state: AnswerState, sentence: str, cure: str, reason: str = ""
    ) -> None:
        """An answer that ends a command, with the state of the device at this moment."""
        report = await asyncio.to_thread(self._observer.report)
        status: dict[str, Any] = msgspec.to_builtins(report)
        self._publish(CommandAnswer(order, command, state, reason, sentence, cure, status=status))

    def _refuse(self, refused: Refused) -> None:
        self._count(COUNTED_AS[refused.reason])
        if not refused.authentic and not self._stranger_may():
            return  # counted; a flood must fill neither log nor link
        said = f"{refused.reason}: {refused.sentence}"
        if refused.authentic:
            self._operator.note(f"an operator, over the broker, command {refused.id or '?'}", "", False, said)
        else:
            log.warning(
                "a command over the broker is refused, %s", said, extra=COMMAND_REFUSED.of(reason=refused.reason)
            )
        if refused.id or refused.command:
            self._publish(
                CommandAnswer(refused.id, refused.command, "refused", refused.reason, refused.sentence, refused.cure)
            )

    def _stranger_may(self) -> bool:
        now = monotonic()
        if self._strangers.wait(1, now) > 0:
            return False
        self._strangers.take(1, now)
        return True

    def _count(self, result: str) -> None:
        self._metrics.commands.labels(result).inc()

    def _publish(self, answer: CommandAnswer) -> None:
        self._uplink.publish_answer(sign_answer(answer, self._key))

    def _on_step(self, event: CaptureStep) -> None:
        self._progress(CaptureNow, lambda _: event.step)

    def _on_golden(self, _event: GoldenChecked) -> None:
        def counted(running: _Running) -> str:
            running.checked += 1
            return f"{running.checked} golden tensors checked"

        self._progress(SelfTest, counted)

    def _progress(self, kind: type[AnyCommand], step: Any) -> None:
        for name, running in self._running.items():
            if isinstance(running.accepted.action, kind):
                self._publish(CommandAnswer(name, running.accepted.command, "running", step=step(running)))


def device_key(state: Path) -> KeyProvider | None:
    """The device's own key, `device.key` in the state folder, made at the first start; None where none can be kept.

    One that can't be read is set aside, and another made: the agent starts, and the collector refuses what it doesn't
    know until somebody has looked.
    """
    path = state / "device.key"
    try:
        if path.exists():
            return signing.load(path)
        key = signing.create(path)
    except KeyUnusable as error:
        log.error("%s", error)
    else:
        log.info("this device has a key now, %s: `tidegauge keys device` prints its public half", path)
        return key
    try:
        path.rename(path.with_name(f"{path.name}.unusable-{int(wall())}"))
        key = signing.create(path)
    except (OSError, KeyUnusable) as error:
        log.error("manifests and answers have no signature: %s", error)
        return None
    log.error(
        "another key takes its place (`tidegauge keys device`); tell the collector (`tidegauge collector keys forget`)"
    )
    return key


def _signed(key: str, signature: bytes, payload: bytes) -> bool:
    return verify(key, Use.COMMAND, signature, payload)


def _read(path: Path) -> Memory:
    """A memory that can't be read is set aside. Then old commands could be obeyed again within their life, so it begins
    at this moment: what was issued before is refused.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Memory)
    except FileNotFoundError:
        return Memory()
    except (msgspec.DecodeError, OSError) as error:
        log.error("%s can't be read (%s): commands that were issued up to now are refused", path, error)
    try:
        path.rename(path.with_name(f"{path.name}.corrupt-{int(wall())}"))
    except OSError as error:
        log.error("%s can't be set aside: %s", path, error)
    return Memory(not_before=wall())
