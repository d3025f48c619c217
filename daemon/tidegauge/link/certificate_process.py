"""Certificates read by a short-lived process, so that what reads them doesn't stay in the agent (docs/adr/0026).

The process is started once for each content: what a certificate says is kept by its own bytes. All here waits for it;
from an event loop, call it in a thread.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

import msgspec

from tidegauge.errors import TidegaugeError
from tidegauge.link.certificates import Answer, Certificate, Request, Unreadable, first_of

#: Seconds. It takes a fraction of one, and longer on a board that does much else; an agent that ends waits for it.
SECONDS = 20.0
#: Of a link: the configured one, the one in use, the one that has come; and their predecessors.
KEPT = 8
MODULE = "tidegauge.link.certificates"

_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
_one_at_a_time = threading.Lock()


def read(path: Path) -> Certificate:
    """What the first certificate of a PEM file says. Raises TidegaugeError."""
    pem = first_of(path)
    with _one_at_a_time:
        answer = _kept(pem)
    if isinstance(answer, Certificate):
        return answer
    raise answer.error(path)


def request(path: Path) -> Request:
    """A new key, and a request for a certificate of the same subject as that of a PEM file. Raises TidegaugeError."""
    pem = first_of(path)
    with _one_at_a_time:
        answer = _asked("request", pem)
    if isinstance(answer, Unreadable):
        raise answer.error(path)
    if isinstance(answer, Certificate):
        raise TypeError("it has read the certificate, and was asked for a request")
    return answer


@lru_cache(KEPT)
def _kept(pem: bytes) -> Certificate | Unreadable:
    answer = _asked("read", pem)
    if isinstance(answer, Request):
        raise TypeError("it has made a request, and was asked to read the certificate")
    return answer


def _asked(what: str, pem: bytes) -> Answer:
    try:
        done = subprocess.run(
            # -P: never import from the folder the agent happens to be in
            [sys.executable, "-P", "-m", MODULE, what],
            input=pem,
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
        return _answers.decode(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise _unread(f"gave no answer within {SECONDS:g} s") from error
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise _unread(f"ended with code {error.returncode}: {last or 'nothing more was said'}") from error
    except OSError as error:
        raise _unread(f"can't be started ({error})") from error
    except msgspec.DecodeError as error:
        raise _unread(f"gave no answer that can be understood ({error})") from error


def _unread(problem: str) -> TidegaugeError:
    return TidegaugeError(
        f"the process that reads the link's certificate {problem}", "free memory or processes; it is tried again"
    )
