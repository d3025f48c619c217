"""What pages and API need of the collector, in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from litestar.exceptions import ClientException, NotFoundException
from litestar.status_codes import HTTP_409_CONFLICT

from tidegauge.bundles.manifest import Manifest
from tidegauge.collector.access import Access
from tidegauge.collector.assemble import archive
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.config import ScrapeConfig
from tidegauge.collector.manifests import read_manifest
from tidegauge.collector.metrics import CollectorMetrics
from tidegauge.collector.relay import Relay
from tidegauge.collector.store import Store
from tidegauge.collector.tables import Bundle
from tidegauge.collector.uploads import Uploads

_PIECE = 1 << 20


@dataclass(frozen=True)
class Site:
    """`base`: the path before every page. `connected`: whether the broker is. `stands_back`: why this collector leaves
    the broker to another one, "" where it doesn't.
    `work`: a folder for files that live for one answer. `uploads`: None where this process takes no requests in.
    `relay`: None where it has no key to command boards with."""

    base: str
    store: Store
    blobs: BlobStore
    work: Path
    metrics: CollectorMetrics | None
    manifest_limit: int
    connected: Callable[[], bool]
    stands_back: Callable[[], str]
    scrape: ScrapeConfig
    access: Access
    uploads: Uploads | None = None
    relay: Relay | None = None

    def bundle(self, device: str, bundle: str) -> Bundle:
        """Raises NotFoundException."""
        found = self.store.bundle(device, bundle)
        if found is None:
            raise NotFoundException(f"device {device} has sent no bundle {bundle}")
        return found

    def manifest(self, bundle: Bundle) -> Manifest:
        return read_manifest(self.blobs.get(bundle.manifest_sha256, self.manifest_limit), self.manifest_limit)

    def report(self, device: str, bundle: str, name: str) -> bytes:
        """A file of a bundle's report. Raises NotFoundException where there is none (yet)."""
        found = self.bundle(device, bundle)
        file = self.store.report(found.device, found.bundle, name)
        if not found.report or file is None:
            raise NotFoundException(f"bundle {bundle} of {device} has no report (state: {found.state})")
        return self.blobs.get(file.sha256, file.size)

    def archive(self, bundle: Bundle) -> tuple[int, Iterator[bytes]]:
        """The bundle as one `.tidebundle`: its size, and its bytes. Raises ClientException where blobs are not here."""
        if bundle.blobs_held < bundle.blobs:
            raise ClientException(
                f"{bundle.blobs_held} of {bundle.blobs} blobs of this bundle are here", status_code=HTTP_409_CONFLICT
            )
        file = archive(self.blobs, bundle.manifest_sha256, self.manifest_limit, self.work)
        size = file.seek(0, os.SEEK_END)
        file.seek(0)

        def pieces() -> Iterator[bytes]:
            with file:
                while piece := file.read(_PIECE):
                    yield piece

        return size, pieces()
