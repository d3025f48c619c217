"""`make bench-scale` in small: ten boards on a collector of several processes, each role of which is killed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bench_scale import Fleet, bundles_of, figures_of, trial
from integration import database_servers
from integration.collector_peer import needs_mosquitto
from unit.compare.lab import build

BOARDS, HOURS, BUNDLES = 10, 6, 3
KILLS = ["ingest-0", "compare-0", "broker"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_mosquitto
def test_no_kill_loses_or_doubles_anything_of_a_fleet(tmp_path: Path) -> None:
    database_servers.required()
    lab = build(tmp_path / "lab", "enhancer")
    place = tmp_path / "fleet"
    place.mkdir()
    with database_servers.postgresql() as cluster, database_servers.s3() as s3:
        fleet = Fleet(place, cluster, s3, lab.artifacts.parent, {"ingest": 2, "compare": 2})
        found = trial(fleet, BOARDS, HOURS, bundles_of(lab, place, BOARDS, BUNDLES), KILLS, pause=1.0)
        culprits = fleet.ask("SELECT culprit, culprit_cause, exit_code FROM bundles ORDER BY bundle")
    assert found.killed == KILLS
    bounded = [figure for figure in figures_of(found, HOURS, len(KILLS)) if figure.goal is not None]
    assert len(bounded) == 5 and all(figure.value == 0 for figure in bounded), bounded
    # One bundle in two is of a faulty run.
    assert [row[2] for row in culprits] == [1, 0, 1] and {row[:2] for row in culprits} == {
        ("/dec/c3/Relu_output_0", "gain"),
        ("", ""),
    }
