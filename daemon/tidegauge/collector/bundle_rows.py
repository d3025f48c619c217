"""Bundles in the database, from their manifest to the comparison's answer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    and_,
    cast,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from tidegauge.bundles.manifest import Manifest, blobs_of
from tidegauge.clocks import Wall
from tidegauge.collector.blob_rows import BlobRows, Key, hold, lacking, lacks, waiting_for
from tidegauge.collector.database import batches, upsert
from tidegauge.collector.kept import Kept
from tidegauge.collector.tables import Bundle, BundleState, blobs, bundle_blobs, bundles, reports
from tidegauge.collector.transfer_rows import charge, end_stored
from tidegauge.errors import TidegaugeError

_NOT_ASKED_FOR = "its blobs are not asked for (pull policy)"
_UNFINISHED = ("received", "waiting_blobs", "incomplete")
NET_SUFFIX = "_tidl_net.bin"
#: What a board's inventory calls the release of its SDK.
SDK_NAMES = ("edgeai_sdk", "sdk")


class BundleConflict(TidegaugeError):
    """A device has used one bundle id for two manifests."""


class StoredReport(msgspec.Struct, frozen=True):
    """A file that a comparison wrote: its blob and its bytes."""

    name: str
    sha256: str
    size: int


class BundleRows(BlobRows):
    """Bundles and what became of them."""

    def add_bundle(
        self, manifest: Manifest, manifest_sha256: str, now: Wall, wanted: Collection[str] | None = None
    ) -> bool:
        """Take a bundle in by its manifest. Returns whether it is complete, and not yet compared.

        `wanted`: the blobs asked for, None for all. Raises BundleConflict where this device has sent another manifest
        under the same bundle id.
        """
        device, bundle = manifest.device, manifest.bundle_id
        with self._engine.begin() as connection:
            if upsert(connection, bundles, bundle_row(manifest, manifest_sha256, now), only=()):
                rows = [
                    {
                        "device": device,
                        "bundle": bundle,
                        "sha256": blob.sha256,
                        "size": blob.stored,
                        "wanted": wanted is None or blob.sha256 in wanted,
                    }
                    for blob in blobs_of(manifest).values()
                ]
                for some in batches(rows):
                    connection.execute(insert(bundle_blobs), some)
                hold(connection, [manifest_sha256, *blobs_of(manifest)])
            known = connection.execute(select(bundles.c.manifest_sha256).where(_key(device, bundle))).scalar_one()
        if known != manifest_sha256:
            raise BundleConflict(
                f"device {device} has sent bundle {bundle} before, with another manifest",
                "a bundle id must not be used twice",
            )
        return self.settle(device, bundle)

    def add_blob(self, sha256: str, size: int, now: Wall, sender: str = "", pulled: int = 0) -> list[Key]:
        """A blob is held, durably. Returns the bundles (device, bundle) that it has made complete.

        `sender`: the device whose transfer of it ends so, and which is charged `pulled` bytes. All in one transaction,
        so that a kill leaves no blob whose bundle doesn't know of it. Of two ingesters that store the last two blobs of
        a bundle at once, the one that gets the bundle's row later sees both.
        """
        with self._engine.begin() as connection:
            upsert(connection, blobs, {"sha256": sha256, "size": size, "stored": now})
            if sender:
                end_stored(connection, sender, sha256, now)
            if pulled:
                charge(connection, sender, pulled, now)
            waiting = connection.execute(waiting_for(sha256).with_for_update(of=bundles))
            keys = [(row.device, row.bundle) for row in waiting]
            done = [key for key in keys if _settle(connection, *key, progress=now)]
        return [*done, *self._taken_in_meanwhile(sha256, keys)]

    def _taken_in_meanwhile(self, sha256: str, known: Collection[Key]) -> list[Key]:
        """Bundles that another process has entered while a blob's transaction ran: neither saw what the other wrote."""
        if not self.shared:
            return []
        with self._reading.begin() as connection:
            late = [(row.device, row.bundle) for row in connection.execute(waiting_for(sha256))]
        return [key for key in late if key not in known and self.settle(*key)]

    def settle(self, device: str, bundle: str) -> bool:
        """Where everything wanted of a bundle has come: it is complete. Returns whether it is to be compared."""
        with self._engine.begin() as connection:
            return _settle(connection, device, bundle)

    def want(self, device: str, bundle: str, names: Collection[str] | None, now: Wall) -> None:
        """Ask for further blobs of a bundle, None for all of them."""
        mine = and_(bundle_blobs.c.device == device, bundle_blobs.c.bundle == bundle)
        with self._engine.begin() as connection:
            if names is None:
                connection.execute(update(bundle_blobs).where(mine).values(wanted=True))
            for some in batches(sorted(names or ())):
                chosen = and_(mine, bundle_blobs.c.sha256.in_(some))
                connection.execute(update(bundle_blobs).where(chosen).values(wanted=True))
            if lacks(connection, device, bundle):
                done = and_(_key(device, bundle), bundles.c.state.in_(("compared", "failed", "comparing")))
                connection.execute(update(bundles).where(done).values(partial=True, progress=now))

    def wanted(self, device: str, bundle: str) -> tuple[str, ...]:
        """The blobs of a bundle that are asked for and not here yet."""
        with self._reading.begin() as connection:
            return tuple(lacking(connection, device, bundle))

    def overdue(self, before: Wall) -> list[Bundle]:
        """Bundles that wait for blobs of which none has come since a time."""
        late = and_(bundles.c.state.in_(("received", "waiting_blobs")), bundles.c.progress < before)
        return self._rows(bundle_query().where(late).order_by(bundles.c.progress), Bundle)

    def again(self, device: str, bundle: str, partial: bool = False) -> int:
        """Let a bundle be compared anew. Returns the number of that comparison."""
        with self._engine.begin() as connection:
            query = update(bundles).where(_key(device, bundle))
            query = query.values(generation=bundles.c.generation + 1, attempts=0, state="complete", partial=partial)
            return int(connection.execute(query.returning(bundles.c.generation)).scalar_one())

    def begin(self, device: str, bundle: str) -> int:
        """A comparison begins; returns how many have begun in this generation, this one too."""
        with self._engine.begin() as connection:
            change = update(bundles).where(_key(device, bundle))
            change = change.values(state="comparing", attempts=bundles.c.attempts + 1).returning(bundles.c.attempts)
            return int(connection.execute(change).scalar_one())

    def take_back(self, device: str, bundle: str) -> None:
        """A comparison was stopped, by no fault of its own: it does not count."""
        with self._engine.begin() as connection:
            where = and_(_key(device, bundle), bundles.c.attempts > 0)
            connection.execute(update(bundles).where(where).values(attempts=bundles.c.attempts - 1))

    def set_bundle(self, device: str, bundle: str, state: BundleState, **values: object) -> None:
        """Move a bundle on; `values` are further columns of its row."""
        with self._engine.begin() as connection:
            _set(connection, device, bundle, state=state, **values)

    def finish(self, device: str, bundle: str, generation: int, state: BundleState, **values: object) -> bool:
        """Record a comparison's end, unless a newer one of the same bundle has been asked for meanwhile."""
        with self._engine.begin() as connection:
            where = and_(_key(device, bundle), bundles.c.generation == generation, bundles.c.state != "expired")
            return connection.execute(update(bundles).where(where).values(state=state, **values)).rowcount > 0

    def set_reports(self, device: str, bundle: str, files: Collection[StoredReport]) -> None:
        """What the newest comparison of a bundle wrote."""
        with self._engine.begin() as connection:
            connection.execute(delete(reports).where(and_(reports.c.device == device, reports.c.bundle == bundle)))
            for file in files:
                row = {"device": device, "bundle": bundle, **msgspec.to_builtins(file)}
                connection.execute(insert(reports).values(row))
            hold(connection, [file.sha256 for file in files])

    def report(self, device: str, bundle: str, name: str) -> StoredReport | None:
        where = and_(reports.c.device == device, reports.c.bundle == bundle, reports.c.name == name)
        query = select(reports.c.name, reports.c.sha256, reports.c.size).where(where)
        return next(iter(self._rows(query, StoredReport)), None)

    def ask_again(self, sha256: str, now: Wall) -> set[str]:
        """A blob is lost: the bundles that need it wait for it, or do without. Returns them, as device/bundle."""
        named = select(bundle_blobs.c.device, bundle_blobs.c.bundle).where(bundle_blobs.c.sha256 == sha256)
        asked: set[str] = set()
        with self._engine.begin() as connection:
            for device, bundle in connection.execute(named).all():
                open_again = and_(_key(device, bundle), bundles.c.state.in_(("complete", "waiting_blobs", "received")))
                connection.execute(update(bundles).where(open_again).values(state="waiting_blobs", progress=now))
                ended = and_(_key(device, bundle), bundles.c.state.in_(("compared", "failed")))
                connection.execute(update(bundles).where(ended).values(partial=True))
                asked.add(f"{device}/{bundle}")
        return asked

    def kept(self) -> list[Kept]:
        """Bundles whose comparison has ended and whose blobs are kept."""
        single = select(bundle_blobs.c.sha256).group_by(bundle_blobs.c.sha256).having(func.count() == 1)
        own = (
            select(cast(func.coalesce(func.sum(bundle_blobs.c.size), 0), BigInteger))
            .where(and_(bundle_blobs.c.device == bundles.c.device, bundle_blobs.c.bundle == bundles.c.bundle))
            .where(and_(bundle_blobs.c.sha256.in_(single), exists().where(blobs.c.sha256 == bundle_blobs.c.sha256)))
        )
        columns = (bundles.c.state, bundles.c.exit_code, bundles.c.received, bundles.c.pinned)
        query = select(bundles.c.device, bundles.c.bundle, *columns, own.scalar_subquery().label("own"))
        return self._rows(query.where(bundles.c.state.in_(("compared", "failed", "incomplete"))), Kept)

    def pin(self, device: str, bundle: str, pinned: bool) -> None:
        """Keep a bundle whatever retention says, or no longer."""
        with self._engine.begin() as connection:
            connection.execute(update(bundles).where(_key(device, bundle)).values(pinned=pinned))

    def expire(self, device: str, bundle: str, reason: str) -> None:
        """Give up a bundle's blobs and report; its row, its answer and its manifest stay."""
        with self._engine.begin() as connection:
            where = and_(_key(device, bundle), bundles.c.pinned.is_(False))
            change = update(bundles).where(where).values(state="expired", reason=reason, report=False, partial=False)
            if connection.execute(change).rowcount:
                for table in (bundle_blobs, reports):
                    mine = and_(table.c.device == device, table.c.bundle == bundle)
                    connection.execute(delete(table).where(mine))

    def bundle_of_manifest(self, device: str, manifest_sha256: str) -> tuple[str, BundleState] | None:
        """Its id and its state."""
        where = and_(bundles.c.device == device, bundles.c.manifest_sha256 == manifest_sha256)
        with self._reading.begin() as connection:
            row = connection.execute(select(bundles.c.bundle, bundles.c.state).where(where)).first()
        return None if row is None else (row.bundle, row.state)

    def bundle(self, device: str, bundle: str) -> Bundle | None:
        return next(iter(self._rows(bundle_query().where(_key(device, bundle)), Bundle)), None)

    def bundles(self, limit: int = 200, state: BundleState | None = None) -> list[Bundle]:
        """Newest first."""
        query = bundle_query().order_by(bundles.c.received.desc(), bundles.c.bundle).limit(limit)
        return self._rows(query if state is None else query.where(bundles.c.state == state), Bundle)

    def in_state(self, *states: BundleState) -> list[tuple[str, str, int]]:
        """Device, bundle and generation of all bundles in these states, oldest first."""
        query = select(bundles.c.device, bundles.c.bundle, bundles.c.generation).where(bundles.c.state.in_(states))
        with self._reading.begin() as connection:
            rows = connection.execute(query.order_by(bundles.c.received))
            return [(row.device, row.bundle, row.generation) for row in rows]


