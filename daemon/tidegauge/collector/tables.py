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
    LargeBinary,
    MetaData,
    Table,
    Text,
    false,
    text,
    true,
)

from tidegauge.collector.coverage import Coverage

#: "incomplete": blobs did not come in time, and what is here could not be compared. "expired": its blobs are deleted.
BundleState = Literal[
    "received", "waiting_blobs", "complete", "comparing", "compared", "failed", "incomplete", "expired"
]
TransferState = Literal["receiving", "stored", "refused", "aborted"]
BUNDLE_STATES: tuple[str, ...] = get_args(BundleState)
TRANSFER_STATES: tuple[str, ...] = get_args(TransferState)

metadata = MetaData()

#: One row: the name of this collector, whichever of its processes speaks. Another database is another collector.
identity = Table(
    "identity", metadata, Column("collector", Text, primary_key=True), Column("made", Float, nullable=False)
)

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
    Column("drift", Float),
    Column("loss", Float),
    Column("log_e", Float),
    Column("sdk", Text, nullable=False, server_default=""),
    Column("artifacts", Text, nullable=False, server_default=""),
    Column("acceptance", Text, nullable=False, server_default=""),
    Index("devices_by_log_e", "log_e"),
)

#: The public key by which a device's manifests are known. `registered`: a person gave it; else it was the first one.
device_keys = Table(
    "device_keys",
    metadata,
    Column("device", Text, primary_key=True),
    Column("key", Text, nullable=False),
    Column("registered", Boolean, nullable=False),
    Column("since", Float, nullable=False),
)

#: Signed commands for boards that have not answered yet, until they expire. `command`: SHA-256 of what was signed.
waiting_commands = Table(
    "waiting_commands",
    metadata,
    Column("device", Text, primary_key=True),
    Column("command", Text, primary_key=True),
    Column("envelope", LargeBinary, nullable=False),
    Column("expires", Float, nullable=False),
    Column("received", Float, nullable=False),
)

