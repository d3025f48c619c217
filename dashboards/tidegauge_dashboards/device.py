"""One board: what its alarm rests on, and what was going on at the time."""

from __future__ import annotations

from tidegauge_dashboards.panels import (
    ALARM_WORDS,
    BAD,
    DEVICE,
    GREEN,
    PROBLEM_WORDS,
    RARE,
    RED,
    Board,
    Column,
    Panel,
    Query,
    Row,
    collector_page,
    own,
    quantile,
    rare,
    rate,
)
from tidegauge_dashboards.recording import ALARM, CAMERA, DETECTOR, EVIDENCE, HEARD, LINK, LOSS, SPOOL

SCRAPED = " Only where Prometheus scrapes the board itself."
#: A state among several of which one holds.
YES_WORDS = {"0": (" ", "transparent"), "1": ("yes", "blue")}
_FIRST = "until the first observation after acceptance"


def _now() -> Row:
    alarms = Query(f"max by (cause) ({ALARM}{{{DEVICE}}})", "{{cause}}")
    latched = Query(f"{DETECTOR}{{{DEVICE}}} == 1", quiet="while nothing is latched")
    versions = Query(
        f"max by (model, version, virtual) (tidegauge_device_version_info{{{DEVICE}}})",
        quiet="without a collector",
    )
    page = collector_page("#devices")
    return Row(
        "Now",
        (
            Panel(
                "Alarm",
                "Whether an alarm is latched, of any cause.",
                "none",
                (Query(f"max({ALARM}{{{DEVICE}}})"),),
                "stat",
                4,
                4,
                words=ALARM_WORDS,
                links=page,
            ),
            Panel(
                "Last loss",
                "Loss of the newest shadow sample: 0 is full agreement.",
                "percentunit",
                (Query(f"max({LOSS}{{{DEVICE}}})"),),
                "stat",
                4,
                4,
            ),
            Panel(
                "Evidence",
                "The largest, as a share of what raises an alarm.",
                "percentunit",
                (Query(f"max({EVIDENCE}{{{DEVICE}}})", quiet=_FIRST),),
                "stat",
                4,
                4,
                BAD,
            ),
            Panel(
                "Camera",
                "Whether the camera has a problem.",
                "none",
                (Query(f"max({CAMERA}{{{DEVICE}}})"),),
                "stat",
                4,
                4,
                words=PROBLEM_WORDS,
            ),
            Panel(
                "Acceptance",
                "Progress of the acceptance; at 100 % the reference is frozen." + SCRAPED,
                "percentunit",
                (Query(f"max({own('tidegauge_acceptance_progress_ratio')})"),),
                "stat",
                4,
                4,
            ),
            Panel(
                "Heard",
                "Time since the collector heard of the board.",
                "s",
                (Query(f"max({HEARD}{{{DEVICE}}})", quiet="without a collector"),),
                "stat",
                4,
                4,
            ),
            Panel(
                "Alarms by cause",
                "Latched until a person clears them.",
                "none",
                (alarms,),
                "states",
                12,
                7,
                words=ALARM_WORDS,
                links=page,
            ),
            Panel(
                "Latched detectors",
                "Detectors that have raised an alarm, with the verdict. accelerator_… and not_offloaded: it does "
                "not work; the others: its answers are wrong.",
                "none",
                (latched,),
                "table",
                6,
                7,
                columns={"detector": Column("Detector"), "cause": Column("Cause"), "model": Column("Model")},
                hidden=("device", "Value"),
            ),
            Panel(
                "Runs",
                "What the board runs, by its last status.",
                "none",
                (versions,),
                "table",
                6,
                7,
                columns={"model": Column("Model"), "version": Column("Agent"), "virtual": Column("Virtual board")},
                hidden=("Value",),
            ),
        ),
    )


