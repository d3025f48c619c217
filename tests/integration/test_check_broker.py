"""The checks `broker` and `rights` against a real broker with TLS, certificates and the documented access list."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from integration.link_peer import DEVICE, CertificateAuthority, Mosquitto, free_port, link, mosquitto
from tidegauge.camera.config import CameraConfig
from tidegauge.link import commands, mqtt
from tidegauge.link.answers import sign_response
from tidegauge.link.config import LinkConfig
from tidegauge.link.receiver import Receiver, Respond
from tidegauge.preflight.context import Context, Settings
from tidegauge.preflight.probe import Finding
from tidegauge.preflight.probes import broker, rights
from tidegauge.preflight.session import client_id
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.signing import FileKey
from tidegauge.spool.limits import SpoolLimits

COLLECTOR, DEVICE_KEY = FileKey(b"c" * 32), FileKey(b"d" * 32)
LEAVES = ("status", "alarm", "result", "command-answer", "file/#")


def context(config: LinkConfig, state: Path) -> Context:
    profile = Profile("m", "onnx", "m.onnx", "a", Preprocess(8, 8), Output("y", "raw", 1.0))
    camera = CameraConfig("rtsp", "rtsp://127.0.0.1/none")
    return Context(settings=Settings(DEVICE, str(state), profile, camera, config, SpoolLimits()))


class Rig:
    """A certificate authority, and a broker that knows its clients by their certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority = CertificateAuthority(folder)
        authority.issue("server", "127.0.0.1")
        authority.issue("device", DEVICE)
        authority.issue("collector", "collector")
        self.rules = folder / "acl"

    @asynccontextmanager
    async def broker(self, *leaves: str) -> AsyncIterator[Mosquitto]:
        rules = [f"pattern write tidegauge/v1/%u/{leaf}" for leaf in leaves]
        rules += ["pattern read tidegauge/v1/%u/file-response", "user collector", "topic readwrite tidegauge/v1/#", ""]
        self.rules.write_text("\n".join(rules))
        extra = f"""cafile {self.folder}/ca.pem
certfile {self.folder}/server.pem
keyfile {self.folder}/server.key
require_certificate true
use_identity_as_username true
acl_file {self.rules}
"""
        async with mosquitto(self.folder, extra) as running:
            yield running

    def link(self, port: int, name: str) -> LinkConfig:
        files = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key"}
        return link(port, **{key: str(self.folder / value) for key, value in files.items()})


async def collect(config: LinkConfig, seen: list[tuple[str, bytes]], up: asyncio.Event) -> None:
    """A collector's part in it: the real state machine answers what stands under `file`."""
    async with mqtt.connect(config, "collector") as connection:
        for leaf in LEAVES:
            await connection.subscribe(f"tidegauge/v1/{DEVICE}/{leaf}")
        up.set()
        async for topic, payload in connection.messages():
            seen.append((topic, payload))
            if "/file/" in topic:
                where = commands.parse(topic)
                for action in Receiver(where.file_id).handle(topic, where.command, payload, 0.0):
                    assert isinstance(action, Respond), "nothing is to be stored"
                    answer = sign_response(action.response, COLLECTOR)
                    await connection.publish(commands.response_topic(DEVICE), answer)


def test_over_mutual_tls_with_the_documented_rights_and_a_collector(tmp_path: Path) -> None:
    rig, seen = Rig(tmp_path), list[tuple[str, bytes]]()

    async def test() -> tuple[Finding, Finding]:
        async with asyncio.timeout(60), rig.broker(*LEAVES) as running:
            up = asyncio.Event()
            task = asyncio.create_task(collect(rig.link(running.port, "collector"), seen, up))
            await up.wait()
            config = rig.link(running.port, "device")
            device = context(msgspec.structs.replace(config, collector_keys=(COLLECTOR.public,)), tmp_path)
            findings = await asyncio.to_thread(broker.run, device), await asyncio.to_thread(rights.run, device)
            open_to_all = await asyncio.to_thread(broker.run, context(config, tmp_path))
            assert open_to_all.status == "warning"
            assert "link.collector_keys" in open_to_all.cure
            stranger = msgspec.structs.replace(config, collector_keys=(DEVICE_KEY.public,))
            deaf = await asyncio.to_thread(rights.run, context(stranger, tmp_path))
            assert deaf.status == "failed"
            assert "unknown_key" in deaf.found
            task.cancel()
            await asyncio.wait([task])
            return findings

    reached, allowed = asyncio.run(test())
    assert reached.status == "ok", reached
    assert "TLS" in reached.found
    assert allowed.status == "ok", allowed
    heard = {topic.split("/")[3] for topic, _ in seen}
    assert heard == {"alarm", "command-answer", "file", "result", "status"}
    assert all(payload == b"" for _, payload in seen), "nobody acts on an empty message"


@pytest.mark.parametrize("missing", ["status", "alarm", "result", "command-answer", "file/#"])
def test_a_right_that_is_missing_is_the_one_that_is_named(tmp_path: Path, missing: str) -> None:
    rig = Rig(tmp_path)

    async def test() -> Finding:
        async with asyncio.timeout(60), rig.broker(*(leaf for leaf in LEAVES if leaf != missing)) as running:
            return await asyncio.to_thread(rights.run, context(rig.link(running.port, "device"), tmp_path))

    finding = asyncio.run(test())
    assert finding.status == "failed"
    refused = finding.found.split(": ", 1)[1].split(", ")
    assert len(refused) == 1, refused
    assert refused[0].startswith(f"publish tidegauge/v1/{DEVICE}/{missing.rstrip('#')}")


def test_each_way_in_which_a_broker_is_not_reached(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    strangers = tmp_path / "strangers"
    strangers.mkdir()
    CertificateAuthority(strangers)

    async def test() -> dict[str, Finding]:
        async with asyncio.timeout(120), rig.broker(*LEAVES) as running:
            good = rig.link(running.port, "device")
            wrong = {
                "port": msgspec.structs.replace(good, port=free_port()),
                "name": msgspec.structs.replace(good, host="no-such-host.invalid"),
                "authority": msgspec.structs.replace(good, ca=str(strangers / "ca.pem")),
                "no certificate": msgspec.structs.replace(good, cert="", key=""),
                "no file": msgspec.structs.replace(good, key=str(tmp_path / "nowhere.key")),
            }
            return {
                name: await asyncio.to_thread(broker.run, context(config, tmp_path)) for name, config in wrong.items()
            }

    findings = asyncio.run(test())
    assert {finding.status for finding in findings.values()} == {"failed"}
    assert "no connection" in findings["port"].found
    assert "no-such-host.invalid" in findings["name"].found
    assert "no TLS" in findings["authority"].found
    assert "certificate" in findings["no certificate"].cure
    assert "link.key" in findings["no file"].found
    assert all(finding.cure for finding in findings.values())


def test_an_agent_that_runs_is_not_cut_off(tmp_path: Path) -> None:
    device = context(LinkConfig(), tmp_path)
    assert client_id(device) == DEVICE
    (tmp_path / "agent.json").write_text(f'{{"pid": {os.getpid()}}}')
    assert client_id(device) == f"{DEVICE}-check"
    (tmp_path / "agent.json").write_text('{"pid": 4194305}')
    assert client_id(device) == DEVICE, "the file of a killed agent"
