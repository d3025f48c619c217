"""A known picture is looked for wherever a board leaves something: in its spool and on its disk, in each message on the
wire, and in the collector's store, by its bytes and by its look in the traces of early layers; for each way to hide it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paho.mqtt.client as paho
import pytest
from click.testing import CliRunner

from faults.pictures_looked_for import Wanted, files, with_opened
from faults.small_board import HEIGHT, WIDTH, SmallBoard, wait_for
from integration.collector_peer import Process, mosquitto, needs_mosquitto
from tidegauge.bundles.manifest import Manifest, blobs_of
from tidegauge.bundles.reader import decode_manifest, read_blob, read_manifest
from tidegauge.cli.bundle import command
from tidegauge.ram_folder import SHM, RamFolder
from tidegauge.virtualboard.state import BoardState

pytestmark = needs_mosquitto
#: |Correlation| above which a plane looks like the picture. Chance has a standard deviation of 0.07 at 192 pixels.
LOOKS = 0.5


def noise(seed: int) -> Any:
    """A picture with as much in its details as in the large: nothing of it looks like another one."""
    coarse = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 1)).repeat(3, 2)
    return np.clip(coarse + np.random.default_rng(seed + 1).integers(-9, 9, coarse.shape), 0, 255).astype(np.uint8)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in RAM, as the trace folder is on a board."""
    folder = Path(tempfile.mkdtemp(prefix="tidegauge-test-", dir=SHM))
    yield folder
    shutil.rmtree(folder)


class Board:
    """Accepts on picture 1; then its camera shows picture 2, and captures are asked for."""

    def __init__(self, folder: Path, memory: Path) -> None:
        self.small = SmallBoard(folder, virtual=True)
        BoardState(trace_folder=str(memory)).save(self.small.virtual_folder)
        self.memory, self.broker = memory, 0
        for name, seed in (("accepted", 1), ("shown", 2)):
            (folder / name).mkdir()
            cv2.imwrite(str(folder / name / "a.png"), noise(seed))

    def configure(self, shown: str, policy: str, privacy: dict[str, Any], link: dict[str, Any]) -> Path:
        return self.small.configure(
            camera={"kind": "folder", "source": str(self.small.folder / shown), "width": WIDTH, "height": HEIGHT},
            shadow={"gap_mean": 0.1, "gap_floor": 0.02},
            acceptance={"samples": 20, "max_loss": 0.9},
            detector={"block": 1000},  # other pictures than those of acceptance would be an alarm by and by
            capture={"privacy": policy, "trace_folder": str(self.memory), "per_cause_hour": 20, "per_hour": 20},
            privacy=privacy,
            link={"port": self.broker, "backoff_first": 0.2, "backoff_most": 1.0, "connect_jitter": 0.0, **link},
        )

    def accept(self) -> None:
        with self.small.agent(self.configure("accepted", "full", {}, {})):
            wait_for(lambda: (self.small.state / "agent.json").exists() and self.small.status().reference, 120, "it")

    def capture(self, policy: str, privacy: dict[str, Any]) -> Path:
        """The folder of the new bundle, which waits in the spool."""
        before = set(self.bundles())
        with self.small.agent(self.configure("shown", policy, privacy, {})) as agent:
            self.small.url(agent)
            if privacy:  # the golden tensors are hidden by the first round
                wait_for(lambda: self.small.tidegauge("agent", "self-test").returncode == 0, 90, "a golden round")
            wait_for(lambda: self.small.tidegauge("agent", "capture").returncode == 0, 90, "a capture")
        (new,) = set(self.bundles()) - before
        return new

    def bundles(self) -> list[Path]:
        folder = self.small.state / "spool" / "bundles"
        return list(folder.iterdir()) if folder.is_dir() else []


class Wire:
    """Every payload that the broker carries."""

    def __init__(self, port: int) -> None:
        self.payloads: dict[str, bytes] = {}
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        self._client.on_message = lambda _client, _data, message: self._note(message.topic, message.payload)
        self._client.on_connect = lambda client, *_: client.subscribe("#", 0)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _note(self, topic: str, payload: bytes) -> None:
        self.payloads[topic] = payload

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def contents(self) -> list[bytes]:
        """Payloads as they are, and files put together from their parts."""
        parts: dict[str, dict[int, bytes]] = {}
        for topic, payload in self.payloads.items():
            levels = topic.split("/")
            if len(levels) == 7 and levels[3] == "file" and levels[5].isdigit():
                parts.setdefault(levels[4], {})[int(levels[5])] = payload
        whole = [b"".join(part for _, part in sorted(each.items())) for each in parts.values()]
        return [*self.payloads.values(), *whole]


