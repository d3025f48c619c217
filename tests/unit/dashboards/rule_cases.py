"""What must fire when: each alert by each path, and what must not make it fire, or stop."""

from __future__ import annotations

from unit.dashboards import fleet_series as fs
from unit.dashboards.case import DEVICE, NOTHING, OF_MODEL, SILENT, Case, Fires, fires
from unit.dashboards.collector_cases import collector_cases, gone_cases
from unit.dashboards.fleet_series import Given, Heard, Target, between, board, collector, from_minute, gone, outside
from unit.dashboards.latched_cases import latched_cases


def drift_cases() -> list[Case]:
    drift = fires("AcceleratorDrift", {**OF_MODEL, "cause": "accelerator"})
    hung = fires("AcceleratorHung", {**OF_MODEL, "detector": "accelerator_hung", "cause": "accelerator"})
    both: dict[str, Given] = {
        fs.alarm("accelerator"): from_minute(30),
        fs.latched("accelerator_hung"): from_minute(30),
        fs.latched("loss"): from_minute(60),
    }
    taker = board({fs.alarm("accelerator"): 1.0}, device="cam-0", address="cam-1", alive=lambda t: 20 <= t < 30)
    drift_of_taker = fires("AcceleratorDrift", {"device": "cam-0", "model": "enhancer", "cause": "accelerator"})
    silent_both: Fires = {"TidegaugeDeviceSilent": [{"device": "cam-0"}, {"device": "cam-1"}]}
    new_model: dict[str, Given] = {
        name.replace("enhancer", "enhancer2"): 0.0 for name in (fs.alarm(cause) for cause in fs.CAUSES)
    }
    old_alarm: dict[str, Given] = {fs.alarm("accelerator"): lambda t: 1.0 if t < 60 else None}
    status_only: dict[str, Given] = {fs.copy_of(fs.alarm("accelerator")): from_minute(30)}
    undecided = {**OF_MODEL, "cause": "undecided"}
    errors_then_loss: dict[str, Given] = {
        fs.alarm("undecided"): from_minute(30),
        fs.latched("nmse", "undecided"): from_minute(30),
        fs.latched("loss", "undecided"): from_minute(60),
    }
    unnamed: dict[str, Given] = {fs.copy_of(fs.alarm("undecided")): from_minute(30)}
    return [
        Case(
            "tensor errors alone page nobody, a loss after them does",
            (board(errors_then_loss),),
            {29: NOTHING, 40: fires("TensorErrors", undecided), 70: fires("UndecidedDrift", undecided)},
        ),
        Case(
            "an undecided alarm of which no detector is known pages",
            (collector(Heard(unnamed)),),
            {29: NOTHING, 33: fires("UndecidedDrift", undecided)},
        ),
        Case("a hang is not drift, drift after it is", (board(both),), {40: hung, 70: drift | hung}),
        Case(
            "an alarm that only the status tells, its message lost",
            (collector(Heard(status_only)),),
            {29: NOTHING, 33: drift},
        ),
        Case(
            "two boards with the same fault are two alerts of one name",
            (board({fs.alarm("accelerator"): 1.0}), board({fs.alarm("accelerator"): 1.0}, device="cam-2")),
            {
                10: {
                    "TidegaugeAcceleratorDrift": [
                        {**OF_MODEL, "device": device, "cause": "accelerator"} for device in ("cam-1", "cam-2")
                    ]
                }
            },
        ),
        Case(
            "another board takes over an address, and goes offline with an alarm: it is the new one's",
            (board(alive=fs.until(20)), taker),
            {19: NOTHING, 25: drift_of_taker, 50: drift_of_taker | silent_both},
        ),
        Case(
            "a board whose scrape configuration names it, too",
            (
                Target(
                    'job="boards",instance="cam-1:9464",device="cam-1"',
                    {'tidegauge_device_info{exported_device="cam-1"}': 1.0, fs.alarm("accelerator"): from_minute(5)},
                ),
                collector(Heard({fs.copy_of(fs.alarm("accelerator")): from_minute(5)})),
            ),
            {4: NOTHING, 8: drift},
        ),
        Case(
            "a new model ends the alarm of the old one",
            (board(old_alarm | {k: (lambda t: 0.0 if t >= 60 else None) for k in new_model}),),
            {59: drift, 75: NOTHING},
        ),
    ]


