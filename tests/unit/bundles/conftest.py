"""A small bundle on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidegauge.bundles.fingerprint import digest_bytes, fingerprint
from tidegauge.bundles.manifest import Cause, Inventory, Manifest, StoredFile, StoredTensor, Trace
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import Stamp
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.tensors import TensorSpec

MakeBundle = Callable[..., Manifest]


def build(folder: Path, **changes: Any) -> Manifest:
    """A bundle with an input tensor, a trace and a model, sealed in `folder`."""
    writer = BundleWriter(folder)
    codes = np.arange(-128, 128, dtype=np.int8).repeat(16)
    sha256, xxh3 = digest_bytes(codes.tobytes())
    fields: dict[str, Any] = {
        "bundle_id": "bundle-0001",
        "device": "cam-1",
        "virtual": True,
        "created": Stamp(1_780_000_000.0, "boot", 12.0),
        "cause": Cause("loss", "accelerator", ("scale_error",), {"loss": 0.9}, "The loss [bold]has[/] risen."),
        "profile": Profile("enhancer", "onnx", "m.onnx", "a", Preprocess(8, 8), Output("enhanced", "image", 1 / 255)),
        "inventory": Inventory({"subgraph_0_tidl_net.bin": "ab" * 32}, "cd" * 32, {"sdk": "11.1"}, {}),
        "options": {},
        "benchmark": {},
        "inputs": (StoredTensor(TensorSpec("input", (1, 3, 8, 8), "float32"), writer.add_bytes(bytes(768))),),
        "device_outputs": (),
        "reference_outputs": (),
        "traced_outputs": (),
        "tracing_changed_output": False,
        "errors": (),
        "loss": 0.9,
        "traces": (
            Trace(
                file="C7x_1_tidl_trace_subgraph_0_0007_0001_0001_00001_00016_00016x00016.y",
                subgraph="subgraph_0",
                data_id=7,
                kind="y",
                dims=(1, 1, 1, 16, 16, 16),
                dtype="int8",
                size=codes.nbytes,
                sha256=sha256,
                xxh3_128=xxh3,
                fingerprint=fingerprint(codes),
                blob=writer.add_bytes(codes.tobytes()),
            ),
        ),
        "logs": (),
        "model": StoredFile("m.onnx", writer.add_bytes(b"the model", "raw")),
        "artifacts": (),
    }
    manifest = Manifest(**{**fields, **changes})
    writer.seal(manifest)
    return manifest


@pytest.fixture
def make_bundle() -> MakeBundle:
    return build
