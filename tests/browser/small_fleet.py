"""A small fleet on a real collector, through the real protocol: statuses, alarms, hours of history, traced bundles.

The bundles are traced runs of a virtual board: two boards have the same fault, one has none.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime

from integration.collector_peer import Board as Sending
from integration.collector_peer import Process, bundle, publish
from integration.test_compare_cli import make_bundle
from tidegauge.bundles.archive import export_bundle
from tidegauge.bundles.manifest import Blob, Cause, Manifest, StoredTensor
from tidegauge.clocks import Stamp
from tidegauge.link.sender import Done, Outgoing
from tidegauge.link.transfer import FileRef
from tidegauge.link.wire import AlarmChange, Status, encode, topic
from tidegauge.spool.records import HistoryRecord, Sums, encode_line
from tidegauge.tensors import TensorSpec
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build

#: More than fit on one page.
BOARDS = 64
FAULTY = ("cam-001", "cam-002")
LAYER, CAUSE = "/dec/c3/Relu_output_0", "gain"
EXPLAINED = "Disagreement with the reference has passed the limit of one false alarm a year."


@dataclass
class SmallFleet:
    """What runs, and where. `packed`: a bundle of no device of this fleet, as a file. `traces`: a folder as TIDL's."""

    collector: Process
    port: int
    lab: Board
    packed: Path
    traces: Path

    @property
    def url(self) -> str:
        return self.collector.url.rstrip("/")


def fill(collector: Process, port: int, lab: Board, folder: Path) -> SmallFleet:
    """Let all boards speak, and wait until every bundle is compared."""
    collector.until("api/v1/health", lambda health: health["broker_connected"])
    asyncio.run(publish(port, *_statuses(time.time())))
    collector.until("api/v1/fleet?limit=1", lambda page: page["total"] == BOARDS)
    net = (lab.artifacts / "subgraph_0_tidl_net.bin").read_bytes()
    faulty = lab.trace([Fault(LAYER, CAUSE, 1.3)], name="faulty")
    healthy = lab.trace(name="healthy")
    for device, traces in ((FAULTY[0], faulty), (FAULTY[1], faulty), ("cam-003", healthy)):
        made = make_bundle(lab, traces, folder / device, net)
        manifest = _as_sent(lab, made, device, f"{device}-bundle-1")
        asyncio.run(_send(port, manifest, made, device))
    head, blobs = bundle("cam-004", "cam-004-untraced", 20_000)
    asyncio.run(Sending(port, head, blobs, "cam-004").send())
    asyncio.run(_send_history(port, FAULTY[0]))
    other = make_bundle(lab, faulty, folder / "other", net)
    _as_sent(lab, other, "lab-board", "lab-bundle-1")
    export_bundle(other, folder / "lab-bundle-1.tidebundle")
    collector.until("api/v1/bundles", lambda rows: len(rows) == 4 and all(_ended(row["state"]) for row in rows))
    return SmallFleet(collector, port, lab, folder / "lab-bundle-1.tidebundle", healthy)


def new_lab(folder: Path) -> Board:
    """A model, compiled for the virtual board; its folder is a compile library."""
    return build(folder, "enhancer")


def _ended(state: str) -> bool:
    return state in ("compared", "failed", "incomplete")


def _statuses(now: float) -> list[tuple[str, bytes]]:
    messages = []
    for number in range(1, BOARDS + 1):
        device = f"cam-{number:03d}"
        drifts = device in FAULTY
        detail = {
            "loss": 0.62 if drifts else 0.004 + 0.0003 * number,
            "camera_problem": float(number % 20 == 7),
            "spool": 0.02 * (number % 10),
            "evidence.loss": 13.2 if drifts else 0.11 * (number % 9),
            "limit.loss": 13.17,
            "observations.loss": 200.0,
            "observations.nmse": 200.0,
            "evidence.nmse": 6.0 if drifts else 0.4,
            "limit.nmse": 11.3,
        }
        told = Status(
            "stopped" if number % 25 == 0 else "online",
            session=1,
            version="0.2.0" if number % 3 else "0.1.9",
            virtual=True,
            model="enhancer" if number % 4 else "keypoints",
            phase="acceptance" if number % 10 == 5 else "monitoring",
            progress=0.4 if number % 10 == 5 else 1.0,
            alarm="loss" if drifts else "",
            detail=detail,
        )
        messages.append((topic(device, "status"), encode(told)))
    for device in FAULTY:
        change = AlarmChange(
            "alarm-1", True, "loss", "accelerator", ("gain",), EXPLAINED, now - 3000, "boot-2", 9000.0, {"loss": 13.2}
        )
        messages.append((topic(device, "alarm"), encode(change)))
    over = AlarmChange(
        "alarm-0", False, "known_answer", "accelerator", (), "The golden set answers as before.", now - 90000, "b", 1.0
    )
    messages.append((topic(FAULTY[0], "alarm"), encode(over)))
    return messages


