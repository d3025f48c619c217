"""The collector's tables of what people have asked for."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Index, Integer, Table, Text, false

from tidegauge.collector.tables import metadata

#: Comparisons that a person has asked for, beside those of the bundles: judged again, or of traces that were uploaded.
#: `source`: the blob that it is made from.
runs = Table(
    "runs",
    metadata,
    Column("run", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("bundle", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("asked", Float, nullable=False),
    Column("parameters", JSON, nullable=False),
    Column("source", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("exit_code", Integer),
    Column("sentence", Text, nullable=False),
    Column("culprit", Text, nullable=False),
    Column("culprit_cause", Text, nullable=False),
    Column("coverage", Float),
    Column("seconds", Float),
    Column("finished", Float, nullable=False),
    Column("pinned", Boolean, nullable=False, server_default=false()),
    Index("runs_by_time", "asked"),
    Index("runs_by_source", "source"),
)

#: What a run wrote, kept as blobs.
run_files = Table(
    "run_files",
    metadata,
    Column("run", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("sha256", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Index("run_files_by_hash", "sha256"),
)

#: Files that people have uploaded, and what became of them. `executor`: the process that takes it in.
uploads = Table(
    "uploads",
    metadata,
    Column("upload", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("executor", Text, nullable=False),
    Column("started", Float, nullable=False),
    Column("updated", Float, nullable=False),
    Column("state", Text, nullable=False),
    Column("problem", Text, nullable=False),
    Column("result", JSON, nullable=False),
    Index("uploads_by_time", "started"),
)

#: Commands that were signed here for an operator, and what their device answered.
commands = Table(
    "commands",
    metadata,
    Column("command", Text, primary_key=True),
    Column("device", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    Column("who", Text, nullable=False),
    Column("action", JSON, nullable=False),
    Column("issued", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("cure", Text, nullable=False),
    Column("step", Text, nullable=False),
    Column("verified", Boolean, nullable=False),
    Column("updated", Float, nullable=False),
    Index("commands_by_device", "device", "issued"),
)
