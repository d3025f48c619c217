"""What is asked of boards, how much a day, and what the collector knows without them; faults counted once."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegauge.bundles.manifest import Blob, Fingerprint, Manifest, StoredFile, Trace
from tidegauge.clocks import Wall, wall
from tidegauge.collector import pull_policy
from tidegauge.collector.config import PullConfig, PullRule
from tidegauge.collector.library import CompileLibrary
from tidegauge.collector.metrics import FINDING_DAYS
from tidegauge.collector.reception import Reception
from tidegauge.collector.registered import Registered, unpack
from tidegauge.collector.shelf import Shelf
from tidegauge.errors import TidegaugeError
from tidegauge.link.commands import chunk_topic, fin_topic, init_topic, parse
from tidegauge.link.wire import FileResponse, Init, encode

NAME = "tidegauge_collector_finding_boards{"
FINE = Fingerprint(100, 0, -5.0, 90.0, 10.0, 20.0, 0.1, 0.3, 0.0, None)


def trace(number: int, **changes: Any) -> Trace:
    sha256 = f"{number:064x}"
    told = msgspec.structs.replace(FINE, **changes)
    return Trace(f"t{number}", "s0", number, "y", (1,), "int8", 10, sha256, "x", told, Blob(sha256, 10, 10, "raw"))


def with_traces(manifest: Manifest, *traces: Trace) -> Manifest:
    return msgspec.structs.replace(manifest, traces=traces)


def rules(*given: PullRule, mib: int = 0) -> PullConfig:
    return PullConfig(given, mib)


SUSPICIOUS = rules(PullRule("suspicious"))


@pytest.mark.parametrize(
    "wrong",
    [{"non_finite": 1}, {"minimum": 3.0, "maximum": 3.0}, {"zero_share": 1.0}, {"high_share": 0.05}],
)
def test_suspicious_layers_come_with_their_neighbours_and_all_that_is_no_trace(
    bundle_maker: Callable[..., Any], wrong: dict[str, float]
) -> None:
    made = bundle_maker()
    traces = [trace(number) for number in range(1, 7)]
    traces[3] = trace(4, **wrong)
    chosen = pull_policy.chosen(with_traces(made.manifest, *traces[::-1]), SUSPICIOUS)
    assert chosen == {*made.blobs, *(f"{number:064x}" for number in (3, 4, 5))}


def test_where_no_layer_stands_out_all_are_asked_for(bundle_maker: Callable[..., Any]) -> None:
    healthy = with_traces(bundle_maker().manifest, *(trace(number) for number in range(5)))
    assert pull_policy.chosen(healthy, SUSPICIOUS) is None
    assert pull_policy.chosen(healthy, PullConfig()) is None


def test_first_rule_that_matches_decides(bundle_maker: Callable[..., Any]) -> None:
    manifest = bundle_maker(device="lab-1").manifest
    none = PullRule("manifest", devices=("lab-*",), detectors=("gold*",), verdicts=("accelerator",))
    assert pull_policy.chosen(manifest, rules(none)) == frozenset()
    assert pull_policy.chosen(manifest, rules(PullRule(devices=("lab-1",)), none)) is None
    for other in ({"devices": ("cam-*",)}, {"detectors": ("loss",)}, {"verdicts": ("camera", "data")}):
        assert pull_policy.chosen(manifest, rules(msgspec.structs.replace(none, **other))) is None


def ask(shelf: Shelf, device: str, file_id: str, topic: str, payload: bytes) -> FileResponse:
    parsed = parse(topic)
    reception = Reception(device, file_id, shelf)
    answers = reception.handle([(topic, parsed.command, payload)], 0.0)
    reception.record()
    return answers[-1]


def begin(shelf: Shelf, device: str, data: bytes, kind: str = "blob") -> tuple[str, FileResponse]:
    file_id = hashlib.sha256(data).hexdigest()
    init = Init("x", len(data), file_id, {"kind": kind})
    return file_id, ask(shelf, device, file_id, init_topic(device, file_id), encode(init))


def deliver(shelf: Shelf, device: str, data: bytes, kind: str = "blob") -> FileResponse:
    file_id, answer = begin(shelf, device, data, kind)
    if answer.stored or answer.retry_after_ms:
        return answer
    ask(shelf, device, file_id, chunk_topic(device, file_id, 0, hashlib.sha256(data).hexdigest()), data)
    return ask(shelf, device, file_id, fin_topic(device, file_id, len(data)), b"")


def test_manifest_only_asks_for_nothing_and_compares_nothing(
    shelf: Shelf, bundle_maker: Callable[..., Any], completed: list[Any]
) -> None:
    shelf = dataclasses.replace(shelf, pull=rules(PullRule("manifest")))
    made = bundle_maker()
    answer = deliver(shelf, "cam-1", made.head, "manifest")
    assert answer.stored and answer.wanted == () and completed == []
    row = shelf.store.bundle("cam-1", "bundle-0001")
    assert row is not None and (row.state, row.blobs, row.blobs_wanted) == ("incomplete", 2, 0)
    assert "not asked for" in row.reason
    shelf.store.want("cam-1", "bundle-0001", None, wall())  # an operator wants it after all
    assert set(deliver(shelf, "cam-1", made.head, "manifest").wanted) == set(made.blobs)


def test_days_budget_lets_the_rest_wait_on_the_board(shelf: Shelf, bundle_maker: Callable[..., Any]) -> None:
    shelf = dataclasses.replace(shelf, pull=rules(mib=1))
    made = bundle_maker()
    assert deliver(shelf, "cam-1", made.head, "manifest").wanted
    assert deliver(shelf, "cam-1", next(iter(made.blobs.values()))).stored
    shelf.store.add_pulled("cam-1", 1 << 20, wall())
    late = deliver(shelf, "cam-1", list(made.blobs.values())[1])
    assert late.retry_after_ms == 3_600_000 and not late.stored
    again = deliver(shelf, "cam-1", made.head, "manifest")
    assert (
        again.retry_after_ms == 3_600_000 and not again.stored
    )  # not "stored" with nothing wanted: it would be deleted
    assert deliver(shelf, "cam-2", list(made.blobs.values())[1]).stored  # another board's budget is its own
    assert b'postponed_total{reason="budget"} 2.0' in shelf.metrics.render()
    assert shelf.store.pulled("cam-1", Wall(wall() + 2 * 86400)) == 0


def test_model_travels_once_for_a_fleet(shelf: Shelf, bundle_maker: Callable[..., Any]) -> None:
    shared = StoredFile("model.onnx", Blob(hashlib.sha256(b"model").hexdigest(), 5, 5, "raw"))
    manifests = [bundle_maker(device=f"cam-{number}", model=shared, inputs=(), logs=()) for number in (1, 2, 3)]
    assert deliver(shelf, "cam-1", manifests[0].head, "manifest").wanted == (shared.blob.sha256,)
    begin(shelf, "cam-1", b"model")
    second = deliver(shelf, "cam-2", manifests[1].head, "manifest")
    assert second.retry_after_ms > 0 and second.wanted == () and not second.stored  # cam-1 is at it
    assert deliver(shelf, "cam-1", b"model").stored
    for number in (1, 2):
        answer = deliver(shelf, f"cam-{number + 1}", manifests[number].head, "manifest")
        assert answer.stored and answer.wanted == ()
        row = shelf.store.bundle(f"cam-{number + 1}", "bundle-0001")
        assert row is not None and row.state == "complete"


@pytest.fixture
def compile_output(tmp_path: Path) -> Path:
    tempdir = tmp_path / "compile" / "artifacts" / "tempDir"
    tempdir.mkdir(parents=True)
    (tempdir.parent / "subgraph_0_tidl_net.bin").write_bytes(b"network")
    (tempdir / "subgraph_0_tidl_net.bin.layer_info.txt").write_text("0 1 input\n")
    return tempdir.parent


def test_what_an_operator_registers_is_found_by_every_host(shelf: Shelf, tmp_path: Path, compile_output: Path) -> None:
    here = Registered(shelf.store, shelf.blobs, tmp_path / "here")
    (entry,) = here.add_compile(compile_output)
    model = tmp_path / "m.onnx"
    model.write_bytes(b"a model")
    here.add_model(model)
    assert [each.kind for each in shelf.store.library()] == ["compile", "model"]
    assert here.add_compile(compile_output)[0].sha256 == entry.sha256  # the same files are the same blob

    there = CompileLibrary(None, Registered(shelf.store, shelf.blobs, tmp_path / "there"))
    net = hashlib.sha256(b"network").hexdigest()
    for _ in range(2):
        tempdir = there.find_tempdir({"subgraph_0_tidl_net.bin": net})
        assert tempdir is not None
        assert (tempdir / "subgraph_0_tidl_net.bin.layer_info.txt").read_text() == "0 1 input\n"
    found = there.find_model(hashlib.sha256(b"a model").hexdigest())
    assert found is not None and found.read_bytes() == b"a model" and found.suffix == ".onnx"
    assert there.find_model("0" * 64) is None and there.find_tempdir({"x_tidl_net.bin": "0" * 64}) is None
    assert shelf.store.condemn(Wall(wall() + 10), wall()) == 0  # retention leaves alone what is registered


def test_what_is_no_model_or_compile_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    registered = Registered(shelf.store, shelf.blobs, tmp_path / "here")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TidegaugeError, match="no model file"):
        registered.add_model(tmp_path / "empty")
    with pytest.raises(TidegaugeError, match="holds no compile output"):
        registered.add_compile(tmp_path / "empty")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "folder/evil", "..", ""])
def test_paths_inside_a_registered_compile_are_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"evil")
    with pytest.raises(TidegaugeError):
        unpack(tmp_path / "z.zip", tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*"))


def test_same_fault_on_many_boards_is_one_finding(shelf: Shelf, bundle_maker: Callable[..., Any]) -> None:
    store = shelf.store

    def compared(device: str, bundle: str, at: float, layer: str = "conv3", cause: str = "gain") -> None:
        made = bundle_maker(device=device, bundle=bundle)
        store.add_bundle(made.manifest, made.head_id, Wall(at))
        store.set_bundle(device, bundle, "compared", exit_code=1, culprit=layer, culprit_cause=cause)

    for number in range(5):
        compared(f"cam-{number}", "bundle-0001", 10.0 + number)
    compared("cam-0", "bundle-0002", 30.0)
    compared("cam-0", "bundle-0003", 20.0, layer="conv9")
    compared("cam-9", "bundle-0004", 20.0, layer="", cause="")  # no culprit, no finding
    first, second = store.findings()
    assert (first.layer, first.cause, first.devices, first.bundles) == ("conv3", "gain", 5, 6)
    assert (first.first, first.last, first.sdk, first.artifacts) == (10.0, 30.0, "11.1", "ab" * 32)
    assert (second.layer, second.devices) == ("conv9", 1) and first.id != second.id
    boards = store.found_on(first)
    assert (boards[0].device, boards[0].bundle, boards[0].bundles) == ("cam-0", "bundle-0002", 2)
    assert [each.device for each in boards[1:]] == ["cam-4", "cam-3", "cam-2", "cam-1"]
    assert [each.layer for each in store.findings(since=25.0)] == ["conv3"]


def test_findings_are_a_series_a_fault_while_their_evidence_is_new(
    shelf: Shelf, bundle_maker: Callable[..., Any]
) -> None:
    for number, age in enumerate((0.0, 3600.0, FINDING_DAYS * 86400.0 + 60.0)):
        made = bundle_maker(device=f"cam-{number}", bundle="bundle-0001")
        shelf.store.add_bundle(made.manifest, made.head_id, Wall(wall() - age))
        layer = "conv3" if age < 86400.0 else "conv9"
        shelf.store.set_bundle(
            f"cam-{number}", "bundle-0001", "compared", exit_code=1, culprit=layer, culprit_cause="gain"
        )
    lines = [line for line in shelf.metrics.render().decode().splitlines() if line.startswith(NAME)]
    assert len(lines) == 1 and lines[0].endswith(" 2.0")
    assert 'model="enhancer",sdk="11.1"' in lines[0] and 'layer="conv3"' in lines[0] and 'cause="gain"' in lines[0]
