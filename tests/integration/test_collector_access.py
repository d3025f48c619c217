"""Who gets into a running collector: its tokens by the command line, its refusals to start, and real headers."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from integration.collector_peer import Process, mosquitto
from tidegauge.cli.collector import command as collector
from tidegauge.collector import serve
from tidegauge.collector.config import load
from tidegauge.collector.startup import check_certificate
from tidegauge.collector.storage import open_storage
from tidegauge.errors import TidegaugeError


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with mosquitto(tmp_path_factory.mktemp("broker")) as port:
        yield port


def command(*arguments: str | Path) -> str:
    """What `tidegauge collector …` prints. Raises what it fails with."""
    done = CliRunner().invoke(collector, [str(each) for each in arguments], catch_exceptions=True)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_what_others_reach_needs_a_token_first(tmp_path: Path) -> None:
    config = tmp_path / "collector.toml"
    config.write_text('data = "data"\n[http]\nhost = "192.0.2.1"\n[link]\n')
    loaded = load(config)
    (tmp_path / "data").mkdir()
    with pytest.raises(TidegaugeError, match="collector token new"):
        serve.check_reach(loaded, open_storage(loaded).store)
    secret = json.loads(command("token", "new", "ci", "--role", "viewer", "--json", "--config", config))["token"]
    opened = open_storage(loaded).store
    serve.check_reach(loaded, opened)
    opened.close()
    with pytest.raises(TidegaugeError, match="a token ci already"):
        command("token", "new", "ci", "--role", "operator", "--config", config)
    with pytest.raises(TidegaugeError, match="no name for a token"):
        command("token", "new", "a b", "--role", "viewer", "--config", config)
    (listed,) = json.loads(command("token", "list", "--json", "--config", config))
    assert (listed["name"], listed["role"]) == ("ci", "viewer") and secret not in str(listed)
    assert "ci" in command("token", "list", "--config", config)
    assert all(secret.encode() not in path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert "revoked" in command("token", "revoke", "ci", "--config", config)
    with pytest.raises(TidegaugeError, match="there is no token"):
        command("token", "revoke", "ci", "--config", config)


def asked(url: str, *lines: str, at: str = "127.0.0.1") -> tuple[int, bytes]:
    """The status and all bytes of the answer to a request from an address `at`, with exactly these header lines."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port or 0), 60, source_address=(at, 0)) as connection:
        request = [f"GET {place.path}api/v1/session HTTP/1.1", "Connection: close", *lines]
        connection.sendall("\r\n".join([*request, "", ""]).encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return int(answer.split()[1]), answer


@pytest.mark.slow
def test_forged_headers_are_nobodys_word_in_the_real_server(tmp_path: Path, broker: int) -> None:
    """uvicorn, left to itself, would believe whoever is on this computer where it comes from."""
    process = Process(tmp_path, broker, '[access]\nproxies = ["127.0.0.2", "10.0.0.5"]\noperators = ["root"]')
    process.start()
    try:
        host = f"Host: {urlsplit(process.url).netloc}"
        assert asked(process.url, host)[0] == 200
        for proxy in ("127.0.0.2", "10.0.0.5"):
            forged = (host, f"X-Forwarded-For: {proxy}", "X-Forwarded-User: root")
            assert asked(process.url, *forged)[0] == 401
        assert asked(process.url, host, "X-Forwarded-Proto: https")[0] == 401
        assert asked(process.url, "Host: evil.example.org")[0] == 401
        status, answer = asked(process.url, host, "X-Forwarded-User: root")
        assert status == 200 and b'"name":"local"' in answer, "not a proxy, so the header says nothing"
        twice = asked(process.url, host, "Authorization: Bearer a", "Authorization: Bearer b")
        assert twice[0] == 400 and b"content-security-policy" in twice[1]
        status, answer = asked(process.url, host, "this is no header")
        assert status == 400 and b"Invalid HTTP request" in answer and b"content-security-policy" in answer
        assert asked(process.url, host, at="127.0.0.2")[0] == 401, "what a proxy sends is not from a person here"
        user = (host, "X-Forwarded-User: root", "X-Forwarded-For: 192.0.2.9")
        status, answer = asked(process.url, *user, at="127.0.0.2")
        assert status == 200 and b'"role":"operator"' in answer and b'"by":"proxy"' in answer
        assert asked(process.url, *user, "X-Forwarded-User: guest", at="127.0.0.2")[0] == 400
    finally:
        process.kill()


def certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")]), datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    address = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    (folder / "web.pem").write_bytes(
        made.add_extension(address, critical=False).sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    pem, pkcs8, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "web.key").write_bytes(key.private_bytes(pem, pkcs8, plain))
    return folder / "web.pem"


@pytest.mark.slow
def test_https_by_the_collector_itself(tmp_path: Path, broker: int) -> None:
    trusted = ssl.create_default_context(cafile=certificate(tmp_path))
    config = tmp_path / "collector.toml"
    text = f'data = "data"\n[http]\nport = 0\ncertificate = "web.pem"\nkey = "web.key"\n[link]\nport = {broker}\n'
    config.write_text(text.replace("web.key", "none.key"))
    with pytest.raises(TidegaugeError, match=r"http\.key"):
        check_certificate(load(config).http)
    config.write_text(text)
    run = [sys.executable, "-m", "tidegauge", "collector", "run", "--config", str(config)]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(run, stdout=subprocess.PIPE, stderr=log) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().split()[-1].replace("127.0.0.1", "localhost")
            assert url.startswith("https://"), (tmp_path / "log").read_text()
            with httpx.Client(verify=trusted, trust_env=False, timeout=60) as client:
                answer = client.get(f"{url}login")
            assert answer.status_code == 200 and "; secure" in answer.headers["set-cookie"].lower()
            assert "max-age" in answer.headers["strict-transport-security"]
        finally:
            process.kill()
