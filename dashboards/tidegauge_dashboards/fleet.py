"""Fleet overview: is any board wrong, silent or blind, and which."""

from __future__ import annotations

from tidegauge_dashboards.alerts import SILENT
from tidegauge_dashboards.panels import (
    ALARM_WORDS,
    BAD,
    GREEN,
    RED,
    YELLOW,
    Board,
    Column,
    Panel,
    Query,
    Row,
    collector_page,
)
from tidegauge_dashboards.recording import ALARM, CAMERA, DETECTOR, EVIDENCE, HEARD, KNOWN, LINK, LOSS, SPOOL

_BOARDS = f"max by (device) ({KNOWN}) or max by (device) ({HEARD} * 0 + 1)"
_VERSIONS = (
    "max by (device, model, version) (tidegauge_device_version_info)\n"
    f"or on (device) max by (device, version) (tidegauge_build_info * on (job, instance) group_left (device) {KNOWN})"
)
_DEVICE_LINKS = (
    ("Board", "/d/tidegauge-device?var-device=${__data.fields.Board}&${__url_time_range}"),
    ("Boards at the collector", "${collector}/#devices"),
)


def _count(title: str, description: str, condition: str, width: int = 4) -> Panel:
    """How many boards; none is a zero."""
    expr = f"count({condition}) or vector(0)"
    return Panel(title, description, "none", (Query(expr),), "stat", width, 4, BAD, links=collector_page("#devices"))


def _now() -> Row:
    drifting = f'max by (device) ({ALARM}{{cause=~"accelerator|undecided"}}) == 1'
    stopped = f'max by (device) ({DETECTOR}{{detector=~"accelerator_down|not_offloaded"}}) == 1'
    boards = Query(f"count({_BOARDS}) or vector(0)")
    return Row(
        "Now",
        (
            Panel("Boards", "Boards that Prometheus or the collector knows.", "none", (boards,), "stat", 4, 4),
            _count(
                "Wrong or doubtful answers",
                "Boards with a latched alarm of the accelerator, or of a cause that is undecided.",
                drifting,
            ),
            _count(
                "Accelerator not in use", "Boards whose accelerator is given up, or does not run the model.", stopped
            ),
            _count("Camera problems", "Boards without a usable picture.", f"{CAMERA} == 1"),
            _count(
                "Silent",
                "Boards that the collector has not heard of for a quarter of an hour, whatever Prometheus reaches.",
                f"{HEARD} > {SILENT}",
            ),
            _count("Without a link", "Boards that are not connected to their broker.", f"{LINK} == 0"),
        ),
    )


def _boards() -> Row:
    queries = (
        Query(_VERSIONS),
        Query(f"max by (device) ({ALARM})"),
        Query(f"max by (device) ({EVIDENCE})", quiet="until the first observation after acceptance"),
        Query(f"max by (device) ({LOSS})"),
        Query(f"max by (device) ({CAMERA})"),
        Query(f"max by (device) ({SPOOL})"),
        Query(f"max by (device) ({LINK})"),
        Query(HEARD),
    )
    columns = {
        "device": Column("Board"),
        "model": Column("Model"),
        "version": Column("Version"),
        "Value #B": Column("Alarm", words=ALARM_WORDS),
        "Value #C": Column("Evidence", "percentunit", ((None, GREEN), (0.5, YELLOW), (1.0, RED))),
        "Value #D": Column("Last loss", "percentunit"),
        "Value #E": Column("Camera", words={"0": ("ok", GREEN), "1": ("problem", RED)}),
        "Value #F": Column("Spool", "percentunit", ((None, GREEN), (0.5, YELLOW), (0.8, RED))),
        "Value #G": Column("Link", words={"0": ("down", RED), "1": ("up", GREEN)}),
        "Value #H": Column("Heard", "s", ((None, GREEN), (120.0, YELLOW), (float(SILENT), RED))),
    }
    text = (
        "Each board by its own freshest word: its scrape, or what it last told the collector. Evidence is the share "
        "of what raises the alarm."
    )
    boards = Panel(
        "Boards", text, "none", queries, "table", 24, 12, links=_DEVICE_LINKS, columns=columns, hidden=("Value #A",)
    )
    return Row("Boards", (boards,))


def _history() -> Row:
    by_cause = Query(f"sum by (cause) ({ALARM})", "{{cause}}")
    nearest = Query(f"topk(10, max by (device) ({EVIDENCE}))", "{{device}}", "until the first observation")
    worst = Query(f"topk(10, max by (device) ({LOSS}))", "{{device}}")
    firing = Query('ALERTS{alertname=~"Tidegauge.+",alertstate="firing"}', quiet="while no alert fires")
    columns = {
        "alertname": Column("Alert"),
        "severity": Column("Severity"),
        "device": Column("Board"),
        "model": Column("Model"),
    }
    return Row(
        "History",
        (
            Panel(
                "Boards with an alarm, by cause",
                "Latched alarms. A step on many boards at once is one fault: a release, a model, the light.",
                "none",
                (by_cause,),
                width=12,
                least=0,
            ),
            Panel(
                "Nearest to an alarm",
                "The ten boards with most evidence, as a share of what raises the alarm.",
                "percentunit",
                (nearest,),
                width=12,
                steps=((None, GREEN), (1.0, RED)),
                least=0,
            ),
            Panel(
                "Stand out from the fleet",
                "Boards whose evidence is beyond chance when all boards are judged together: of those named at any one "
                "time, at most a twentieth are expected to be healthy. The logarithm of the e-value.",
                "none",
                (
                    Query(
                        "topk(10, max by (device) (tidegauge_collector_fleet_drift_log_e))",
                        "{{device}}",
                        "while no board stands out",
                    ),
                ),
                width=12,
                least=0,
            ),
            Panel(
                "Largest loss",
                "The ten boards whose newest shadow sample was worst.",
                "percentunit",
                (worst,),
                width=12,
                least=0,
                most=1,
            ),
            Panel(
                "Alerts that fire",
                "By the Prometheus rules; alerts that Grafana manages itself are on its own page.",
                "none",
                (firing,),
                "table",
                24,
                columns=columns,
                hidden=("alertstate", "Value", "cause", "detector"),
            ),
        ),
    )


def board() -> Board:
    return Board(
        "tidegauge-fleet",
        "Tidegauge / Fleet",
        "Is any board wrong, silent or blind, and which.",
        (_now(), _boards(), _history()),
    )
