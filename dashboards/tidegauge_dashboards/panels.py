"""Dashboards as data: rows of panels with their queries, and how the Grafana SDK makes JSON of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models

from tidegauge_dashboards.recording import KNOWN

Kind = Literal["lines", "stat", "states", "heat", "table"]

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
DEVICE = 'device=~"$device"'
GREEN, YELLOW, RED, BLUE, GREY = "green", "yellow", "red", "blue", "text"
#: Thresholds of a value that is bad from 1 on.
BAD = ((None, GREEN), (1.0, RED))
#: Shortest step where what is counted comes once a minute or less.
RARE = "15m"
#: Words for a gauge that is 0 or 1.
ALARM_WORDS = {"0": ("no", GREEN), "1": ("ALARM", RED)}
PROBLEM_WORDS = {"0": ("ok", GREEN), "1": ("problem", RED)}


@dataclass(frozen=True)
class Query:
    """`legend` in Grafana's notation. `quiet`: why it may rightly return nothing; empty where it must return data."""

    expr: str
    legend: str = ""
    quiet: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table: name shown, unit, thresholds, words for values."""

    title: str
    unit: str = "none"
    steps: tuple[tuple[float | None, str], ...] = ()
    words: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """One panel. `width` of 24 columns. `steps`: thresholds. `links`: title and address of each.
    `interval`: the shortest step, and so the shortest `$__rate_interval`; longer where what is counted is rare.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    width: int = 8
    height: int = 8
    steps: tuple[tuple[float | None, str], ...] = ()
    words: dict[str, tuple[str, str]] = field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()
    least: float | None = None
    most: float | None = None
    columns: dict[str, Column] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    interval: str = ""


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """A dashboard. `device`: with a variable to choose boards by; "one" or "many" at a time, or none."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    device: Literal["", "one", "many"] = ""


def own(expr: str) -> str:
    """A series that a chosen board exports itself, with its name."""
    return f"({expr}) * on (job, instance) group_left (device) {KNOWN}{{{DEVICE}}}"


def rate(counter: str) -> str:
    return f"rate({counter}[$__rate_interval])"


def rare(counter: str) -> str:
    """How many in the interval; for panels with `interval=RARE`."""
    return f"increase({counter}[$__rate_interval])"


def quantile(share: float, histogram: str, by: str = "device") -> str:
    """A quantile of a board's histogram."""
    return f"histogram_quantile({share:g}, sum by ({by}, le) ({own(rate(histogram + '_bucket'))}))"


def collector_page(path: str = "") -> tuple[tuple[str, str], ...]:
    return (("Open at the collector", f"${{collector}}/{path}"),)


def device_page() -> tuple[tuple[str, str], ...]:
    """From a series of a board: its dashboard, and the collector's list of boards."""
    board = "/d/tidegauge-device?var-device=${__field.labels.device}&${__url_time_range}"
    return (("Board", board), ("Boards at the collector", "${collector}/#devices"))


def to_dashboard(board: Board) -> models.Dashboard:
    """The SDK's model of a dashboard."""
    made = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["tidegauge"])
        .readonly()
        .timezone("browser")
        .refresh("1m")
        .time("now-6h", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .version(1)
        .link(_to_others())
        .annotation(_alerts(board))
    )
    for variable in _variables(board):
        made = made.with_variable(variable)
    y, number = 0, 1
    for row in board.rows:
        made = made.with_row(builders.Row(row.title).id(number).grid_pos(models.GridPos(h=1, w=24, x=0, y=y)))
        y, number = y + 1, number + 1
        x, tallest = 0, 0
        for panel in row.panels:
            if x + panel.width > 24:
                x, y, tallest = 0, y + tallest, 0
            position = models.GridPos(h=panel.height, w=panel.width, x=x, y=y)
            made = made.with_panel(_PANELS[panel.kind](panel).id(number).grid_pos(position))
            x, tallest, number = x + panel.width, max(tallest, panel.height), number + 1
        y += tallest
    return made.build()


def _to_others() -> builders.DashboardLink:
    link = builders.DashboardLink("Tidegauge").type(models.DashboardLinkType.DASHBOARDS).tags(["tidegauge"])
    return link.as_dropdown(True).keep_time(True).include_vars(True)


def _alerts(board: Board) -> builders.AnnotationQuery:
    chosen = f",{DEVICE}" if board.device else ""
    return (
        builders.AnnotationQuery()
        .name("Alerts")
        .datasource(SOURCE)
        .enable(True)
        .icon_color(RED)
        .expr(f'ALERTS{{alertname=~"Tidegauge.+",alertstate="firing"{chosen}}}')
    )


