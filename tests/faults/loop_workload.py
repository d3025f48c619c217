"""Commits and removes bundles for ever, and says what it was promised, a line each: run by test_loop_ext4.py.

Arguments: the spool's folder, the file to say it in, and `forget` where nothing is to be synced.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

import msgspec

from tidegauge.bundles.manifest import StoredTensor
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import stamp
from tidegauge.evaluation.durability_history import PLAIN
from tidegauge.filesystem import RealFileSystem
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.store import Spool
from tidegauge.tensors import TensorSpec

LIMITS = SpoolLimits(max_mib=30, max_files=4000, headroom_mib=0, headroom_files=0)
HELD = 20


class Forgetful(RealFileSystem):
    """Syncs nothing."""

    def sync_file(self, path: Path) -> None:
        """Left out."""

    def sync_folder(self, path: Path) -> None:
        """Left out."""


def main(folder: Path, told: Path, forget: bool) -> None:
    descriptor = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(text: str) -> None:
        os.write(descriptor, f"{text}\n".encode())

    disk = Forgetful() if forget else RealFileSystem()
    rng, spool = Random(1), Spool(folder, LIMITS, disk)
    number = 0
    while True:
        number += 1
        name = f"bundle-{number:06d}"
        writer = BundleWriter(spool.prepare(name, 40_000, 6), disk)
        blob = writer.add_bytes(rng.randbytes(rng.randrange(1, 20_000)), "raw")
        tensor = StoredTensor(TensorSpec("x", (blob.size,), "uint8"), blob)
        writer.seal(msgspec.structs.replace(PLAIN, bundle_id=name, created=stamp(), inputs=(tensor,)))
        spool.commit(name)
        say(f"+{name}")
        if number > HELD:
            gone = f"bundle-{number - HELD:06d}"
            say(f"~{gone}")  # from here it may be either
            spool.remove(gone)
            say(f"-{gone}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] == ["forget"])
