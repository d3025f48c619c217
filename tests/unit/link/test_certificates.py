"""What the link's certificate says, read by a process of its own."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tidegauge.errors import TidegaugeError
from tidegauge.link import certificate_process
from tidegauge.link.certificate_process import read
from tidegauge.link.certificates import Certificate, expiry, first_of
from tidegauge.link.config import LinkConfig
from tidegauge.link.dial import check_dates
from tidegauge.link.errors import CertificateExpired


def self_signed(path: Path, ends: datetime.datetime, common_name: str = "cam-1") -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)] if common_name else [])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(ends - datetime.timedelta(days=10))
        .not_valid_after(ends)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key


ENDS = datetime.datetime(2031, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines of the processes that have read certificates; none has read one before."""
    commands: list[list[str]] = []
    run = subprocess.run

    def counted(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return run(command, **options)

    certificate_process._kept.cache_clear()
    monkeypatch.setattr(subprocess, "run", counted)
    return commands


@pytest.mark.parametrize("name", ["cam-1", "Übersee 7", ""])
def test_dates_and_name_of_a_certificate(tmp_path: Path, name: str) -> None:
    self_signed(tmp_path / "board.pem", ENDS, name)
    begins = (ENDS - datetime.timedelta(days=10)).timestamp()
    assert read(tmp_path / "board.pem") == Certificate(begins, ENDS.timestamp(), name)
    assert expiry(tmp_path / "board.pem") == ENDS.timestamp()


def test_the_first_certificate_counts_and_the_key_stays_here(tmp_path: Path) -> None:
    path = tmp_path / "board.pem"
    key = self_signed(path, ENDS)
    first = path.read_bytes()
    self_signed(tmp_path / "ca.pem", ENDS + datetime.timedelta(days=9), "authority")
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(encoding, form, serialization.NoEncryption())
    path.write_bytes(private + b"board 1\r\n" + first + (tmp_path / "ca.pem").read_bytes())
    assert read(path).name == "cam-1"
    assert first_of(path) == first.strip()


def test_a_process_is_started_once_for_each_content(tmp_path: Path, started: list[list[str]]) -> None:
    path = tmp_path / "board.pem"
    self_signed(path, ENDS)
    old = read(path)
    (tmp_path / "copy.pem").write_bytes(path.read_bytes())
    path.touch()
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(read, [path, tmp_path / "copy.pem"] * 4)) == {old}
    assert len(started) == 1
    stat = path.stat()
    self_signed(path, ENDS + datetime.timedelta(days=90))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as a copy that keeps the times
    assert read(path).ends == old.ends + 90 * 86400
    assert len(started) == 2


def test_what_is_no_certificate_is_said(tmp_path: Path, started: list[list[str]]) -> None:
    path = tmp_path / "board.pem"
    path.write_text("-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n")
    for _ in range(2):
        with pytest.raises(TidegaugeError, match=r"board\.pem can't be read.*link\.cert"):
            read(path)
    assert len(started) == 1, "what is damaged is looked at once too"
    with pytest.raises(TidegaugeError, match=r"board\.pem can't be read.*link\.cert"):
        certificate_process.request(path)
    with pytest.raises(TidegaugeError, match=r"board\.pem can't be read.*link\.cert"):
        expiry(path)
    path.write_text("nothing")
    with pytest.raises(TidegaugeError, match=r"holds no certificate in PEM.*link\.cert"):
        read(path)
    with pytest.raises(TidegaugeError, match=r"No such file.*link\.cert"):
        read(tmp_path / "missing.pem")
    with pytest.raises(TidegaugeError, match=r"Is a directory.*link\.cert"):
        read(tmp_path)


def test_a_request_is_for_the_same_name_and_its_own_key(tmp_path: Path) -> None:
    self_signed(tmp_path / "board.pem", ENDS)
    made = certificate_process.request(tmp_path / "board.pem")
    asked = x509.load_pem_x509_csr(made.request.encode())
    assert asked.is_signature_valid
    assert asked.subject.rfc4514_string() == "CN=cam-1"
    key = serialization.load_pem_private_key(made.key.encode(), None)
    assert key.public_key() == asked.public_key()
    assert certificate_process.request(tmp_path / "board.pem").key != made.key


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import time; time.sleep(600)", "gave no answer within"),
        ("raise MemoryError('no room')", "ended with code 1: MemoryError: no room"),
        ("import os; os.kill(os.getpid(), 9)", "ended with code -9"),
        ("print('hello')", "no answer that can be understood"),
        ("", "no answer that can be understood"),
    ],
)
def test_a_process_that_fails_is_told_and_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[list[str]], program: str, said: str
) -> None:
    self_signed(tmp_path / "board.pem", ENDS)
    (tmp_path / "broken_reader.py").write_text(program)
    with monkeypatch.context() as broken:
        broken.setenv("PYTHONPATH", str(tmp_path))
        broken.setattr(certificate_process, "MODULE", "broken_reader")
        broken.setattr(certificate_process, "SECONDS", 1.0 if "sleep" in program else 60.0)
        with pytest.raises(TidegaugeError, match=said):
            read(tmp_path / "board.pem")
    assert read(tmp_path / "board.pem").name == "cam-1"


def test_no_process_to_be_had_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[list[str]]
) -> None:
    self_signed(tmp_path / "board.pem", ENDS)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    with pytest.raises(TidegaugeError, match="can't be started"):
        read(tmp_path / "board.pem")


def test_dates_that_can_not_be_read_hide_no_failed_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    self_signed(tmp_path / "board.pem", datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    config = LinkConfig(cert=str(tmp_path / "board.pem"))
    with pytest.raises(CertificateExpired, match="has ended"):
        check_dates(config, None)
    certificate_process._kept.cache_clear()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    check_dates(config, None)
    assert "is not known" in caplog.text
    assert "can't be started" in caplog.text


def test_who_asks_loads_no_library_for_it(tmp_path: Path) -> None:
    self_signed(tmp_path / "board.pem", ENDS)
    code = f"""
import sys
from pathlib import Path
from tidegauge.link import certificate_process, mqtt, tls_slots
from tidegauge.link.config import LinkConfig
path = Path({str(tmp_path / "board.pem")!r})
assert certificate_process.read(path).name == "cam-1"
(Path({str(tmp_path)!r}) / "renewal").mkdir()
(Path({str(tmp_path)!r}) / "renewal" / "next.pem").write_bytes(path.read_bytes())
(Path({str(tmp_path)!r}) / "renewal" / "next.key").write_bytes(certificate_process.request(path).key.encode())
(slot,) = tls_slots.slots(LinkConfig(cert=str(path), renewal={str(tmp_path / "renewal")!r}))
print([name for name in sys.modules if name.partition(".")[0] in ("cryptography", "nacl")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
