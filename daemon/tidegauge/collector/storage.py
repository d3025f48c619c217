"""Opens what a collector keeps things in: a database, blobs, and files on their way in. One process, or many."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL

from tidegauge.collector.blobs import BlobStore, open_bucket
from tidegauge.collector.config import CollectorConfig
from tidegauge.collector.database import postgresql_url
from tidegauge.collector.log_kinds import STORAGE_AWAITED
from tidegauge.collector.partial import BucketPartials, FolderPartials, Partials
from tidegauge.collector.store import Store
from tidegauge.errors import Unreached

_log = logging.getLogger(__name__)

DATABASE = "collector.sqlite"
#: Seconds between two tries to reach database and bucket: the first pause, doubled up to the longest.
_FIRST, _LONGEST = 1.0, 30.0


@dataclass(frozen=True)
class Storage:
    """`jobs_url`: the database of DBOS, None for a SQLite file in `data`."""

    data: Path
    store: Store
    blobs: BlobStore
    partials: Partials
    jobs_url: URL | None


def open_storage(config: CollectorConfig) -> Storage:
    """What the configuration names, at its present schema. Raises TidegaugeError; Unreached where a server of it is not
    there now.
    """
    data = config.data_folder
    if not config.database.url:
        partials = FolderPartials(data / "partial")
        return Storage(data, Store(data / DATABASE), BlobStore(data / "blobs"), partials, None)
    url, bucket = postgresql_url(config.database.url, config.database.password_file), open_bucket(config.blobs)
    return Storage(data, Store(url), BlobStore(bucket), BucketPartials(bucket, data / "work"), url)


def open_when_there(config: CollectorConfig) -> Storage:
    """The same, tried again for as long as database or bucket can't be reached: after a power cut they may come later
    than the collector. Raises TidegaugeError for what waiting does not cure.
    """
    pause = _FIRST
    while True:
        try:
            return open_storage(config)
        except Unreached as error:
            _log.error("%s; it is tried again in %g s", error, pause, extra=STORAGE_AWAITED.of())
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)
