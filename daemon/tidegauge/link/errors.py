"""Faults of the link, by name. `kind`: its word in metrics and status."""

from __future__ import annotations

from tidegauge.errors import TidegaugeError


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
    """Another client has connected with this client id (told under MQTT 5; under 3.1.1 it looks like a lost link)."""

    kind = "taken_over"


class SubscribeRefused(BrokerRefused):
    """The broker serves, but not this topic."""

    kind = "acl"


class PublishRefused(LinkError):
    """The broker took the packet and refused to publish it (MQTT 5; under 3.1.1 nobody is told)."""

    kind = "acl"


#: Every kind.
KINDS = ("unreachable", "certificate", "refused", "acl", "lost", "silent", "taken_over")


def first_of(group: BaseExceptionGroup[LinkError]) -> LinkError:
    """Any of the errors of a lost connection; they are one fault."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LinkError)
    return error
