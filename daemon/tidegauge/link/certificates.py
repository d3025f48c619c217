"""What a certificate of the link says, and the request for its successor.

`cryptography` reads it, and stays in the process that has loaded it: 9 to 12 MB. So the agent doesn't call this, but
has it called in a process that ends (`link.certificate_process`): this module run, PEM on stdin, JSON on stdout.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tidegauge.errors import TidegaugeError

if TYPE_CHECKING:
    from cryptography import x509

#: A certificate with its chain and a key is some 10 KB.
MAX_FILE = 1 << 20
CURE = "give a PEM file as key `link.cert`"
_PEM = re.compile(rb"-----BEGIN (X509 |)CERTIFICATE-----.*?-----END \1CERTIFICATE-----", re.DOTALL)


class Certificate(msgspec.Struct, frozen=True, tag="certificate"):
    """Valid from `begins` until `ends`, Unix seconds. `name`: common name of the subject, empty where it has none."""

    begins: float
    ends: float
    name: str


class Request(msgspec.Struct, frozen=True, tag="request"):
    """A new private key (P-256, PKCS #8) and the request that is signed with it, both PEM."""

    key: str
    request: str


class Unreadable(msgspec.Struct, frozen=True, tag="unreadable"):
    """Why it is no certificate."""

    problem: str

    def error(self, path: Path) -> TidegaugeError:
        return TidegaugeError(f"the certificate {path} can't be read ({self.problem})", CURE)


Answer = Certificate | Request | Unreadable


def first_of(path: Path) -> bytes:
    """The first certificate of a PEM file, which is the link's own; a private key beside it isn't in it.

    Raises TidegaugeError.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE)
    except OSError as error:
        raise TidegaugeError(f"the certificate {path} can't be read ({error.strerror})", CURE) from error
    found = _PEM.search(data)
    if found is None:
        raise Unreadable("it holds no certificate in PEM").error(path)
    return found[0]


def expiry(path: Path) -> float:
    """Unix seconds after which the first certificate of a PEM file is no longer valid. Raises TidegaugeError.

    Loads `cryptography` into this process.
    """
    answer = decoded(first_of(path))
    if isinstance(answer, Unreadable):
        raise answer.error(path)
    return answer.ends


def decoded(pem: bytes) -> Certificate | Unreadable:
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return Certificate(
            certificate.not_valid_before_utc.timestamp(),
            certificate.not_valid_after_utc.timestamp(),
            str(names[0].value) if names else "",
        )
    except (ValueError, x509.InvalidVersion) as error:
        return Unreadable(str(error))


def requested(pem: bytes) -> Request | Unreadable:
    """A new key, and a request for a certificate of the same subject as this one."""
    from cryptography import x509

    try:
        subject = x509.load_pem_x509_certificate(pem).subject
    except (ValueError, x509.InvalidVersion) as error:
        return Unreadable(str(error))
    return _signed(subject)


def _signed(subject: x509.Name) -> Request:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = generate_private_key(SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Request(private.decode(), request.public_bytes(Encoding.PEM).decode())


def main(what: str) -> None:
    """Answer what is asked of the certificate on stdin: `read`, or `request`."""
    pem = sys.stdin.buffer.read(MAX_FILE)
    answer: Answer = {"read": decoded, "request": requested}[what](pem)
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main(sys.argv[1])
