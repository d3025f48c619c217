"""Every alert through what happens to boards and collectors: a reboot, a jump of the clock, flapping, counters that are
born, or reset while nothing is wrong. What holds when somebody is gone: `latched_cases`, `collector_cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from unit.dashboards import fleet_series as fs
from unit.dashboards.case import COLLECTOR, NOTHING, Case, Fires
from unit.dashboards.fleet_series import Given, Heard, Target, Value, board, collector, outside

On = Callable[[int], bool]
#: Minutes of the reboot, of the clock's jump, and until all that waits an hour fires (again).
REBOOT, BACK, JUMP, LONG = 70, 73, 70, 140
DAY = 86400.0
MODEL = {"model": "enhancer"}


@dataclass(frozen=True)
class Condition:
    """What an alert is about: series that are wrong while `on`, and counters that rise then. `flapping`: whether it
    fires all the time while every other minute is wrong, or never; a new alert every other minute would be noise. None
    where the board itself latches what it tells.
    """

    labels: Mapping[str, str]
    wrong: Callable[[On], dict[str, Given]]
    flapping: bool | None
    of_collector: bool = False


def _gauge(name: str, good: float, bad: float) -> Callable[[On], dict[str, Given]]:
    return lambda on: {name: lambda t: bad if on(t) else good}


def _counter(name: str, per_minute: float) -> Callable[[On], dict[str, Given]]:
    return lambda on: {name: counted(on, per_minute)}


def counted(on: On, per_minute: float) -> Value:
    """A counter that begins at 0 at the reboot."""

    def value(t: int) -> float:
        return per_minute * sum(on(each) for each in range(BACK if t >= REBOOT else 0, t + 1))

    return value


def _latched(cause: str, detector: str) -> Callable[[On], dict[str, Given]]:
    def wrong(on: On) -> dict[str, Given]:
        return {name: lambda t: float(on(t)) for name in (fs.alarm(cause), fs.latched(detector, cause))}

    return wrong


def _of_accelerator(detector: str) -> Condition:
    labels = {**MODEL, "detector": detector, "cause": "accelerator"}
    return Condition(labels, _latched("accelerator", detector), None)


def _of_cause(cause: str, detector: str = "loss") -> Condition:
    return Condition({**MODEL, "cause": cause}, _latched(cause, detector), None)


CONDITIONS: dict[str, Condition] = {
    "AcceleratorDrift": _of_cause("accelerator"),
    "UndecidedDrift": _of_cause("undecided"),
    "TensorErrors": _of_cause("undecided", "nmse"),
    "ReferenceFault": _of_cause("reference"),
    "DataDrift": _of_cause("data"),
    "NotOffloaded": _of_accelerator("not_offloaded"),
    "AcceleratorDown": _of_accelerator("accelerator_down"),
    "AcceleratorHung": _of_accelerator("accelerator_hung"),
    "AcceleratorCrashed": _of_accelerator("accelerator_crashed"),
    "AcceleratorSlow": _of_accelerator("accelerator_slow"),
    "AcceleratorTraces": _of_accelerator("accelerator_traces"),
    "CameraFault": Condition({}, _gauge(fs.CAMERA, 0, 1), True),
    "ShadowStalled": Condition(MODEL, lambda on: {fs.COMPARED: counted(lambda t: not on(t), 1)}, False),
    "AcceleratorRestarting": Condition(MODEL, _counter(fs.restarts("exited"), 1), True),
    "AgentStuck": Condition({}, _gauge(fs.STUCK, 0, 1), False),
    "SpoolFilling": Condition({}, _gauge(fs.SPOOL, 1e6, 9e7), False),
    "EvidenceDropped": Condition({}, _counter(fs.dropped("evicted"), 1), True),
    "StateUnwritable": Condition({}, _gauge(fs.UNWRITABLE, 0, 1), False),
    "LinkDown": Condition({}, _gauge(fs.CONNECTED, 1, 0), False),
    "LinkRefused": Condition({}, _counter(fs.REFUSED, 1), True),
    "AnswersDropped": Condition({}, _counter(fs.NOT_BELIEVED, 1), True),
    "ConfigurationRefused": Condition({}, _gauge(fs.CONFIGURED, 1, 0), False),
    "ArtifactsRefused": Condition({}, _gauge(fs.REPLACED, 0, 1), False),
    "CertificateExpiring": Condition({}, _gauge(fs.CERTIFICATE, fs.FAR, 20 * DAY), False),
    "CollectorDisconnected": Condition(COLLECTOR, _gauge(fs.COLLECTOR_CONNECTED, 1, 0), False, True),
    "ComparisonsFailing": Condition(COLLECTOR, _counter(fs.comparisons("failed"), 1), True, True),
    "ComparisonsStalled": Condition(COLLECTOR, _gauge(fs.bundles("complete"), 0, 1), False, True),
    "CollectorStorage": Condition(COLLECTOR, _counter(fs.postponed("disk"), 1), True, True),
    "CollectorCertificateExpiring": Condition(COLLECTOR, _gauge(fs.CERTIFICATE, fs.FAR, 20 * DAY), False, True),
}
#: These need another history than minutes of a gauge or a counter; their cases name each of the hazards themselves.
ELSEWHERE = {"Saturation", "DeviceSilent", "Finding", "CollectorDown"}
_BOARDS = {name: each for name, each in CONDITIONS.items() if not each.of_collector}
_COLLECTORS = {name: each for name, each in CONDITIONS.items() if each.of_collector}


def hazard_cases() -> list[Case]:
    late, always = (lambda t: t >= 5), outside(REBOOT, BACK)
    return [
        *_through("a reboot", late, {69: True, LONG: True}, alive=always),
        *_through("the clock jumps", late, {69: True, JUMP: True, JUMP + 5: True, LONG: True}, jump=True),
        *_through("it flaps", lambda t: t % 2 == 0, {75: None, 76: None, 78: None}),
        *_through("counters are born at zero", lambda _: False, {22: False, 69: False}, alive=lambda t: t >= 20),
        _reset(),
    ]


def _through(
    name: str, on: On, expected: Mapping[int, bool | None], alive: On = fs.always, jump: bool = False
) -> list[Case]:
    """All boards in one case, each with one condition; every collector in a case of its own. What is expected at a
    minute: all fire, none, or those that fire when they flap (None).
    """

    def fires(conditions: Mapping[str, Condition], wanted: bool | None) -> Fires:
        return {
            f"Tidegauge{alert}": [{**({} if each.of_collector else {"device": alert}), **each.labels}]
            for alert, each in conditions.items()
            if (each.flapping if wanted is None else wanted)
        }

    flaps = None in expected.values()
    chosen = {alert: each for alert, each in _BOARDS.items() if not flaps or each.flapping is not None}
    boards = tuple(board(each.wrong(on), device=alert, alive=alive) for alert, each in chosen.items())
    clocks = (_jumping(_BOARDS),) if jump else ()
    found = [Case(f"boards: {name}", (*boards, *clocks), {t: fires(chosen, all_) for t, all_ in expected.items()})]
    for alert, each in _COLLECTORS.items():
        changes = each.wrong(on) | (_JUMPS if jump else {})
        target = collector(changes=changes, alive=alive)
        found.append(
            Case(f"{alert}: {name}", (target,), {t: fires({alert: each}, all_) for t, all_ in expected.items()})
        )
    return found


_JUMPS: dict[str, Given] = {"tidegauge_collector_clock_seconds": lambda t: 60.0 * t + (DAY if t >= JUMP else 0)}


def _jumping(boards: Mapping[str, Condition]) -> Target:
    """A collector that hears them all, healthy; at `JUMP` its clock goes a day ahead."""
    seen: dict[str, Given] = {fs.SEEN: lambda t: 60.0 * t + (DAY if t >= JUMP else 0)}
    return collector(*(Heard(seen, name) for name in boards), changes=_JUMPS)


def _reset() -> Case:
    """What was long ago, and then a reboot: counters begin anew, and nothing is wrong."""
    reset, away = 480, outside(450, 480)
    old: dict[str, Given] = {}
    for each in CONDITIONS.values():
        for name in each.wrong(lambda _: False):
            if name.partition("{")[0].endswith("_total"):
                old[name] = lambda t: 9.0 if t < reset else 0.0
    old[fs.COMPARED], old[fs.RAN] = fs.rising(1, reset), fs.rising(600, reset)
    of_collector = {name: value for name, value in old.items() if name.startswith("tidegauge_collector")}
    return Case(
        "every counter is reset by a reboot",
        (board(old, alive=away), collector(Heard(), changes=of_collector, alive=away)),
        dict.fromkeys((440, 490, 500, 550), NOTHING),
        step=10,
    )