def _as_sent(lab: Board, folder: Path, device: str, name: str) -> Manifest:
    """The bundle's manifest, as of this device and with the reference's answer, written to its folder."""
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)
    given = manifest.inputs[0]
    value = np.frombuffer(_blob(folder, given.blob.sha256).read_bytes(), "<f4").reshape(given.spec.shape)
    session = onnxruntime.InferenceSession(str(lab.model), providers=["CPUExecutionProvider"])
    data = session.run(["enhanced"], {"input": value})[0].astype("<f4").tobytes()
    digest = hashlib.sha256(data).hexdigest()
    _blob(folder, digest).write_bytes(data)
    reference = StoredTensor(
        TensorSpec("enhanced", given.spec.shape, "float32"), Blob(digest, len(data), len(data), "raw")
    )
    changed = msgspec.structs.replace(
        manifest,
        bundle_id=name,
        device=device,
        created=Stamp(time.time() - 2900, "boot-2", 9100.0),
        cause=Cause("loss", "accelerator", ("gain",), {"log_evidence": 13.2}, EXPLAINED),
        profile=msgspec.structs.replace(
            manifest.profile, preprocess=msgspec.structs.replace(manifest.profile.preprocess, scale=(1 / 255,) * 3)
        ),
        reference_outputs=(reference,),
        inventory=msgspec.structs.replace(manifest.inventory, versions={"edgeai_sdk": "11.1", "tidl": "11_01"}),
    )
    (folder / "manifest.json").write_bytes(msgspec.json.encode(changed))
    return changed


def _blob(folder: Path, sha256: str) -> Path:
    return folder / "blobs" / "sha256" / sha256


async def _send(port: int, manifest: Manifest, folder: Path, device: str) -> None:
    blobs = {path.name: path.read_bytes() for path in (folder / "blobs" / "sha256").iterdir()}
    head = (folder / "manifest.json").read_bytes()
    used = {name: data for name, data in blobs.items() if name.encode() in head}
    assert isinstance(await Sending(port, head, used, device).send(), Done)


async def _send_history(port: int, device: str, hours: int = 72) -> None:
    """Three days: a healthy board that is rebooted, updated, and drifts from the third day on."""
    now = time.time()
    lines = []
    for hour in range(hours):
        ended = now - (hours - hour) * 3600.0
        drifting = max(0.0, (hour - 52) / 20)
        mean = 0.01 + 0.004 * math.sin(hour / 3) + 0.5 * drifting
        samples = 55
        boot = "boot-1" if hour < 30 else "boot-2"
        lines.append(
            encode_line(
                HistoryRecord(
                    id=f"h-{hour:04d}",
                    session=1 if hour < 44 else 2,
                    number=hour + 1,
                    began=Stamp(ended - 3600.0, boot, 3600.0 * hour),
                    ended=Stamp(ended, boot, 3600.0 * (hour + 1)),
                    model="enhancer",
                    artifacts="0123456789ab",
                    program="0.1.9" if hour < 44 else "0.2.0",
                    phase="monitoring",
                    counts={"shadow_samples": samples},
                    loss=Sums(samples, mean * samples, mean * mean * samples, mean * 0.4, min(1.0, mean * 2.2)),
                    temperature=Sums(60, 60 * (58 + 9 * math.sin(hour / 4)), 0.0, 52.0, 61 + 9 * math.sin(hour / 4)),
                    evidence={
                        "loss": (0.6 + 12.6 * drifting, 13.17),
                        "nmse": (0.9 + 5.0 * drifting + 0.4 * math.cos(hour / 5), 11.3),
                    },
                )
            )
        )
    data = b"".join(lines)
    name = hashlib.sha256(data).hexdigest()
    sending = Sending(port, data, {}, device)
    sending.outgoing = Outgoing("records", FileRef(name, len(data), "history-1", {"kind": "records"}), {})
    assert isinstance(await sending.send(), Done)
