"""Bundles whose blobs do not come, or come late; processes that die; what one has written for another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegauge.bundles.manifest import Manifest
from tidegauge.bundles.reader import missing_blobs, read_manifest
from tidegauge.clocks import Wall
from tidegauge.collector.assemble import assemble, without
from tidegauge.collector.housekeeping import forget_transfers, give_up_waiting, settle_waiting
from tidegauge.collector.shelf import Shelf

DAY = 86400.0


class Asked:
    """Stands for the queue: what was asked to be compared."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    def enqueue(self, device: str, bundle: str, generation: int = 0) -> None:
        self.asked.append((device, bundle, generation))

    def settle(self, store: object) -> None:
        """The queue has its own repairs."""


def keep(shelf: Shelf, folder: Path, name: str, data: bytes, now: float = 0.0) -> list[tuple[str, str]]:
    source = folder / "incoming"
    source.write_bytes(data)
    return shelf.store.add_blob(name, shelf.blobs.put(name, source), Wall(now))


@pytest.fixture
def half(shelf: Shelf, tmp_path: Path, bundle_maker: Callable[..., Any]) -> Any:
    """A bundle of which the second blob does not come."""
    made = bundle_maker()
    keep(shelf, tmp_path, made.head_id, made.head)
    shelf.store.add_bundle(made.manifest, made.head_id, Wall(0.0))
    keep(shelf, tmp_path, next(iter(made.blobs)), next(iter(made.blobs.values())), now=DAY)
    return made


def test_waiting_ends_and_what_comes_later_completes_the_bundle(shelf: Shelf, half: Any, tmp_path: Path) -> None:
    jobs: Any = Asked()
    assert give_up_waiting(shelf.store, jobs, 7.0, Wall(7.5 * DAY)) == 0  # the last blob came on the first day
    assert give_up_waiting(shelf.store, jobs, 7.0, Wall(8.5 * DAY)) == 1
    assert give_up_waiting(shelf.store, jobs, 7.0, Wall(9.5 * DAY)) == 0
    assert jobs.asked == [("cam-1", "bundle-0001", 1)]
    assert shelf.store.begin("cam-1", "bundle-0001") == 1
    reason = "1 of 2 blobs are not here"
    assert shelf.store.finish("cam-1", "bundle-0001", 1, "incomplete", reason=reason)
    row = shelf.store.bundle("cam-1", "bundle-0001")
    assert row is not None and (row.state, row.reason, row.blobs_held) == ("incomplete", reason, 1)

    name, data = list(half.blobs.items())[-1]
    assert keep(shelf, tmp_path, name, data) == [("cam-1", "bundle-0001")]
    row = shelf.store.bundle("cam-1", "bundle-0001")
    assert row is not None and (row.state, row.generation, row.partial, row.attempts) == ("complete", 2, False, 0)
    assert not shelf.store.finish("cam-1", "bundle-0001", 1, "compared")  # the comparison of before comes too late


def test_blob_that_comes_while_the_rest_is_compared_is_not_forgotten(shelf: Shelf, half: Any, tmp_path: Path) -> None:
    jobs: Any = Asked()
    give_up_waiting(shelf.store, jobs, 7.0, Wall(9 * DAY))
    shelf.store.begin("cam-1", "bundle-0001")
    name, data = list(half.blobs.items())[-1]
    assert keep(shelf, tmp_path, name, data) == [("cam-1", "bundle-0001")]
    assert not shelf.store.finish("cam-1", "bundle-0001", 1, "compared")
    row = shelf.store.bundle("cam-1", "bundle-0001")
    assert row is not None and (row.state, row.generation) == ("complete", 2)


def test_crash_between_the_last_blob_and_its_bundle_is_made_good(shelf: Shelf, half: Any, tmp_path: Path) -> None:
    jobs: Any = Asked()
    name, data = list(half.blobs.items())[-1]
    source = tmp_path / "incoming"
    source.write_bytes(data)
    shelf.store.keep_blob(name, shelf.blobs.put(name, source), Wall(0.0))  # killed here
    settle_waiting(shelf.store, jobs)
    assert jobs.asked == [("cam-1", "bundle-0001", 0)]


def test_bundle_is_laid_out_without_what_is_not_here(shelf: Shelf, half: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        assemble(shelf.blobs, half.head_id, 1 << 20, tmp_path / "whole")
    lacking = assemble(shelf.blobs, half.head_id, 1 << 20, tmp_path / "part", partial=True)
    assert lacking == list(half.blobs)[1:]
    manifest = read_manifest(tmp_path / "part")
    assert missing_blobs(tmp_path / "part", manifest) == []
    assert manifest.logs == () and manifest.inputs == half.manifest.inputs


def test_everything_that_names_a_missing_blob_is_left_out(bundle_maker: Callable[..., Any]) -> None:
    manifest: Manifest = bundle_maker().manifest
    blob = manifest.inputs[0].blob
    full = msgspec.structs.replace(
        manifest, device_outputs=manifest.inputs, artifacts=manifest.logs, model=manifest.logs[0]
    )
    left = without(full, [blob.sha256, manifest.logs[0].blob.sha256])
    assert (left.inputs, left.device_outputs, left.logs, left.artifacts, left.model) == ((), (), (), (), None)
    assert without(full, []) == full


def test_file_of_which_nothing_comes_makes_room(shelf: Shelf) -> None:
    shelf.store.set_transfer("cam-1", "f" * 64, {"name": "x"}, 10, Wall(0.0))
    shelf.partials.write("cam-1", "f" * 64, 0, b"abc")
    shelf.store.add_coverage("cam-1", "f" * 64, ((0, 3),), Wall(DAY))
    assert forget_transfers(shelf.store, shelf.partials, 7.0, Wall(7.5 * DAY)) == 0
    assert forget_transfers(shelf.store, shelf.partials, 7.0, Wall(8.5 * DAY)) == 1
    assert shelf.store.open_transfers() == [] and shelf.partials.keep_only(()) == 0


def test_dead_process_is_buried_once_and_a_living_one_never(place: Any) -> None:
    left, right = place.open(), place.open()
    left.beat("dead", "host-1", "1")
    left.beat("alive", "host-2", "1")
    rescued: list[str] = []

    def rescue(name: str) -> int:
        rescued.append(name)
        return 3

    assert left.bury(3600.0, rescue) == {} and len(left.living(3600.0)) == 2
    with left._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE executors SET beat = beat - 100 WHERE executor = 'dead'")
    assert left.bury(60.0, rescue) == {"dead": 3} and right.bury(60.0, rescue) == {}
    assert rescued == ["dead"] and [each.executor for each in right.executors()] == ["alive"]
    left.close()
    right.close()


def test_rescue_that_fails_is_left_to_the_next(place: Any) -> None:
    store = place.open()
    store.beat("dead", "host-1", "1")
    with store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE executors SET beat = beat - 100")
    with pytest.raises(OSError, match="killed too"):
        store.bury(60.0, lambda _: (_ for _ in ()).throw(OSError("killed too")))
    assert store.bury(60.0, lambda _: 1) == {"dead": 1}
    store.close()