def _settle(connection: Connection, device: str, bundle: str, progress: Wall | None = None) -> bool:
    """`progress`: when a blob of it has come, None where none has."""
    columns = (bundles.c.state, bundles.c.partial, bundles.c.generation)
    if progress is None:
        row = connection.execute(select(*columns).where(_key(device, bundle)).with_for_update()).first()
    else:
        change = update(bundles).where(_key(device, bundle)).values(progress=progress)
        row = connection.execute(change.returning(*columns)).first()
    if row is None or (row.state not in _UNFINISHED and not row.partial):
        return row is not None and row.state == "complete"
    if lacks(connection, device, bundle):
        if row.state == "received":
            _set(connection, device, bundle, state="waiting_blobs")
        return False
    if not _asks_for_any(connection, device, bundle):
        _set(connection, device, bundle, state="incomplete", reason=_NOT_ASKED_FOR)
        return False
    again = row.partial or row.state == "incomplete"
    values = {"generation": row.generation + 1 if again else row.generation, "attempts": 0, "partial": False}
    _set(connection, device, bundle, state="complete", reason="", **values)
    return True


def _asks_for_any(connection: Connection, device: str, bundle: str) -> bool:
    """Whether a bundle's blobs are wanted, or it has none."""
    mine = and_(bundle_blobs.c.device == device, bundle_blobs.c.bundle == bundle)
    found = connection.execute(select(bundle_blobs.c.wanted).where(mine)).scalars().all()
    return not found or any(found)


