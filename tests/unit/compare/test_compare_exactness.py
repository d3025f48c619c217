"""What a run's own layers tell of its arithmetic, and what healthy runs do."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.compare.exactness import Subject, by_kind, exact, kind_of, unlike, unseen, usual
from tidegauge.compare.oracle import TIERS

NONE = (0.0,) * len(TIERS)


def shares(values: dict[float, float]) -> tuple[float, ...]:
    """The share beyond each tier, from shares of codes that lie so far off."""
    return tuple(sum(share for far, share in values.items() if far > tier) for tier in TIERS)


def conv(name: str, beyond: tuple[float, ...] = NONE, count: int = 10_000, bits: int = 8) -> Subject:
    return Subject(name, beyond, count, bits, ("Conv", "Relu"))


EXACT = [conv(f"c{n}") for n in range(6)]


def wrong(subject: Subject, subjects: list[Subject]) -> bool:
    allowed = exact([*subjects, subject]).get(subject.name)
    return allowed is not None and unlike(subject, allowed) > 0


def test_one_code_in_a_thousand_stands_out_of_a_run_that_is_exact() -> None:
    assert wrong(conv("x", shares({0.4: 1e-3})), EXACT)
    assert wrong(conv("x", shares({0.004: 1e-3})), EXACT)  # a shift by a few thousandths of a code
    assert not wrong(conv("x"), EXACT)
    assert not wrong(conv("x", shares({0.4: 1e-4})), EXACT)  # a tie, now and then
    assert wrong(conv("small", shares({0.4: 0.1}), count=10), EXACT)


def test_kernels_with_multipliers_of_their_own_are_not_faults() -> None:
    approximate = [conv(f"c{n}", shares({0.003: 2e-3 * (n + 1)})) for n in range(6)]
    assert not wrong(conv("x", shares({0.006: 8e-3})), approximate)
    assert wrong(conv("x", shares({0.5: 8e-3})), approximate)


def test_a_kind_of_layer_that_approximates_is_left_to_the_default_limits() -> None:
    def total(name: str, beyond: tuple[float, ...]) -> Subject:
        return Subject(name, beyond, 10_000, 8, ("Add",))

    coarse = [total(f"a{n}", shares({0.1: 0.1})) for n in range(3)]
    assert exact([*EXACT, *coarse]).keys() == {s.name for s in EXACT}
    # A fault in one of two does not make the other's arithmetic doubtful: it moves values wherever they lie.
    faulty = total("a0", shares({0.8: 0.05, 0.2: 0.05}))
    assert {"a0", "a1"} <= exact([*EXACT, faulty, total("a1", shares({0.8: 0.01}))]).keys()


def test_a_run_of_another_arithmetic_judges_only_what_moves() -> None:
    others = [conv(f"c{n}", shares({0.1: 0.1})) for n in range(6)]
    move = Subject("flat", NONE, 100, 8, ("Flatten",))
    assert exact([*others, move]).keys() == {"flat"}
    assert wrong(Subject("flat", shares({0.6: 0.01}), 100, 8, ("Flatten",)), others)


def test_sixteen_bits_allow_what_sums_in_float32_leave() -> None:
    wide = conv("x", shares({0.0015: 3e-3}), bits=16)
    assert not wrong(wide, EXACT) and wrong(conv("x", shares({0.0015: 3e-3})), EXACT)
    assert wrong(conv("x", shares({0.6: 1e-3}), bits=16), EXACT)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 0.3), st.integers(10, 100_000), st.integers(0, 2**32 - 1))
def test_what_healthy_runs_show_is_healthy_again(share: float, count: int, seed: int) -> None:
    """Counts drawn from the share that a baseline holds are no fault; ten times as many, where that is visible, are."""
    random = np.random.default_rng(seed)
    healthy = shares({0.3: share})
    learnt = {"c": tuple(random.binomial(count, share) / count if s else 0.0 for s in healthy)}
    learnt["c"] = tuple(max(pair) for pair in zip(learnt["c"], healthy, strict=True))
    kinds = by_kind([conv("c", count=count)], learnt)
    allowed = usual(conv("c", count=count), learnt, kinds)
    assert allowed is not None
    drawn = random.binomial(count, share) / count
    assert unlike(conv("c", shares({0.3: drawn}), count), allowed) == 0.0
    if share * count >= 10 and share <= 0.09:
        assert unlike(conv("c", shares({0.3: 10 * share}), count), allowed) > 0


def test_a_small_layer_may_do_what_its_kind_does() -> None:
    subjects = [conv("large"), conv("small", count=10)]
    learnt = {"large": shares({0.3: 0.1}), "small": NONE}
    allowed = usual(subjects[1], learnt, by_kind(subjects, learnt))
    assert allowed is not None and unlike(conv("small", shares({0.3: 0.1}), 10), allowed) == 0.0
    assert usual(conv("unknown"), learnt, {}) is None


def test_kinds() -> None:
    assert kind_of(("Conv", "Relu")) == kind_of(("ConvTranspose",)) == "convolution"
    assert kind_of(("Identity", "Add")) == "sum" and kind_of(("Relu",)) == kind_of(("Reshape",)) == "move"
    assert kind_of(("HardSigmoid",)) == "HardSigmoid"


def test_few_healthy_runs_may_miss_one_code_but_not_a_whole_code_off() -> None:
    near, far = conv("x", shares({0.3: 0.1}), 10), conv("x", shares({0.7: 0.1}), 10)
    assert unseen(6) == 1.0 and unseen(40) == 0.0
    assert unlike(near, NONE, unseen(6)) == 0.0 and unlike(near, NONE, unseen(40)) > 0
    assert unlike(far, NONE, unseen(6)) > 0
    assert unlike(conv("x", shares({0.3: 0.2}), 10), NONE, unseen(6)) > 0
