"""The durable workflow with real DBOS and real processes; only the comparison itself is a fake program."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dbos import _dbos

from tidegauge.clocks import Wall
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.compare_process import CompareProcess, ComparisonCrashed, ComparisonFailed, Interrupted
from tidegauge.collector.comparisons import Comparisons, Workshop
from tidegauge.collector.config import ComparisonConfig
from tidegauge.collector.database import postgresql_url
from tidegauge.collector.jobs import Jobs, executor_id
from tidegauge.collector.library import CompileLibrary
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.tables import Bundle
from tidegauge.compare.types import Advice, Comparison, Coverage, Culprit, Subject, to_json

#: What it does is the first word of the bundle's id.
FAKE_COMPARE = """
import pathlib, sys, time, json
folder, (json_path, html_path) = pathlib.Path(sys.argv[1]), sys.argv[-3::2]
place = pathlib.Path(__file__).parent
what = json.loads((folder / "manifest.json").read_text())["bundle_id"].split("-")[0]
with (place / "runs").open("a") as log:
    log.write(what + " " + " ".join(sys.argv[2:-4]) + "\\n")
first = (place / "runs").read_text().count(what + " ") == 1
if what == "unusable":
    print("tidegauge: the bundle has no traces: capture again", file=sys.stderr)
    sys.exit(2)
if what == "crashes" or (what == "crashonce" and first):
    raise RuntimeError("boom")
if what == "hangs":
    time.sleep(60)
if what == "memory":
    bytearray(1 << 31)
if what == "disk":
    pathlib.Path(json_path).write_bytes(bytes(1 << 21))
for path, content in ((json_path, place / "answer.json"), (html_path, None)):
    pathlib.Path(path).write_bytes(content.read_bytes() if content else b"<h1>report</h1>")
sys.exit(1)
"""


def comparison() -> Comparison:
    subject = Subject("bundle", None, None, True, None, "m", {}, {}, {}, "input")
    culprit = Culprit("conv3", 3, 1, "gain", 0.9, "gain 1.50", 40.0, None, "s", (Advice("", "", ""),), ())
    return Comparison(
        tool="t",
        subject=subject,
        exit_code=1,
        sentence="Layer conv3 multiplies by 1.5.",
        coverage=Coverage(10, 9, 0.9, 0.5),
        layers=(),
        culprits=(culprit,),
        recovered=(),
        outputs=(),
        unmatched=(),
        findings=(),
        scale_sources={},
        tracing_changed_output=False,
        seconds=1.5,
    )


class Bench:
    """Everything that a comparison needs, on one folder; `start` and `stop` as a collector's process would."""

    def __init__(self, place: Any, shelf: Shelf, make: Callable[..., Any]) -> None:
        folder = place.folder
        self.place, self.folder, self.shelf, self.make = place, folder, shelf, make
        self.results: list[str] = []
        (folder / "fake_compare.py").write_text(FAKE_COMPARE)
        (folder / "answer.json").write_bytes(to_json(comparison()))
        library = folder / "library" / "some" / "artifacts"
        (library / "tempDir").mkdir(parents=True)
        (library / "subgraph_0_tidl_net.bin").write_bytes(b"net")
        self.limits = ComparisonConfig(seconds=3, memory_bytes=1 << 30, file_bytes=1 << 20)
        self.jobs: Jobs | None = None

    def process(self) -> CompareProcess:
        return CompareProcess(self.limits, (sys.executable, str(self.folder / "fake_compare.py")))

    def start(self) -> None:
        self.running = self.process()
        library = CompileLibrary(self.folder / "library")
        shelf = self.shelf
        workshop = Workshop(
            self.folder, shelf.store, shelf.blobs, library, self.running, 1 << 20, lambda r, _: self.results.append(r)
        )
        url = None if isinstance(self.place.database, Path) else postgresql_url(self.place.database)
        self.jobs = Jobs(self.folder, Comparisons(workshop), 1, url)
        self.jobs.start(shelf.store)

    def stop(self) -> None:
        if self.jobs is not None:
            self.running.stop()
            self.jobs.stop()
            self.jobs = None
            _dbos._get_or_create_dbos_registry().instance_info_map.clear()  # as in a new process

    def add(self, bundle: str, **changes: Any) -> None:
        """A complete bundle in the store."""
        made = self.make(bundle=bundle, **changes)
        for number, data in enumerate([made.head, *made.blobs.values()]):
            name = made.head_id if number == 0 else list(made.blobs)[number - 1]
            source = self.folder / "incoming"
            source.write_bytes(data)
            self.shelf.store.add_blob(name, self.shelf.blobs.put(name, source), Wall(0.0))
        assert self.shelf.store.add_bundle(made.manifest, made.head_id, Wall(float(len(self.shelf.store.bundles()))))

    def ended(self, bundle: str, seconds: float = 30.0) -> Bundle:
        deadline = time.monotonic() + seconds
        while True:
            row = self.shelf.store.bundle("cam-1", bundle)
            assert row is not None
            if row.state in ("compared", "failed"):
                return row
            assert time.monotonic() < deadline, row
            time.sleep(0.02)

    def runs(self) -> list[str]:
        return (self.folder / "runs").read_text().splitlines()


