"""Acceptance freezes a healthy pair's reference, and never lets a wrong board become its own."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest

from tidegauge.detectors.acceptance import (
    Acceptance,
    AcceptanceRules,
    AcceptanceState,
    Accepted,
    Rejected,
    difference,
    kind_limit,
    samples_to_name,
    worse_than,
)
from tidegauge.detectors.betting import BettingDetector
from tidegauge.detectors.blocks import BlockMean
from tidegauge.detectors.exceedance import exceeds


def run(
    losses: np.ndarray | list[float],
    rules: AcceptanceRules,
    nmses: list[float | None] | None = None,
    symptoms: dict[int, set[str]] | None = None,
) -> tuple[Accepted | Rejected | None, int]:
    """The outcome, and after how many samples."""
    acceptance = Acceptance(rules)
    for index, loss in enumerate(losses):
        nmse = nmses[index] if nmses is not None else 1e-4 * (1 + index % 10)
        outcome = acceptance.update(float(loss), nmse, (symptoms or {}).get(index, set()))
        if outcome is not None:
            return outcome, index + 1
    return None, len(losses)


def accepted(losses: np.ndarray | list[float], rules: AcceptanceRules) -> Accepted:
    outcome, _ = run(losses, rules)
    assert isinstance(outcome, Accepted), outcome
    return outcome


RULES = AcceptanceRules(samples=200)


def test_a_healthy_pair_is_accepted_after_its_samples() -> None:
    losses = np.random.default_rng(1).beta(0.4, 40, 500)
    outcome, samples = run(losses, AcceptanceRules())
    assert isinstance(outcome, Accepted)
    assert samples == outcome.samples == 500
    assert outcome.lower95 <= outcome.mean <= outcome.upper95
    assert outcome.mean == pytest.approx(losses.mean())
    assert outcome.m0 == pytest.approx(max(outcome.upper95 + 0.02, 0.03))
    assert outcome.block == 1
    assert outcome.alpha == pytest.approx(1.9e-6, rel=0.01)  # one false alarm a year at one sample a minute


def test_a_perfect_pair_gets_the_least_limit() -> None:
    assert accepted([0.0] * 500, AcceptanceRules()).m0 == 0.03
    assert accepted([0.0] * 200, AcceptanceRules(samples=200, minimum=0.1)).m0 == 0.1


def test_the_accepted_reference_gives_no_alarm_on_the_same_pair() -> None:
    losses = np.random.default_rng(4).beta(0.4, 10, 3000)
    reference = accepted(losses[:500], AcceptanceRules())
    detector = BettingDetector("loss", reference.m0, reference.alpha)
    assert all(detector.update(float(loss)) is None for loss in losses[500:])
    assert any(detector.update(0.5) for _ in range(20))


def test_blocks_follow_the_correlation_time() -> None:
    rng, loss, losses = np.random.default_rng(5), 0.0, []
    for _ in range(600):
        loss = loss if rng.random() < 0.8 else rng.beta(0.5, 20)
        losses.append(loss)
    outcome = accepted(losses, AcceptanceRules(samples=600))
    assert outcome.block >= 10 * outcome.correlation_time > 30
    assert outcome.alpha == pytest.approx(1.9e-6 * outcome.block, rel=0.01)
    fixed = accepted(losses, AcceptanceRules(samples=600, block=4, alpha=1e-5))
    assert (fixed.block, fixed.alpha) == (4, 1e-5)


def test_the_block_is_long_enough_for_sticky_tensor_errors_too() -> None:
    """The losses are independent; scenes of ten samples differ in their tensor errors."""
    rng = np.random.default_rng(6)
    losses = rng.beta(0.4, 40, 600)
    nmses: list[float | None] = np.repeat(1e-4 * np.exp(rng.standard_normal(60)), 10).tolist()
    outcome, _ = run(losses, AcceptanceRules(samples=600), nmses)
    assert isinstance(outcome, Accepted)
    assert outcome.correlation_time < 1
    assert outcome.block >= 50


@pytest.mark.parametrize(("block", "kept"), [(0, True), (1, False)])
def test_healthy_boards_with_sticky_scenes_keep_the_promise(block: int, kept: bool) -> None:
    """The whole chain, with the block, limit and α of each board's own acceptance; single samples would break it.

    At most one false alarm a year is promised: 1.4 expected on twelve boards in six weeks, above 4 in 1 of 70 cases.
    """
    alarms = boards = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        count = 60_000  # six weeks at one sample a minute
        fresh = np.where(rng.random(count) < 0.9, -1, np.arange(count))
        losses = (rng.random(count) < 0.04).astype(float)[np.maximum(np.maximum.accumulate(fresh), 0)]
        outcome, used = run(losses[:2000], AcceptanceRules(block=block))
        if not isinstance(outcome, Accepted):
            continue  # an acceptance that fails by chance freezes nothing
        boards += 1
        detector, blocks = BettingDetector("loss", outcome.m0, outcome.alpha), BlockMean(outcome.block)
        means = [mean for loss in losses[used:] if (mean := blocks.add(float(loss))) is not None]
        alarms += sum(detector.update(mean) is not None for mean in means) > 0
    assert boards >= 9
    assert (alarms <= 4) == kept


def test_few_samples_go_on_until_the_limit_can_be_met() -> None:
    outcome, samples = run([0.0] * 100, AcceptanceRules(samples=16))
    assert isinstance(outcome, Accepted)
    assert 20 <= samples <= 40


def test_a_persisting_symptom_ends_it_early() -> None:
    outcome, samples = run([0.0] * 200, RULES, symptoms={index: {"band"} for index in range(10, 200)})
    assert isinstance(outcome, Rejected)
    assert samples == 15
    assert "band" in outcome.reason
    assert outcome.evidence["samples_with_band"] == 5


def test_a_passing_symptom_does_not() -> None:
    outcome, _ = run([0.0] * 200, RULES, symptoms={3: {"band"}, 50: {"band", "offset"}, 51: {"band"}, 99: {"offset"}})
    assert isinstance(outcome, Accepted)


def test_a_frequent_symptom_fails_in_the_end() -> None:
    outcome, samples = run([0.0] * 200, RULES, symptoms={index: {"offset"} for index in range(0, 200, 8)})
    assert isinstance(outcome, Rejected)
    assert samples == 200
    assert "offset" in outcome.reason


def test_a_loss_above_the_limit_fails() -> None:
    outcome, samples = run([0.14] * 500, RULES)
    assert isinstance(outcome, Rejected)
    assert 0.13 * 200 / 0.14 <= samples <= 200
    assert outcome.evidence["mean_loss"] == pytest.approx(0.14)
    assert "0.15" in outcome.reason


def test_certain_failure_ends_it_early() -> None:
    outcome, samples = run([1.0] * 500, AcceptanceRules())
    assert isinstance(outcome, Rejected)
    assert samples == 66  # 66 losses of 1 are a mean above 0.13 even if 434 of 0 followed


def test_what_could_still_pass_is_not_ended_early() -> None:
    outcome, samples = run([1.0] * 20 + [0.0] * 1980, AcceptanceRules())
    assert isinstance(outcome, Accepted)
    assert 500 < samples < 2000  # a burst is one event: it takes more samples than 500 to bound the mean


def test_wrong_golden_tensor_ends_it() -> None:
    acceptance = Acceptance(AcceptanceRules(golden_max_loss=0.05))
    assert acceptance.golden(0, 0.05) is None
    rejected = acceptance.golden(2, 0.051)
    assert rejected is not None
    assert "golden tensor 2" in rejected.reason
    assert Acceptance(AcceptanceRules()).golden(0, 0.15) is None
    assert Acceptance(AcceptanceRules()).golden(0, 0.2) is not None


def test_tensor_errors_give_the_second_reference() -> None:
    nmses: list[float | None] = [1e-4 * (index % 100) for index in range(500)]
    outcome, _ = run([0.0] * 500, AcceptanceRules(), nmses)
    assert isinstance(outcome, Accepted)
    above = sum(exceeds(nmse, outcome.nmse_quantile) for nmse in nmses) / 500
    assert above == pytest.approx(0.05, abs=0.011)
    assert above < outcome.exceedance_m0 < 0.16


def test_undefined_tensor_errors_are_counted_not_invented() -> None:
    nmses: list[float | None] = [None if index % 4 == 0 else 1e-3 for index in range(500)]
    outcome, _ = run([0.0] * 500, AcceptanceRules(), nmses)
    assert isinstance(outcome, Accepted)
    assert outcome.nmse_quantile == 1e-3
    assert 0.25 < outcome.exceedance_m0 < 0.4
    outcome, _ = run([0.0] * 500, AcceptanceRules(), [None] * 500)
    assert isinstance(outcome, Accepted)
    assert outcome.exceedance_m0 == 1  # such a stream can't raise an alarm sooner than promised
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=Accepted) == outcome


def test_a_restart_in_the_middle_changes_nothing() -> None:
    losses = np.random.default_rng(7).beta(0.4, 30, 200)
    straight, first, second = (Acceptance(RULES) for _ in range(3))
    seen = {5: {"band"}, 98: {"band"}, 99: {"band"}, 100: {"band"}}
    outcome = None
    for index, loss in enumerate(losses):
        outcome = straight.update(float(loss), 1e-3, seen.get(index, ()))
        if index < 100:
            first.update(float(loss), 1e-3, seen.get(index, ()))
    second.restore(msgspec.json.decode(msgspec.json.encode(first.state()), type=AcceptanceState))
    assert second.progress == 0.5
    resumed = [second.update(float(losses[i]), 1e-3, seen.get(i, ())) for i in range(100, 200)][-1]
    assert resumed == outcome
    assert second.state() == straight.state()


def test_impossible_samples_and_rules() -> None:
    with pytest.raises(ValueError, match="loss"):
        Acceptance(RULES).update(float("nan"), None, ())
    with pytest.raises(ValueError, match="NMSE"):
        Acceptance(RULES).update(0.1, float("nan"), ())
    with pytest.raises(ValueError, match="needs"):
        Acceptance(AcceptanceRules(samples=3))


def test_a_new_acceptance_is_compared_with_the_last() -> None:
    rng = np.random.default_rng(8)
    good = accepted(rng.beta(0.4, 40, 500), AcceptanceRules())
    same = accepted(rng.beta(0.4, 40, 500), AcceptanceRules())
    worse = accepted(rng.beta(2, 30, 500), AcceptanceRules())
    assert worse_than(good, same) is None
    assert worse_than(worse, good) is None
    alarm = worse_than(good, worse)
    assert alarm is not None
    assert alarm.evidence["mean_loss"] == worse.mean


def test_errors_of_two_acceptances_add_up_as_squares() -> None:
    before = Accepted(0.05, 0.02, 0.016, 0.023, 1e-4, 0.15, 1.0, 4, 0.001, 100, 1.0)
    after = Accepted(0.1, 0.06, 0.056, 0.072, 1e-4, 0.15, 1.0, 4, 0.001, 100, 1.0)
    found = difference(before, after)
    assert (found.mean, found.low) == (pytest.approx(0.04), pytest.approx(0.035))
    assert found.high == pytest.approx(0.04 + (0.012**2 + 0.004**2) ** 0.5)
    back = difference(after, before)
    assert (back.low, back.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_an_acceptance_tells_how_long_it_takes_to_name_a_cost() -> None:
    """Losses of 0 and 1, the hardest of their mean: named nineteen times in twenty, and hardly ever without a cost."""
    rng = np.random.default_rng(3)

    def learned(mean: float, count: int) -> Accepted:
        acceptance = Acceptance(AcceptanceRules(samples=count, independent=0, max_loss=1.0))
        losses = (rng.random(count) < mean).astype(float).tolist()
        acceptance.restore(AcceptanceState(tuple(losses[:-1]), (1e-4,) * (count - 1), {}, {}))
        outcome = acceptance.update(losses[-1], 1e-4, ())
        assert isinstance(outcome, Accepted)
        return outcome

    count = samples_to_name(learned(0.05, 1440), 0.05)
    assert 1440 < count < 4000
    assert samples_to_name(learned(0.05, 1440), 0.2) == 1440, "no fewer than it has"
    before = [learned(0.05, count) for _ in range(20)]
    assert sum(worse_than(old, learned(0.1, count)) is not None for old in before) >= 19
    assert not any(worse_than(old, new) for old, new in pairwise(before))
    with pytest.raises(ValueError, match="cost"):
        samples_to_name(before[0], 0.0)


def test_a_kind_of_input_has_a_limit_of_its_own_samples() -> None:
    rng = np.random.default_rng(4)
    rules = AcceptanceRules(samples=400)
    whole = accepted(rng.beta(0.4, 4, 400), rules)
    easy, hard = rng.beta(0.4, 40, 300).tolist(), rng.beta(2, 8, 300).tolist()
    assert kind_limit(rules, whole, easy) < whole.m0 < kind_limit(rules, whole, hard)
    assert kind_limit(rules, whole, easy[:10]) > 2 * kind_limit(rules, whole, easy), "few samples prove little"
    assert kind_limit(rules, whole, [0.0] * 3000) == rules.minimum


def scenes(count: int, length: int, hard: int) -> tuple[list[float], list[float | None]]:
    """`count` scenes of `length` samples each; in every `hard`-th the loss is 1. Each has a tensor error of its own."""
    rng = np.random.default_rng(8)
    errors = 1e-4 * np.exp(rng.normal(0, 1, count))
    losses = [float(hard > 0 and scene % hard == hard - 1) for scene in range(count) for _ in range(length)]
    return losses, [float(error) for error in errors for _ in range(length)]


def test_acceptance_goes_on_where_scenes_stay() -> None:
    """Thirty scenes are few, however many samples they give: a hard one may not have come yet."""
    quick = AcceptanceRules(samples=600, independent=0)
    losses, nmses = scenes(120, 20, hard=0)
    hasty, after_hasty = run(losses, quick, nmses)
    patient, after = run(losses, AcceptanceRules(samples=600), nmses)
    assert isinstance(hasty, Accepted) and isinstance(patient, Accepted)
    assert after_hasty == 600
    assert 60 * 15 <= after <= 4 * 600
    losses, nmses = scenes(2400, 1, hard=0)
    assert run(losses, AcceptanceRules(samples=600), nmses)[1] == 600  # independent samples need no more


def test_the_limit_leaves_room_for_a_hard_scene_that_has_not_come() -> None:
    """No loss at all among a few dozen scenes does not prove a mean below 1 %."""
    for length, least, most in ((1, 0.0, 0.035), (20, 0.045, 0.07)):
        losses, nmses = scenes(2400 // length, length, hard=0)
        outcome, _ = run(losses, AcceptanceRules(samples=1440), nmses)
        assert isinstance(outcome, Accepted)
        assert least <= outcome.m0 <= most
