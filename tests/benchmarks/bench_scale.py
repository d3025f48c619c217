"""`make bench-scale`: a fleet against a collector of several processes, killed in turn, and pages on a full database.

Boards are simulated by a few processes, but speak the real protocol, each on a connection of its own, to a real broker.
PostgreSQL is real (without fsync); S3 is moto's double, one Python process, which bounds the bytes a second here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import msgspec
import psycopg
from rich.console import Console

from integration import database_servers
from integration.collector_peer import MOSQUITTO, Process
from integration.database_servers import S3, Cluster
from integration.test_compare_cli import make_bundle
from tidegauge.bundles.manifest import Manifest
from tidegauge.cli.evaluate import show
from tidegauge.demo.broker import free_port
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build

sys.path.insert(0, str(Path(__file__).parent))
import scale_queries
import scale_takeover
from scale_boards import Task, Through, device_of

#: Processes of the collector by role, and of boards.
PROCESSES = {"ingest": 3, "compare": 2}
BOARD_PROCESSES, LEAST_BOARDS = 4, 10
LAYER, CAUSE = "/dec/c3/Relu_output_0", "gain"
#: Different traced runs; the bundles of a fleet are made of these, each with a manifest of its own.
TRACED = 10
#: Kills of a process that compares and does not come back.
TAKEOVERS = 5
#: Seconds of work before a kill, seconds until the killed one is back, and until everything must be compared.
BEFORE_KILL, AWAY, ENDS_WITHIN = 6.0, 2.0, 1800.0


class Broker:
    """Mosquitto, which keeps sessions and retained messages on the disk."""

    def __init__(self, folder: Path) -> None:
        self.port, self.folder = free_port(), folder
        folder.mkdir()
        user = "user root\n" if os.geteuid() == 0 else ""
        (folder / "mosquitto.conf").write_text(
            f"{user}listener {self.port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"
            f"persistence true\npersistence_location {folder}/\nautosave_interval 1\nmax_queued_messages 0\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        with (self.folder / "log").open("ab") as log:
            command = [MOSQUITTO, "-c", str(self.folder / "mosquitto.conf")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class Fleet:
    """A collector of several processes, with what it needs, in a folder. `roles`: its processes by name."""

    def __init__(
        self, folder: Path, cluster: Cluster, s3: S3, library: Path, processes: Mapping[str, int] = PROCESSES
    ) -> None:
        self.database = cluster.database()
        self.broker = Broker(folder / "broker")
        shared = (
            f'compile_library = "{library}"\n[database]\nurl = "{self.database}"\n[blobs]\nbucket = "{s3.bucket()}"\n'
            f'endpoint = "{s3.endpoint}"\nregion = "us-east-1"\n[ingest]\ngroup = "ingest"\n'
        )
        self.roles: dict[str, Process] = {}
        for role, count in processes.items():
            for number in range(count):
                place = folder / f"{role}-{number}"
                place.mkdir()
                self.roles[place.name] = Process(
                    place, self.broker.port, f'roles = ["{role}"]\n{shared}', s3.environment
                )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.broker.start()
        for process in self.roles.values():
            process.start()
        try:
            for name, process in self.roles.items():
                if name.startswith("ingest"):
                    process.until("api/v1/health", lambda health: health["broker_connected"])
            yield
        finally:
            for process in self.roles.values():
                process.kill()
            self.broker.kill()

    def ask(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.database) as connection:
            return connection.execute(query.encode()).fetchall()

    def number(self, query: str) -> float:
        return float(str(self.ask(query)[0][0]))

    def worth_killing(self, name: str, bundles: int) -> bool:
        """Whether a process has something to lose: one that compares only while, or after, something is compared."""
        if not name.startswith("compare"):
            return True
        states = [str(state) for (state,) in self.ask("SELECT state FROM bundles")]
        return "comparing" in states or (len(states) == bundles and set(states) <= {"compared", "failed"})

    def kill(self, name: str) -> None:
        target = self.broker if name == "broker" else self.roles[name]
        target.kill()
        time.sleep(AWAY)
        target.start()


class Trial(msgspec.Struct):
    """What one fleet did. `compared`: by device, the Unix time at which its bundle was first seen compared. `killed`:
    names of processes, in the order of the kills.
    """

    boards: int
    bundles: int
    seconds: float
    cpu: float
    through: list[Through]
    compared: dict[str, float]
    memory: dict[str, float]
    rows: dict[str, int]
    database_bytes: float
    duplicated: int
    failed: int
    killed: list[str]


def bundles_of(lab: Board, folder: Path, boards: int, count: int) -> dict[int, str]:
    """By number of the board, a bundle of its own: one in two of a faulty run, with an own manifest each."""
    net = (lab.artifacts / "subgraph_0_tidl_net.bin").read_bytes()
    made = []
    for number in range(min(TRACED, count)):
        faults = [Fault(LAYER, CAUSE, 1.2 + 0.02 * number)] if number % 2 == 0 else []
        traces = lab.trace(faults, name=f"{folder.name}-run-{number}")
        made.append(make_bundle(lab, traces, folder / f"run-{number}", net))
    found = {}
    for number in range(count):
        source, board = made[number % len(made)], number * (boards // count)
        mine = folder / f"bundle-{number}"
        mine.mkdir()
        (mine / "blobs").symlink_to(source / "blobs")
        manifest = msgspec.json.decode((source / "manifest.json").read_bytes(), type=Manifest)
        name = f"bundle-{number:05d}"
        changed = msgspec.structs.replace(manifest, bundle_id=name, device=device_of(board))
        (mine / "manifest.json").write_bytes(msgspec.json.encode(changed))
        found[board] = str(mine)
    return found


def trial(
    fleet: Fleet, boards: int, hours: int, bundles: dict[int, str], kills: list[str], pause: float = BEFORE_KILL
) -> Trial:
    """Everything that all boards have is sent, taken in and compared, while processes are killed in turn.

    `pause`: seconds before each kill; a process that compares is killed while something is being compared.
    """
    with fleet.running(), contextlib.ExitStack() as stack:
        before, began, cpu = fleet.number(_SIZE), time.time(), _cpu(fleet)
        children = [_start(Task(fleet.broker.port, *part, hours, bundles)) for part in _parts(boards)]
        for child in children:
            stack.callback(child.kill)
        compared: dict[str, float] = {}
        killed: list[str] = []
        due = time.time() + pause
        while (
            len(compared) < len(bundles) or any(child.poll() is None for child in children) or len(killed) < len(kills)
        ):
            if time.time() - began > ENDS_WITHIN:
                raise TimeoutError(f"{len(compared)} of {len(bundles)} bundles compared in {ENDS_WITHIN:.0f} s")
            if len(killed) < len(kills) and time.time() > due and fleet.worth_killing(kills[len(killed)], len(bundles)):
                fleet.kill(kills[len(killed)])
                killed.append(kills[len(killed)])
                due = time.time() + pause
            for (device,) in fleet.ask("SELECT device FROM bundles WHERE state IN ('compared', 'failed')"):
                compared.setdefault(str(device), time.time())
            time.sleep(0.2)
        seconds, through = time.time() - began, [item for child in children for item in _results(child)]
        rows = {t: int(fleet.number(f"SELECT count(*) FROM {t}")) for t in ("devices", "records", "bundles", "blobs")}
        return Trial(
            boards,
            len(bundles),
            seconds,
            _cpu(fleet) - cpu,
            through,
            compared,
            {name: _memory(process) for name, process in fleet.roles.items()},
            rows,
            fleet.number(_SIZE) - before,
            int(fleet.number("SELECT count(*) - count(DISTINCT manifest_sha256) FROM bundles")),
            int(fleet.number("SELECT count(*) FROM bundles WHERE state = 'failed'")),
            killed,
        )


_COMPARED = "SELECT count(*) FROM bundles WHERE state = 'compared'"
_SIZE = "SELECT pg_database_size(current_database())"


def _parts(boards: int) -> Iterator[tuple[int, int]]:
    """First board and count of each process."""
    each = max(LEAST_BOARDS, -(-boards // BOARD_PROCESSES))
    for first in range(0, boards, each):
        yield first, min(each, boards - first)


def _start(task: Task) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__).with_name("scale_boards.py")), msgspec.json.encode(task).decode()]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def _results(child: subprocess.Popen[bytes]) -> list[Through]:
    assert child.stdout is not None
    with child.stdout as out:
        lines = out.read().splitlines()
    if child.wait() != 0:
        raise RuntimeError(f"a process of boards ended with code {child.returncode}")
    return [msgspec.json.decode(line, type=Through) for line in lines]


def _cpu(fleet: Fleet) -> float:
    """Processor seconds of those of the collector's processes that live."""
    return sum(_processor_seconds(process.process.pid) for process in fleet.roles.values() if process.process)


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # its own and its children's