def _drift() -> Row:
    mismatches = Query(
        f"sum by (side, result) ({own('increase(tidegauge_known_answer_checks_total[$__rate_interval])')})",
        "{{side}} {{result}}",
    )
    samples = Query(f"sum by (result) ({own(rate('tidegauge_shadow_samples_total'))}) * 60", "{{result}}")
    return Row(
        "Drift",
        (
            Panel(
                "Evidence against its limit",
                "Share of what raises the alarm, by detector. It grows while the loss is above what was accepted.",
                "percentunit",
                (Query(f"{EVIDENCE}{{{DEVICE}}}", "{{detector}}", _FIRST),),
                steps=((None, GREEN), (1.0, RED)),
                least=0,
                links=collector_page("#bundles"),
            ),
            Panel(
                "Distance from acceptance",
                "Mean loss of the last day less the one that was accepted: ends of its 90 % interval. All above 0: "
                "worse than accepted. Never an alarm by itself; nothing while too few losses are known." + SCRAPED,
                "percentunit",
                (Query(own("tidegauge_drift_loss_distance_ratio"), "{{bound}} end"),),
            ),
            Panel(
                "Loss of the newest shadow sample",
                "How wrong the accelerator's answer was for the product, 0 to 1.",
                "percentunit",
                (Query(f"{LOSS}{{{DEVICE}}}", "{{model}}"),),
                least=0,
                most=1,
            ),
            Panel(
                "Loss",
                "Median and upper tail of the losses." + SCRAPED,
                "percentunit",
                (
                    Query(quantile(0.5, "tidegauge_shadow_disagreement_ratio"), "median"),
                    Query(quantile(0.95, "tidegauge_shadow_disagreement_ratio"), "95 %"),
                ),
                least=0,
                interval=RARE,
            ),
            Panel(
                "Tensor error",
                "Normalised mean squared error of the watched output, median and upper tail." + SCRAPED,
                "sci",
                (
                    Query(quantile(0.5, "tidegauge_shadow_nmse_ratio"), "median"),
                    Query(quantile(0.95, "tidegauge_shadow_nmse_ratio"), "95 %"),
                ),
                interval=RARE,
            ),
            Panel(
                "Known answers",
                "The same input must give the same bits. A mismatch of the device is a fault of the accelerator, one "
                "of the reference a fault of the CPU." + SCRAPED,
                "none",
                (mismatches,),
                least=0,
                interval=RARE,
            ),
            Panel(
                "Shadow samples",
                "A minute, by result. Skipped ones kept to the CPU budget." + SCRAPED,
                "none",
                (samples,),
                least=0,
            ),
            Panel(
                "Saturation",
                "Share of each output's elements at an end of its quantised range." + SCRAPED,
                "percentunit",
                (Query(own("tidegauge_saturated_elements_ratio"), "{{tensor}} {{end}}"),),
                least=0,
            ),
            Panel(
                "Samples held out",
                "Measured pairs that feed no detector, in the interval, by reason." + SCRAPED,
                "none",
                (Query(f"sum by (reason) ({own(rare('tidegauge_shadow_held_out_total'))})", "{{reason}}"),),
                interval=RARE,
                least=0,
            ),
            Panel(
                "Light",
                "The light context of the present frames: each has a reference of its own." + SCRAPED,
                "none",
                (Query(f"max by (context) ({own('tidegauge_light_context')})", "{{context}}"),),
                "states",
                words=YES_WORDS,
                width=16,
            ),
            Panel(
                "CPU time of a shadow sample",
                "Median and upper tail." + SCRAPED,
                "s",
                (
                    Query(quantile(0.5, "tidegauge_shadow_duration_seconds"), "median"),
                    Query(quantile(0.95, "tidegauge_shadow_duration_seconds"), "95 %"),
                ),
                least=0,
                interval=RARE,
            ),
        ),
    )


