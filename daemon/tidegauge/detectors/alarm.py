"""What a detector raises. Latching it is the caller's business: a detector says it again while its condition holds."""

from __future__ import annotations

import msgspec


class Alarm(msgspec.Struct, frozen=True):
    """`detector` by name, `message` one sentence for a person, `evidence` finite numbers by name."""

    detector: str
    message: str
    evidence: dict[str, float]
