"""Link and spool: does the evidence get off the boards."""

from __future__ import annotations

from tidegauge_dashboards.device import SCRAPED
from tidegauge_dashboards.panels import (
    DEVICE,
    GREEN,
    RARE,
    RED,
    YELLOW,
    Board,
    Panel,
    Query,
    Row,
    collector_page,
    device_page,
    own,
    rate,
)
from tidegauge_dashboards.recording import CERTIFICATE, HEARD, LINK, SPOOL


def _link() -> Row:
    refused = Query(
        f"sum by (device) ({own('increase(tidegauge_bundles_refused_total[$__rate_interval])')})", "{{device}}"
    )
    ends = Query(f"({CERTIFICATE}{{{DEVICE}}} - time())", "{{device}}", "where links have no certificate")
    return Row(
        "Link",
        (
            Panel(
                "Connected",
                "To the broker.",
                "none",
                (Query(f"{LINK}{{{DEVICE}}}", "{{device}}"),),
                "states",
                words={"0": ("down", RED), "1": ("up", GREEN)},
                links=device_page(),
            ),
            Panel(
                "Heard",
                "Time since the collector heard of a board.",
                "s",
                (Query(f"{HEARD}{{{DEVICE}}}", "{{device}}", "without a collector"),),
                least=0,
                links=device_page(),
            ),
            Panel(
                "Certificate ends in",
                "Of the board's link.",
                "s",
                (ends,),
                "stat",
                steps=((None, RED), (3 * 86400.0, YELLOW), (21 * 86400.0, GREEN)),
            ),
            Panel(
                "Messages",
                "A second, by what became of them." + SCRAPED,
                "hertz",
                (Query(f"sum by (result) ({own(rate('tidegauge_mqtt_publishes_total'))})", "{{result}}"),),
                least=0,
            ),
            Panel(
                "Bundles stored",
                "By the collector, in the interval." + SCRAPED,
                "none",
                (
                    Query(
                        f"sum by (device) ({own('increase(tidegauge_bundles_sent_total[$__rate_interval])')})",
                        "{{device}}",
                    ),
                ),
                least=0,
                links=collector_page("#bundles"),
                interval=RARE,
            ),
            Panel(
                "Bundles turned away",
                "By the collector, in the interval." + SCRAPED,
                "none",
                (refused,),
                least=0,
                links=collector_page(),
                interval=RARE,
            ),
        ),
    )


def _spool() -> Row:
    dropped = Query(
        f"sum by (device, reason) ({own('increase(tidegauge_spool_dropped_total[$__rate_interval])')})",
        "{{device}} {{reason}}",
    )
    captures = Query(f"sum by (result) ({own('increase(tidegauge_captures_total[$__rate_interval])')})", "{{result}}")
    refusals = Query(
        f"sum by (reason) ({own('increase(tidegauge_captures_refused_total[$__rate_interval])')})", "{{reason}}"
    )
    return Row(
        "Spool and captures",
        (
            Panel(
                "Spool",
                "Share that is taken.",
                "percentunit",
                (Query(f"{SPOOL}{{{DEVICE}}}", "{{device}}"),),
                least=0,
                most=1,
                steps=((None, GREEN), (0.8, RED)),
                links=device_page(),
            ),
            Panel(
                "Bundles waiting",
                "In the spool." + SCRAPED,
                "none",
                (Query(own("tidegauge_spool_bundles"), "{{device}}"),),
                least=0,
                links=device_page(),
            ),
            Panel(
                "Size of the spool",
                "And files and folders in it." + SCRAPED,
                "bytes",
                (
                    Query(own("tidegauge_spool_bytes"), "{{device}}"),
                    Query(own("tidegauge_spool_limit_bytes"), "{{device}} limit"),
                ),
                least=0,
            ),
            Panel(
                "Evidence dropped",
                "Bundles given up before the collector had them, by reason." + SCRAPED,
                "none",
                (dropped,),
                least=0,
                links=device_page(),
                interval=RARE,
            ),
            Panel(
                "Captures",
                "By result." + SCRAPED,
                "none",
                (captures,),
                least=0,
                links=collector_page("#bundles"),
                interval=RARE,
            ),
            Panel("Captures refused", "By reason." + SCRAPED, "none", (refusals,), least=0, interval=RARE),
            Panel(
                "Files in the spool",
                "Files and folders; their number is limited too." + SCRAPED,
                "none",
                (Query(own("tidegauge_spool_inodes"), "{{device}}"),),
                least=0,
            ),
            Panel(
                "Size of a capture",
                "Traces that the last whole capture took." + SCRAPED,
                "bytes",
                (Query(own("tidegauge_capture_bytes"), "{{device}}"),),
                least=0,
            ),
            Panel(
                "Pause for a capture",
                "From the pause of the pipeline to the proof that it runs again." + SCRAPED,
                "s",
                (Query(own("tidegauge_capture_duration_seconds"), "{{device}}"),),
                least=0,
            ),
        ),
    )


def board() -> Board:
    text = "Whether alarms and evidence get off the chosen boards."
    return Board("tidegauge-link", "Tidegauge / Link and spool", text, (_link(), _spool()), "many")
