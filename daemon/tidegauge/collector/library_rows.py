"""Models and compile outputs that an operator has registered, in the database; their content is a blob."""

from __future__ import annotations

from typing import Literal

import msgspec
from sqlalchemy import and_, delete, select

from tidegauge.clocks import Wall
from tidegauge.collector.blob_rows import hold
from tidegauge.collector.database import Database, upsert
from tidegauge.collector.tables import library

Kind = Literal["model", "compile"]


class LibraryEntry(msgspec.Struct, frozen=True):
    """`key`: SHA-256 of the model's file, or of the compile's *_tidl_net.bin. `sha256` and `size`: of the blob, which
    is the model itself, or a zip of the compile's tempDir. `added`: Unix seconds.
    """

    kind: Kind
    key: str
    sha256: str
    name: str
    size: int
    added: float


class LibraryRows(Database):
    """What a comparison needs and a board does not have."""

    def add_to_library(self, kind: Kind, key: str, sha256: str, name: str, size: int, now: Wall) -> None:
        """Register a blob that is held already; another one of the same kind and key is replaced."""
        row = {"kind": kind, "key": key, "sha256": sha256, "name": name, "size": size, "added": now}
        with self._engine.begin() as connection:
            upsert(connection, library, row)
            hold(connection, [sha256])

    def remove_from_library(self, kind: Kind, key: str) -> bool:
        with self._engine.begin() as connection:
            where = and_(library.c.kind == kind, library.c.key == key)
            return connection.execute(delete(library).where(where)).rowcount > 0

    def in_library(self, kind: Kind, key: str) -> LibraryEntry | None:
        where = and_(library.c.kind == kind, library.c.key == key)
        return next(iter(self._rows(select(library).where(where), LibraryEntry)), None)

    def library(self) -> list[LibraryEntry]:
        return self._rows(select(library).order_by(library.c.kind, library.c.name, library.c.key), LibraryEntry)