def _key(device: str, bundle: str) -> ColumnElement[bool]:
    return and_(bundles.c.device == device, bundles.c.bundle == bundle)


def bundle_query() -> Select[Any]:
    named = (
        select(func.count())
        .select_from(bundle_blobs)
        .where(and_(bundle_blobs.c.device == bundles.c.device, bundle_blobs.c.bundle == bundles.c.bundle))
    )
    held = named.where(exists().where(blobs.c.sha256 == bundle_blobs.c.sha256))
    return select(
        bundles,
        named.scalar_subquery().label("blobs"),
        named.where(bundle_blobs.c.wanted).scalar_subquery().label("blobs_wanted"),
        held.scalar_subquery().label("blobs_held"),
    )


def _set(connection: Connection, device: str, bundle: str, **values: object) -> None:
    connection.execute(update(bundles).where(_key(device, bundle)).values(**values))


def bundle_row(manifest: Manifest, manifest_sha256: str, now: Wall) -> dict[str, Any]:
    """The row of a bundle that has just come."""
    versions = manifest.inventory.versions
    nets = sorted(sha for name, sha in manifest.inventory.artifacts.items() if name.endswith(NET_SUFFIX))
    return {
        "device": manifest.device,
        "bundle": manifest.bundle_id,
        "manifest_sha256": manifest_sha256,
        "received": now,
        "created": manifest.created.wall,
        "virtual": manifest.virtual,
        "model": manifest.profile.name,
        "detector": manifest.cause.detector,
        "verdict": manifest.cause.verdict,
        "symptoms": list(manifest.cause.symptoms),
        "message": manifest.cause.message,
        "loss": manifest.loss,
        "state": "received",
        "reason": "",
        "sentence": "",
        "culprit": "",
        "culprit_cause": "",
        "report": False,
        "sdk": next((versions[name] for name in SDK_NAMES if name in versions), ""),
        "artifacts": nets[0] if nets else "",
        "progress": now,
    }
