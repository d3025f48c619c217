"""Tokens, sessions and the audit log in the database. Of tokens and cookies it holds only hashes."""

from __future__ import annotations

import secrets as randomness
from typing import Any

import msgspec
from sqlalchemy import and_, delete, func, insert, or_, select, update

from tidegauge.clocks import Wall
from tidegauge.collector.database import Database, upsert
from tidegauge.collector.roles import Role, digest_of
from tidegauge.collector.tables import access_tokens, audit, secrets, sessions
from tidegauge.errors import TidegaugeError

#: Before a token's random part: a secret scanner can find one that was published.
TOKEN_PREFIX = "tidegauge_"
#: Seconds between two notes of a token's use: not each page is a write.
_USED_SECONDS = 300.0
#: Rows of the audit log that are kept.
MAX_AUDIT = 100_000


class AccessToken(msgspec.Struct, frozen=True):
    """`digest`: SHA-256 of the token. `expires` 0: never; `used` 0: not yet. Unix seconds."""

    digest: str
    name: str
    role: Role
    created: float
    expires: float
    used: float


class Deed(msgspec.Struct, frozen=True):
    """A line of the audit log: `who`, known `by` what, from which address, did what, to which device ("" for none)."""

    number: int
    at: float
    who: str
    by: str
    address: str
    action: str
    device: str
    detail: dict[str, Any]


class AccessRows(Database):
    """Who may ask, and who did what."""

    def new_token(self, name: str, role: Role, now: Wall, days: float = 0.0) -> str:
        """Make a token and return it: nobody can see it again. Raises TidegaugeError where the name is taken."""
        token = TOKEN_PREFIX + randomness.token_urlsafe(32)
        row = {
            "digest": digest_of(token),
            "name": name,
            "role": role,
            "created": now,
            "expires": now + 86400.0 * days if days else 0.0,
            "used": 0.0,
        }
        with self._engine.begin() as connection:
            if connection.execute(select(access_tokens).where(access_tokens.c.name == name)).first() is not None:
                raise TidegaugeError(
                    f"there is a token {name} already", f"revoke it (`token revoke {name}`), or give another name"
                )
            connection.execute(insert(access_tokens).values(row))
        return token

    def tokens(self) -> list[AccessToken]:
        return self._rows(select(access_tokens).order_by(access_tokens.c.name), AccessToken)

    def revoke_token(self, name: str) -> bool:
        """Forget a token and all sessions that it opened. Whether there was one."""
        with self._engine.begin() as connection:
            of = select(access_tokens.c.digest).where(access_tokens.c.name == name).scalar_subquery()
            connection.execute(delete(sessions).where(sessions.c.token == of))
            return connection.execute(delete(access_tokens).where(access_tokens.c.name == name)).rowcount > 0

    def token(self, secret: str, now: Wall) -> AccessToken | None:
        """The token that somebody shows, where there is one and it holds."""
        found = self._rows(select(access_tokens).where(_holds(digest_of(secret), now)), AccessToken)
        if found and now - found[0].used >= _USED_SECONDS:
            with self._engine.begin() as connection:
                where = access_tokens.c.digest == found[0].digest
                connection.execute(update(access_tokens).where(where).values(used=now))
        return found[0] if found else None

    def open_session(self, token: AccessToken, now: Wall, seconds: float) -> str:
        """A new session; returns its secret, for the cookie. Sessions that are over are forgotten by this."""
        secret = randomness.token_urlsafe(32)
        row = {"digest": digest_of(secret), "token": token.digest, "created": now, "expires": now + seconds}
        with self._engine.begin() as connection:
            connection.execute(delete(sessions).where(sessions.c.expires <= now))
            connection.execute(insert(sessions).values(row))
        return secret

    def session(self, secret: str, now: Wall) -> AccessToken | None:
        """The token behind a session that holds."""
        of = select(sessions.c.token).where(and_(sessions.c.digest == digest_of(secret), sessions.c.expires > now))
        with self._reading.begin() as connection:
            digest = connection.execute(of).scalar()
        if digest is None:
            return None
        found = self._rows(select(access_tokens).where(_holds(str(digest), now)), AccessToken)
        return found[0] if found else None

    def close_session(self, secret: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(delete(sessions).where(sessions.c.digest == digest_of(secret)))

    def secret(self, name: str) -> bytes:
        """32 random bytes that all processes of this collector share; made by the first that asks."""
        with self._engine.begin() as connection:
            upsert(connection, secrets, {"name": name, "value": randomness.token_bytes(32)}, only=())
            return bytes(connection.execute(select(secrets.c.value).where(secrets.c.name == name)).scalar_one())

    def add_deed(self, deed: Deed) -> None:
        """Append to the audit log; its `number` is given by the database."""
        row = {name: value for name, value in msgspec.structs.asdict(deed).items() if name != "number"}
        with self._engine.begin() as connection:
            number = connection.execute(insert(audit).values(row).returning(audit.c.number)).scalar_one()
            connection.execute(delete(audit).where(audit.c.number <= number - MAX_AUDIT))

    def deeds(self, limit: int = 200, device: str = "", before: int = 0) -> list[Deed]:
        """Newest first; those on `device` and those before number `before`, where given."""
        query = select(audit).order_by(audit.c.number.desc()).limit(limit)
        if device:
            query = query.where(audit.c.device == device)
        if before:
            query = query.where(audit.c.number < before)
        return self._rows(query, Deed)

    def token_count(self) -> int:
        with self._reading.begin() as connection:
            return int(connection.execute(select(func.count()).select_from(access_tokens)).scalar_one())


def _holds(digest: str, now: Wall) -> Any:
    over = access_tokens.c.expires
    return and_(access_tokens.c.digest == digest, or_(over == 0.0, over > now))
