"""A small valid bundle in memory, and a collector's shelf on a temporary folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegauge.bundles.manifest import Blob, Cause, Inventory, Manifest, StoredFile, StoredTensor
from tidegauge.clocks import Stamp
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.config import LimitsConfig
from tidegauge.collector.metrics import CollectorMetrics
from tidegauge.collector.partial import Partials
from tidegauge.collector.reception import Shelf
from tidegauge.collector.store import Store
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


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "collector.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def completed() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def shelf(tmp_path: Path, store: Store, completed: list[tuple[str, str]]) -> Shelf:
    return Shelf(
        store=store,
        blobs=BlobStore(tmp_path / "blobs"),
        partials=Partials(tmp_path / "partial"),
        limits=LimitsConfig(),
        metrics=CollectorMetrics(store),
        completed=lambda device, bundle: completed.append((device, bundle)),
    )
