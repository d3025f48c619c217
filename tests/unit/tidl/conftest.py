"""Where the published samples of real TIDL compiles lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMPILE = "am62a-yolox-s-int16-tools-10_00_08"


@pytest.fixture(scope="session")
def samples() -> Path:
    named = os.environ.get("TIDEGAUGE_SAMPLES")
    folder = Path(named) if named else ROOT.parent / "shared" / "samples"
    if not folder.is_dir():
        pytest.skip(f"no samples of real TIDL compiles: neither TIDEGAUGE_SAMPLES nor {folder}")
    return folder


@pytest.fixture(scope="session")
def real_compile(samples: Path) -> Path:
    """The folder of the real AM62A compile (YOLOX-s, 640x640, 16 bit, 122 layers)."""
    return samples / COMPILE


@pytest.fixture(scope="session")
def real_svg(real_compile: Path) -> str:
    return (real_compile / "tempDir/subgraph_0_tidl_net.bin.svg").read_text()


@pytest.fixture(scope="session")
def real_proto(real_compile: Path) -> str:
    return (real_compile / "model_qparams.prototxt").read_text()


@pytest.fixture(scope="session")
def real_layer_info(real_compile: Path) -> str:
    return (real_compile / "tempDir/subgraph_0_tidl_net.bin.layer_info.txt").read_text()


@pytest.fixture(scope="session")
def real_netlog(real_compile: Path) -> str:
    return (real_compile / "tempDir/subgraph_0_tidl_net.bin_netLog.txt").read_text()


@pytest.fixture(scope="session")
def real_io(real_compile: Path) -> bytes:
    return (real_compile / "artifacts/subgraph_0_tidl_io_1.bin").read_bytes()