@pytest.fixture
def bench(place: Any, shelf: Shelf, bundle_maker: Callable[..., Any]) -> Iterator[Bench]:
    made = Bench(place, shelf, bundle_maker)
    yield made
    made.stop()


def test_bundles_are_compared_and_a_bad_one_blocks_nobody(bench: Bench) -> None:
    for name in ("crashes-0001", "unusable-0001", "crashonce-01", "good-000001"):
        bench.add(name)
    bench.start()
    assert bench.jobs is not None

    good = bench.ended("good-000001")
    assert (good.state, good.exit_code, good.culprit, good.culprit_cause) == ("compared", 1, "conv3", "gain")
    assert good.sentence == "Layer conv3 multiplies by 1.5." and good.coverage == 0.9 and good.report
    report = bench.shelf.store.report("cam-1", "good-000001", "report.html")
    assert report is not None and bench.shelf.blobs.get(report.sha256, report.size) == b"<h1>report</h1>"
    assert bench.ended("crashonce-01").state == "compared"
    unusable = bench.ended("unusable-0001")
    assert unusable.state == "failed" and "the bundle has no traces: capture again" in unusable.reason
    crashes = bench.ended("crashes-0001")
    assert crashes.state == "failed" and "RuntimeError: boom" in crashes.reason and "2 times" in crashes.reason

    bench.jobs.enqueue("cam-1", "good-000001")  # asked for again: nothing runs twice
    bench.add("last-000001")
    bench.jobs.enqueue("cam-1", "last-000001")
    assert bench.ended("last-000001").state == "compared"
    counts = {what: sum(run.startswith(f"{what} ") for run in bench.runs()) for what in ("good", "crashes", "unusable")}
    assert counts == {"good": 1, "crashes": 2, "unusable": 1}
    assert sorted(bench.results) == ["culprit", "culprit", "culprit", "failed", "failed"]
    assert not list((bench.folder / "work").glob("*/*"))


def test_interrupted_comparison_runs_again_after_a_restart(bench: Bench) -> None:
    bench.add("hangs-00001")
    bench.start()
    deadline = time.monotonic() + 30
    log = bench.folder / "runs"
    while not (log.exists() and log.read_text().endswith("\n")):  # there but empty: its line is still to be written
        assert time.monotonic() < deadline
        time.sleep(0.02)
    bench.stop()
    row = bench.shelf.store.bundle("cam-1", "hangs-00001")
    assert row is not None and row.state == "comparing"  # not failed: it was the collector that stopped

    script = bench.folder / "fake_compare.py"
    script.write_text(script.read_text().replace("time.sleep(60)", "pass"))
    bench.start()
    assert bench.ended("hangs-00001").state == "compared"
    assert len(bench.runs()) == 2


def test_tempdir_is_found_by_the_hash_of_the_network(bench: Bench) -> None:
    net = "49f7bb8c0ad08ca70c5e6b3e9d98fa9d0e5aae3b4bb3f8f6a1c7a0a0a9d4b9f0"
    library = CompileLibrary(bench.folder / "library")
    assert library.find_tempdir({"subgraph_0_tidl_net.bin": net}) is None
    known = {"subgraph_0_tidl_net.bin": hashlib.sha256(b"net").hexdigest()}
    tempdir = bench.folder / "library" / "some" / "artifacts" / "tempDir"
    assert library.find_tempdir(known) == tempdir
    assert library.find_tempdir({"other.bin": known["subgraph_0_tidl_net.bin"]}) is None
    (tempdir.parent / "subgraph_0_tidl_net.bin").write_bytes(b"changed")
    assert library.find_tempdir(known) is None
    assert CompileLibrary(None).find_tempdir(known) is None


@pytest.mark.parametrize(
    ("what", "error", "expected"),
    [
        ("hangs", ComparisonFailed, "more than 3 s"),
        ("disk", ComparisonCrashed, "File too large"),
        ("memory", ComparisonCrashed, "MemoryError"),
    ],
)
def test_limits_hold(bench: Bench, what: str, error: type[Exception], expected: str) -> None:
    folder, output = bench.folder / "bundle", bench.folder / "out"
    folder.mkdir()
    output.mkdir()
    (folder / "manifest.json").write_text(f'{{"bundle_id": "{what}-1"}}')
    with pytest.raises(error, match=expected):
        bench.process().run(folder, None, output)


def test_stopped_process_starts_nothing(bench: Bench) -> None:
    process = bench.process()
    process.stop()
    with pytest.raises(Interrupted):
        process.run(bench.folder, None, bench.folder)


def test_executor_id_is_stable_and_unique(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = executor_id(tmp_path / "a")
    assert executor_id(tmp_path / "a") == first != executor_id(tmp_path / "b")


def test_stray_file_of_a_crash_is_cleaned(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    stray = tmp_path / "blobs" / "sha256" / f"{'a' * 64}#1"
    stray.write_bytes(b"half")
    BlobStore(tmp_path / "blobs")  # another process may be writing it at this moment
    assert stray.exists()
    blobs.clean()
    assert not stray.exists()
    with pytest.raises(ValueError, match="SHA-256"):
        blobs.path("../../etc/passwd")


def test_blob_left_torn_by_a_power_cut_is_replaced(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    name = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    blobs.path(name).write_bytes(b"")  # the name survived, the bytes did not
    assert blobs.put(name, source) == 3
    assert blobs.get(name, 10) == b"abc"
