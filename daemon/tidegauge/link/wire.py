"""Topics and payloads between board and collector (DESIGN §8; the grammar of EMQX's EIP-0021 under our own prefix)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tidegauge.bundles.manifest import Sha256, Size

PREFIX = "tidegauge/v1"
#: Random, of one run of a board; "" for none.
Nonce = Annotated[str, Meta(pattern=r"^[0-9a-f]{0,64}$")]


class Init(msgspec.Struct, frozen=True):
    """`…/file/{file_id}/init`. Byte-stable across retries: nothing in it may depend on when it is sent.

    `nonce`: of this run of the board, repeated by the answer; "" by boards that know of none.
    """

    name: Annotated[str, Meta(min_length=1, max_length=240)]
    size: Size
    checksum: Sha256
    user_data: dict[str, str] = {}
    nonce: Nonce = ""


class Question(msgspec.Struct, frozen=True):
    """What any question of a board holds: the payload of `…/file/{file_id}/fin/…`, and a part of that of `init`."""

    nonce: Nonce = ""


class FileResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """`…/file-response`: the collector's answer to one command (`topic`), the one source of truth for a transfer.

    `acked` and `missing`: half-open byte ranges. `stored`: hashed, synced to disk and kept. `wanted`: blobs of a
    manifest that the collector asks for. `retry_after_ms`: not now. `nonce`: of the question. `key` and `signature`
    (Ed25519, 64 bytes, base64 in JSON): the collector's, over all before the signature (`link/answers.py`).
    """

    topic: str
    reason_code: int
    reason_description: str = ""
    vsn: str = "0.1"
    acked: tuple[tuple[int, int], ...] = ()
    missing: tuple[tuple[int, int], ...] = ()
    wanted: tuple[Sha256, ...] = ()
    stored: bool = False
    retry_after_ms: int = 0
    nonce: Nonce = ""
    key: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")] = ""
    signature: Annotated[bytes, Meta(max_length=64)] = b""


class Status(msgspec.Struct, frozen=True):
    """`…/status`, retained; the will is the same with state "lost". `session` grows with each connection, so that a
    late will can't overwrite a newer birth.

    `sdk`: release of the board's SDK, `artifacts`: SHA-256 of the network file that runs, `acceptance`: how the first
    measurement of this pair stands; "" where it is not known.
    """

    state: Literal["online", "lost", "stopped"]
    session: int
    version: str = ""
    virtual: bool = False
    model: str = ""
    phase: str = ""
    progress: float = 0.0
    alarm: str = ""
    detail: dict[str, float] = {}
    sdk: str = ""
    artifacts: str = ""
    acceptance: Literal["", "running", "accepted", "failed"] = ""


class AlarmChange(msgspec.Struct, frozen=True):
    """`…/alarm`: an alarm was raised or cleared. `id` is unique on the device."""

    id: str
    active: bool
    detector: str
    verdict: str
    symptoms: tuple[str, ...]
    message: str
    wall: float
    boot_id: str
    uptime: float
    evidence: dict[str, float] = {}


class Result(msgspec.Struct, frozen=True):
    """`…/result`: the decoded answer to one frame, small. `doubts`: what says that it must not be taken for right."""

    frame_id: int
    captured_wall: float
    model: str
    summary: dict[str, float]
    doubts: tuple[str, ...] = ()


def topic(device: str, *parts: str) -> str:
    return "/".join((PREFIX, device, *parts))


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message, order="deterministic")


def decode(kind: Any, payload: bytes) -> Any:
    """Decode and validate; raises `msgspec.DecodeError` (of which ValidationError is one)."""
    return msgspec.json.decode(payload, type=kind)
