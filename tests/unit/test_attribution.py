"""Each row of the table: what was observed, and who is at fault."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.attribution import (
    HARMLESS,
    MIXED,
    RECALIBRATE,
    REPLAYS,
    UNFELT,
    UNREACHED,
    UNSTEADY,
    WITHIN,
    Bin,
    Decomposition,
    Observables,
    Verdict,
    attribute,
    decompose,
    judge_replay,
    resolve,
)

ANY = (False, True)


def seen(**changes: bool | None) -> Observables:
    values: dict[str, bool | None] = {"golden_device": True, "golden_reference": True, "paired": False} | changes
    return Observables(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("rest", list(product(ANY, ANY, ANY, ANY)))
def test_a_wrong_known_answer_of_the_device_is_the_accelerator(rest: tuple[bool, ...]) -> None:
    paired, drift, saturation, camera = rest
    verdict = attribute(
        seen(golden_device=False, paired=paired, input_drift=drift, saturation=saturation, camera_ok=camera)
    )
    assert (verdict.fault, verdict.severity) == ("accelerator", "critical")


@pytest.mark.parametrize("rest", list(product(ANY, ANY, ANY, ANY)))
def test_a_wrong_known_answer_of_the_reference_is_the_reference(rest: tuple[bool, ...]) -> None:
    paired, drift, saturation, camera = rest
    for device in (True, None):
        verdict = attribute(
            seen(
                golden_device=device,
                golden_reference=False,
                paired=paired,
                input_drift=drift,
                saturation=saturation,
                camera_ok=camera,
            )
        )
        assert (verdict.fault, verdict.severity) == ("reference", "critical")
        assert "suspended" in verdict.sentence


@pytest.mark.parametrize(
    ("paired", "drift", "saturation", "fault", "severity", "words"),
    [
        (True, False, False, "accelerator", "critical", "golden inputs do not reach"),
        (True, False, True, "accelerator", "critical", "golden inputs do not reach"),
        (True, True, True, "data", "warning", "recalibrate"),
        (True, True, False, "undecided", "critical", "can't be told apart"),
        (False, True, False, "data", "warning", "agree"),
        (False, True, True, "data", "warning", "agree"),
        (False, False, False, "undecided", "none", "Nothing"),
    ],
)
def test_with_right_known_answers_statistics_decide(
    paired: bool, drift: bool, saturation: bool, fault: str, severity: str, words: str
) -> None:
    verdict = attribute(seen(paired=paired, input_drift=drift, saturation=saturation))
    assert (verdict.fault, verdict.severity) == (fault, severity)
    assert words in verdict.sentence


@pytest.mark.parametrize(("paired", "drift"), list(product(ANY, ANY)))
def test_a_camera_fault_silences_the_statistics(paired: bool, drift: bool) -> None:
    verdict = attribute(seen(paired=paired, input_drift=drift, camera_ok=False))
    assert (verdict.fault, verdict.severity) == ("camera", "warning")


def test_a_broken_invariant_is_the_accelerator_whatever_the_camera_shows() -> None:
    for camera in ANY:
        verdict = attribute(seen(invariant=True, camera_ok=camera))
        assert (verdict.fault, verdict.severity) == ("accelerator", "critical")


def test_both_known_answers_wrong_accuse_neither_side() -> None:
    verdict = attribute(seen(golden_device=False, golden_reference=False, paired=True))
    assert (verdict.fault, verdict.severity) == ("undecided", "critical")


@pytest.mark.parametrize(("device", "reference"), [(None, None), (True, None), (None, True)])
def test_a_paired_alarm_without_known_answers_stays_open(device: bool | None, reference: bool | None) -> None:
    verdict = attribute(seen(golden_device=device, golden_reference=reference, paired=True))
    assert (verdict.fault, verdict.severity) == ("undecided", "critical")
    assert "known answer" in verdict.sentence


def test_every_combination_has_a_verdict_in_words() -> None:
    for device, reference in product((True, False, None), repeat=2):
        for rest in product(ANY, repeat=5):
            verdict = attribute(Observables(device, reference, *rest))
            assert verdict.sentence.endswith(".")


def test_what_was_never_accepted_is_not_said_to_have_been() -> None:
    from_start = attribute(Observables(golden_device=False, golden_reference=True, paired=True, accepted=False))
    later = attribute(Observables(golden_device=False, golden_reference=True, paired=True))
    assert (from_start.fault, later.fault) == ("accelerator", "accelerator")
    assert "accepted answer" not in from_start.sentence
    assert "first frame" in from_start.sentence
    assert "accepted answer" in later.sentence


def test_more_night_is_input_mix_and_not_the_device() -> None:
    accepted = {"day": Bin(900, 0.02), "night": Bin(100, 0.20)}
    found = decompose(accepted, {"day": Bin(50, 0.02), "night": Bin(50, 0.20)})
    assert found.device == pytest.approx(0)
    assert found.input_mix == pytest.approx(0.4 * 0.20 - 0.4 * 0.02)
    assert found.unknown_share == 0


def test_a_device_that_is_worse_in_every_light_is_the_device() -> None:
    accepted = {"day": Bin(900, 0.02), "night": Bin(100, 0.20)}
    found = decompose(accepted, {"day": Bin(90, 0.12), "night": Bin(10, 0.30)})
    assert (found.input_mix, found.device) == (pytest.approx(0), pytest.approx(0.1))


def test_what_acceptance_never_saw_accuses_nobody() -> None:
    found = decompose({"day": Bin(900, 0.02)}, {"day": Bin(75, 0.02), "snow": Bin(25, 0.4)})
    assert found.device == pytest.approx(0)
    assert (found.unknown, found.unknown_share) == (pytest.approx(0.1), 0.25)
    with pytest.raises(ValueError, match="no samples"):
        decompose({"day": Bin(0, 0.0)}, {"day": Bin(1, 0.0)})


some_bins = st.dictionaries(
    st.sampled_from("abcd"), st.builds(Bin, st.integers(1, 100), st.floats(0, 1)), min_size=1, max_size=4
)


@settings(max_examples=50, deadline=None)
@given(some_bins, some_bins)
def test_the_terms_add_up_to_the_change(accepted: dict[str, Bin], now: dict[str, Bin]) -> None:
    means = [
        sum(b.samples * b.loss for b in part.values()) / sum(b.samples for b in part.values())
        for part in (accepted, now)
    ]
    assert decompose(accepted, now).total == pytest.approx(means[1] - means[0], abs=1e-9)


@pytest.mark.parametrize(
    ("verdict", "rise", "errors_only", "repeats", "expected"),
    [
        (MIXED, 0.0, True, True, HARMLESS),
        (MIXED, 0.019, True, None, HARMLESS),
        (MIXED, 0.05, True, True, MIXED),
        (MIXED, 0.0, False, True, MIXED),
        (UNREACHED, 0.0, True, True, UNFELT),
        (UNREACHED, 0.019, True, None, UNFELT),
        (UNREACHED, 0.05, True, True, WITHIN),
        (UNREACHED, 0.0, False, True, UNREACHED),
        (UNREACHED, 0.0, True, False, UNSTEADY),
        (RECALIBRATE, 0.0, True, True, RECALIBRATE),
        (MIXED, 0.0, True, False, UNSTEADY),
    ],
    ids=[
        "agrees",
        "within the tolerance",
        "loss has risen",
        "loss alarms",
        "same inputs, agrees",
        "same inputs, within the tolerance",
        "same inputs, loss has risen",
        "same inputs, loss alarms",
        "same inputs, unsteady",
        "saturated",
        "unsteady",
    ],
)
def test_larger_tensor_errors_accuse_nobody_while_answers_agree(
    verdict: Verdict, rise: float, errors_only: bool, repeats: bool | None, expected: Verdict
) -> None:
    found = Decomposition(0.0, rise, 0.0, 0.0)
    assert resolve(verdict, found, repeats=repeats, errors_only=errors_only) == expected
    assert resolve(MIXED, None, errors_only=True) == MIXED, "nothing is known of the loss"


@pytest.mark.parametrize(
    ("again", "emulator", "near_float", "expected"),
    [
        (["a", "a", "b"], "a", True, "not_reproducible"),
        (["b", "b", "b"], "b", False, "not_reproducible"),
        (["a", "a", "a"], "c", False, "artifacts_or_silicon"),
        (["a", "a", "a"], "a", False, "quantisation"),
        (["a", "a", "a"], "a", True, "as_float"),
        (["a"], None, False, "undecided"),
    ],
)
def test_running_it_again_tells_where_to_look(
    again: list[str], emulator: str | None, near_float: bool, expected: str
) -> None:
    found = judge_replay("a", again, emulator, near_float)
    assert found == expected
    assert REPLAYS[found]


def test_nothing_run_again_decides_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        judge_replay("a", [], None, True)
