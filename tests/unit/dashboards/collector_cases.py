"""What the collector's own series must make fire: findings, jobs, its connection, its end."""

from __future__ import annotations

from unit.dashboards import fleet_series as fs
from unit.dashboards.case import COLLECTOR, DEVICE, NOTHING, SILENT, Case, Fires, fires
from unit.dashboards.fleet_series import Given, Heard, board, collector, from_minute, outside


def found(layer: str, name: str = "0badc0de") -> Fires:
    return fires(
        "Finding", {**COLLECTOR, "finding": name, "model": "enhancer", "sdk": "11.1", "layer": layer, "cause": "gain"}
    )


def collector_cases() -> list[Case]:
    def one(name: str) -> Fires:
        return fires(name, COLLECTOR)

    disk: dict[str, Given] = {fs.postponed("disk"): from_minute(5, 0, 4)}
    waiting: dict[str, Given] = {fs.bundles("complete"): from_minute(5)}
    cured: dict[str, Given] = {fs.finding("conv1"): lambda t: 1.0 if t < 50 else None}
    both_found: Fires = {
        "TidegaugeFinding": [*found("conv1")["TidegaugeFinding"], *found("pool", "5ca1ab1e")["TidegaugeFinding"]]
    }
    return [
        Case("all is well", (board(), collector(Heard(), Heard(device="cam-2"))), {10: NOTHING, 75: NOTHING}),
        Case("no collector at all", (board(),), {75: NOTHING}),
        Case(
            "CollectorDown",
            (collector(alive=fs.until(5)),),
            {10: NOTHING, 20: one("CollectorDown"), 40: one("CollectorDown")},
        ),
        Case("CollectorDown: a restart", (collector(alive=outside(5, 10)),), {11: NOTHING, 20: NOTHING}),
        Case(
            "CollectorDisconnected",
            (collector(changes={fs.COLLECTOR_CONNECTED: from_minute(5, 1, 0)}),),
            {8: NOTHING, 17: one("CollectorDisconnected")},
        ),
        Case(
            "CollectorDisconnected: it flaps",
            (collector(changes={fs.COLLECTOR_CONNECTED: lambda t: float(t % 3 == 0)}),),
            {15: NOTHING, 35: NOTHING},
        ),
        Case(
            "ComparisonsFailing",
            (collector(changes={fs.comparisons("failed"): from_minute(5)}),),
            {4: NOTHING, 7: one("ComparisonsFailing"), 75: NOTHING},
        ),
        Case(
            "ComparisonsFailing: a restart resets the counter",
            (collector(changes={fs.comparisons("failed"): lambda t: 7.0 if t < 75 else 0.0}, alive=outside(73, 75)),),
            {65: NOTHING, 78: NOTHING},
        ),
        Case(
            "Finding: one, however many boards have it, and another layer is another",
            (
                collector(
                    Heard(),
                    Heard(device="cam-2"),
                    changes={
                        fs.finding("conv1"): lambda t: None if t < 5 else float(min(t, 40)),
                        fs.finding("pool", "5ca1ab1e"): lambda t: 1.0 if t >= 30 else None,
                    },
                ),
            ),
            {4: NOTHING, 7: found("conv1"), 29: found("conv1"), 33: both_found},
        ),
        Case(
            "Finding: it is not told any more", (collector(changes=cured),), {30: found("conv1"), 420: NOTHING}, step=10
        ),
        Case("ComparisonsStalled", (collector(changes=waiting),), {35: NOTHING, 70: one("ComparisonsStalled")}),
        Case(
            "ComparisonsStalled: they end, one after another",
            (collector(changes=waiting | {fs.comparisons("fine"): fs.rising(0.1)}),),
            {70: NOTHING},
        ),
        Case("CollectorStorage", (collector(changes=disk),), {4: NOTHING, 7: one("CollectorStorage"), 35: NOTHING}),
        Case(
            "CollectorStorage: a device's own quota is not the disk",
            (collector(changes={fs.postponed("device_quota"): fs.rising(1)}),),
            {15: NOTHING},
        ),
        Case(
            "CollectorCertificateExpiring",
            (collector(changes={fs.CERTIFICATE: 20 * 86400.0}),),
            {5: NOTHING, 64: one("CollectorCertificateExpiring")},
        ),
    ]


def gone_cases() -> list[Case]:
    """What the other alerts do when who is concerned goes offline: they hold, or hand over to the one that says so."""
    camera, filling = fires("CameraFault", DEVICE), fires("SpoolFilling", DEVICE)
    ending, stuck = fires("CertificateExpiring", DEVICE), fires("AgentStuck", DEVICE)
    unwritable, refused = fires("StateUnwritable", DEVICE), fires("LinkRefused", DEVICE)
    down, failing = fires("CollectorDown", COLLECTOR), fires("ComparisonsFailing", COLLECTOR)
    disconnected = fires("CollectorDisconnected", COLLECTOR)
    off = fs.until(15)
    return [
        Case(
            "gone: CameraFault holds",
            (board({fs.CAMERA: from_minute(5)}, alive=off),),
            {14: camera, 18: camera, 45: camera | SILENT},
        ),
        Case(
            "gone: SpoolFilling holds",
            (board({fs.SPOOL: from_minute(5, 1e6, 9e7)}, alive=fs.until(25)),),
            {24: filling, 28: filling, 55: filling | SILENT},
        ),
        Case(
            "gone: CertificateExpiring holds",
            (board({fs.CERTIFICATE: 20 * 86400.0}, alive=fs.until(66)),),
            {64: ending, 68: ending, 95: ending | SILENT},
        ),
        Case(
            "gone: AgentStuck hands over",
            (board({fs.STUCK: from_minute(5)}, alive=off),),
            {14: stuck, 45: SILENT},
        ),
        Case(
            "gone: StateUnwritable hands over",
            (board({fs.UNWRITABLE: from_minute(5)}, alive=off),),
            {14: unwritable, 45: SILENT},
        ),
        Case(
            "gone: ConfigurationRefused hands over",
            (board({fs.CONFIGURED: 0.0}, alive=off),),
            {14: fires("ConfigurationRefused", DEVICE), 45: SILENT},
        ),
        Case(
            "gone: ArtifactsRefused hands over",
            (board({fs.REPLACED: 1.0}, alive=off),),
            {14: fires("ArtifactsRefused", DEVICE), 45: SILENT},
        ),
        Case(
            "gone: a finding stands while its collector is away",
            (collector(changes={fs.finding("conv1"): 1.0}, alive=off),),
            {14: found("conv1"), 40: found("conv1") | down},
        ),
        Case(
            "gone: LinkRefused stands as long as its half-hour lasts",
            (board({fs.REFUSED: from_minute(5)}, alive=off),),
            {14: refused, 25: refused, 45: SILENT},
        ),
        Case(
            "gone: ComparisonsFailing stands as long as its hour lasts",
            (collector(changes={fs.comparisons("failed"): from_minute(5)}, alive=off),),
            {14: failing, 30: failing | down, 75: down},
        ),
        Case(
            "gone: CollectorDisconnected hands over",
            (collector(changes={fs.COLLECTOR_CONNECTED: from_minute(2, 1, 0)}, alive=fs.until(20)),),
            {18: disconnected, 35: down},
        ),
    ]
