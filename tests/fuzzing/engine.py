"""Mutates inputs, and goes on from those that reach lines which none has reached before.

Lines are seen by `sys.settrace` in files of the package alone; the libraries' own parsers are seen by what they answer.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from fuzzing.targets import WORDS, Target

PACKAGE = "/tidegauge/"
#: Longest input that is kept, and how many of a target.
KEPT_BYTES, KEPT = 4096, 24
#: What one reading may take before it counts as a finding, seconds of processor time.
SLOW = 5.0


@dataclass
class Found:
    """`fresh`: inputs that reached something new; `failures`: with what each raised."""

    runs: int = 0
    reached: set[tuple[str, int]] = field(default_factory=set)
    fresh: list[bytes] = field(default_factory=list)
    failures: dict[bytes, str] = field(default_factory=dict)


def fuzz(target: Target, seconds: float, seed: int, known: list[bytes], failures: int = 100) -> Found:
    """Fuzz one target for so many seconds or until so many failures, from its seeds and from `known` inputs."""
    rng, found = random.Random(seed), Found()
    pool = [*target.seeds, *known]
    for data in pool:
        _try(target, data, found)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and len(found.failures) < failures:
        data = mutated(rng, rng.choice(pool), rng.choice(pool))
        if _try(target, data, found):
            pool.append(data)
            if len(data) <= KEPT_BYTES and len(found.fresh) < KEPT:
                found.fresh.append(data)
    return found


def read(target: Target, data: bytes) -> str:
    """What is wrong with how it is read; empty for nothing."""
    began = time.process_time()
    try:
        target.read(data)
    except target.allowed as error:
        if not str(error):
            return f"{type(error).__name__} without a word"
    except RecursionError:
        return "RecursionError"
    except Exception as error:  # noqa: BLE001 # whatever else it raises is the finding
        return f"{type(error).__name__}: {error}"
    took = time.process_time() - began
    return f"took {took:.1f} s" if took > SLOW else ""


def _try(target: Target, data: bytes, found: Found) -> bool:
    """Whether it reached a line that none had reached."""
    before = len(found.reached)
    reached = found.reached

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            reached.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, _event: str, _: Any) -> Any:
        return line if PACKAGE in frame.f_code.co_filename else None

    earlier = sys.gettrace()
    sys.settrace(call)
    try:
        wrong = read(target, data)
    finally:
        sys.settrace(earlier)
    found.runs += 1
    if wrong:
        found.failures.setdefault(data, wrong)
    return len(reached) > before


def mutated(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """One to four changes: bits, bytes, pieces cut out, doubled, taken from another input, or words of a format."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randint(0, len(out)), rng.randint(1, 16)
        match rng.randrange(7):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1 if out:
                out[at % len(out)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del out[at : at + length]
            case 3:
                out[at:at] = out[at : at + length] * rng.choice((1, 2, 50))
            case 4:
                out[at:at] = rng.choice(WORDS)
            case 5:
                start = rng.randint(0, len(other))
                out[at : at + length] = other[start : start + length]
            case _:
                del out[at:]
    return bytes(out[: 1 << 16])
