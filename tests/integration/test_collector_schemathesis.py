"""The API against requests made from its own description: whatever is asked, it answers, and never by failing.

TIDEGAUGE_SCHEMA_EXAMPLES sets how many requests are made of each operation; CI makes few, `make fuzz-api` many.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from integration.collector_peer import Board, Process, bundle, mosquitto, publish
from tidegauge.link.wire import Status, encode, topic

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("TIDEGAUGE_SCHEMA_EXAMPLES", "6"))
PAGES = ("", "login", "upload", "models", "findings", "healthz", "readyz", "metrics", "static/pages.css")


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with mosquitto(tmp_path_factory.mktemp("broker")) as port:
        process = Process(tmp_path_factory.mktemp("collector"), port, "[uploads]\nper_hour = 100000")
        process.start()
        process.until("api/v1/health", lambda health: health["broker_connected"])
        asyncio.run(publish(port, (topic("cam-1", "status"), encode(Status("online", 1)))))
        asyncio.run(Board(port, *bundle("cam-1", "bundle-0001", 1000), "cam-1").send())
        yield process
        process.kill()


@pytest.fixture(scope="module")
def session(collector: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=collector.url, timeout=60, trust_env=False) as client:
        client.headers["x-csrf-token"] = client.get("api/v1/session").json()["csrf_token"]
        yield client


def test_no_request_of_the_description_makes_the_api_fail(collector: Process, session: httpx.Client) -> None:
    description = session.get("schema/openapi.json").json()
    schema = schemathesis.openapi.from_dict(description)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 35
    answers: Counter[int] = Counter()
    for operation in operations:
        _ask(operation, collector, session.headers["x-csrf-token"], answers)
    assert answers[200] > 0 and answers[400] > 0 and answers[404] > 0, answers
    print(dict(answers))
    assert collector.get("api/v1/health")["status"] == "ok"
    assert "Traceback" not in collector.log(), collector.log()


def _ask(operation: Any, collector: Process, csrf: str, answers: Counter[int]) -> None:
    name = f"{operation.method.upper()} {operation.path}"

    @given(case=operation.as_strategy() | operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=EXAMPLES <= 10,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        answer = case.call(base_url=collector.url.rstrip("/"), headers={"X-CSRF-Token": csrf}, timeout=60)
        answers[answer.status_code] += 1
        assert answer.status_code < 500, f"{name}: {answer.status_code} {answer.text[:500]}\n{case.as_curl_command()}"
        assert "content-security-policy" in answer.headers, name
        assert answer.headers["x-content-type-options"] == ["nosniff"], name

    ask()


@given(path=st.sampled_from(PAGES), query=st.text(max_size=20), method=st.sampled_from(["GET", "POST", "PUT", "PATCH"]))
@settings(max_examples=5 * EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_page_fails_on_any_query(session: httpx.Client, path: str, query: str, method: str) -> None:
    answer = session.request(method, path, params={"q": query, query: "1", "next": query, "limit": query})
    assert answer.status_code < 500, answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
