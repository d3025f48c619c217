"""Opens a TFLite session on TIDL, runs it, proves the offload, and writes what came of it as JSON.

Arguments: profile (JSON), runtime module, answer file. What C code prints goes to this process's own stdout and stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np

from tidegauge.errors import TidegaugeError
from tidegauge.profile import Profile
from tidegauge.runtimes.factory import open_device


def main(profile: str, module: str, answer: Path) -> None:
    try:
        session = open_device(msgspec.json.decode(profile.encode(), type=Profile), module, debug_level=3)
        try:
            x = np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 4, 4, 3)
            outputs = session.run({session.inputs[0].name: x})
            proof = session.offload()
            assert proof is not None
        finally:
            session.close()
    except TidegaugeError as error:
        told: dict[str, object] = {"fault": type(error).__name__, "problem": error.problem, "cure": error.cure}
    else:
        first = next(iter(outputs.values()))
        told = {"nodes": proof.nodes, "subgraphs": proof.subgraphs, "same": bool(np.array_equal(first, x))}
    answer.write_bytes(msgspec.json.encode(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
