"""The end of the link's certificate."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tidegauge.errors import TidegaugeError
from tidegauge.link.certificates import expiry


def self_signed(path: Path, ends: datetime.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cam-1")])
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


def test_end_of_a_certificate(tmp_path: Path) -> None:
    ends = datetime.datetime(2031, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    self_signed(tmp_path / "board.pem", ends)
    assert expiry(tmp_path / "board.pem") == ends.timestamp()


def test_what_is_no_certificate_is_said(tmp_path: Path) -> None:
    (tmp_path / "board.pem").write_text("-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n")
    for name in ("board.pem", "missing.pem"):
        with pytest.raises(TidegaugeError, match=r"link\.cert"):
            expiry(tmp_path / name)
