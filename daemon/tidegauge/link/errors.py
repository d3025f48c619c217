"""Faults of the link, by name. `kind`: its word in metrics and status."""

from __future__ import annotations

from tidegauge.errors import TidegaugeError
from tidegauge.link.config import LinkConfig


class LinkError(TidegaugeError):
    """The link to the broker doesn't work."""

    kind = "error"


class Unreachable(LinkError):
    """No TCP connection, or no answer to it."""

    kind = "unreachable"


class TlsFailed(LinkError):
    """A certificate or key can't be used, or the handshake failed."""

    kind = "refused"


class CertificateExpired(TlsFailed):
    """A certificate of either side has ended, or has not begun by this machine's clock."""

    kind = "certificate"


class AuthRefused(LinkError):
    """The broker doesn't accept this user, password or certificate."""

    kind = "refused"


class BrokerRefused(LinkError):
    """The broker answers, and refuses to serve."""

    kind = "refused"


class LinkLost(LinkError):
    """An established connection has ended, or stands still."""

    kind = "lost"


class LinkSilent(LinkLost):
    """The connection is there, and the broker answers nothing."""

    kind = "silent"


class TakenOver(LinkLost):
    """Another client has connected with this client id, as the broker says (MQTT 5), or as it looks (`rival`)."""

    kind = "taken_over"


class SubscribeRefused(BrokerRefused):
    """The broker serves, but not this topic."""

    kind = "acl"


class PublishRefused(LinkError):
    """The broker took the packet and refused to publish it (MQTT 5; under 3.1.1 nobody is told)."""

    kind = "acl"


#: Every kind.
KINDS = ("unreachable", "certificate", "refused", "acl", "lost", "silent", "taken_over")


def rival(config: LinkConfig) -> TakenOver:
    """For connections that are cut off again and again, and nobody says why."""
    return TakenOver(
        f"the broker {config.host}:{config.port} cuts this client off soon after each connection, as it does where "
        "another one has the same name",
        "give each board a name of its own (key `device`), and look for a copy of its disk; see the broker's log",
    )


def first_of(group: BaseExceptionGroup[LinkError]) -> LinkError:
    """Any of the errors of a lost connection; they are one fault."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LinkError)
    return error
