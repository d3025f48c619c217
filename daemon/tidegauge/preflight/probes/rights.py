"""The check `rights`: each of the device's topics is tried, with messages that nobody acts on.

The messages are empty and not retained; the collector ignores an empty status or alarm, and answers an empty `init`
with a refusal, which also proves that it listens. Tried under MQTT 5: a broker tells a refused publish only there.
"""

from __future__ import annotations

import asyncio

import msgspec

from tidegauge.link import answers
from tidegauge.link.answers import Dropped
from tidegauge.link.command_wire import answer_topic, command_topic
from tidegauge.link.commands import init_topic, response_topic
from tidegauge.link.config import LinkConfig
from tidegauge.link.mqtt import BrokerRefused, Connection, LinkError, PublishRefused, connect
from tidegauge.link.wire import FileResponse, topic
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, not_applicable, ok, warning
from tidegauge.preflight.session import client_id, link_of

#: A file that nobody has.
NO_FILE = "0" * 64
#: Seconds for the collector to answer.
ANSWER = 3.0


def run(context: Context) -> Finding:
    device, link, client = context.required.device, link_of(context), client_id(context)
    told = True
    try:
        try:
            refused, answer = asyncio.run(_try(msgspec.structs.replace(link, protocol="5"), client, device))
        except BrokerRefused:  # a broker that speaks 3.1.1 only
            told = False
            refused, answer = asyncio.run(_try(link, client, device))
    except LinkError as error:
        return not_applicable(f"no connection: see `broker` ({error.problem})")
    if isinstance(answer, Dropped):
        return failed(
            f"the collector's answers don't count for this board ({answer.reason}): {answer.sentence}",
            "pin the key that `tidegauge collector keys own` prints (key `link.collector_keys`)",
        )
    return judge(device, refused, answered=answer is not None, told=told)


async def _try(link: LinkConfig, client: str, device: str) -> tuple[list[str], FileResponse | Dropped | None]:
    """The topics that were refused, and what the collector answered, None for nothing. Raises LinkError."""
    refused: list[str] = []
    async with connect(link, client) as connection:
        for name in (response_topic(device), command_topic(device)):
            try:
                await connection.subscribe(name)
            except BrokerRefused:
                refused.append(f"subscribe {name}")
        asked = init_topic(device, NO_FILE)
        leaves = (topic(device, "status"), topic(device, "alarm"), topic(device, "result"), answer_topic(device), asked)
        for name in leaves:
            try:
                await connection.publish(name, b"")
            except PublishRefused:
                refused.append(f"publish {name}")
        answer = None if refused else await _answer(connection, link.collector_keys)
    return refused, answer


async def _answer(connection: Connection, keys: tuple[str, ...]) -> FileResponse | Dropped | None:
    """As the agent would judge it. What was asked is empty, so there is no nonce to repeat."""
    try:
        async with asyncio.timeout(ANSWER):
            async for _topic, payload in connection.messages():
                if NO_FILE.encode() in payload:
                    return answers.judge(payload, keys, "")
    except TimeoutError:
        pass
    return None


def judge(device: str, refused: list[str], *, answered: bool, told: bool) -> Finding:
    """`told`: whether the broker tells a refused publish at all."""
    if refused:
        return failed(
            f"the broker refuses device {device}: {', '.join(refused)}",
            "allow it in the broker's access list: publish on "
            f"{topic(device, '#')}, subscribe to {response_topic(device)} and {command_topic(device)}",
        )
    if answered:
        return ok("every topic of the device can be used, and the collector answers")
    if not told:
        return warning(
            "the broker speaks MQTT 3.1.1 only, which does not tell a refused publish, and no collector answered",
            "start the collector and check again: its answer is the proof",
        )
    return warning(
        f"every topic of the device can be used, but no collector answered within {ANSWER:g} s",
        f"start the collector; if it runs, let this device read {response_topic(device)} in the broker's access list",
    )


PROBE = Probe(
    id="rights",
    title="the device's rights on its MQTT topics, each tried; the collector's answer",
    why="a broker drops what a device may not publish without a word (MQTT 3.1.1): alarms would be lost in silence",
    place="anywhere",
    run=run,
    deadline=lambda _context: 60.0,
)
