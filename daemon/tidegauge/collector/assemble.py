"""From manifest and blobs in the store to a bundle's folder, and to its one file."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

from tidegauge.bundles import layout
from tidegauge.bundles.archive import export_bundle
from tidegauge.bundles.manifest import blobs_of
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.manifests import read_manifest
from tidegauge.files import write_durably


def assemble(blobs: BlobStore, manifest_sha256: str, limit: int, folder: Path) -> None:
    """Lay a bundle out in `folder`, its blobs as further names of those in the store. May be repeated.

    Raises TidegaugeError where the manifest is not here, FileNotFoundError where a blob isn't.
    """
    content = blobs.get(manifest_sha256, limit)
    layout.blobs_folder(folder).mkdir(parents=True, exist_ok=True)
    for sha256 in blobs_of(read_manifest(content, limit)):
        _link(blobs.path(sha256), layout.blob_path(folder, sha256))
    write_durably(layout.manifest_path(folder), content)


def archive(blobs: BlobStore, manifest_sha256: str, limit: int, work: Path) -> BinaryIO:
    """The bundle as an open `.tidebundle` file without a name. Raises as `assemble`, and BundleError."""
    with tempfile.TemporaryDirectory(prefix="export-", dir=work) as place:
        folder, file = Path(place) / "bundle", Path(place) / "file"
        assemble(blobs, manifest_sha256, limit, folder)
        export_bundle(folder, file)
        return file.open("rb")


def _link(source: Path, target: Path) -> None:
    """A second name for a blob, or a copy where the folders are on different file systems."""
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)
