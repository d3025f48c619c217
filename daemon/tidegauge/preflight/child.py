"""One check in a process of its own: `python -m tidegauge.preflight.child MODULE`, context on stdin, finding on stdout.

What libraries print on stdout goes to stderr, so that only the finding is on stdout.
"""

from __future__ import annotations

import importlib
import os
import sys

import msgspec

from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe


def main() -> int:
    answer = os.dup(1)
    os.dup2(2, 1)
    context = msgspec.json.decode(sys.stdin.buffer.read(), type=Context)
    probe: Probe = importlib.import_module(sys.argv[1]).PROBE
    finding: Finding = probe.run(context)
    with os.fdopen(answer, "wb") as out:
        out.write(msgspec.json.encode(finding))
    sys.stdout.flush()
    sys.stderr.flush()
    # What a library has started (threads, exit handlers that wait for the C7x) must not keep a finished check waiting.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
