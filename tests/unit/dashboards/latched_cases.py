"""Alarms that a board latches, by every path, and through all that happens to boards and collectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from unit.dashboards import fleet_series as fs
from unit.dashboards.case import COLLECTOR, NOTHING, Case, Fires, fires
from unit.dashboards.fleet_series import Given, Heard, Target, between, board, collector, from_minute, gone, outside

#: Alarms that the board latches: alert → (series on the board, labels).
_CAUSES = {
    "AcceleratorDrift": "accelerator",
    "UndecidedDrift": "undecided",
    "ReferenceFault": "reference",
    "DataDrift": "data",
}
_DETECTORS = {
    "NotOffloaded": "not_offloaded",
    "AcceleratorDown": "accelerator_down",
    "AcceleratorHung": "accelerator_hung",
    "AcceleratorCrashed": "accelerator_crashed",
    "AcceleratorSlow": "accelerator_slow",
    "AcceleratorTraces": "accelerator_traces",
}


def _latched() -> dict[str, tuple[dict[str, Given], dict[str, str]]]:
    """By alert: what the board exports from minute 5 on, and the labels beside the board's name."""
    found: dict[str, tuple[dict[str, Given], dict[str, str]]] = {}
    model = {"model": "enhancer"}
    for name, cause in _CAUSES.items():
        on: dict[str, Given] = {fs.alarm(cause): from_minute(5), fs.latched("loss", cause): from_minute(5)}
        found[name] = (on, {**model, "cause": cause})
    errors_only: dict[str, Given] = {
        fs.alarm("undecided"): from_minute(5),
        fs.latched("nmse", "undecided"): from_minute(5),
    }
    found["TensorErrors"] = (errors_only, {**model, "cause": "undecided"})
    for name, detector in _DETECTORS.items():
        on = {fs.alarm("accelerator"): from_minute(5), fs.latched(detector): from_minute(5)}
        found[name] = (on, {**model, "detector": detector, "cause": "accelerator"})
    on = {fs.alarm("camera"): from_minute(5), fs.latched("camera", "camera"): from_minute(5)}
    found["CameraFault"] = (on, {})
    return found


def latched_cases() -> list[Case]:
    """Every latched alarm, each on a board of its name: by the board's scrape, by the collector's copy, by both."""
    latched = _latched()
    firing: Fires = {f"Tidegauge{name}": [{"device": name, **labels}] for name, (_, labels) in latched.items()}
    silent = firing | {"TidegaugeDeviceSilent": [{"device": name} for name in latched]}
    on = {name: series for name, (series, _) in latched.items()}
    cleared: dict[str, dict[str, Given]] = {
        name: {each: between(5, 12) for each in series} for name, series in on.items()
    }

    def scraped(series: dict[str, dict[str, Given]], alive: Callable[[int], bool] = fs.always) -> list[Target]:
        return [board(values, device=name, alive=alive) for name, values in series.items()]

    def heard(
        series: dict[str, dict[str, Given]],
        changes: dict[str, Given] | None = None,
        alive: Callable[[int], bool] = fs.always,
    ) -> Target:
        copies = {name: {fs.copy_of(key): value for key, value in each.items()} for name, each in series.items()}
        return collector(*(Heard(copies[name] | (changes or {}), name) for name in copies), alive=alive)

    found = [
        Case("latched: by the board's scrape", (*scraped(on),), {4: NOTHING, 8: firing}),
        Case("latched: by the collector's copy", (heard(on),), {4: NOTHING, 8: firing}),
        Case("latched: heard by both it is one alert", (*scraped(on), heard(on)), {4: NOTHING, 8: firing, 20: firing}),
        Case(
            "latched: the board goes offline, and was only scraped",
            (*scraped(on, fs.until(15)),),
            {14: firing, 17: firing, 21: firing, 45: silent},
        ),
        Case(
            "latched: the board goes offline, and was only heard",
            (heard(on, gone(15)),),
            {14: firing, 18: firing, 45: silent},
        ),
        Case(
            "latched: the board reboots and still has it",
            (*scraped(on, outside(15, 23)), heard(on)),
            {14: firing, 16: firing, 21: firing, 23: firing, 24: firing, 30: firing},
        ),
        Case(
            "latched: scrapes fail every other minute",
            (*scraped(on, lambda t: t % 2 == 0),),
            {8: firing, 20: firing, 21: firing, 22: firing, 23: firing},
        ),
        Case("latched: cleared", (*scraped(cleared), heard(cleared)), {11: firing, 13: NOTHING, 26: NOTHING}),
        Case(
            "latched: cleared while the link was down, the board is scraped",
            (*scraped(cleared), heard(on)),
            {11: firing, 13: NOTHING},
        ),
        Case(
            "latched: the collector is down for hours, the board was only heard",
            (heard(on, alive=fs.until(15)),),
            {14: firing, 19: firing, 40: firing | fires("CollectorDown", COLLECTOR)},
        ),
    ]
    return [replace(case, alone=True) for case in found]