def _memory(process: Process) -> float:
    """Peak resident MiB."""
    assert process.process is not None
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def figures_of(found: Trial, hours: int, kills: int) -> list[Figure]:
    group = f"{found.boards} boards, {found.bundles} bundles, {kills} kills"
    latencies = [found.compared[item.device] - item.alarm for item in found.through if item.alarm]
    stored = max(item.stored for item in found.through) - min(item.stored for item in found.through)
    sent = sum(item.bytes for item in found.through)
    wanted = found.boards * hours
    figures = [
        Figure(group, "boards that are not through", found.boards - len(found.through), "", 0.0, "<="),
        Figure(group, "bundles lost", found.bundles - found.rows["bundles"], "", 0.0, "<="),
        Figure(group, "bundles twice", found.duplicated, "", 0.0, "<="),
        Figure(group, "bundles not compared", found.bundles - len(found.compared) + found.failed, "", 0.0, "<="),
        Figure(group, "hours of history lost or twice", abs(wanted - found.rows["records"]), "", 0.0, "<="),
        Figure(group, "until everything was compared", found.seconds, "s"),
        Figure(group, "stored, boards a second", found.boards / max(stored, 1e-9), "/s"),
        Figure(
            group, "sent by boards", sent / max(stored, 1e-9) / 1e6, "MB/s", note="blobs that were held already too"
        ),
        Figure(group, "alarm to report, median", median(latencies), "s"),
        Figure(
            group, "alarm to report, 99 %", quantiles(latencies, n=100)[98] if len(latencies) > 1 else latencies[0], "s"
        ),
        Figure(
            group, "collector's processor time a board", 1000 * found.cpu / found.boards, "ms", note="comparisons too"
        ),
        Figure(group, "database a board", found.database_bytes / found.boards / 1024, "KiB"),
    ]
    for table, count in found.rows.items():
        figures.append(Figure(group, f"rows of {table}", count))
    for role in ("ingest", "compare"):
        most = max(value for name, value in found.memory.items() if name.startswith(role))
        figures.append(Figure(group, f"peak memory of a process that {role}s", most, "MiB"))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boards", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--hours", type=int, default=24, help="of history of each board")
    parser.add_argument("--bundles", type=int, default=200, help="of the largest fleet; others in proportion")
    parser.add_argument("--rows", type=int, nargs=3, default=[10_000, 500, 10], metavar=("DEVICES", "HOURS", "BUNDLES"))
    parser.add_argument("--without", choices=["queries", "fleets", "takeover"], action="append", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console, figures = Console(), []
    with tempfile.TemporaryDirectory(prefix="tg-scale-") as name:
        folder = Path(name)
        with database_servers.postgresql() as cluster, database_servers.s3() as s3:
            if "fleets" not in options.without:
                figures += fleets(folder, cluster, s3, options, console.print)
            if "takeover" not in options.without:
                figures += takeovers(folder / "takeover", cluster, s3, console.print)
            if "queries" not in options.without:
                broker = Broker(folder / "broker")
                broker.start()
                try:
                    size = (options.rows[0], options.rows[1], options.rows[2])
                    figures += scale_queries.run(folder / "pages", cluster, s3, broker.port, size, console.print)
                finally:
                    broker.kill()
    report = Report(0, False, figures, [])
    show(console, report)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 1 if report.missed else 0


def fleets(
    folder: Path, cluster: Cluster, s3: S3, options: argparse.Namespace, say: Callable[[str], None]
) -> list[Figure]:
    """Growing fleets, each on a new database; while the largest is at work every role is killed once."""
    lab = build(folder / "lab", "enhancer")
    figures: list[Figure] = []
    for boards in sorted(options.boards):
        largest = boards == max(options.boards)
        place = folder / f"fleet-{boards}"
        place.mkdir()
        count = max(1, options.bundles * boards // max(options.boards))
        kills = ["ingest-0", "compare-0", "broker", "ingest-1"] if largest else []
        fleet = Fleet(place, cluster, s3, lab.artifacts.parent)
        found = trial(fleet, boards, options.hours, bundles_of(lab, place, boards, count), kills)
        say(f"{boards} boards: everything compared after {found.seconds:.0f} s")
        figures += figures_of(found, options.hours, len(kills))
    return figures


def takeovers(folder: Path, cluster: Cluster, s3: S3, say: Callable[[str], None]) -> list[Figure]:
    """Of two processes that compare, the one at work is killed and stays away; each time with a new collector."""
    lab, seconds = build(folder / "lab", "enhancer"), []
    for number in range(TAKEOVERS):
        place = folder / f"round-{number}"
        place.mkdir()
        fleet = Fleet(place, cluster, s3, lab.artifacts.parent, {"ingest": 1, "compare": 2})
        bundles = bundles_of(lab, place, 1, 1)
        with fleet.running():
            sender = _start(Task(fleet.broker.port, 0, 1, 1, bundles))
            try:
                seconds.append(scale_takeover.takeover(fleet.roles, partial(fleet.number, _COMPARED)))
            finally:
                sender.kill()
                sender.communicate()
        say(f"a comparison went on elsewhere, and was done {seconds[-1]:.1f} s after the kill")
    return scale_takeover.figures_of(seconds)


if __name__ == "__main__":
    sys.exit(main())