def tensors(folder: Path, manifest: Manifest) -> list[bytes]:
    """What a reader without any key gets out of a bundle."""
    plain = (blob for blob in blobs_of(manifest).values() if blob.encoding != "sealed")
    return [read_blob(folder, blob, 1 << 26) for blob in plain]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_picture_is_where_the_setting_says_and_nowhere_else(tmp_path: Path, memory: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "collector").mkdir()
    accepted, shown = Wanted(noise(1)), Wanted(noise(2))
    board = Board(tmp_path / "board", memory)
    with mosquitto(tmp_path / "broker") as port, board.small.remote_log():
        board.broker = port
        made = board.small.tidegauge_plain("keys", "new", "--for", "pictures", str(tmp_path / "pictures.key"))
        assert made.returncode == 0, made.stderr
        recipient = made.stdout.strip()
        board.accept()
        modes = {
            "statistics": ("statistics", {}),
            "golden": ("golden", {}),
            "hidden": ("full", {"blur": 0.2, "keep": [0.0, 0.0, 0.5, 1.0]}),
            "encrypted": ("full", {"encrypt_to": recipient}),
        }
        state = board.small.state
        for name, (policy, privacy) in modes.items():
            folder = board.capture(policy, privacy)
            manifest = read_manifest(folder)
            told = manifest.privacy
            assert told is not None
            assert (told.policy, told.recipient) == (policy, privacy.get("encrypt_to", ""))
            for data in with_opened([*files(state, memory), *tensors(folder, manifest)]):
                assert not shown.bytes_in(data), name
                assert shown.look_in(data) < LOOKS, name
            assert not RamFolder(state).path.exists() or files(RamFolder(state).path) == [], name
            if name == "statistics":
                assert all(trace.blob is None and trace.fingerprint for trace in manifest.traces)
            elif name == "golden":
                assert any(accepted.bytes_in(data) for data in tensors(folder, manifest)), "the search does find one"
            else:
                assert not any(accepted.bytes_in(data) for data in with_opened(files(state / "golden"))), name
        only(tmp_path, folder, recipient, shown)

        wire, collector = Wire(port), Process(tmp_path / "collector", port)
        try:
            collector.start()
            with board.small.agent(board.configure("shown", "full", {"encrypt_to": recipient}, {})):
                wait_for(lambda: not board.bundles(), 120, "all bundles at the collector")
        finally:
            wire.stop()
            collector.kill()
        for data in with_opened([*wire.contents(), *files(collector.data)]):
            assert not shown.bytes_in(data)
            assert shown.look_in(data) < LOOKS
        for contents in (wire.contents(), files(collector.data)):
            opened = with_opened(contents)
            assert any(accepted.bytes_in(data) for data in opened), "the golden bundle's tensor is found by this search"

        assert list(memory.iterdir()) == []


def only(work: Path, bundle: Path, recipient: str, shown: Wanted) -> None:
    """Only the private key opens it, and then all of it is there."""
    manifest = read_manifest(bundle)
    sealed = [blob for blob in blobs_of(manifest).values() if blob.encoding == "sealed"]
    assert len(sealed) >= len(manifest.traces) > 0
    assert recipient in (bundle / "manifest.json").read_text()
    runner = CliRunner()
    done = runner.invoke(command, ["decrypt", str(bundle), str(work / "plain"), "--key", str(work / "pictures.key")])
    assert done.exit_code == 0, done.output
    plain = read_manifest(work / "plain")
    assert plain.signature is None
    assert any(shown.bytes_in(data) for data in tensors(work / "plain", plain))
    traces = [read_blob(work / "plain", trace.blob, 1 << 26) for trace in plain.traces if trace.blob is not None]
    assert max(shown.look_in(data) for data in traces) > LOOKS, "an early trace shows it, and this search sees that"
    assert json.loads((work / "plain" / "manifest.json").read_text())["privacy"]["recipient"] == recipient
    assert decode_manifest((work / "plain" / "manifest.json").read_bytes(), "it") == plain
