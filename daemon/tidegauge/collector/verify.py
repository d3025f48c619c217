"""Whether the store is what the database says: every blob is hashed again. And how to make it so.

After an older database has been restored, blobs are here that it doesn't know, bundles among them that boards have
deleted since: `repair` takes them in again. What is lost or damaged is forgotten, so that a board that still has it is
asked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Manifest
from tidegauge.clocks import wall
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.manifests import read_manifest
from tidegauge.collector.store import Store

Kind = Literal["missing", "damaged", "unknown"]
#: Whether a manifest among unknown blobs may come in, given its bytes; raises BundleError. A blob may be anything that
#: a device has sent, another device's manifest too.
Check = Callable[[bytes, Manifest], object]


class Fault(msgspec.Struct, frozen=True):
    """A blob that is not as it should be. "missing": the database names it, the store has none; "damaged": its bytes
    have another hash or size; "unknown": the store has it, the database doesn't know it. `bundles` need it.
    """

    kind: Kind
    sha256: str
    size: int
    bundles: tuple[str, ...] = ()


class Verification(msgspec.Struct, frozen=True):
    """`blobs` and `size` of what was hashed. `repaired`: whether the faults were made good as far as can be; then
    `readmitted` bundles are known again, and `asked_again` wait for blobs.
    """

    blobs: int
    size: int
    faults: tuple[Fault, ...]
    repaired: bool = False
    readmitted: tuple[str, ...] = ()
    asked_again: tuple[str, ...] = ()


def verify(store: Store, blobs: BlobStore, progress: Callable[[int], None] = lambda _: None) -> Verification:
    """Hash everything. `progress` hears the bytes of each blob that is done. Raises OSError."""
    here, held = dict(blobs.names()), store.held()
    faults = [Fault("unknown", name, here[name]) for name in sorted(here.keys() - held.keys() - store.condemned())]
    for name, size in sorted(held.items()):
        if name not in here:
            faults.append(Fault("missing", name, size, store.needed_by(name)))
        elif here[name] != size or blobs.true_hash(name) != name:
            faults.append(Fault("damaged", name, here[name], store.needed_by(name)))
        progress(size)
    return Verification(len(held), sum(held.values()), tuple(faults))


def repair(store: Store, blobs: BlobStore, found: Verification, limit: int, check: Check) -> Verification:
    """Forget what is lost, throw away what is damaged, take in what is unknown. `limit`: bytes of a manifest."""
    now = wall()
    asked: set[str] = set()
    for fault in found.faults:
        if fault.kind == "unknown":
            continue
        store.forget_blob(fault.sha256)
        if fault.kind == "damaged":
            blobs.delete(fault.sha256)
        asked |= store.ask_again(fault.sha256, now)
    unknown = [fault for fault in found.faults if fault.kind == "unknown"]
    readmitted: list[str] = []
    for fault in unknown:
        if blobs.true_hash(fault.sha256) != fault.sha256:
            blobs.delete(fault.sha256)
            continue
        store.add_blob(fault.sha256, fault.size, now)
    for fault in unknown:
        manifest = _manifest(blobs, fault, limit, check)
        if manifest is not None:
            store.add_bundle(manifest, fault.sha256, now)
            readmitted.append(f"{manifest.device}/{manifest.bundle_id}")
    return msgspec.structs.replace(
        found, repaired=True, readmitted=tuple(sorted(readmitted)), asked_again=tuple(sorted(asked))
    )


def _manifest(blobs: BlobStore, fault: Fault, limit: int, check: Check) -> Manifest | None:
    """The manifest that an unknown blob is; None where it is none, or may not come in."""
    if fault.size > limit or not blobs.has(fault.sha256):
        return None
    content = blobs.get(fault.sha256, limit)
    if not content.startswith(b"{"):
        return None
    try:
        manifest = read_manifest(content, limit)
        check(content, manifest)
    except BundleError:
        return None
    return manifest
