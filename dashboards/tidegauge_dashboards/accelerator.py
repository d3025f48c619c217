"""Accelerator health over boards: speed, restarts, saturation, disagreement."""

from __future__ import annotations

from tidegauge_dashboards.device import SCRAPED
from tidegauge_dashboards.panels import (
    DEVICE,
    GREEN,
    RARE,
    RED,
    Board,
    Column,
    Panel,
    Query,
    Row,
    device_page,
    own,
    quantile,
    rate,
)
from tidegauge_dashboards.recording import DETECTOR, SATURATION


def _heat(histogram: str) -> Query:
    return Query(f"sum by (le) ({own(f'increase({histogram}_bucket[$__rate_interval])')})", "{{le}}")


def _speed() -> Row:
    return Row(
        "Speed",
        (
            Panel(
                "Device runs",
                "A second, by board." + SCRAPED,
                "hertz",
                (Query(f"sum by (device) ({own(rate('tidegauge_inferences_total'))})", "{{device}}"),),
                least=0,
                links=device_page(),
            ),
            Panel(
                "Time of a device run, 99 %",
                "By board." + SCRAPED,
                "s",
                (Query(quantile(0.99, "tidegauge_inference_duration_seconds"), "{{device}}"),),
                least=0,
                links=device_page(),
            ),
            Panel(
                "Times of device runs",
                "All chosen boards together." + SCRAPED,
                "s",
                (_heat("tidegauge_inference_duration_seconds"),),
                "heat",
            ),
        ),
    )


def _faults() -> Row:
    restarted = own('increase(tidegauge_accelerator_restarts_total{reason!="capture"}[$__rate_interval])')
    restarts = Query(f"sum by (device, reason) ({restarted})", "{{device}} {{reason}}")
    failed = Query(f"sum by (device) ({own(rate('tidegauge_inference_errors_total'))})", "{{device}}")
    latched = Query(
        f'{DETECTOR}{{{DEVICE},detector=~"accelerator_.+|not_offloaded"}} == 1',
        quiet="while supervision has latched nothing",
    )
    identity = own("tidegauge_artifact_info")
    state = {"0": ("ok", GREEN), "1": ("yes", RED)}
    return Row(
        "Faults",
        (
            Panel(
                "Restarts",
                "Of the accelerator's process, by reason, without captures. Each leaks memory of the accelerator."
                + SCRAPED,
                "none",
                (restarts,),
                least=0,
                links=device_page(),
                interval=RARE,
            ),
            Panel("Failed device runs", "A second." + SCRAPED, "hertz", (failed,), least=0, links=device_page()),
            Panel(
                "Given up or suspect",
                "Suspect: from a hang until a new process has completed a run. Given up: nothing is sent to it."
                + SCRAPED,
                "none",
                (
                    Query(own("tidegauge_accelerator_down"), "{{device}} given up"),
                    Query(own("tidegauge_accelerator_suspect"), "{{device}} suspect"),
                ),
                "states",
                words=state,
            ),
            Panel(
                "Latched by supervision",
                "Boards whose accelerator hung, crashed, got slow, was given up, or did not run the model.",
                "none",
                (latched,),
                "table",
                12,
                columns={"device": Column("Board"), "detector": Column("What"), "model": Column("Model")},
                hidden=("Value", "cause"),
            ),
            Panel(
                "What runs",
                "Artifacts (first digits of their SHA-256) and runtimes, by board." + SCRAPED,
                "none",
                (Query(f"max by (device, model, artifact_sha256_12, runtime, reference) ({identity})"),),
                "table",
                12,
                columns={
                    "device": Column("Board"),
                    "model": Column("Model"),
                    "artifact_sha256_12": Column("Artifacts"),
                    "runtime": Column("Runtime"),
                    "reference": Column("Reference"),
                },
                hidden=("Value",),
            ),
        ),
    )


def _agreement() -> Row:
    differ = own('increase(tidegauge_known_answer_checks_total{result="mismatch"}[$__rate_interval])')
    mismatch = Query(f"sum by (device, side) ({differ})", "{{device}} {{side}}")
    return Row(
        "Agreement with the reference",
        (
            Panel(
                "Losses",
                "Of shadow samples, all chosen boards together." + SCRAPED,
                "percentunit",
                (_heat("tidegauge_shadow_disagreement_ratio"),),
                "heat",
                interval=RARE,
            ),
            Panel(
                "Tensor errors",
                "Normalised mean squared error of the watched output." + SCRAPED,
                "sci",
                (_heat("tidegauge_shadow_nmse_ratio"),),
                "heat",
                interval=RARE,
            ),
            Panel(
                "Known answers that differ",
                "On the device: the accelerator is at fault; on the reference: the CPU." + SCRAPED,
                "none",
                (mismatch,),
                least=0,
                links=device_page(),
                interval=RARE,
            ),
            Panel(
                "Saturation",
                "Largest share of an output's elements at an end of its range.",
                "percentunit",
                (Query(f"{SATURATION}{{{DEVICE}}}", "{{device}}"),),
                least=0,
                links=device_page(),
            ),
            Panel(
                "Acceptance",
                "Progress; at 100 % the reference is frozen." + SCRAPED,
                "percentunit",
                (Query(own("tidegauge_acceptance_progress_ratio"), "{{device}}"),),
                least=0,
                most=1,
                links=device_page(),
            ),
            Panel(
                "Acceptance failed",
                "Nothing was frozen: the board was wrong from the start." + SCRAPED,
                "none",
                (Query(own("tidegauge_acceptance_failed"), "{{device}}"),),
                "states",
                words={"0": ("no", GREEN), "1": ("failed", RED)},
            ),
        ),
    )


def board() -> Board:
    text = "Speed, faults and agreement of the accelerators of the chosen boards."
    return Board("tidegauge-accelerator", "Tidegauge / Accelerators", text, (_speed(), _faults(), _agreement()), "many")
