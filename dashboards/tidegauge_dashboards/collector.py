"""The collector: what comes in, what is compared, what it holds."""

from __future__ import annotations

from tidegauge_dashboards.panels import BAD, GREEN, RARE, RED, Board, Panel, Query, Row, collector_page, rate

_NAME = "tidegauge_collector"


def _by(label: str, counter: str) -> Query:
    return Query(f"sum by ({label}) ({rate(f'{_NAME}_{counter}')})", f"{{{{{label}}}}}")


def _duration(share: float, legend: str) -> Query:
    buckets = rate(f"{_NAME}_comparison_duration_seconds_bucket")
    return Query(f"histogram_quantile({share:g}, sum by (le) ({buckets}))", legend, "until a comparison has ended")


def _now() -> Row:
    page = collector_page()
    return Row(
        "Now",
        (
            Panel(
                "Broker",
                "Whether every collector is connected to its broker.",
                "none",
                (Query(f"min({_NAME}_mqtt_connected)"),),
                "stat",
                4,
                4,
                words={"0": ("down", RED), "1": ("up", GREEN)},
                links=page,
            ),
            Panel(
                "Boards",
                "Known to the collector.",
                "none",
                (Query(f"max({_NAME}_devices)"),),
                "stat",
                4,
                4,
                links=collector_page("#devices"),
            ),
            Panel(
                "Online",
                "Boards that are connected.",
                "none",
                (Query(f"sum(max by (device) ({_NAME}_device_online))"),),
                "stat",
                4,
                4,
                links=collector_page("#devices"),
            ),
            Panel(
                "Waiting",
                "Complete bundles that are not compared yet.",
                "none",
                (Query(f'sum({_NAME}_bundles{{state=~"complete|comparing"}})'),),
                "stat",
                4,
                4,
                links=collector_page("#bundles"),
            ),
            Panel(
                "Failed",
                "Bundles that could not be compared; their page says why.",
                "none",
                (Query(f'sum({_NAME}_bundles{{state="failed"}})'),),
                "stat",
                4,
                4,
                BAD,
                links=collector_page("#bundles"),
            ),
            Panel("Held", "Size of all blobs.", "bytes", (Query(f"max({_NAME}_blobs_bytes)"),), "stat", 4, 4),
        ),
    )


def _intake() -> Row:
    return Row(
        "Intake",
        (
            Panel("Messages", "Of boards, a second, by kind.", "hertz", (_by("kind", "messages_total"),), least=0),
            Panel(
                "Received",
                "Bytes of files, a second.",
                "Bps",
                (Query(f"sum({rate(f'{_NAME}_received_bytes_total')})"),),
                least=0,
            ),
            Panel(
                "Not taken",
                "Messages and manifests that were refused, a second, by reason.",
                "hertz",
                (_by("reason", "refused_total"),),
                least=0,
                links=collector_page(),
            ),
            Panel(
                "Told to come back later",
                "A second, by reason: a board's quota, the disk, the database.",
                "hertz",
                (_by("reason", "postponed_total"),),
                least=0,
            ),
            Panel(
                "Files",
                "By state of their transfer.",
                "none",
                (Query(f"max by (state) ({_NAME}_transfers)", "{{state}}"),),
                least=0,
            ),
            Panel(
                "Blobs",
                "Held: models and artifacts count once for a fleet.",
                "none",
                (Query(f"max({_NAME}_blobs)", "blobs"),),
                least=0,
            ),
        ),
    )


def _comparisons() -> Row:
    return Row(
        "Comparisons",
        (
            Panel(
                "Bundles",
                "By state.",
                "none",
                (Query(f"max by (state) ({_NAME}_bundles)", "{{state}}"),),
                least=0,
                links=collector_page("#bundles"),
            ),
            Panel(
                "Comparisons",
                "In the interval, by how they ended.",
                "none",
                (Query(f"sum by (result) (increase({_NAME}_comparisons_total[$__rate_interval]))", "{{result}}"),),
                interval=RARE,
                least=0,
                links=collector_page("#bundles"),
            ),
            Panel(
                "Time of a comparison",
                "Median and upper tail.",
                "s",
                (_duration(0.5, "median"), _duration(0.95, "95 %")),
                interval=RARE,
                least=0,
            ),
        ),
    )


def board() -> Board:
    text = "What comes in at the collector, what is compared, and what it holds."
    return Board("tidegauge-collector", "Tidegauge / Collector", text, (_now(), _intake(), _comparisons()))
