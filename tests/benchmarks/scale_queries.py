"""How long the collector takes for each page when its database is full: PostgreSQL with millions of hours of history.

The rows are made by the database itself, with the columns and contents that boards' records have. A real collector
serves the pages; `auto_explain` writes the plan of each of its statements into PostgreSQL's log, where a scan of a
whole large table would show.
"""

from __future__ import annotations

import hashlib
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psycopg

from integration.collector_peer import Process
from integration.collector_peer import bundle as bundle_of
from integration.database_servers import S3, Cluster
from tidegauge.clocks import Stamp
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.store import Store
from tidegauge.evaluation.figures import Figure
from tidegauge.spool.records import HistoryRecord, Sums

PAGE_GOAL = 300.0
#: What Prometheus waits for a scrape where it is not told otherwise.
SCRAPE_GOAL = 10_000.0
REPEATS = 5
#: The bundle whose page is asked for.
SHOWN = ("cam-000777", "bundle-3")
#: Large tables, and how often all rows of one may be read here: the page of models counts all bundles that are kept.
LARGE = {"records": 0, "bundles": REPEATS, "bundle_blobs": 0, "alarms": 0, "devices": 0}
#: Reading the fleet's own list means all of its devices; of these it may.
SMALL_ENOUGH = 20_000

_HOUR = HistoryRecord(
    id="h-0",
    session=1,
    number=1,
    began=Stamp(1.7e9, "boot", 0.0),
    ended=Stamp(1.7e9 + 3600.0, "boot", 3600.0),
    model="enhancer",
    artifacts="0123456789ab",
    program="0.1.0",
    phase="monitoring",
    counts={"shadow_samples": 55},
    loss=Sums(55, 0.9, 0.02, 0.01, 0.05),
    temperature=Sums(60, 3500.0, 0.0, 52.0, 64.0),
    evidence={"loss": (0.6, 13.17), "nmse": (0.9, 11.3)},
)
_DETAIL = {
    "loss": 0.01,
    "evidence.loss": 0.5,
    "limit.loss": 13.17,
    "observations.loss": 900.0,
    "evidence.nmse": 0.4,
    "limit.nmse": 11.3,
    "observations.nmse": 900.0,
    "saturation": 0.02,
    "camera_problem": 0.0,
    "spool": 0.1,
    "certificate": 1.8e9,
    **{f"alarm.{cause}": 0.0 for cause in ("accelerator", "reference", "data", "camera", "undecided")},
}


def fill(database: str, devices: int, hours: int, bundles: int) -> tuple[float, dict[str, int]]:
    """Seconds that it took, and the rows by table. `hours` and `bundles` of each device."""
    Store(database).close()  # makes the tables
    began = time.monotonic()
    content = msgspec.json.encode(_HOUR).decode()
    detail = msgspec.json.encode(_DETAIL).decode()
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in _statements(devices, hours, bundles, content, detail):
            connection.execute(statement.encode())
        # As autovacuum would: without it nothing can be read from an index alone.
        connection.execute(b"VACUUM ANALYZE")
        seconds, rows = time.monotonic() - began, counts(database)
        name = connection.info.dbname
        for setting in ("session_preload_libraries = 'auto_explain'", "auto_explain.log_min_duration = 0"):
            connection.execute(f"ALTER DATABASE {name} SET {setting}".encode())
    return seconds, rows


def _statements(devices: int, hours: int, bundles: int, content: str, detail: str) -> Iterator[str]:
    now = time.time()
    yield f"""INSERT INTO devices (device, session, state, version, virtual, model, phase, progress, alarm, detail,
        last_seen, drift, loss, log_e)
        SELECT 'cam-' || lpad(d::text, 6, '0'), 1, CASE WHEN d % 50 = 0 THEN 'lost' ELSE 'online' END,
        '0.1.' || d % 3, true, 'model-' || d % 5, 'monitoring', 1.0, '', '{detail}', {now} - d % 3600,
        d % 97 / 100.0, d % 89 / 100.0, CASE WHEN d % 500 = 0 THEN 30.0 ELSE d % 7 - 5.0 END
        FROM generate_series(1, {devices}) d"""
    yield f"""INSERT INTO records (device, kind, record, at, received, content)
        SELECT 'cam-' || lpad(d::text, 6, '0'), 'history', 'h-' || h, {now} - 3600.0 * h, {now} - 3600.0 * h,
        '{content}' FROM generate_series(1, {devices}) d, generate_series(1, {hours}) h"""
    yield f"""INSERT INTO bundles (device, bundle, manifest_sha256, received, created, virtual, model, detector,
        verdict, symptoms, message, loss, state, reason, exit_code, sentence, culprit, culprit_cause, coverage, seconds,
        report, sdk, artifacts) SELECT 'cam-' || lpad(d::text, 6, '0'), 'bundle-' || b,
        md5(d || '-' || b) || md5(b || '+' || d),
        {now} - 86400.0 * b - d, {now} - 86400.0 * b - d, true, 'model-' || d % 5, 'loss', 'accelerator', '[]',
        'A message.', 0.4, 'compared', '', CASE WHEN b % 3 = 0 THEN 1 ELSE 0 END, 'A sentence.',
        CASE WHEN b % 3 = 0 THEN 'layer-' || d % 40 ELSE '' END, CASE WHEN b % 3 = 0 THEN 'gain' ELSE '' END, 1.0, 2.0,
        false, '11.1', md5('a' || d % 5) || md5('b' || d % 5)
        FROM generate_series(1, {devices}) d, generate_series(1, {bundles}) b"""
    yield f"""INSERT INTO bundle_blobs (device, bundle, sha256, size, wanted)
        SELECT 'cam-' || lpad(d::text, 6, '0'), 'bundle-' || b, md5(d || '/' || b || '/' || n) || md5(n || 'x'), 1000,
        true
        FROM generate_series(1, {devices}) d, generate_series(1, {bundles}) b, generate_series(1, 3) n"""
    yield f"""INSERT INTO alarms (device, alarm, active, detector, verdict, symptoms, message, wall, received)
        SELECT 'cam-' || lpad(d::text, 6, '0'), 'alarm-' || a, false, 'loss', 'accelerator', '[]', 'A message.',
        {now} - 86400.0 * a, {now} - 86400.0 * a
        FROM generate_series(1, {devices}) d, generate_series(1, 5) a"""