def _running() -> Row:
    problem = Query(f"max by (problem) ({own('tidegauge_camera_problem')})", "{{problem}}")
    restarts = Query(
        f"sum by (reason) ({own('increase(tidegauge_accelerator_restarts_total[$__rate_interval])')})", "{{reason}}"
    )
    workers = Query(
        f"sum by (worker) ({own('increase(tidegauge_worker_restarts_total[$__rate_interval])')})", "{{worker}}"
    )
    return Row(
        "Camera and accelerator",
        (
            Panel(
                "Camera",
                "Problems of the camera, by kind." + SCRAPED,
                "none",
                (problem,),
                "states",
                words=PROBLEM_WORDS,
            ),
            Panel(
                "Frames",
                "Delivered by the camera, run by the accelerator, and dropped, a second." + SCRAPED,
                "hertz",
                (
                    Query(f"sum({own(rate('tidegauge_frames_total'))})", "camera"),
                    Query(f"sum({own(rate('tidegauge_inferences_total'))})", "accelerator"),
                    Query(f"sum by (reason) ({own(rate('tidegauge_frames_dropped_total'))})", "dropped: {{reason}}"),
                ),
                least=0,
            ),
            Panel(
                "Time of a device run",
                "Median and upper tail." + SCRAPED,
                "s",
                (
                    Query(quantile(0.5, "tidegauge_inference_duration_seconds"), "median"),
                    Query(quantile(0.99, "tidegauge_inference_duration_seconds"), "99 %"),
                ),
                least=0,
            ),
            Panel(
                "Restarts of the accelerator's process",
                "By reason; captures restart it in order." + SCRAPED,
                "none",
                (restarts,),
                least=0,
                interval=RARE,
            ),
            Panel(
                "Restarts of other workers",
                "Camera and reference." + SCRAPED,
                "none",
                (workers,),
                least=0,
                interval=RARE,
            ),
            Panel(
                "Ends of workers",
                "That came out of turn, in the interval, by the fault that TIDL's logs name." + SCRAPED,
                "none",
                (Query(f"sum by (cause) ({own(rare('tidegauge_worker_ends_total'))})", "{{cause}}"),),
                interval=RARE,
                least=0,
            ),
            Panel(
                "Faults in the remote log",
                "Lines that name a fault, in the interval; only of the agent's own remote-log server." + SCRAPED,
                "none",
                (Query(f"sum by (fault) ({own(rare('tidegauge_remote_log_faults_total'))})", "{{fault}}"),),
                interval=RARE,
                least=0,
            ),
            Panel(
                "Restarts of the core",
                "Of the C7x through remoteproc, in the interval, by result." + SCRAPED,
                "none",
                (Query(f"sum by (result) ({own(rare('tidegauge_core_restarts_total'))})", "{{result}}"),),
                interval=RARE,
                least=0,
            ),
            Panel(
                "State of the agent",
                "What the pipeline is at." + SCRAPED,
                "none",
                (Query(f"max by (state) ({own('tidegauge_agent_state')})", "{{state}}"),),
                "states",
                words=YES_WORDS,
            ),
        ),
    )


def _evidence() -> Row:
    results = Query(f"sum by (result) ({own('increase(tidegauge_captures_total[$__rate_interval])')})", "{{result}}")
    return Row(
        "Evidence and link",
        (
            Panel(
                "Captures",
                "Of all layers, by result." + SCRAPED,
                "none",
                (results,),
                least=0,
                links=collector_page("#bundles"),
                interval=RARE,
                width=6,
            ),
            Panel(
                "State folder",
                "Whether the board can write what must survive a reboot." + SCRAPED,
                "none",
                (Query(own("tidegauge_state_unwritable"), "{{device}}"),),
                "states",
                words=PROBLEM_WORDS,
                width=6,
            ),
            Panel(
                "Spool",
                "Share of the spool that is taken.",
                "percentunit",
                (Query(f"{SPOOL}{{{DEVICE}}}", "{{device}}"),),
                least=0,
                most=1,
                steps=((None, GREEN), (0.8, RED)),
                width=6,
            ),
            Panel(
                "Link",
                "Whether the board is connected to its broker.",
                "none",
                (Query(f"{LINK}{{{DEVICE}}}", "{{device}}"),),
                "states",
                words={"0": ("down", RED), "1": ("up", GREEN)},
                width=6,
            ),
        ),
    )


def board() -> Board:
    text = "One board: what its alarm rests on, and what was going on at the time."
    return Board("tidegauge-device", "Tidegauge / Board", text, (_now(), _drift(), _running(), _evidence()), "one")
