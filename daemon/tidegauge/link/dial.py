"""The TCP connection to the broker, what TLS and login need for it, and why it did not come about."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path

from tidegauge.clocks import wall
from tidegauge.errors import TidegaugeError
from tidegauge.link import certificate_process
from tidegauge.link.config import LinkConfig
from tidegauge.link.errors import AuthRefused, CertificateExpired, TlsFailed, Unreachable

log = logging.getLogger(__name__)

#: X.509 verification codes of OpenSSL.
DATES = {9: "is not valid yet", 10: "has ended"}


def check_dates(config: LinkConfig, found: BaseException | None) -> None:
    """Raises CertificateExpired where that is why no connection came about: a broker says no more, it hangs up.

    May wait for a process: call it in a thread.
    """
    if isinstance(found, ssl.SSLCertVerificationError) and found.verify_code in DATES:
        raise CertificateExpired(
            f"the certificate of the broker {config.host}:{config.port} {DATES[found.verify_code]} by this clock",
            "renew it, or set this machine's clock",
        ) from found
    if not config.cert:
        return
    try:
        own = certificate_process.read(Path(config.cert))
    except TidegaugeError as error:  # the connection's own failure is what counts, and is told without this too
        log.warning("whether the link's certificate has ended is not known: %s", error)
        return
    if not own.begins <= wall() < own.ends:
        said = "has ended" if wall() >= own.ends else "is not valid yet by this clock"
        raise CertificateExpired(
            f"the certificate {config.cert} {said}, and the broker {config.host}:{config.port} gave no connection",
            "renew it (agent_config/broker/README.md), or set this machine's clock",
        ) from found


async def dial(config: LinkConfig) -> socket.socket:
    """A connected TCP socket. Done here, since the library would connect in a thread that can't be cancelled."""
    loop = asyncio.get_running_loop()
    where = f"{config.host}:{config.port}"
    failure: OSError | None = None
    try:
        async with asyncio.timeout(config.connect_timeout):
            for family, kind, number, _, address in await loop.getaddrinfo(
                config.host, config.port, type=socket.SOCK_STREAM
            ):
                sock = socket.socket(family, kind, number)
                try:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, address)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                except OSError as error:
                    sock.close()
                    failure = error
                except BaseException:
                    sock.close()
                    raise
                else:
                    return sock
    except TimeoutError as error:
        raise Unreachable(
            f"no connection to the broker {where} within {config.connect_timeout:g} s", "check network and firewall"
        ) from error
    except OSError as error:
        failure = error
    raise Unreachable(
        f"no connection to the broker {where} ({failure})", "check `link.host`, `link.port`, and that the broker runs"
    ) from failure


def tls_context(config: LinkConfig) -> ssl.SSLContext | None:
    if not (config.tls or config.ca or config.cert):
        return None
    named = {"link.ca": config.ca, "link.cert": config.cert, "link.key": config.key}
    for key, path in named.items():
        if path and not Path(path).is_file():
            raise TlsFailed(f"{path} (key `{key}`) does not exist", "give the path of a PEM file")
    try:
        context = ssl.create_default_context(cafile=config.ca or None)
        if config.cert:
            context.load_cert_chain(config.cert, config.key or None)
    except (ssl.SSLError, OSError) as error:
        raise TlsFailed(
            f"the TLS files {', '.join(path for path in named.values() if path)} can't be used ({error})",
            "check that they are PEM, that key and certificate belong together, and their owner and mode",
        ) from error
    return context


def password(config: LinkConfig) -> str | None:
    if not config.password_file:
        return None
    try:
        return Path(config.password_file).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise AuthRefused(
            f"{config.password_file} (key `link.password_file`) can't be read ({error})",
            "check its path, owner and mode",
        ) from error
