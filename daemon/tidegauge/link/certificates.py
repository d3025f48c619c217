"""When the link's own certificate ends. An expired one cuts a board off, and nobody is told by the board then."""

from __future__ import annotations

from pathlib import Path

from tidegauge.errors import TidegaugeError


def expiry(path: Path) -> float:
    """Unix seconds after which the first certificate of a PEM file is no longer valid. Raises TidegaugeError."""
    return validity(path)[1]


def validity(path: Path) -> tuple[float, float]:
    """Unix seconds from and until which the first certificate of a PEM file is valid. Raises TidegaugeError."""
    from cryptography import x509  # a board whose link has no certificate never loads it

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TidegaugeError(
            f"the certificate {path} can't be read ({error})", "give a PEM file as key `link.cert`"
        ) from error
    return certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
