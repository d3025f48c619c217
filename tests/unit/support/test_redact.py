"""Secrets don't get into a support file, and what isn't one stays readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.support.redact import MARK, redact

SECRET = "hunter2-correct"


@pytest.mark.parametrize(
    "text",
    [
        f'password = "{SECRET}"',
        f"PASSWORD={SECRET}",
        f'"auth_token": "{SECRET}", "next": 1',
        f"api_key: {SECRET}",
        f"rtsp://admin:{SECRET}@192.0.2.4:554/cam",
        f"mqtts://{SECRET}@broker/",
        f"rtsp://admin:p@{SECRET}@192.0.2.4/cam",
        f"rtspsrc location=rtsp://192.0.2.4/cam user-id=admin user-pw={SECRET} ! rtph264depay",
        f"Authorization: Bearer {SECRET}",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"-----BEGIN EC PRIVATE KEY-----\n{SECRET} torn",
    ],
)
def test_secret_is_removed(text: str) -> None:
    cleaned, removed = redact(f"before\n{text}\nafter")
    assert SECRET not in cleaned
    assert MARK in cleaned
    assert removed >= 1
    assert cleaned.startswith("before")


@pytest.mark.parametrize(
    "text",
    [
        'password_file = "/etc/tidegauge/password"',
        'key = "/etc/tidegauge/board.key"',
        "rtsp://192.0.2.4:554/cam",
        "the broker refused the password",
        "3 tokens of /conv7/Relu_output_0",
        "tidegauge_bundles_sent_total 3.0",
    ],
)
def test_harmless_text_stays(text: str) -> None:
    assert redact(text) == (text, 0)


@given(before=st.text(), secret=st.text(min_size=4), after=st.text())
def test_known_secret_is_removed_wherever_it_stands(before: str, secret: str, after: str) -> None:
    cleaned, _ = redact(before + secret + after, [secret])
    assert secret in MARK or secret not in cleaned.replace(MARK, "")
