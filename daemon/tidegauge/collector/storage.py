"""Opens what a collector keeps things in: a database, blobs, and files on their way in. One process, or many."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL

from tidegauge.collector.blobs import BlobStore, open_bucket
from tidegauge.collector.config import CollectorConfig
from tidegauge.collector.database import postgresql_url
from tidegauge.collector.partial import BucketPartials, FolderPartials, Partials
from tidegauge.collector.store import Store

DATABASE = "collector.sqlite"


@dataclass(frozen=True)
class Storage:
    """`jobs_url`: the database of DBOS, None for a SQLite file in `data`."""

    data: Path
    store: Store
    blobs: BlobStore
    partials: Partials
    jobs_url: URL | None


def open_storage(config: CollectorConfig) -> Storage:
    """What the configuration names, at its present schema. Raises TidegaugeError."""
    data = config.data_folder
    if not config.database.url:
        partials = FolderPartials(data / "partial")
        return Storage(data, Store(data / DATABASE), BlobStore(data / "blobs"), partials, None)
    url, bucket = postgresql_url(config.database.url, config.database.password_file), open_bucket(config.blobs)
    return Storage(data, Store(url), BlobStore(bucket), BucketPartials(bucket, data / "work"), url)