def _window_cases() -> list[Case]:
    saturated = fires("Saturation", OF_MODEL)
    copied = fs.copy_of(f"tidegauge_saturated_elements_ratio{{{fs.MODEL}}}")
    stalled = fires("ShadowStalled", OF_MODEL)
    stops: dict[str, Given] = {fs.COMPARED: lambda t: float(min(t, 10))}
    camera = fires("CameraFault", DEVICE)
    return [
        Case(
            "Saturation: beyond all it was in the week before",
            (board({fs.SATURATED: from_minute(1500, 0.01, 0.4)}),),
            {1470: NOTHING, 1500: NOTHING, 1590: saturated, 2490: saturated},
            step=30,
        ),
        Case(
            "Saturation: from the collector's copy, and after the board has gone",
            (collector(Heard({copied: from_minute(1500, 0.01, 0.4)} | gone(1620))),),
            {1470: NOTHING, 1590: saturated, 1800: saturated | SILENT},
            step=30,
        ),
        Case(
            "Saturation: every night is no news",
            (board({fs.SATURATED: lambda t: 0.5 if (t // 720) % 2 else 0.01}),),
            {1020: NOTHING, 2520: NOTHING, 3990: NOTHING},
            step=30,
        ),
        Case(
            "CameraFault: by the gauge alone, flapping is one alert",
            (board({fs.CAMERA: lambda t: float(t >= 5 and t % 2 == 0)}),),
            {4: NOTHING, 8: camera, 9: camera, 10: camera, 35: camera},
        ),
        Case(
            "CameraFault: a blink is none",
            (board({fs.CAMERA: between(5, 6)}),),
            {5: NOTHING, 6: NOTHING, 35: NOTHING},
        ),
        Case(
            "CameraFault: the gauge, by the collector's copy",
            (collector(Heard({fs.copy_of("tidegauge_camera_problem"): from_minute(5)})),),
            {4: NOTHING, 8: camera},
        ),
        Case("ShadowStalled", (board(stops),), {10: NOTHING, 45: NOTHING, 60: stalled}),
        Case(
            "ShadowStalled: nothing runs, so nothing can be compared",
            (board(stops | {fs.RAN: lambda t: 600.0 * min(t, 10)}),),
            {60: NOTHING, 90: NOTHING},
        ),
        Case(
            "ShadowStalled: a board that goes offline has not stalled",
            (board(alive=fs.until(35)),),
            {41: NOTHING, 50: NOTHING, 60: SILENT, 64: SILENT, 70: SILENT},
        ),
        Case(
            "ShadowStalled: a reboot resets both counters",
            (board({fs.COMPARED: fs.rising(1, reset=35), fs.RAN: fs.rising(600, reset=35)}, alive=outside(32, 35)),),
            {31: NOTHING, 37: NOTHING, 50: NOTHING, 70: NOTHING},
        ),
    ]


def counter_cases() -> list[Case]:
    restarting = fires("AcceleratorRestarting", OF_MODEL)
    lost = fires("EvidenceDropped", DEVICE)
    refused = fires("LinkRefused", DEVICE)
    ignored = fires("AnswersDropped", DEVICE)
    exited = fs.restarts("exited")
    return [
        Case(
            "AcceleratorRestarting",
            (board({exited: from_minute(5, 0, 5)}),),
            {4: NOTHING, 10: restarting, 70: NOTHING},
        ),
        Case(
            "AcceleratorRestarting: captures restart it in order",
            (board({fs.restarts("capture"): fs.rising(1)}),),
            {25: NOTHING},
        ),
        Case(
            "AcceleratorRestarting: a reboot is not five restarts",
            (board({exited: lambda t: 5.0 if t < 35 else 0.0}, alive=outside(33, 35)),),
            {25: NOTHING, 37: NOTHING, 55: NOTHING},
        ),
        Case(
            "AcceleratorRestarting: stands after the board has gone, as long as the hour lasts",
            (board({exited: from_minute(5, 0, 5)}, alive=fs.until(15)),),
            {14: restarting, 25: restarting},
        ),
        Case("EvidenceDropped", (board({fs.dropped("evicted"): from_minute(5)}),), {4: NOTHING, 7: lost, 70: NOTHING}),
        Case(
            "EvidenceDropped: the counter is first seen at one",
            (board({fs.dropped("interrupted"): 1.0}, alive=lambda t: t >= 5),),
            {4: NOTHING, 6: lost, 70: NOTHING},
        ),
        Case(
            "EvidenceDropped: a reboot resets the counter",
            (board({fs.dropped("evicted"): lambda t: 3.0 if t < 175 else 0.0}, alive=outside(172, 175)),),
            {165: NOTHING, 178: NOTHING, 205: NOTHING},
        ),
        Case(
            "EvidenceDropped: stands after the board has gone",
            (board({fs.dropped("evicted"): from_minute(5)}, alive=fs.until(15)),),
            {14: lost, 25: lost, 45: lost | SILENT},
        ),
        Case(
            "LinkRefused: by the broker",
            (board({fs.REFUSED: from_minute(5)}),),
            {4: NOTHING, 7: refused, 40: NOTHING},
        ),
        Case(
            "LinkRefused: by the collector",
            (board({fs.TURNED_AWAY: from_minute(5)}),),
            {4: NOTHING, 7: refused, 75: refused},
        ),
        Case(
            "LinkRefused: a reboot resets the counters",
            (board({fs.REFUSED: lambda t: 9.0 if t < 75 else 0.0}, alive=outside(72, 75)),),
            {70: NOTHING, 78: NOTHING},
        ),
        Case(
            "AnswersDropped: for half an hour, and also when the board has gone",
            (board({fs.NOT_BELIEVED: from_minute(5, 0, 9)}, alive=fs.until(15)),),
            {4: NOTHING, 7: ignored, 25: ignored, 45: SILENT},
        ),
        Case(
            "AnswersDropped: late ones after a restart are none of an intruder",
            (board({fs.NOT_BELIEVED: from_minute(5, 0, 2)}),),
            {7: NOTHING, 25: NOTHING},
        ),
        Case(
            "AgentStuck",
            (board({fs.STUCK: from_minute(5)}),),
            {8: NOTHING, 12: fires("AgentStuck", DEVICE)},
        ),
        Case(
            "AgentStuck: for moments only",
            (board({fs.STUCK: lambda t: float(t % 5 == 0)}),),
            {15: NOTHING, 35: NOTHING},
        ),
    ]


def board_cases() -> list[Case]:
    filling = fires("SpoolFilling", DEVICE)
    down = fires("LinkDown", DEVICE)
    ending = fires("CertificateExpiring", DEVICE)
    soon = 20 * 86400.0
    jump: dict[str, Given] = {"tidegauge_collector_clock_seconds": lambda t: 60.0 * t + (86400 if t >= 35 else 0)}
    return [
        Case("SpoolFilling", (board({fs.SPOOL: from_minute(5, 1e6, 9e7)}),), {5: NOTHING, 15: NOTHING, 25: filling}),
        Case(
            "SpoolFilling: heard by both",
            (
                board({fs.SPOOL: from_minute(5, 1e6, 9e7)}),
                collector(Heard({"tidegauge_device_spool_used_ratio": from_minute(5, 0.01, 0.9)})),
            ),
            {25: filling},
        ),
        Case(
            "SpoolFilling: only heard, and then gone",
            (collector(Heard({"tidegauge_device_spool_used_ratio": from_minute(5, 0.01, 0.9)} | gone(35))),),
            {25: filling, 75: filling | SILENT},
        ),
        Case(
            "SpoolFilling: for moments only", (board({fs.SPOOL: lambda t: 9e7 if t % 10 < 5 else 1e6}),), {35: NOTHING}
        ),
        Case(
            "StateUnwritable",
            (board({fs.UNWRITABLE: from_minute(5)}),),
            {9: NOTHING, 12: fires("StateUnwritable", DEVICE)},
        ),
        Case(
            "StateUnwritable: for a moment",
            (board({fs.UNWRITABLE: between(5, 8)}),),
            {9: NOTHING, 12: NOTHING},
        ),
        Case(
            "ConfigurationRefused",
            (board({fs.CONFIGURED: from_minute(5, 1, 0)}),),
            {14: NOTHING, 17: fires("ConfigurationRefused", DEVICE)},
        ),
        Case(
            "ConfigurationRefused: while a file is being written",
            (board({fs.CONFIGURED: lambda t: float(t % 4 != 0)}),),
            {35: NOTHING},
        ),
        Case(
            "ArtifactsRefused",
            (board({fs.REPLACED: from_minute(5)}),),
            {14: NOTHING, 17: fires("ArtifactsRefused", DEVICE)},
        ),
        Case(
            "ArtifactsRefused: while files are being copied",
            (board({fs.REPLACED: between(5, 8)}),),
            {9: NOTHING, 20: NOTHING},
        ),
        Case("LinkDown", (board({fs.CONNECTED: from_minute(5, 1, 0)}),), {25: NOTHING, 45: down}),
        Case("LinkDown: it flaps", (board({fs.CONNECTED: lambda t: float(t % 4 == 0)}),), {35: NOTHING, 65: NOTHING}),
        Case(
            "LinkDown: a board that is gone is silent, not without a link",
            (board({fs.CONNECTED: from_minute(5, 1, 0)}, alive=fs.until(20)),),
            {35: NOTHING, 65: SILENT},
        ),
        Case("CertificateExpiring", (board({fs.CERTIFICATE: soon}),), {5: NOTHING, 64: ending}),
        Case(
            "CertificateExpiring: by the collector's copy, and after the board has gone",
            (collector(Heard({"tidegauge_device_certificate_expiry_timestamp_seconds": soon} | gone(66))),),
            {5: NOTHING, 64: ending, 90: ending | SILENT},
        ),
        Case(
            "CertificateExpiring: renewed",
            (board({fs.CERTIFICATE: from_minute(66, soon, fs.FAR)}),),
            {64: ending, 68: NOTHING},
        ),
        Case("DeviceSilent: scraped only", (board(alive=fs.until(5)),), {15: NOTHING, 30: SILENT, 60: SILENT}),
        Case("DeviceSilent: heard only", (collector(Heard(gone(5))),), {15: NOTHING, 30: SILENT, 60: SILENT}),
        Case(
            "DeviceSilent: both paths gone is one alert",
            (board(alive=fs.until(5)), collector(Heard(gone(5)))),
            {15: NOTHING, 30: SILENT},
        ),
        Case("DeviceSilent: the scrape goes on", (board(), collector(Heard(gone(5)))), {35: NOTHING}),
        Case("DeviceSilent: the link goes on", (board(alive=fs.until(5)), collector(Heard())), {35: NOTHING}),
        Case("DeviceSilent: a reboot of ten minutes", (board(alive=outside(5, 15)),), {20: NOTHING, 35: NOTHING}),
        Case("DeviceSilent: it comes back", (board(alive=outside(5, 65)),), {35: SILENT, 66: NOTHING}),
        Case(
            "DeviceSilent: the collector's clock jumps a day, and boards are heard by the new one",
            (collector(Heard({fs.SEEN: lambda t: 60.0 * t + (86400 if t >= 36 else 0)}), changes=jump),),
            {34: NOTHING, 35: NOTHING, 36: NOTHING, 45: NOTHING},
        ),
        Case(
            "DeviceSilent: the collector's clock is an hour behind Prometheus'",
            (
                collector(
                    Heard({fs.SEEN: lambda t: 60.0 * t - 3600}),
                    changes={"tidegauge_collector_clock_seconds": lambda t: 60.0 * t - 3600},
                ),
            ),
            {30: NOTHING},
        ),
    ]


def cases() -> list[Case]:
    return [
        *latched_cases(),
        *drift_cases(),
        *_window_cases(),
        *counter_cases(),
        *board_cases(),
        *collector_cases(),
        *gone_cases(),
    ]
