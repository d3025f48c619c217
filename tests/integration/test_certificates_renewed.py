"""Certificates that end: a new one takes over only once it has connected, and what has ended is named by both sides'
certificates, in log, metric and status. A real mosquitto with TLS on both sides.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from faults.small_board import SmallBoard, metrics, wait_for
from integration.link_peer import Mosquitto, free_port, link
from tidegauge.evaluation.budget import loaded
from tidegauge.link import mqtt, tls_slots
from tidegauge.link.config import LinkConfig

DEVICE = "small"
DAY = datetime.timedelta(days=1)


class Authority:
    """Issues certificates with any dates. `now` is the time of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, datetime.datetime.now(datetime.UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
        builder = self._builder(self._name, self._key.public_key(), -400, 400)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        (folder / "ca.pem").write_bytes(builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str, begins: float, ends: float) -> None:
        """`name`.pem and `name`.key in the folder; days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        path = self.folder / f"{name}.key"
        path.touch(mode=0o600)
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name.partition(".")[0])])
        (self.folder / f"{name}.pem").write_bytes(self._signed(subject, key.public_key(), begins, ends))

    def sign(self, request: Path, begins: float = -1, ends: float = 90) -> bytes:
        asked = x509.load_pem_x509_csr(request.read_bytes())
        assert asked.is_signature_valid
        key = asked.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return self._signed(asked.subject, key, begins, ends)

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, begins: float, ends: float) -> bytes:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = self._builder(subject, key, begins, ends).add_extension(names, critical=False)
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, begins: float, ends: float
    ) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(self.now + begins * DAY).not_valid_after(self.now + ends * DAY)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    folder = tmp_path / "ca"
    folder.mkdir()
    made = Authority(folder)
    made.issue("server", -1, 30)
    return made


@asynccontextmanager
async def broker(folder: Path, authority: Authority, server: str = "server") -> AsyncIterator[int]:
    folder.mkdir()
    running = Mosquitto(folder)
    running.port = free_port()
    files = {"cafile": "ca.pem", "certfile": f"{server}.pem", "keyfile": f"{server}.key"}
    named = "\n".join(f"{key} {authority.folder / file}" for key, file in files.items())
    (folder / "mosquitto.conf").write_text(
        f"user root\nlistener {running.port} 127.0.0.1\n{named}\nrequire_certificate true\nallow_anonymous true\n"
        "use_identity_as_username true\n"
    )
    running.start()
    try:
        yield running.port
    finally:
        running.kill()


def config(port: int, authority: Authority, name: str, renewal: Path, protocol: str = "5") -> LinkConfig:
    paths = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key"}
    found = {key: str(authority.folder / file) for key, file in paths.items()}
    return link(port, protocol=protocol, renewal=str(renewal), **found)


async def connects(config: LinkConfig) -> None:
    async with mqtt.connect(config, DEVICE) as connection:
        await connection.publish("x", b"")


def test_a_request_is_made_at_two_thirds_of_life_and_by_the_board_itself(tmp_path: Path, authority: Authority) -> None:
    folder = tmp_path / "certificates"
    authority.issue(DEVICE, -65, 35)
    young = config(1, authority, DEVICE, folder)
    assert tls_slots.request_if_due(young) == ""
    assert not folder.exists()
    authority.issue(DEVICE, -68, 32)
    said = tls_slots.request_if_due(young)
    assert str(folder / "next.csr") in said
    assert (folder / "next.key").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o077 == 0
    request = (folder / "next.csr").read_bytes()
    assert tls_slots.request_if_due(young) == said
    assert (folder / "next.csr").read_bytes() == request, "the request that somebody may be signing stays"
    assert x509.load_pem_x509_csr(request).subject.rfc4514_string() == f"CN={DEVICE}"


def test_the_new_pair_takes_over_when_it_has_connected(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "certificates"
    authority.issue(DEVICE, -70, 30)

    async def scenario() -> None:
        async with broker(tmp_path / "broker", authority) as port:
            settings = config(port, authority, DEVICE, folder)
            tls_slots.request_if_due(settings)
            (folder / "next.pem").write_bytes(authority.sign(folder / "next.csr"))
            (before,) = {slot.config.cert for slot in tls_slots.slots(settings) if not slot.new}
            assert before == settings.cert
            await connects(settings)
            assert [slot.config.cert for slot in tls_slots.slots(settings)] == [str(folder / "current.pem")]
            assert (folder / "current.pem").stat().st_mode & 0o777 == 0o600
            assert {path.name for path in folder.iterdir()} == {"current.pem"}
            for name in (f"{DEVICE}.pem", f"{DEVICE}.key"):
                (authority.folder / name).rename(authority.folder / f"gone-{name}")
            (authority.folder / f"{DEVICE}.pem").write_bytes((authority.folder / f"gone-{DEVICE}.pem").read_bytes())
            await connects(settings)  # by the new pair alone: the old key is gone
            assert tls_slots.request_if_due(settings) == ""

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert "is the one in use" in caplog.text


def test_a_new_pair_that_the_broker_refuses_leaves_the_old_one(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    folder, elsewhere = tmp_path / "certificates", tmp_path / "other"
    elsewhere.mkdir()
    authority.issue(DEVICE, -70, 30)

    async def scenario() -> None:
        async with broker(tmp_path / "broker", authority) as port:
            for protocol in ("5", "3.1.1"):
                settings = config(port, authority, DEVICE, folder, protocol)
                tls_slots.request_if_due(settings)
                (folder / "next.pem").write_bytes(Authority(elsewhere).sign(folder / "next.csr"))
                await connects(settings)
                assert (folder / "next.key").exists(), "nothing was thrown away"
                assert not (folder / "current.pem").exists()
            (folder / "next.pem").write_bytes(authority.sign(folder / "next.csr"))
            await connects(settings)
            assert (folder / "current.pem").exists()

    asyncio.run(scenario())
    assert "did not connect, the old one is used" in caplog.text


@pytest.mark.parametrize("wrong", ["name", "key", "past", "future", "damaged"])
def test_what_was_signed_wrongly_is_named_and_not_tried(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    folder = tmp_path / "certificates"
    authority.issue(DEVICE, -70, 30)
    authority.issue("other", -1, 30)
    settings = config(1, authority, DEVICE, folder)
    tls_slots.request_if_due(settings)
    dates = {"past": (-9.0, -1.0), "future": (1.0, 9.0)}.get(wrong, (-1.0, 9.0))
    if wrong == "name":
        data = (authority.folder / "other.pem").read_bytes()
    elif wrong == "key":
        authority.issue(f"{DEVICE}.again", -1, 30)
        data = (authority.folder / f"{DEVICE}.again.pem").read_bytes()
    else:
        data = b"no certificate" if wrong == "damaged" else authority.sign(folder / "next.csr", *dates)
    (folder / "next.pem").write_bytes(data)
    assert [slot.config.cert for slot in tls_slots.slots(settings)] == [settings.cert]
    assert "the renewed certificate is not used" in caplog.text


def test_a_newer_configured_certificate_goes_before_a_renewed_one(tmp_path: Path, authority: Authority) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    authority.issue(DEVICE, -1, 30)
    (folder / "current.pem").write_bytes((authority.folder / "server.pem").read_bytes())
    authority.issue(DEVICE, -1, 60)
    settings = config(1, authority, DEVICE, folder)
    assert tls_slots.in_use(settings).cert == settings.cert
    (folder / "current.pem").write_text("damaged")
    assert tls_slots.in_use(settings).cert == settings.cert


@pytest.mark.parametrize(("client", "server"), [((-9.0, -1.0), (-1.0, 9.0)), ((-1.0, 9.0), (-9.0, -1.0))])
def test_an_ended_certificate_is_named_in_the_error(
    tmp_path: Path, authority: Authority, client: tuple[float, float], server: tuple[float, float]
) -> None:
    authority.issue(DEVICE, *client)
    authority.issue("server", *server)

    async def scenario() -> None:
        async with broker(tmp_path / "broker", authority) as port:
            settings = config(port, authority, DEVICE, tmp_path / "certificates")
            whose = settings.cert if client[1] < 0 else f"of the broker 127.0.0.1:{port}"
            with pytest.raises(mqtt.CertificateExpired, match=whose) as found:
                await connects(settings)
            assert "has ended" in found.value.problem

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_agent_names_both_and_renews(tmp_path: Path, authority: Authority) -> None:
    """Log, metric and status of a running agent; then a renewed certificate is taken without a restart."""
    small = SmallBoard(tmp_path / "board", virtual=False)
    authority.issue(DEVICE, -9, -1)
    authority.issue("server.ended", -9, -1)
    files = {"ca": "ca.pem", "cert": f"{DEVICE}.pem", "key": f"{DEVICE}.key"}
    settings = {key: str(authority.folder / file) for key, file in files.items()}
    settings |= {"backoff_first": 0.2, "backoff_most": 0.5, "connect_jitter": 0.0}

    async def scenario() -> None:
        async with (
            broker(tmp_path / "good", authority) as good,
            broker(tmp_path / "ended", authority, "server.ended") as ended,
        ):
            await asyncio.to_thread(watched, small, authority, settings, good, ended)

    asyncio.run(scenario())


def watched(small: SmallBoard, authority: Authority, settings: dict[str, object], good: int, ended: int) -> None:
    now, certificates = authority.now.timestamp(), small.state / "certificates"
    with small.agent(small.configure(link={**settings, "port": good})) as agent:
        url = small.url(agent)

        def ends() -> float:
            return metrics(url).get('tidegauge_certificate_expiry_timestamp_seconds{use="link"}', 0.0)

        def until(text: str) -> None:
            wait_for(lambda: text in small.status().link.error, 90, text)
            assert "(certificate: " in small.tidegauge("status").stdout
            assert text in small.log()

        until(f"the certificate {authority.folder / DEVICE}.pem has ended")
        faults = 'tidegauge_mqtt_faults_total{kind="certificate"}'
        wait_for(lambda: metrics(url).get(faults, 0) >= 1, 60, faults)
        wait_for(lambda: 0 < ends() < now, 60, "the end of the certificate, which has passed")

        authority.issue(DEVICE, -70, 30)
        small.configure(link={**settings, "port": ended})
        until(f"the certificate of the broker 127.0.0.1:{ended} has ended")

        small.configure(link={**settings, "port": good})
        wait_for(lambda: small.status().link.connected, 90, "a connection")
        wait_for(lambda: "next.csr" in small.status().link.renewal, 60, "a request for a new certificate")
        (certificates / "next.pem").write_bytes(authority.sign(certificates / "next.csr"))
        agent.send_signal(signal.SIGHUP)
        wait_for((certificates / "current.pem").exists, 60, "the new certificate in use")
        wait_for(lambda: ends() > now + 80 * 86400, 60, "its end in the metrics")
        wait_for(lambda: not small.status().link.renewal, 60, "nothing more to be done")
        assert loaded(agent.pid, "msgspec")
        assert not loaded(agent.pid, "cryptography"), "what reads and makes certificates stays out of the agent"
