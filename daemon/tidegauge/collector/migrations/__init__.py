"""The database's schema, step by step, by Alembic: each step is a module in `versions`."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from tidegauge.errors import TidegaugeError

#: The schema of databases that were made before there were migrations; their table `schema_version` says 1.
FIRST = "0001"
#: Of the lock under which one of several starting processes migrates a PostgreSQL database; any constant.
_LOCK = 0x7469_6465


def upgrade(connection: Connection, where: str) -> tuple[str, str]:
    """Bring the database to the present schema, inside the open transaction: all of it or nothing.

    Returns the revision that was found, "" in a new database, and the present one.
    Raises TidegaugeError where a newer program has made it.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
    config = configuration(connection)
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    found = MigrationContext.configure(connection).get_current_heads()
    old = not found and inspect(connection).has_table("schema_version")
    version = connection.execute(text("SELECT version FROM schema_version")).scalar() if old else 1
    if not set(found) <= known or version != 1:
        raise TidegaugeError(
            f"the database {where} has the schema of a newer version of Tidegauge ({', '.join(found) or 'unknown'})",
            "run the version that wrote it, or give another database",
        )
    if old:
        command.stamp(config, FIRST)
    command.upgrade(config, "head")
    return FIRST if old else ", ".join(found), str(scripts.get_current_head())


def configuration(connection: Connection) -> Config:
    """Alembic's configuration, without a file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
