"""The simulations give the product's own alarms, on streams that are what they claim to be; mutations are noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tidegauge.detectors.betting import BettingDetector
from tidegauge.detectors.blocks import BlockMean
from tidegauge.detectors.defaults import GROWTH
from tidegauge.detectors.stickiness import Stickiness
from tidegauge.evaluation import run_length
from tidegauge.evaluation.run_length import CALM, run_lengths
from tidegauge.evaluation.streams import Bernoulli, Beta, Floats, Sticky, Stream, makers

MEAN = 0.05


class Recorded(Stream):
    """Stored streams, handed out in chunks."""

    def __init__(self, data: Floats) -> None:
        super().__init__(data.shape[1], np.random.default_rng(0))
        self.data, self.at = data, 0

    def take(self, samples: int) -> Floats:
        part = self.data[self.at : self.at + samples]
        self.at += samples
        return np.concatenate([part, np.zeros((samples - len(part), self.count))])

    def keep(self, kept: Any) -> None:
        super().keep(kept)
        self.data = self.data[:, kept]


def product_run(losses: Floats, block: int, m0: float, alpha: float, longest: int) -> int:
    detector, blocks = BettingDetector("loss", m0, alpha), BlockMean(block)
    for loss in losses.tolist():
        mean = blocks.add(loss)
        if mean is not None and detector.update(mean) is not None:
            return detector.observations
        if detector.observations == longest:
            break
    return longest


@pytest.mark.parametrize("chunk", [1, 333, 100_000])
def test_the_simulation_gives_the_alarms_of_the_product(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(run_length, "CHUNK", chunk * 12)
    rng = np.random.default_rng(3)
    data = rng.beta(0.5, 4, (1500, 12))
    blocks = np.array([1, 2, 3, 5, 7, 10, 1, 1, 20, 50, 4, 1])
    m0 = rng.uniform(0.04, 0.12, 12)
    found = run_lengths(Recorded(data), blocks, m0, 1e-3, 25)
    expected = [product_run(data[:, i], int(blocks[i]), float(m0[i]), 1e-3, 25) for i in range(12)]
    assert found.tolist() == expected
    assert 3 < sum(run < 25 for run in expected) < 12


@pytest.mark.parametrize("kind", makers(MEAN))
def test_each_kind_has_its_mean_and_goes_on_where_it_stopped(kind: str) -> None:
    stream = makers(MEAN)[kind][1](400, np.random.default_rng(4))
    data = np.concatenate([stream.take(n) for n in (1, 2, 500, 501)])
    assert data.shape == (1004, 400)
    assert data.min() >= 0 and data.max() <= 1
    assert data.mean() == pytest.approx(MEAN, rel=0.1)
    assert data[0].mean() == pytest.approx(MEAN, rel=0.6)  # stationary from the first sample
    stream.keep(np.arange(400) < 10)
    assert stream.take(3).shape == (3, 10)


@pytest.mark.parametrize(("kind", "lag_one"), [("AR(0.9)", 0.88), ("sticky scenes, 0 or 1", 0.9), ("beta", 0.0)])
def test_dependence_is_what_the_name_says(kind: str, lag_one: float) -> None:
    stream = makers(MEAN)[kind][1](300, np.random.default_rng(5))
    data = np.concatenate([stream.take(500), stream.take(500)]) - MEAN
    assert np.mean(data[1:] * data[:-1]) / np.mean(data**2) == pytest.approx(lag_one, abs=0.06)
    # Also across the seam of two chunks.
    assert np.corrcoef(data[500], data[499])[0, 1] == pytest.approx(lag_one, abs=0.25)


def mean_run(make: Any, block: int, alpha: float = 0.01, streams: int = 400, m0: float = MEAN) -> float:
    """Mean run length in units of 1/α, cut at 4."""
    stream = make(streams, np.random.default_rng(6))
    blocks = np.full(streams, block)
    return float(run_lengths(stream, blocks, np.full(streams, m0), alpha, round(4 / alpha)).mean() * alpha)


def sticky(count: int, rng: np.random.Generator) -> Stream:
    return Sticky(0.9, lambda k: Bernoulli(MEAN, k, rng).take(1)[0], count, rng)


def test_independent_streams_keep_the_promise_at_the_limit() -> None:
    assert mean_run(lambda n, rng: Bernoulli(MEAN, n, rng), 1) >= 1
    assert mean_run(lambda n, rng: Beta(MEAN, n, rng), 1) >= 1


def test_run_lengths_scale_with_alpha() -> None:
    """In units of 1/α the mean stays above 1, and does not run away: a detector that never alarms is none."""
    for alpha in (1 / 50, 1 / 200):
        assert 1 <= mean_run(lambda n, rng: Beta(MEAN, n, rng), 1, alpha, 1500) <= 2


def test_too_short_a_block_breaks_the_promise() -> None:
    """Ten correlation times of 18 samples keep it, three samples do not."""
    assert mean_run(sticky, 180, 1e-3, 100) >= 0.8
    assert mean_run(sticky, 3, 1e-3, 100) < 0.5


def test_a_bet_above_the_limit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stake of more than 1/m0 makes evidence negative: no longer a bet, and run lengths are no longer bounded."""
    monkeypatch.setattr("tidegauge.detectors.betting.LARGEST_BET", 1.5)
    detector = BettingDetector("loss", MEAN, 0.01)
    with pytest.raises(ValueError, match="domain"):
        detector.update(0.0)


def growing_run(losses: Floats, block: int, m0: float, alpha: float, longest: int) -> int:
    """As the agent: blocks grow where `Stickiness` says so, while the evidence is calm; in times of the first block."""
    detector, blocks, sticky_means = BettingDetector("loss", m0, alpha), BlockMean(block), Stickiness()
    for number, loss in enumerate(losses.tolist(), 1):
        mean = blocks.add(loss)
        if mean is None:
            continue
        if detector.update(mean) is not None or number // block >= longest:
            return min(number // block, longest)
        if sticky_means.update(mean, calm=detector.log_evidence < CALM * detector.log_limit):
            blocks.grow(GROWTH)
    return longest


@pytest.mark.parametrize("chunk", [700, 100_000])
def test_blocks_grow_as_on_the_board(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(run_length, "CHUNK", chunk * 10)
    rng = np.random.default_rng(7)
    data = Sticky(0.9, lambda k: rng.beta(0.5, 9.5, k), 10, rng).take(6000)
    blocks = np.array([1, 1, 2, 3, 5, 8, 10, 20, 40, 4])
    m0 = np.full(10, 0.07)
    fixed = run_lengths(Recorded(data), blocks, m0, 1e-3, 6000 // blocks)
    grown = run_lengths(Recorded(data), blocks, m0, 1e-3, 6000 // blocks, growing=True)
    expected = [growing_run(data[:, i], int(blocks[i]), 0.07, 1e-3, int(6000 // blocks[i])) for i in range(10)]
    assert grown.tolist() == expected
    assert grown.tolist() != fixed.tolist()
