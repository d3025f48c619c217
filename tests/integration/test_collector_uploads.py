"""Uploads to a running collector, by HTTP: bundles and traces are compared for real, and attacks are refused."""

from __future__ import annotations

import io
import json
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from integration.collector_peer import Process, mosquitto
from integration.test_compare_cli import make_bundle
from tidegauge.bundles.archive import export_bundle
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build

pytestmark = pytest.mark.slow

LAYER = "/dec/c3/Relu_output_0"
MORE = "[uploads]\nmax_bytes = 33554432\nidle_seconds = 1.0\nper_hour = 1000"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "enhancer")


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with mosquitto(tmp_path_factory.mktemp("broker")) as port:
        process = Process(tmp_path_factory.mktemp("collector"), port, MORE)
        process.start()
        yield process
        process.stop()


@pytest.fixture
def client(collector: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=collector.url, timeout=60, trust_env=False) as opened:
        opened.headers["x-csrf-token"] = opened.get("api/v1/session").json()["csrf_token"]
        yield opened


def send(client: httpx.Client, kind: str, name: str, data: bytes, **query: str) -> httpx.Response:
    headers = {"content-type": "application/octet-stream"}
    return client.post(f"api/v1/uploads/{kind}", params={"name": name, **query}, content=data, headers=headers)


def taken(collector: Process, client: httpx.Client, kind: str, name: str, data: bytes, **query: str) -> Any:
    answer = send(client, kind, name, data, **query)
    assert answer.status_code == 202, answer.text
    upload = answer.json()["upload"]
    return collector.until(f"api/v1/uploads/{upload}", lambda row: row["state"] in ("done", "failed"))


def packed(folder: Path, *more: Path) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in [*sorted(folder.iterdir()), *more]:
            archive.write(path, path.name if path in more else f"run 1/{path.name}")
        for path in more:
            if path.is_dir():
                for each in sorted(path.rglob("*")):
                    archive.write(each, f"{path.name}/{each.relative_to(path)}")
    return out.getvalue()


def test_traces_become_a_report_by_upload_alone(collector: Process, client: httpx.Client, board: Board) -> None:
    traces = board.trace([Fault(LAYER, "band")])
    row = taken(collector, client, "traces", "board 7.zip", packed(traces, board.model, board.artifacts))
    assert row["state"] == "done", row
    run = row["result"]["run"]
    done = collector.until(f"api/v1/runs/{run}", lambda each: each["state"] in ("done", "failed"))
    assert (done["state"], done["exit_code"], done["culprit"]) == ("done", 1, LAYER), done
    report = client.get(f"reports/runs/{run}/report.html")
    assert report.status_code == 200 and LAYER in report.text
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'; script-src")
    events = client.get(f"api/v1/runs/{run}/events").text
    assert events.startswith("event: run") and json.loads(events.split("data: ", 1)[1].split("\r\n")[0])["run"] == run
    assert client.delete(f"api/v1/runs/{run}").status_code == 204
    assert client.get(f"reports/runs/{run}/report.html").status_code == 404


def test_bundle_is_compared_and_judged_again(
    collector: Process, client: httpx.Client, board: Board, tmp_path: Path
) -> None:
    compiled = io.BytesIO()
    with zipfile.ZipFile(compiled, "w") as archive:
        for path in sorted(board.artifacts.rglob("*")):
            archive.write(path, path.relative_to(board.artifacts))
    registered = taken(collector, client, "compile", "enhancer.zip", compiled.getvalue())
    assert registered["state"] == "done" and "compile" in registered["result"], registered
    net = (board.artifacts / "subgraph_0_tidl_net.bin").read_bytes()
    traces = board.trace([Fault("/Tanh_output_0", "offset", 0.3)])
    export_bundle(make_bundle(board, traces, tmp_path / "bundle", net), tmp_path / "one.tidebundle")
    data = (tmp_path / "one.tidebundle").read_bytes()
    row = taken(collector, client, "bundle", "one.tidebundle", data)
    assert row["state"] == "done" and row["result"]["device"] == "uploads", row
    place = f"api/v1/bundles/uploads/{row['result']['bundle']}"
    done = collector.until(place, lambda each: each["bundle"]["state"] in ("compared", "failed"))["bundle"]
    assert (done["exit_code"], done["culprit"]) == (1, "/Tanh_output_0"), done
    assert done["device"] == "uploads" and client.get(f"{place}/manifest").json()["device"] == "board-7"
    assert client.get(f"{place}/archive").content == data
    asked = client.post(f"{place}/rejudge", json={"threshold": 1e9})
    assert asked.status_code == 202, asked.text
    run = asked.json()["run"]
    again = collector.until(f"api/v1/runs/{run}", lambda each: each["state"] in ("done", "failed"))
    assert (again["state"], again["exit_code"]) == ("done", 0), again
    assert client.post(f"{place}/rejudge", json={}).status_code == 400
    assert client.post(f"{place}/rejudge", json={"threshold": -1}).status_code == 400
    assert taken(collector, client, "bundle", "again.tidebundle", data)["result"] == row["result"]
    deeds = [(deed["action"], deed["who"]) for deed in client.get("api/v1/audit").json()]
    assert ("rejudge", "local") in deeds and ("upload", "local") in deeds


