"""A private PostgreSQL cluster and an S3 double, on a Unix socket and on loopback, gone when the tests end."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from obstore.store import S3Store

from needs import missing

_START = 60.0
_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


def postgresql_programs() -> Path | None:
    """The folder of initdb and postgres, of the newest release that Debian has installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    if found:
        return found[-1].parent
    there = shutil.which("initdb")
    return Path(there).parent if there else None


def required() -> None:
    """Skip where there is no PostgreSQL; in CI that is a failure."""
    if postgresql_programs() is None:
        missing("PostgreSQL is not installed")


@dataclass
class Cluster:
    """A running PostgreSQL. `database` makes a new, empty one and returns its URL."""

    folder: Path
    process: subprocess.Popen[bytes]
    user: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def url(self, name: str) -> str:
        return f"postgresql://{self.user}@/{name}?host={self.folder}&port=5432"

    def database(self) -> str:
        name = f"t{next(self.numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)


@contextlib.contextmanager
def postgresql() -> Iterator[Cluster]:
    """A cluster in a folder of its own, by the user postgres where we are root: initdb refuses root."""
    programs = postgresql_programs()
    assert programs is not None
    # Not below pytest's folder, which only its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="tidegauge-pg-"))
    as_root = os.geteuid() == 0
    user = "postgres" if as_root else pwd.getpwuid(os.geteuid()).pw_name
    prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if as_root else []
    if as_root:
        shutil.chown(folder, "postgres")
    try:
        data = folder / "data"
        initdb = [
            *prefix,
            str(programs / "initdb"),
            "-D",
            str(data),
            "-A",
            "trust",
            "--no-sync",
            "-U",
            user,
            "-E",
            "UTF8",
        ]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, timeout=_START)
        settings = {
            "listen_addresses": "",
            "fsync": "off",
            "max_connections": "200",
            "unix_socket_directories": str(folder),
        }
        command = [*prefix, str(programs / "postgres"), "-D", str(data), "-p", "5432"]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        cluster = Cluster(folder, process, user)
        try:
            _until_ready(cluster)
            yield cluster
        finally:
            process.send_signal(signal.SIGINT)  # "fast": connections are cut
            process.wait(_START)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _until_ready(cluster: Cluster) -> None:
    deadline = time.monotonic() + _START
    while True:
        try:
            psycopg.connect(cluster.url("postgres")).close()
        except psycopg.OperationalError as error:
            assert cluster.process.poll() is None and time.monotonic() < deadline, (cluster.folder / "log").read_text()
            if "starting up" not in str(error) and "No such file" not in str(error) and "refused" not in str(error):
                raise
            time.sleep(0.05)
        else:
            return


@dataclass
class S3:
    """A running double of S3. `bucket` makes a new, empty one; `environment` is what a client process needs."""

    endpoint: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def environment(self) -> dict[str, str]:
        return dict(_KEYS)

    def bucket(self) -> str:
        name = f"bucket-{next(self.numbers)}"
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT"), timeout=30).close()
        return name

    def store(self, bucket: str) -> S3Store:
        return S3Store(
            bucket,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id="test",
            secret_access_key="test",
            client_options={"allow_http": True},
        )


@contextlib.contextmanager
def s3() -> Iterator[S3]:
    """moto's server, which holds everything in memory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).parent / "moto_server"
    process = subprocess.Popen(
        [str(program), "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + _START
    try:
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None and time.monotonic() < deadline, "moto_server does not start"
            time.sleep(0.05)
        yield S3(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(30)
