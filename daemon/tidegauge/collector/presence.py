"""Which collectors speak on a broker. Two with databases of their own would answer for each other, and boards would
delete what only one of them holds: the one whose database is older serves, the other stands back.

Pure: messages and times are arguments.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from tidegauge.link.wire import decode, encode

#: Outside the tree of devices: only collectors may write here.
PREFIX = "tidegauge/collectors/v1"
EVERYONE = f"{PREFIX}/+/+"
#: Seconds between two words of a collector, and after which one that has said nothing new is taken for gone: a broker
#: may still hold its last word.
BEAT = 15.0
SILENT = 4 * BEAT
_TOPIC = re.compile(rf"{PREFIX}/(?P<collector>[0-9a-f]{{32}})/(?P<instance>[A-Za-z0-9_-]{{1,64}})", re.ASCII)
_LARGEST = 4096


class Presence(msgspec.Struct, frozen=True):
    """`tidegauge/collectors/v1/{collector}/{instance}`, retained; the will is the same with state "gone".

    `collector`: of the database, `instance`: of the process. `made`: Unix seconds at which the database was made.
    `beat` grows while the process lives.
    """

    collector: str
    instance: str
    host: str
    made: float
    state: Literal["serving", "gone"]
    beat: int = 0

    @property
    def topic(self) -> str:
        return f"{PREFIX}/{self.collector}/{self.instance}"

    @property
    def age(self) -> tuple[float, str]:
        """What decides between two collectors; the smaller one serves."""
        return self.made, self.collector


class Neighbours:
    """What this process has heard of others."""

    def __init__(self, me: Presence) -> None:
        self._me = me
        self._heard: dict[str, tuple[Presence, float]] = {}
        #: Whether the broker hands our own word back: else its access list keeps collectors from hearing each other.
        self.hears_itself = False

    def hear(self, topic: str, payload: bytes, now: float) -> None:
        """A message on a topic of collectors; what is not one of theirs is ignored."""
        found = _TOPIC.fullmatch(topic)
        if found is None or len(payload) > _LARGEST:
            return
        if topic == self._me.topic:
            self.hears_itself = True
            return
        try:
            told: Presence = decode(Presence, payload)
        except (msgspec.DecodeError, RecursionError):
            return
        known = self._heard.get(topic)
        if told.topic == topic and (known is None or known[0] != told):
            self._heard[topic] = (told, now)

    def rival(self, now: float) -> Presence | None:
        """The other collector that serves this broker with more right than this one."""
        others = [
            told
            for told, heard in self._heard.values()
            if told.state == "serving" and told.collector != self._me.collector and now - heard < SILENT
        ]
        oldest = min(others, key=lambda each: each.age, default=None)
        return oldest if oldest is not None and oldest.age < self._me.age else None


def word(presence: Presence) -> bytes:
    return encode(presence)
