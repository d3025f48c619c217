"""From manifest and blobs in the store to a bundle's folder, and to its one file."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from tidegauge.bundles import layout
from tidegauge.bundles.archive import export_bundle
from tidegauge.bundles.manifest import Manifest, StoredFile, StoredTensor, blobs_of
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.manifests import read_manifest
from tidegauge.files import write_durably

Stored = TypeVar("Stored", StoredTensor, StoredFile)


def assemble(blobs: BlobStore, manifest_sha256: str, limit: int, folder: Path, partial: bool = False) -> list[str]:
    """Lay a bundle out in `folder`, its blobs as further names of those in the store. May be repeated.

    `partial`: do without blobs that are not here, and write the manifest as if it had never named them. Returns their
    hashes. Raises TidegaugeError where the manifest is not here, FileNotFoundError where a blob isn't.
    """
    content = blobs.get(manifest_sha256, limit)
    manifest = read_manifest(content, limit)
    layout.blobs_folder(folder).mkdir(parents=True, exist_ok=True)
    lacking: list[str] = []
    for sha256 in blobs_of(manifest):
        try:
            blobs.fetch(sha256, layout.blob_path(folder, sha256))
        except FileNotFoundError:
            if not partial:
                raise
            lacking.append(sha256)
    if lacking:
        content = msgspec.json.encode(without(manifest, lacking))
    write_durably(layout.manifest_path(folder), content)
    return lacking


def without(manifest: Manifest, lacking: Collection[str]) -> Manifest:
    """The manifest of the same anomaly without some blobs; a trace keeps its fingerprint. Pure."""
    gone = frozenset(lacking)

    def kept(items: tuple[Stored, ...]) -> tuple[Stored, ...]:
        return tuple(item for item in items if item.blob.sha256 not in gone)

    return msgspec.structs.replace(
        manifest,
        inputs=kept(manifest.inputs),
        device_outputs=kept(manifest.device_outputs),
        reference_outputs=kept(manifest.reference_outputs),
        traced_outputs=kept(manifest.traced_outputs),
        logs=kept(manifest.logs),
        artifacts=kept(manifest.artifacts),
        model=None if manifest.model is not None and manifest.model.blob.sha256 in gone else manifest.model,
        traces=tuple(
            msgspec.structs.replace(trace, blob=None) if trace.blob is not None and trace.blob.sha256 in gone else trace
            for trace in manifest.traces
        ),
    )


def archive(blobs: BlobStore, manifest_sha256: str, limit: int, work: Path) -> BinaryIO:
    """The bundle as an open `.tidebundle` file without a name. Raises as `assemble`, and BundleError."""
    with tempfile.TemporaryDirectory(prefix="export-", dir=work) as place:
        folder, file = Path(place) / "bundle", Path(place) / "file"
        assemble(blobs, manifest_sha256, limit, folder)
        export_bundle(folder, file)
        return file.open("rb")