def _variables(board: Board) -> list[Any]:
    found: list[Any] = [builders.DatasourceVariable("datasource").label("Data source").type("prometheus")]
    if board.device:
        known = f'{{__name__=~"{KNOWN}|device:tidegauge_collector_heard:age_seconds"}}'
        device = (
            builders.QueryVariable("device")
            .label("Board")
            .datasource(SOURCE)
            .query(f"label_values({known}, device)")
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
        )
        found.append(device if board.device == "one" else device.multi(True).include_all(True).all_value(".+"))
    collector = builders.TextBoxVariable("collector").label("Collector").default_value("http://127.0.0.1:8420")
    return [*found, collector]


def _targets(panel: Panel, builder: Any) -> Any:
    for index, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + index)).datasource(SOURCE)
        if query.legend:
            target = target.legend_format(query.legend)
        if panel.kind == "table":
            target = target.instant().format(prometheus_models.PromQueryFormat.TABLE)
        elif panel.kind == "stat":
            target = target.instant()
        elif panel.kind == "heat":
            target = target.range().format(prometheus_models.PromQueryFormat.HEATMAP)
        else:
            target = target.range()
        builder = builder.with_target(target)
    return builder


def _common(panel: Panel, builder: Any) -> Any:
    builder = _targets(panel, builder.title(panel.title).description(panel.description).datasource(SOURCE))
    builder = builder.unit(panel.unit).no_value("no data")
    if panel.interval:
        builder = builder.interval(panel.interval)
    if panel.steps:
        builder = builder.thresholds(_thresholds(panel.steps))
    if panel.words:
        builder = builder.mappings([_words(panel.words)])
    if panel.links:
        builder = builder.data_links(
            [
                builders.DashboardLink(title).type(models.DashboardLinkType.LINK).url(url).target_blank(True)
                for title, url in panel.links
            ]
        )
    if panel.least is not None:
        builder = builder.min(panel.least)
    return builder if panel.most is None else builder.max(panel.most)


def _thresholds(steps: Sequence[tuple[float | None, str]]) -> builders.ThresholdsConfig:
    made = [models.Threshold(value=value, color=color) for value, color in steps]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(made)


def _words(words: dict[str, tuple[str, str]]) -> models.ValueMap:
    return models.ValueMap(
        options={
            value: models.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(words.items())
        }
    )


def _lines(panel: Panel) -> Any:
    legend = common_builders.VizLegendOptions().display_mode(common.LegendDisplayMode.LIST)
    legend = legend.placement(common.LegendPlacement.BOTTOM).show_legend(True)
    tooltip = common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    builder = _common(panel, timeseries.Panel()).fill_opacity(8).line_width(1).legend(legend).tooltip(tooltip)
    if panel.steps:
        style = common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.LINE)
        builder = builder.thresholds_style(style)
    return builder


def _stat(panel: Panel) -> Any:
    reduced = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
    builder = _common(panel, stat.Panel()).reduce_options(reduced).graph_mode(common.BigValueGraphMode.NONE)
    colored = common.BigValueColorMode.VALUE if panel.steps or panel.words else common.BigValueColorMode.NONE
    return builder.color_mode(colored)


def _states(panel: Panel) -> Any:
    builder = _common(panel, statetimeline.Panel()).show_value(common.VisibilityMode.NEVER).merge_values(True)
    return builder.row_height(0.8).fill_opacity(80)


def _heat(panel: Panel) -> Any:
    axis = heatmap.YAxisConfig().unit(panel.unit)
    return _common(panel, heatmap.Panel()).calculate(False).y_axis(axis)


def _table(panel: Panel) -> Any:
    builder = _common(panel, table.Panel())
    builder = builder.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    organize = {
        "excludeByName": dict.fromkeys(("Time", "__name__", "job", "instance", *panel.hidden), True),
        "renameByName": {name: column.title for name, column in panel.columns.items()},
        "indexByName": {name: index for index, name in enumerate(panel.columns)},
    }
    builder = builder.with_transformation(models.DataTransformerConfig(id_val="organize", options=organize))
    for column in panel.columns.values():
        builder = builder.override_by_name(column.title, _properties(column))
    return builder


def _properties(column: Column) -> list[models.DynamicConfigValue]:
    found = [models.DynamicConfigValue(id_val="unit", value=column.unit)]
    if column.steps:
        found.append(models.DynamicConfigValue(id_val="thresholds", value=_thresholds(column.steps).build()))
    if column.words:
        found.append(models.DynamicConfigValue(id_val="mappings", value=[_words(column.words)]))
    if column.steps or column.words:
        found.append(models.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}))
    return found


_PANELS = {"lines": _lines, "stat": _stat, "states": _states, "heat": _heat, "table": _table}