def test_model_is_registered_and_found_by_traces_without_one(
    collector: Process, client: httpx.Client, board: Board
) -> None:
    row = taken(collector, client, "model", "enhancer.onnx", board.model.read_bytes())
    key = row["result"]["model"]
    assert key in {entry["key"] for entry in client.get("api/v1/library").json()}
    traces = board.trace()
    for model, state in ((key, "done"), ("", "failed")):
        made = taken(collector, client, "traces", "run.zip", packed(traces, board.artifacts), model=model)
        run = made["result"]["run"]
        ended = collector.until(f"api/v1/runs/{run}", lambda each: each["state"] in ("done", "failed"))
        assert ended["state"] == state, ended
    assert "no model" in ended["reason"]


def zip_of(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_what_leads_out_or_is_none_fails_with_a_reason(collector: Process, client: httpx.Client) -> None:
    for kind, name, data, why in (
        ("compile", "a.zip", zip_of(**{"../../evil_tidl_net.bin": b"x"}), "no plain file inside it"),
        ("compile", "a.zip", zip_of(**{"/etc/cron.d/evil": b"x"}), "no plain file inside it"),
        ("compile", "a.zip", b"PK\x05\x06 not a zip", "no zip file"),
        ("compile", "a.zip", zip_of(readme=b"x"), "no compile output"),
        ("bundle", "a.tidebundle", zip_of(**{"manifest.json": b"{}"}), "compressed or encrypted"),
    ):
        row = taken(collector, client, kind, name, data)
        assert row["state"] == "failed" and why in row["problem"], row
        assert str(collector.data) not in row["problem"]
    assert not list((collector.data / "uploads").iterdir())


def test_what_can_be_refused_at_once_is(collector: Process, client: httpx.Client) -> None:
    assert send(client, "model", "../x.onnx", b"x").status_code == 400
    assert send(client, "model", "x.exe", b"x").status_code == 400
    assert send(client, "model", "x.onnx", b"").status_code == 400
    assert send(client, "nonsense", "x.onnx", b"x").status_code in (400, 404)
    wrong = client.post("api/v1/uploads/model", params={"name": "x.onnx"}, data={"a": "b"})
    assert wrong.status_code == 415
    del client.headers["x-csrf-token"]
    assert send(client, "model", "x.onnx", b"x").status_code == 403


def raw(collector: Process, csrf: str, headers: str, body: bytes) -> bytes:
    """What a client gets that sends `body` and no more, and waits."""
    place = urlsplit(collector.url)
    with socket.create_connection((place.hostname, place.port or 0), timeout=60) as connection:
        request = (
            f"POST /api/v1/uploads/model?name=x.onnx HTTP/1.1\r\nHost: {place.netloc}\r\nX-CSRF-Token: {csrf}\r\n"
            f"Content-Type: application/octet-stream\r\n{headers}\r\n\r\n"
        )
        connection.sendall(request.encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer and (piece := connection.recv(4096)):
            answer += piece
    return answer


def test_oversized_and_slow_uploads_are_cut_off(collector: Process, client: httpx.Client) -> None:
    csrf = client.headers["x-csrf-token"]
    assert b" 413 " in raw(collector, csrf, "Content-Length: 33554433", b"").splitlines()[0]
    large = b"%x\r\n" % (1 << 20) + bytes(1 << 20) + b"\r\n"
    assert b" 413 " in raw(collector, csrf, "Transfer-Encoding: chunked", large * 32 + b"1\r\nx\r\n").splitlines()[0]
    slow = raw(collector, csrf, "Content-Length: 1000", b"some")
    assert b" 408 " in slow.splitlines()[0] and b"content-security-policy" in slow.lower()
    rows = client.get("api/v1/uploads").json()
    assert any(row["state"] == "failed" and "nothing of the file has come" in row["problem"] for row in rows)
    assert not list((collector.data / "uploads").iterdir())
