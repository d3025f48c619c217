"""Secrets out of texts. Pure.

A secret is known by its key (`password = …`), by its form (PEM blocks, passwords in URLs, bearer tokens), or literally:
what a password file holds is replaced wherever it occurs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MARK = "[removed]"
_WORDS = r"pass(?:word|wd|phrase)?|secret|token|api_?key|credential|private_?key|user-pw"

# Lengths are bounded and beginnings anchored: a log may be one line of a quarter of a megabyte.
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_URL = re.compile(r"(?P<scheme>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,15}://)(?P<who>[^\s/'\"]{1,512})@", re.IGNORECASE)
_BEARER = re.compile(r"(?P<word>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
#: `password = "x"`, `"token": "x"`, `--password x`; not `password_file = "…"`, which is a path.
_PAIR = re.compile(
    rf"(?P<key>[\"']?(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{{0,40}}?(?:{_WORDS})[\"']?)(?P<sign>\s{{0,9}}[:=]\s{{0,9}}|\s+(?=[^\s:=]))(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;}}]+)",
    re.IGNORECASE,
)
#: Shorter ones would tear holes into harmless text.
SHORTEST = 4


def redact(text: str, literals: Iterable[str] = ()) -> tuple[str, int]:
    """The text without secrets, and how many were removed. `literals`: secrets known word for word."""
    removed = 0
    for literal in sorted({each for each in literals if len(each) >= SHORTEST}, key=len, reverse=True):
        removed += text.count(literal)
        text = text.replace(literal, MARK)

    def counted(pattern: re.Pattern[str], replacement: str) -> None:
        nonlocal text, removed
        text, count = pattern.subn(replacement, text)
        removed += count

    counted(_PEM, MARK)
    counted(_URL, rf"\g<scheme>{MARK}@")
    counted(_BEARER, rf"\g<word>{MARK}")
    counted(_PAIR, rf'\g<key>\g<sign>"{MARK}"')
    return text, removed