def _keep_manifest(path: Path, database: str, blobs: BlobStore) -> None:
    """The one bundle whose page is asked for has a manifest, the others are rows only."""
    head, _ = bundle_of(*SHOWN, 1000)
    digest = hashlib.sha256(head).hexdigest()
    path.write_bytes(head)
    blobs.put(digest, path)
    with psycopg.connect(database) as connection:
        query = b"UPDATE bundles SET manifest_sha256 = %s WHERE device = %s AND bundle = %s"
        connection.execute(query, (digest, *SHOWN))


@contextmanager
def serving(folder: Path, database: str, s3: S3, bucket: str, broker: int) -> Iterator[Process]:
    """A replica for pages only: it neither takes in nor compares."""
    folder.mkdir()
    more = (
        f'roles = []\n[database]\nurl = "{database}"\n[blobs]\nbucket = "{bucket}"\n'
        f'endpoint = "{s3.endpoint}"\nregion = "us-east-1"\n'
    )
    process = Process(folder, broker, more, s3.environment)
    process.start()
    try:
        yield process
    finally:
        process.kill()


def paths(collector: Process) -> list[str]:
    """Each page and the API's lists, of a board in the middle."""
    device, bundle = SHOWN
    finding = collector.get("api/v1/findings")[0]["id"]
    return [
        "",
        "?page=50",
        "?search=0077",
        "?order=drift",
        "?order=loss&descending=false",
        "?alarmed=true",
        f"devices/{device}",
        "bundles",
        f"bundles/{device}/{bundle}",
        "findings",
        f"findings/{finding}",
        "models",
        "upload",
        "api/v1/fleet?limit=100",
        f"api/v1/devices/{device}",
        f"api/v1/devices/{device}/history?points=200",
        f"api/v1/devices/{device}/bundles",
        "api/v1/bundles",
        "api/v1/findings",
        "api/v1/alarms",
        "metrics",
    ]


def measure(collector: Process, cluster: Cluster, rows: dict[str, int]) -> list[Figure]:
    """The slowest of `REPEATS` answers of each page, the first of which finds nothing cached."""
    found = []
    for path in paths(collector):
        times = []
        for _ in range(REPEATS):
            times.append(1000 * _seconds(collector, path))
        goal = SCRAPE_GOAL if path == "metrics" else PAGE_GOAL
        note = f"median {median(times):.0f} ms"
        found.append(Figure("pages with a full database", f"/{path}", max(times), "ms", goal, "<=", note))
    scanned = scans((cluster.folder / "log").read_text())
    large = {table: scanned.get(table, 0) for table in LARGE if rows.get(table, 0) > SMALL_ENOUGH}
    for table, count in large.items():
        name = f"statements that read all of {table} ({rows[table]:,} rows)"
        found.append(Figure("pages with a full database", name, count, "", float(LARGE[table]), "<="))
    return found


def _seconds(collector: Process, path: str) -> float:
    """As a browser or Prometheus asks."""
    request = urllib.request.Request(collector.url + path, headers={"accept-encoding": "gzip"})
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"/{path}: {error}\n{collector.log()[-2000:]}") from error
    return time.perf_counter() - began


def scans(log: str) -> dict[str, int]:
    """By table: plans of `auto_explain` in which it is read from end to end."""
    found: dict[str, int] = {}
    for table in re.findall(r"Seq Scan on (\w+)", log):
        found[table] = found.get(table, 0) + 1
    return found


def counts(database: str) -> dict[str, int]:
    with psycopg.connect(database) as connection:
        return {
            table: int(connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()[0])  # type: ignore[index]
            for table in LARGE
        }


def run(
    folder: Path, cluster: Cluster, s3: S3, broker: int, size: tuple[int, int, int], say: Callable[[str], Any]
) -> list[Figure]:
    """`size`: devices, hours of each, bundles of each."""
    database = cluster.database()
    seconds, rows = fill(database, *size)
    say(f"{sum(rows.values()):,} rows made in {seconds:.0f} s")
    bucket = s3.bucket()
    _keep_manifest(folder.with_name("manifest.json"), database, BlobStore(s3.store(bucket)))
    with serving(folder, database, s3, bucket, broker) as collector:
        return measure(collector, cluster, rows)