transfers = Table(
    "transfers",
    metadata,
    Column("device", Text, primary_key=True),
    Column("file_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("coverage", Coverage, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("init", JSON, nullable=False),
    Column("started", Float, nullable=False),
    Column("updated", Float, nullable=False),
    Column("fin", Float, nullable=False, server_default="0"),
    Column("verifying", Float, nullable=False, server_default="0"),
    Column("verifier", Text, nullable=False, server_default=""),
    Index("transfers_by_state", "state", "device"),
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
    Column("sdk", Text, nullable=False, server_default=""),
    Column("artifacts", Text, nullable=False, server_default=""),
    Column("progress", Float, nullable=False, server_default="0"),
    Column("generation", Integer, nullable=False, server_default="0"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("partial", Boolean, nullable=False, server_default=false()),
    Column("pinned", Boolean, nullable=False, server_default=false()),
    Index("bundles_by_time", "received"),
    Index("bundles_by_state", "state"),
    Index("bundles_by_manifest", "manifest_sha256"),
    Index(
        "bundles_by_finding",
        "model",
        "artifacts",
        "sdk",
        "culprit",
        "culprit_cause",
        "device",
        "received",
        postgresql_where=text("culprit != ''"),
        sqlite_where=text("culprit != ''"),
    ),
)

#: Which bundle needs which blob; the number of rows of a blob is its reference count.
bundle_blobs = Table(
    "bundle_blobs",
    metadata,
    Column("device", Text, primary_key=True),
    Column("bundle", Text, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("wanted", Boolean, nullable=False, server_default=true()),
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
    Index("alarms_active", "device", postgresql_where=text("active"), sqlite_where=text("active")),
    Index("alarms_by_time", "received"),
)

#: What boards have recorded: an hour of history, or a bundle that was given up; `content` as it came.
records = Table(
    "records",
    metadata,
    Column("device", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("record", Text, primary_key=True),
    Column("at", Float, nullable=False),
    Column("received", Float, nullable=False),
    Column("content", JSON, nullable=False),
    Index("records_by_time", "device", "kind", "at"),
    Index("records_by_arrival", "received"),
)

#: Blobs out of use, between the decision to delete their bytes and the deed: see `blob_rows`.
condemned = Table(
    "condemned", metadata, Column("sha256", Text, primary_key=True), Column("since", Float, nullable=False)
)

#: What a comparison wrote, kept as blobs.
reports = Table(
    "reports",
    metadata,
    Column("device", Text, primary_key=True),
    Column("bundle", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("sha256", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    ForeignKeyConstraint(["device", "bundle"], ["bundles.device", "bundles.bundle"]),
    Index("reports_by_hash", "sha256"),
)

#: Processes of this collector that run comparisons, and when each was last alive, by the database's clock.
executors = Table(
    "executors",
    metadata,
    Column("executor", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("started", Float, nullable=False),
    Column("beat", Float, nullable=False),
)

#: Bytes of blobs taken from a device on a day (days since 1970, UTC).
pulled = Table(
    "pulled",
    metadata,
    Column("device", Text, primary_key=True),
    Column("day", Integer, primary_key=True),
    Column("size", BigInteger, nullable=False),
)

#: Models and compile outputs that an operator has registered. `key`: SHA-256 of the model, or of a *_tidl_net.bin.
library = Table(
    "library",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("sha256", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("added", Float, nullable=False),
    Index("library_by_hash", "sha256"),
)

#: Who may ask. `digest`: SHA-256 of the token, which is nowhere else. `expires` 0: never. Unix seconds.
access_tokens = Table(
    "access_tokens",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("used", Float, nullable=False),
)

#: Browsers that have shown a token. `digest`: SHA-256 of the cookie; `token`: that of the token, with which it ends.
sessions = Table(
    "sessions",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("token", Text, nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Index("sessions_by_token", "token"),
)

#: What all processes of this collector must know and nobody else may: `csrf`.
secrets = Table(
    "secrets", metadata, Column("name", Text, primary_key=True), Column("value", LargeBinary, nullable=False)
)

#: Who did what, in the order of `number`.
audit = Table(
    "audit",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    Column("who", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("detail", JSON, nullable=False),
    Index("audit_by_device", "device", "number"),
)


class Device(msgspec.Struct, frozen=True):
    """A board as it last told of itself. `last_seen`: Unix seconds of the collector's clock. `alarms`: active ones.

    `sdk`: the release, `artifacts`: SHA-256 of the network file, `acceptance`: "running", "accepted" or "failed"; each
    "" where the board has not told it.
    """

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
    sdk: str = ""
    artifacts: str = ""
    acceptance: str = ""


class Bundle(msgspec.Struct, frozen=True):
    """A bundle and what became of it.

    `received` on the collector's clock, `created` on the board's, both Unix seconds. `verdict` is the board's, of
    DESIGN §6.4; `sentence`, `culprit`, `culprit_cause`, `coverage` (share in 0…1) and `exit_code` the comparison's.
    `reason`: why it failed, or what the comparison had to do without (`partial`). `blobs`: number that its manifest
    names, `blobs_wanted` of them asked for, `blobs_held` of them here. `sdk`: the release by the board's inventory,
    `artifacts`: SHA-256 of its network file, both "" where it didn't say. `pinned`: no retention deletes it.
    `generation`: how often it was compared anew.
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
    blobs_wanted: int = 0
    blobs_held: int = 0
    sdk: str = ""
    artifacts: str = ""
    progress: float = 0.0
    generation: int = 0
    attempts: int = 0
    partial: bool = False
    pinned: bool = False


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
    fin: float = 0.0


class Totals(msgspec.Struct, frozen=True):
    """What the metrics and the health answer count, from one reading of the database."""

    bundles: dict[str, int]
    transfers: dict[str, int]
    blobs: int
    blob_bytes: int
