"""Board, broker and collector are killed in turn while bundles are on their way: all arrives, whole, and once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from needs import program
from tidegauge.evaluation import chaos

ROUNDS = 6


@pytest.mark.slow
@pytest.mark.timeout(900)  # the trial has bounds of its own, and says what stood still
def test_all_that_was_promised_arrives_once_through_kills_of_all_three(tmp_path: Path) -> None:
    program("mosquitto", "mosquitto")
    folder = tmp_path / "trial"
    report = chaos.evaluate(ROUNDS, 1, folder)
    assert not report.missed
    found = {figure.name: figure.value for figure in report.figures}
    assert found["bundles promised"] >= ROUNDS
    assert found["bundles at the collector"] >= found["bundles promised"]

    # And the audit sees what it is there to see.
    site = chaos.Site(folder)
    clean = site.audit()
    blob = max((folder / "collector" / "blobs").rglob("*"), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[100] ^= 1
    blob.write_bytes(data)
    assert site.audit().corrupt == 1
    with closing(sqlite3.connect(folder / "collector" / "collector.sqlite")) as database, database:
        database.execute("DELETE FROM bundle_blobs WHERE bundle = (SELECT min(bundle) FROM bundles)")
        database.execute("DELETE FROM bundles WHERE bundle = (SELECT min(bundle) FROM bundles)")
        database.execute("DELETE FROM records WHERE kind = 'history'")
    damaged = site.audit()
    assert (clean.lost, clean.records_lost) == (0, 0)
    assert (damaged.lost, damaged.records_lost) == (1, damaged.records)
