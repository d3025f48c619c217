"""What acceptance has collected is there after a restart, if it still belongs to what runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.agent.disk import Disk
from tidegauge.agent.samples import Belongs, Journal, Sample
from tidegauge.detectors.camera import FrameLook

BELONGS = Belongs("a" * 64, "b" * 64, {"device runtime": "onnx_tidl"})
LOOK = FrameLook(200.0, 0.0, 31.5, (1.0, 2.0))
SAMPLES = [
    Sample(0.01 * i, None if i % 2 else 1e-5, ("band",), "day", True, {"luma": 40.0 + i}, LOOK) for i in range(6)
]


def written(folder: Path) -> Journal:
    journal = Journal(folder, Disk(folder))
    journal.start(BELONGS)
    for sample in SAMPLES:
        journal.add(sample)
    return journal


def test_samples_come_back_whole_and_in_order(tmp_path: Path) -> None:
    written(tmp_path)
    assert Journal(tmp_path, Disk(tmp_path)).load(BELONGS) == SAMPLES
    Journal(tmp_path, Disk(tmp_path)).add(SAMPLES[0])
    assert len(Journal(tmp_path, Disk(tmp_path)).load(BELONGS)) == len(SAMPLES) + 1


def test_no_journal_is_no_samples(tmp_path: Path) -> None:
    assert Journal(tmp_path, Disk(tmp_path)).load(BELONGS) == []
    Journal(tmp_path, Disk(tmp_path)).remove()


@pytest.mark.parametrize(
    "other",
    [
        Belongs("c" * 64, BELONGS.model, BELONGS.runtime),
        Belongs(BELONGS.artifacts, "c" * 64, BELONGS.runtime),
        Belongs(BELONGS.artifacts, BELONGS.model, {"device runtime": "onnx_tidl", "board edgeai_sdk": "11.2"}),
    ],
)
def test_samples_of_other_artifacts_model_or_runtime_are_not_taken(
    tmp_path: Path, other: Belongs, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path)
    assert Journal(tmp_path, Disk(tmp_path)).load(other) == []
    assert "acceptance starts again" in caplog.text


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 10_000))
def test_a_power_cut_costs_the_last_sample_at_most(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = written(folder)
    data = journal.path.read_bytes()
    cut = min(cut, len(data))
    journal.path.write_bytes(data[:cut])
    whole = data[:cut].count(b"\n") - 1
    assert journal.load(BELONGS) == SAMPLES[: max(0, whole)]
    if whole >= 0:  # what was torn is gone, so the next sample is not glued to it
        journal.add(SAMPLES[5])
        assert journal.load(BELONGS) == [*SAMPLES[:whole], SAMPLES[5]]


def test_damage_in_the_middle_is_told_and_nothing_after_it_is_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = written(tmp_path)
    lines = journal.path.read_bytes().split(b"\n")
    lines[3] = lines[3][:-5] + b"?????"
    journal.path.write_bytes(b"\n".join(lines))
    assert journal.load(BELONGS) == SAMPLES[:2]
    assert "damaged after 2 samples" in caplog.text
