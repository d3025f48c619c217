"""A small valid bundle in memory, and a collector's shelf on a temporary folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from obstore.store import S3Store

from integration import database_servers
from integration.database_servers import S3, Cluster
from tidegauge.bundles.manifest import Blob, Cause, Inventory, Manifest, StoredFile, StoredTensor
from tidegauge.clocks import Stamp
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.config import LimitsConfig
from tidegauge.collector.metrics import CollectorMetrics
from tidegauge.collector.partial import BucketPartials, FolderPartials, Partials
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.store import Store
from tidegauge.collector.transfer_rows import Claimant
from tidegauge.pipeline.messages import TensorErrors
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.tensors import TensorSpec


@dataclass(frozen=True)
class MadeBundle:
    """`manifest` and its bytes `head`; the stored bytes of its blobs by hash."""

    manifest: Manifest
    head: bytes
    blobs: dict[str, bytes]

    @property
    def head_id(self) -> str:
        return hashlib.sha256(self.head).hexdigest()


def _raw(data: bytes, blobs: dict[str, bytes]) -> Blob:
    sha256 = hashlib.sha256(data).hexdigest()
    blobs[sha256] = data
    return Blob(sha256, len(data), len(data), "raw")


def make_bundle(device: str = "cam-1", bundle: str = "bundle-0001", **changes: Any) -> MadeBundle:
    blobs: dict[str, bytes] = {}
    tensor = TensorSpec("input", (1, 3, 8, 8), "float32")
    errors = TensorErrors("enhanced", 1.0, 3.2, 0.4, 0.91, 1.5, 0.01, 97.0, 0.0, 0.2, 0.0, 0.01)
    manifest = Manifest(
        bundle_id=bundle,
        device=device,
        virtual=True,
        created=Stamp(1_780_000_000.0, "boot", 12.0),
        cause=Cause("golden", "accelerator", ("scale_error",), {"loss": 0.9}, "The golden test fails."),
        profile=Profile("enhancer", "onnx", "m.onnx", "a", Preprocess(8, 8), Output("enhanced", "image", 1 / 255)),
        inventory=Inventory({"subgraph_0_tidl_net.bin": "ab" * 32}, "cd" * 32, {"sdk": "11.1"}, {}),
        options={"tensor_bits": "8"},
        benchmark={},
        inputs=(StoredTensor(tensor, _raw(bytes(768), blobs)),),
        device_outputs=(),
        reference_outputs=(),
        traced_outputs=(),
        tracing_changed_output=False,
        errors=(errors,),
        loss=0.9,
        traces=(),
        logs=(StoredFile("worker.log", _raw(f"log of {bundle}\n".encode() * 50, blobs)),),
        model=None,
        artifacts=(),
    )
    manifest = msgspec.structs.replace(manifest, **changes)
    return MadeBundle(manifest, msgspec.json.encode(manifest), blobs)


@pytest.fixture
def bundle_maker() -> Callable[..., MadeBundle]:
    return make_bundle


@pytest.fixture(scope="session")
def postgresql_cluster() -> Iterator[Cluster]:
    database_servers.required()
    with database_servers.postgresql() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    with database_servers.s3() as server:
        yield server


@dataclass
class Place:
    """Where a collector keeps things: opened again by each process of it."""

    folder: Path
    database: Path | str
    bucket: S3Store | None

    def open(self) -> Store:
        return Store(self.database)

    def blobs(self) -> BlobStore:
        return BlobStore(self.folder / "blobs" if self.bucket is None else self.bucket)

    def partials(self) -> Partials:
        if self.bucket is None:
            return FolderPartials(self.folder / "partial")
        return BucketPartials(self.bucket, self.folder / "work")


@pytest.fixture(params=["sqlite+folder", "postgresql+s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Both sizes of a collector: every test that uses it runs on both."""
    if request.param == "sqlite+folder":
        return Place(tmp_path, tmp_path / "collector.sqlite", None)
    cluster: Cluster = request.getfixturevalue("postgresql_cluster")
    server: S3 = request.getfixturevalue("s3_server")
    return Place(tmp_path, cluster.database(), server.store(server.bucket()))


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    opened = place.open()
    yield opened
    opened.close()


@pytest.fixture
def completed() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def shelf(place: Place, store: Store, completed: list[tuple[str, str]]) -> Shelf:
    return Shelf(
        store=store,
        blobs=place.blobs(),
        partials=place.partials(),
        limits=LimitsConfig(),
        metrics=CollectorMetrics(store),
        completed=lambda device, bundle: completed.append((device, bundle)),
        me=Claimant("the-ingester", 15.0),
    )
