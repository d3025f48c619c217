"""The same alerts for Grafana to manage itself, as files for its provisioning. For those who have no Alertmanager.

A Prometheus expression returns what is wrong, and nothing otherwise. Grafana wants a condition above a query: the math
node makes 1 of any value, the threshold asks for more than 0. This is how Grafana converts Prometheus rules, too.
No `${…}` may stand in an annotation: Grafana would put an environment variable in its place.
"""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders import alerting as builders
from grafana_foundation_sdk.builders import expr, prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import alerting as models
from grafana_foundation_sdk.models import dashboard

from tidegauge_dashboards.alertmanager import GROUP_BY, RECEIVERS
from tidegauge_dashboards.alerts import Alert, alerts

#: `uid` of the data source that provisioning makes, in which the recording rules are.
DATASOURCE = "tidegauge-prometheus"
EXPRESSION = "__expr__"
FOLDER = "Tidegauge"
SECONDS = 600


def uid(alert: Alert) -> str:
    """Stable over regenerations; at most 40 characters."""
    return f"tidegauge-{alert.name.removeprefix('Tidegauge').lower()}"


def _query(ref: str, datasource: str, model: Any, seconds: int) -> Any:
    window = models.RelativeTimeRange(from_val=seconds, to=0)
    return builders.Query(ref).datasource_uid(datasource).relative_time_range(window).model(model)


def _data(alert: Alert) -> list[Any]:
    source = dashboard.DataSourceRef(type_val="prometheus", uid=DATASOURCE)
    anything = "is_number($query) || is_nan($query) || is_inf($query)"
    above = expr.ExprTypeThresholdConditions().evaluator(
        expr.ExprTypeThresholdConditionsEvaluator().params([0.0]).type("gt")
    )
    own = dashboard.DataSourceRef(type_val=EXPRESSION, uid=EXPRESSION)
    compared = expr.TypeThreshold().expression("found").conditions([above]).ref_id("fires").datasource(own)
    asked = prometheus.Dataquery().expr(alert.expr).instant().ref_id("query").datasource(source)
    return [
        _query("query", DATASOURCE, asked, SECONDS),
        _query("found", EXPRESSION, expr.TypeMath().expression(anything).ref_id("found").datasource(own), 0),
        _query("fires", EXPRESSION, compared, 0),
    ]


def _plain(built: Any) -> Any:
    return json.loads(json.dumps(built, cls=JSONEncoder))


def rule(alert: Alert, notes: dict[str, str]) -> dict[str, Any]:
    """One rule in the file's form. Silence of a query is health: what is gone is told by TidegaugeDeviceSilent."""
    return {
        "uid": uid(alert),
        "title": alert.name,
        "condition": "fires",
        "data": [_plain(query.build()) for query in _data(alert)],
        "noDataState": "OK",
        "execErrState": "Error",
        "for": alert.hold,
        "annotations": notes,
        "labels": alert.labels,
        "isPaused": False,
    }


def groups(rules: dict[str, dict[str, Any]], interval: str) -> dict[str, Any]:
    """The whole file; `rules` by alert name."""
    by_group: dict[str, list[dict[str, Any]]] = {}
    for alert in alerts():
        by_group.setdefault(alert.group, []).append(rules[alert.name])
    made = [
        {"orgId": 1, "name": name, "folder": FOLDER, "interval": interval, "rules": found}
        for name, found in by_group.items()
    ]
    return {"apiVersion": 1, "groups": made}


def contact_points() -> dict[str, Any]:
    names = [name for name, _ in RECEIVERS.values()]
    address = {name: f"http://127.0.0.1:9099/{name.removeprefix('tidegauge-')}" for name in names}
    return {
        "apiVersion": 1,
        "contactPoints": [
            {
                "orgId": 1,
                "name": name,
                "receivers": [
                    {"uid": name, "type": "webhook", "settings": {"url": address[name], "httpMethod": "POST"}}
                ],
            }
            for name in names
        ],
    }


def policies() -> dict[str, Any]:
    routes = [
        {"receiver": receiver, "object_matchers": [["severity", "=", severity]], "repeat_interval": repeat}
        for severity, (receiver, repeat) in RECEIVERS.items()
    ]
    root = {
        "orgId": 1,
        "receiver": RECEIVERS["warning"][0],
        "group_by": ["grafana_folder", *GROUP_BY],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "1d",
        "routes": routes,
    }
    return {"apiVersion": 1, "policies": [root]}
