"""The collector's tables, and what a row of each looks like to the rest of the program."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

SCHEMA = 1

BundleState = Literal["received", "waiting_blobs", "complete", "comparing", "compared", "failed"]
TransferState = Literal["receiving", "stored", "refused", "aborted"]
BUNDLE_STATES: tuple[str, ...] = get_args(BundleState)
TRANSFER_STATES: tuple[str, ...] = get_args(TransferState)

metadata = MetaData()

schema_version = Table("schema_version", metadata, Column("version", Integer, primary_key=True))

devices = Table(
    "devices",
    metadata,
    Column("device", Text, primary_key=True),
    Column("session", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("virtual", Boolean, nullable=False),
    Column("model", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("progress", Float, nullable=False),
    Column("alarm", Text, nullable=False),
    Column("detail", JSON, nullable=False),
    Column("last_seen", Float, nullable=False),
)

transfers = Table(
    "transfers",
    metadata,
    Column("device", Text, primary_key=True),
    Column("file_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("coverage", JSON, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("init", JSON, nullable=False),
    Column("started", Float, nullable=False),
    Column("updated", Float, nullable=False),
)

blobs = Table(
    "blobs",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("stored", Float, nullable=False),
)

bundles = Table(
    "bundles",
    metadata,
    Column("device", Text, primary_key=True),
    Column("bundle", Text, primary_key=True),
    Column("manifest_sha256", Text, nullable=False),
    Column("received", Float, nullable=False),
    Column("created", Float, nullable=False),
    Column("virtual", Boolean, nullable=False),
    Column("model", Text, nullable=False),
    Column("detector", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("symptoms", JSON, nullable=False),
    Column("message", Text, nullable=False),
    Column("loss", Float),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("exit_code", Integer),
    Column("sentence", Text, nullable=False),
    Column("culprit", Text, nullable=False),
    Column("culprit_cause", Text, nullable=False),
    Column("coverage", Float),
    Column("seconds", Float),
    Column("report", Boolean, nullable=False),
    Index("bundles_by_time", "received"),
    Index("bundles_by_state", "state"),
)

#: Which bundle needs which blob; the number of rows of a blob is its reference count.
bundle_blobs = Table(
    "bundle_blobs",
    metadata,
    Column("device", Text, primary_key=True),
    Column("bundle", Text, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    ForeignKeyConstraint(["device", "bundle"], ["bundles.device", "bundles.bundle"]),
    Index("bundle_blobs_by_hash", "sha256"),
)

alarms = Table(
    "alarms",
    metadata,
    Column("device", Text, primary_key=True),
    Column("alarm", Text, primary_key=True),
    Column("active", Boolean, nullable=False),
    Column("detector", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("symptoms", JSON, nullable=False),
    Column("message", Text, nullable=False),
    Column("wall", Float, nullable=False),
    Column("received", Float, nullable=False),
)


class Device(msgspec.Struct, frozen=True):
    """A board as it last told of itself. `last_seen`: Unix seconds of the collector's clock. `alarms`: active ones."""

    device: str
    session: int
    state: str
    version: str
    virtual: bool
    model: str
    phase: str
    progress: float
    alarm: str
    detail: dict[str, float]
    last_seen: float
    alarms: int = 0


class Bundle(msgspec.Struct, frozen=True):
    """A bundle and what became of it.

    `received` on the collector's clock, `created` on the board's, both Unix seconds. `verdict` is the board's, of
    DESIGN §6.4; `sentence`, `culprit`, `culprit_cause`, `coverage` (share in 0…1) and `exit_code` the comparison's.
    `reason`: why it failed. `blobs`: number that its manifest names, `blobs_held` of them are here.
    """

    device: str
    bundle: str
    manifest_sha256: str
    received: float
    created: float
    virtual: bool
    model: str
    detector: str
    verdict: str
    symptoms: tuple[str, ...]
    message: str
    loss: float | None
    state: BundleState
    reason: str = ""
    exit_code: int | None = None
    sentence: str = ""
    culprit: str = ""
    culprit_cause: str = ""
    coverage: float | None = None
    seconds: float | None = None
    report: bool = False
    blobs: int = 0
    blobs_held: int = 0


class Transfer(msgspec.Struct, frozen=True):
    """A file on its way, or arrived. `coverage`: sorted half-open byte ranges that are on disk."""

    device: str
    file_id: str
    name: str
    size: int
    coverage: tuple[tuple[int, int], ...]
    state: TransferState
    reason: str
    started: float
    updated: float


class Totals(msgspec.Struct, frozen=True):
    """What the metrics and the health answer count, from one reading of the database."""

    bundles: dict[str, int]
    transfers: dict[str, int]
    blobs: int
    blob_bytes: int
