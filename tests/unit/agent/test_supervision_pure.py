"""The ladder, slow runs, last words, complete traces, quiet hours: all pure or on small files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.agent import last_words
from tidegauge.agent.completeness import judge, predicted_bytes
from tidegauge.agent.config import SupervisionConfig
from tidegauge.agent.ladder import GiveUp, Ladder, Retry
from tidegauge.agent.last_words import LastWords
from tidegauge.agent.latency import WINDOW, SlowWatch
from tidegauge.agent.limits import in_quiet_hours
from tidegauge.clocks import Monotonic
from tidegauge.exitcodes import MEANINGS, ExitCode
from tidegauge.metrics import REFUSALS, RESTART_REASONS
from tidegauge.tidl.log_causes import LogCause
from tidegauge.tidl.tensor_table import TensorInfo

NOW = Monotonic(1000.0)
CONFIG = SupervisionConfig(failed_creates=3, restarts_per_day=10, create_first=5.0, restart_first=0.2)


class TestLadder:
    def test_after_a_hang_one_generation_that_must_prove_itself(self) -> None:
        ladder = Ladder(CONFIG)
        ladder.proven(NOW)
        assert ladder.ended(True, NOW, 1) == Retry(0.2)
        assert ladder.suspect
        found = ladder.ended(True, NOW, 2)
        assert isinstance(found, GiveUp)
        assert "hung" in found.sentence

    def test_a_proven_generation_clears_the_suspicion(self) -> None:
        ladder = Ladder(CONFIG)
        ladder.hung()
        ladder.proven(NOW)
        assert not ladder.suspect
        assert isinstance(ladder.ended(True, NOW, 1), Retry)

    def test_any_end_of_the_one_generation_after_a_hang_gives_up(self) -> None:
        ladder = Ladder(CONFIG)
        ladder.hung()
        assert isinstance(ladder.ended(False, NOW, 1), GiveUp)

    def test_failed_creates_are_few_with_growing_pauses(self) -> None:
        ladder = Ladder(CONFIG)
        assert [ladder.ended(False, NOW, n) for n in (1, 2)] == [Retry(5.0), Retry(10.0)]
        found = ladder.ended(False, NOW, 3)
        assert isinstance(found, GiveUp)
        assert "3 tries" in found.sentence

    def test_a_completed_run_forgets_failed_creates(self) -> None:
        ladder = Ladder(CONFIG)
        for n in range(1, 8):
            assert isinstance(ladder.ended(False, NOW, n), Retry)
            ladder.proven(NOW)
            assert isinstance(ladder.ended(False, NOW, n), Retry)
            ladder.proven(NOW)
            ladder.paused()

    def test_the_bound_a_day(self) -> None:
        ladder = Ladder(CONFIG)
        ladder.proven(NOW)
        found = ladder.ended(False, NOW, 10)
        assert isinstance(found, GiveUp)
        assert "supervision.restarts_per_day" in found.sentence

    def test_the_core_is_restarted_once_until_a_run_is_completed(self) -> None:
        ladder = Ladder(CONFIG)
        ladder.hung()
        first = ladder.ended(True, NOW, 1)
        assert isinstance(first, GiveUp) and first.core
        ladder.core_restarted()
        assert ladder.suspect
        second = ladder.ended(True, NOW, 2)
        assert isinstance(second, GiveUp) and not second.core
        assert "its core was restarted" in second.sentence
        ladder.proven(NOW)
        ladder.paused()
        ladder.hung()
        third = ladder.ended(True, NOW, 3)
        assert isinstance(third, GiveUp) and third.core

    def test_no_restart_of_the_core_where_the_cpu_ran_the_model_or_the_day_is_over(self) -> None:
        ladder = Ladder(CONFIG)
        found = [ladder.ended(False, NOW, n, offloaded=False) for n in (1, 2, 3)][-1]
        assert isinstance(found, GiveUp) and not found.core
        ladder.forgive()
        ladder.proven(NOW)
        bound = ladder.ended(False, NOW, 10)
        assert isinstance(bound, GiveUp) and not bound.core

    def test_a_person_starts_it_anew(self) -> None:
        ladder = Ladder(CONFIG)
        ladder.hung()
        ladder.ended(False, NOW, 1)
        ladder.forgive()
        assert ladder.ended(False, NOW, 1) == Retry(5.0)

    @given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
    @settings(max_examples=60, deadline=None)
    def test_never_two_unproven_generations_after_a_hang_and_never_more_creates_than_told(
        self, story: list[tuple[bool, bool]]
    ) -> None:
        """`story`: for each generation, whether it completed a run, and whether a hang ended it."""
        ladder, suspect, failed = Ladder(CONFIG), False, 0
        for proven, hung in story:
            if proven:
                ladder.proven(NOW)
            found = ladder.ended(hung, NOW, 1)
            failed = 0 if proven else failed + 1
            must_stop = (suspect and not proven) or failed >= CONFIG.failed_creates
            assert isinstance(found, GiveUp) == must_stop
            suspect = hung or (suspect and not proven)
            if must_stop:
                return


class TestSlow:
    def test_medians_are_compared_not_single_runs(self) -> None:
        watch = SlowWatch(8.0, None)
        for number in range(WINDOW):
            assert watch.update(0.5 if number % 3 == 0 else 0.01) is None
        assert watch.reference == 0.01
        assert [watch.update(0.075) for _ in range(WINDOW)][-1] is None, "7.5 times"
        assert [watch.update(0.085) for _ in range(WINDOW)][-1] == 0.085

    def test_a_stored_reference_is_taken_up(self) -> None:
        watch = SlowWatch(8.0, 0.01)
        assert [watch.update(0.5) for _ in range(WINDOW)][-1] == 0.5


class TestLastWords:
    def test_only_what_is_new_and_only_the_last_layer(self, tmp_path: Path) -> None:
        log = tmp_path / "pipeline.log"
        log.write_text("[C7x_1 ] 1.000000 s: Processing Layer # -    9\n")
        follower = last_words.Follower((log, tmp_path / "nowhere"))
        assert last_words.last_words(follower.heard(), {}) == LastWords()
        with log.open("a") as file:
            file.write(
                "[C7x_1 ] 2.000000 s: Processing Layer # -    1\n[C7x_1 ] Processing Layer # -   17\nEnd of Layer\n"
            )
        words = last_words.last_words(follower.heard(), {17: "/conv"})
        assert words.layer == 17
        assert words.sentence == "the last layer it began was 17 (`/conv`)"

    def test_a_log_that_was_replaced_is_all_new(self, tmp_path: Path) -> None:
        log = tmp_path / "remote.log"
        log.write_text("x" * 1000)
        follower = last_words.Follower((log,))
        log.write_text("Processing Layer # -    4\n")
        assert last_words.last_words(follower.heard(), {}).layer == 4

    def test_the_line_that_says_most_names_the_fault(self) -> None:
        worker = (
            "VX_ZONE_ERROR: [ownContextSendCmd:1001] Command ack message returned failure cmd_status: -1\n"
            "VX_ZONE_ERROR: [ownNodeKernelInit:704] Target kernel, TIVX_CMD_NODE_CREATE failed for node TIDLNode\n"
        )
        remote = "[C7x_1 ] 12.000000 s:  VX_ZONE_ERROR:[x:1108] Network version - 0x20250821, Expected version - 0x1\n"
        assert last_words.last_words([worker], {}).cause == "create_failed"
        words = last_words.last_words([worker, remote], {})
        assert words.cause == "network_version"
        assert words.cure == LogCause.NETWORK_VERSION.cure
        assert "Network version - 0x20250821" in words.line
        assert words.sentence.startswith("TIDL says network_version (`")

    def test_what_ends_no_worker_is_not_its_cause(self) -> None:
        assert last_words.last_words(["Invalid Layer Name  /conv1\n"], {}) == LastWords()

    @given(st.lists(st.text(max_size=400), max_size=3))
    @settings(max_examples=60, deadline=None)
    def test_any_text_is_a_log(self, texts: list[str]) -> None:
        last_words.last_words(texts, {})

    def test_names_come_from_the_compile_where_it_was_copied_along(self, tmp_path: Path) -> None:
        assert last_words.names(tmp_path) == {}
        (tmp_path / "tempDir").mkdir()
        path = tmp_path / "tempDir" / "subgraph_0_tidl_net.bin.layer_info.txt"
        path.write_text("0 0 input \n1 1 input_netFormat \n2 2 /conv1/Relu_output_0 \n")
        assert last_words.names(tmp_path)[2] == "/conv1/Relu_output_0"
        path.write_text("not a table\n")
        assert last_words.names(tmp_path) == {}


def trace(data_id: int, suffix: str = ".y") -> str:
    return f"C7x_1_tidl_trace_subgraph_0_{data_id:04d}_0001_0001_00001_00003_00008x00004{suffix}"


class TestCompleteness:
    def test_sizes_of_one_two_and_four_bytes_are_whole(self) -> None:
        files = {trace(1): 96, trace(2): 192, trace(3): 384, trace(4, "_float.bin"): 384}
        assert judge(files, {}, (), None).whole

    @pytest.mark.parametrize(("size", "dtype"), [(95, None), (0, None), (96, "int16"), (193, "uint8")])
    def test_a_cut_trace_is_told_by_its_size(self, size: int, dtype: str | None) -> None:
        found = judge({trace(1): size}, {1: dtype} if dtype else {}, (), None)
        assert found.truncated == (trace(1),)
        assert found.counts()["traces_truncated"] == 1.0

    def test_a_float_trace_of_half_its_size_is_cut(self) -> None:
        assert judge({trace(1, "_float.bin"): 192}, {}, (), None).truncated

    def test_what_was_printed_without_a_file_is_missing(self) -> None:
        assert judge({trace(1): 96}, {}, (1, 7), None).missing == ("data id 7",)

    def test_against_an_earlier_capture(self) -> None:
        found = judge({trace(1): 96, trace(3): 96}, {}, (), {trace(1): 192, trace(2): 96})
        assert (found.missing, found.unexpected, found.truncated) == ((trace(2),), (trace(3),), (trace(1),))

    def test_bytes_from_the_compiles_table(self) -> None:
        def info(dtype: str | None, dims: tuple[int, ...] | None = (1, 1, 1, 3, 4, 8)) -> TensorInfo:
            return TensorInfo(1, "x", None, dims, dtype, 1.0, 0, None, None, "svg")

        table = (info("uint8"), info("int16"), info("float32"))
        assert predicted_bytes(table, 3) == 96 + 192 + 384
        assert predicted_bytes(table, 4) == 96 + 192 + 384 + 2 * 384
        assert predicted_bytes((*table, info(None)), 3) is None, "no size is made up"
        assert predicted_bytes((), 3) is None


@pytest.mark.parametrize(
    ("span", "minute", "quiet"),
    [
        ("", 0, False),
        ("22:00-06:00", 21 * 60 + 59, False),
        ("22:00-06:00", 22 * 60, True),
        ("22:00-06:00", 5 * 60 + 59, True),
        ("22:00-06:00", 6 * 60, False),
        ("08:30-09:00", 8 * 60 + 30, True),
        ("08:30-09:00", 9 * 60, False),
    ],
)
def test_quiet_hours(span: str, minute: int, quiet: bool) -> None:
    assert in_quiet_hours(span, minute) is quiet


def test_every_exit_code_has_its_meaning_and_every_reason_one_label() -> None:
    assert set(MEANINGS) == set(ExitCode)
    assert len(set(RESTART_REASONS)) == len(RESTART_REASONS)
    assert len(set(REFUSALS)) == len(REFUSALS)
