"""A process that only compares, with a comparison that is a given program: started, and killed, by tests.

`python collector_worker.py FOLDER DATABASE BUCKET ENDPOINT PROGRAM VERSION`; ends when its standard input does.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from obstore.store import S3Store

from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.compare_process import CompareProcess
from tidegauge.collector.comparisons import Comparisons, Workshop
from tidegauge.collector.config import ComparisonConfig, WorkersConfig
from tidegauge.collector.database import postgresql_url
from tidegauge.collector.jobs import Jobs
from tidegauge.collector.library import CompileLibrary
from tidegauge.collector.store import Store
from tidegauge.collector.watch import Chore, Watch

ATTEMPTS = 2


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    folder, database, bucket, endpoint, program, version = sys.argv[1:]
    data, url = Path(folder), postgresql_url(database)
    store = Store(url)
    keys = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
    blobs = BlobStore(S3Store(bucket, endpoint=endpoint, client_options={"allow_http": True}, **keys))  # type: ignore[arg-type]
    process = CompareProcess(ComparisonConfig(), (sys.executable, program))
    workshop = Workshop(data, store, blobs, CompileLibrary(None), process, 1 << 20, lambda *_: None, ATTEMPTS)
    jobs = Jobs(data, Comparisons(workshop), 1, url, version=version)
    chores = [Chore("waiting bundles", 0.5, lambda: jobs.settle(store))]
    watch = Watch(store, jobs, WorkersConfig(heartbeat=0.2, dead_after=2.0), f"host-{data.name}", True, chores)
    jobs.start(store)
    watch.start()
    print("ready", flush=True)
    sys.stdin.read()
    process.stop()
    watch.stop()
    jobs.stop()


if __name__ == "__main__":
    main()
