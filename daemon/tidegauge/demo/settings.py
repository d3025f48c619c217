"""The demo's configuration files: the documented keys of agent and collector, with settings fast enough to watch.

A board samples a frame a minute and takes hours for an acceptance with one false alarm a year; the demo samples several
a second, accepts after `ACCEPTANCE_SAMPLES`, and takes a larger alpha. Nothing else differs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from tidegauge import signing
from tidegauge.profile import Output, Preprocess, Profile

DEVICE = "demo-board"
WIDTH, HEIGHT = 192, 128
ACCEPTANCE_SAMPLES = 120
#: A new scene every 0.8 s: acceptance needs some thirty scenes before its bound on the mean loss is worth anything.
FRAMES_PER_SECOND, SCENE_FRAMES = 10.0, 8
STEP = 2 / 255  # two display levels: less is not seen in a moving picture
PHOTOS = Path(__file__).parent / "data" / "photos"
MODEL = Path(__file__).parent / "data" / "enhancer.onnx"


def profile(folder: Path) -> Profile:
    """The enhancer's profile, paths relative to `folder`/board."""
    return Profile(
        name="enhancer",
        runtime="onnx",
        model="model/enhancer.onnx",
        artifacts="artifacts",
        preprocess=Preprocess(width=WIDTH, height=HEIGHT, scale=(1 / 255, 1 / 255, 1 / 255)),
        output=Output(name="enhanced", kind="image", step=STEP),
    )


class Places(msgspec.Struct, frozen=True):
    """Folders and files of one run of the demo."""

    root: Path

    @property
    def board(self) -> Path:
        return self.root / "board"

    @property
    def state(self) -> Path:
        return self.board / "state"

    @property
    def virtual(self) -> Path:
        """The virtual board's own state: what stands for silicon, /tmp and the remote log."""
        return self.root / "virtualboard"

    @property
    def traces(self) -> Path:
        return self.virtual / "tmp"

    @property
    def library(self) -> Path:
        """What the compile wrote, tempDir included: it stays off the board."""
        return self.root / "compiles"

    @property
    def collector(self) -> Path:
        return self.root / "collector"

    @property
    def operator(self) -> Path:
        """Of who commands the board: its key, and `operator.toml` for `tidegauge device`."""
        return self.root / "operator"

    @property
    def logs(self) -> Path:
        return self.root / "logs"


def operator_key(places: Places, broker_port: int) -> str:
    """The public half of the demo's own operator key, made with its `operator.toml` where there is none."""
    file = places.operator / "operator.key"
    key = signing.load(file) if file.exists() else signing.create(file)
    write_toml(places.operator / "operator.toml", {"link": {"host": "127.0.0.1", "port": broker_port}})
    return key.public


def agent_settings(
    places: Places, broker_port: int, *, seed: int, remote_log: str, remote_log_file: Path
) -> dict[str, Any]:
    return {
        "device": DEVICE,
        "state": "state",
        "profile": "enhancer.toml",
        "camera": {
            "kind": "synthetic",
            "source": str(PHOTOS),
            "width": 2 * WIDTH,
            "height": 2 * HEIGHT,
            "frames_per_second": FRAMES_PER_SECOND,
            "scene_frames": SCENE_FRAMES,
            "seed": seed,
        },
        "runtime": {"module": "tidegauge.virtualboard.onnxruntime_tidl", "start_timeout": 60.0, "run_timeout": 20.0},
        "shadow": {"gap_mean": 0.25, "gap_floor": 0.05, "cpu_share": 0.9, "cpu_window": 10.0},
        # The demo's machine is no board: its load is that of whatever else it does.
        "stand_back": {"temperature": 0.0, "load": 0.0, "latency_rise": 0.0},
        "camera_health": {"frozen": 60.0},
        "contexts": {"hold": 2.0, "samples": 40},
        "acceptance": {"samples": ACCEPTANCE_SAMPLES},
        "detector": {"alpha": 0.001, "block": 4},
        "golden": {"interval": 8.0},
        "capture": {
            "trace_folder": str(places.traces),
            "remote_log": remote_log,
            "remote_log_file": str(remote_log_file),
            "room_mib": 64,
            "heap_tool": [sys.executable, "-m", "tidegauge", "virtualboard", "heap", str(places.virtual)],
        },
        "results": {"socket": "results.socket"},
        "metrics": {"port": 0},
        "commands": {"operators": [operator_key(places, broker_port)]},
        "link": {"host": "127.0.0.1", "port": broker_port, "backoff_most": 5.0, "connect_jitter": 0.0},
    }


def collector_settings(places: Places, broker_port: int, port: int) -> dict[str, Any]:
    return {
        "data": "data",
        "compile_library": str(places.library),
        "http": {"host": "127.0.0.1", "port": port},
        "link": {"host": "127.0.0.1", "port": broker_port, "backoff_most": 5.0, "connect_jitter": 0.0},
    }


def write_toml(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.toml.encode(data))
