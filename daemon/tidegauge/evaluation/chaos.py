"""`kill -9` over board, broker and collector in turn, while bundles and records are on their way, many times over.

The board is the agent's spool and link (`chaos_board`), broker and collector are the real programs. In the end all that
the board has promised must be at the collector: whole, once, and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec

from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import blobs_of
from tidegauge.bundles.reader import decode_manifest
from tidegauge.demo.broker import free_port, mosquitto
from tidegauge.demo.settings import write_toml
from tidegauge.errors import TidegaugeError
from tidegauge.evaluation.chaos_board import DEVICE, Line, read_ledger
from tidegauge.evaluation.figures import Figure, NotRun, Report

TARGETS = ("board", "broker", "collector")
#: Longest time at work before a kill, seconds.
AT_WORK = 0.8
#: How long it may take until something moves again, and until all has arrived in the end, seconds.
MOVES_WITHIN, ARRIVES_WITHIN = 120.0, 300.0


class Program:
    """One that is killed and started anew. `log`: where all its runs write."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command, self._log = command, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def check(self) -> None:
        """Raises TidegaugeError where it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise TidegaugeError(f"{self._command[:3]} ended by itself", f"its log is {self._log}")


class Audit(msgspec.Struct):
    """What is at the collector, beside what was promised."""

    promised: int
    records: int
    arrived: int
    lost: int
    records_lost: int
    duplicates: int
    corrupt: int
    waiting: int


class Site:
    """Board, broker and collector in a folder."""

    def __init__(self, folder: Path) -> None:
        program = mosquitto()
        if program is None:
            raise TidegaugeError("mosquitto is not installed", "install it, for instance with apt")
        self.folder, self._data, port = folder, folder / "collector", free_port()
        user = "user root\n" if os.geteuid() == 0 else ""
        (folder / "mosquitto.conf").write_text(
            f"{user}listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"
        )
        link = {"port": port, "connect_timeout": 5.0, "backoff_first": 0.05, "backoff_most": 0.3}
        settings = {"data": "collector", "link": link, "http": {"port": 0}}
        write_toml(folder / "collector.toml", settings)
        python = [sys.executable, "-m"]
        self.programs = {
            "broker": Program([program, "-c", str(folder / "mosquitto.conf")], folder / "broker.log"),
            "collector": Program(
                [*python, "tidegauge", "collector", "run", "--config", str(folder / "collector.toml")],
                folder / "collector.log",
            ),
            "board": Program(
                [*python, "tidegauge.evaluation.chaos_board", str(folder), str(port)], folder / "board.log"
            ),
        }

    def ask(self, query: str) -> list[tuple[str, ...]]:
        """The collector's database, as it is; nothing while there is none."""
        path = self._data / "collector.sqlite"
        if not path.exists():
            return []
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10.0)) as database:
            try:
                return database.execute(query).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):  # it is being made
                    return []
                raise

    def complete(self) -> int:
        return len(self._whole())

    def under_way(self) -> bool:
        return bool(self.ask("SELECT file_id FROM transfers WHERE state = 'receiving' LIMIT 1"))

    def waiting(self) -> int:
        """Bundles and segments that the board still holds."""
        places = (self.folder / "spool" / "bundles", self.folder / "spool" / "journal")
        return sum(len(list(place.iterdir())) for place in places if place.exists())

    def settled(self) -> bool:
        """Whether the collector counts every promised bundle as whole."""
        return not self._promised().keys() - self._whole()

    def _promised(self) -> dict[str, Line]:
        return {line.id: line for line in read_ledger(self.folder / "ledger") if line.manifest}

    def _whole(self) -> set[str]:
        rows = self.ask("SELECT bundle FROM bundles WHERE state NOT IN ('received', 'waiting_blobs')")
        return {str(row[0]) for row in rows}

    def audit(self) -> Audit:
        """Every promise against every row and byte."""
        promised = self._promised()
        records = {line.id for line in read_ledger(self.folder / "ledger") if not line.manifest}
        rows = self.ask("SELECT bundle, manifest_sha256 FROM bundles")
        kept = [str(row[0]) for row in self.ask("SELECT record FROM records WHERE kind = 'history'")]
        blobs = {path.name: path for path in (self._data / "blobs").rglob("*") if path.is_file()}
        corrupt = sum(_digest(path) != name for name, path in blobs.items())
        corrupt += sum(not _whole(blobs, str(bundle), str(sha256), promised) for bundle, sha256 in rows)
        seen = Counter(str(sha256) for _, sha256 in rows) + Counter(str(bundle) for bundle, _ in rows)
        return Audit(
            promised=len(promised),
            records=len(records),
            arrived=len(rows),
            lost=len(promised.keys() - self._whole()),
            records_lost=len(records - set(kept)),
            duplicates=sum(count - 1 for count in (seen + Counter(kept)).values()),
            corrupt=corrupt,
            waiting=self.waiting(),
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _whole(blobs: dict[str, Path], bundle: str, sha256: str, promised: dict[str, Line]) -> bool:
    """Whether a bundle is the one that was promised, with all of its blobs."""
    if sha256 not in blobs or (bundle in promised and promised[bundle].manifest != sha256):
        return False
    try:
        manifest = decode_manifest(blobs[sha256].read_bytes(), bundle)
    except BundleError:
        return False
    parts = blobs_of(manifest)
    return manifest.bundle_id == bundle and all(
        name in blobs and blobs[name].stat().st_size == blob.stored for name, blob in parts.items()
    )


class Kills(msgspec.Struct):
    """Of one program. `moving`: while a transfer was under way; `stuck`: nothing came within `MOVES_WITHIN`; `slowest`:
    seconds until something came.
    """

    rounds: int = 0
    moving: int = 0
    stuck: int = 0
    slowest: float = 0.0


def trial(rounds: int, seed: int, folder: Path, progress: Callable[[str], None]) -> tuple[dict[str, Kills], Audit]:
    """Raises TidegaugeError where a program ends by itself."""
    rng, site = Random(seed), Site(folder)
    kills = {target: Kills() for target in TARGETS}
    for name in ("broker", "collector", "board"):
        site.programs[name].start()
    try:
        _until(site, lambda: site.complete() > 0, MOVES_WITHIN)
        for number in range(rounds):
            target = TARGETS[number % len(TARGETS)]
            time.sleep(rng.random() * AT_WORK)
            seen = kills[target]
            seen.moving += site.under_way()
            site.programs[target].kill()
            before, began = site.complete(), time.monotonic()
            site.programs[target].start()
            moved = _until(site, lambda before=before: site.complete() > before, MOVES_WITHIN)  # type: ignore[misc]
            seen.rounds, seen.stuck = seen.rounds + 1, seen.stuck + (not moved)
            seen.slowest = max(seen.slowest, time.monotonic() - began)
            if (number + 1) % 10 == 0:
                progress(f"{number + 1} rounds, {before} bundles at the collector")
        (folder / "enough").touch()
        # The board deletes on the collector's word; what a kill has left between two steps is made good by its chores.
        _until(site, lambda: not site.waiting() and site.settled(), ARRIVES_WITHIN)
    finally:
        for program in site.programs.values():
            program.kill()
    return kills, site.audit()


def _until(site: Site, condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        for program in site.programs.values():
            program.check()
        time.sleep(0.05)
    return False


def evaluate(
    rounds: int, seed: int, keep: Path | None = None, progress: Callable[[str], None] = lambda text: None
) -> Report:
    """`keep`: a folder that is left, logs included."""
    if mosquitto() is None:
        return Report(seed, False, [], [NotRun("kill -9", "all", "mosquitto is not installed")])
    with tempfile.TemporaryDirectory(prefix="tg-", ignore_cleanup_errors=True) as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        kills, audit = trial(rounds, seed, folder, progress)
    figures = []
    for target, seen in kills.items():
        group = f"kill -9 of the {target}"
        figures += [
            Figure(group, "rounds", seen.rounds),
            Figure(group, "while a file was under way", seen.moving),
            Figure(group, f"nothing moved for {MOVES_WITHIN:.0f} s", seen.stuck, goal=0.0, relation="<="),
            Figure(group, "longest until something arrived", seen.slowest, "s"),
        ]
    group = f"after {rounds} rounds, device {DEVICE}"
    figures += [
        Figure(group, "bundles promised", audit.promised),
        Figure(group, "records promised", audit.records),
        Figure(group, "bundles at the collector", audit.arrived),
        Figure(group, "bundles lost", audit.lost, goal=0.0, relation="<="),
        Figure(group, "records lost", audit.records_lost, goal=0.0, relation="<="),
        Figure(group, "duplicates visible", audit.duplicates, goal=0.0, relation="<="),
        Figure(group, "corrupt accepted", audit.corrupt, goal=0.0, relation="<="),
        Figure(group, "left in the spool", audit.waiting, goal=0.0, relation="<="),
    ]
    return Report(seed, False, figures, [])
