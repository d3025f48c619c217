"""The steps of `make board-test` that install, upgrade, roll back and remove."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from board.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable


class Releases:
    """A part of `run.BoardTest`, which brings the rest."""

    tree: Tree
    offline: Path
    before: set[str]
    if TYPE_CHECKING:
        figure: Callable[..., None]
        holds: Callable[..., None]
        active: Callable[[], bool]
        page: Callable[[], str]
        runs_more: Callable[[float, str], float]

    def install(self) -> None:
        group = "install, offline"
        tree = self.tree
        decoys = []
        for name in ("numpy", "onnxruntime", "tflite_runtime", "cv2"):
            decoy = tree.root / "usr/lib/python3/dist-packages" / name / "__init__.py"
            decoy.parent.mkdir(parents=True)
            decoy.write_text(f'__version__ = "1.26.4"  # the image\'s own {name}\n')
            decoys.append(decoy)
        said = {decoy: (decoy.read_bytes(), decoy.stat().st_mtime_ns) for decoy in decoys}
        for program in ("pip", "pip3", "systemd-sysusers", "bin/systemd-sysusers"):
            (tree.root / "usr/bin" / program).unlink(missing_ok=True)
        shutil.copytree(self.offline, tree.root / "root/bundle")
        self.before = self._files()
        output = tree.run("/root/bundle/install", "--no-start").stdout
        kept = [name for name in ("numpy", "onnxruntime", "cv2") if f"kept {name}" in output]
        self.holds(group, "image's own packages kept, and said so", len(kept) == 3, ", ".join(kept))
        same = all((decoy.read_bytes(), decoy.stat().st_mtime_ns) == said[decoy] for decoy in decoys)
        self.holds(group, "image's own packages untouched", same)
        site = next((tree.root / "opt/tidegauge/releases").glob("*/lib/python3*/site-packages"))
        brought = [name for name in ("numpy", "onnxruntime", "cv2") if (site / name).exists()]
        self.holds(group, "no copy of them beside", not brought, ", ".join(brought))
        page = tree.root / "opt/tidegauge/current/share/doc/tidegauge/board.md"
        self.holds(group, "the page that the unit names is there", page.is_file())
        for decoy in decoys:
            shutil.rmtree(decoy.parent)
        tree.run("/root/bundle/install", "--no-start")  # now with the stand-ins, for the virtual board
        again = tree.run("/root/bundle/install", "--no-start").stdout
        self.holds(group, "second time changes nothing", "installed already" in again and "wrote" not in again)

    def upgraded(self) -> None:
        group = "upgrade and rollback under load"
        self.runs_more(60, "device run")
        now = str((self.tree.root / "opt/tidegauge/current").readlink())
        wheels = self.tree.root / "root/bundle/wheels"
        # Another release: the same files with one more.
        (own,) = wheels.glob("tidegauge-*.whl")
        other = own.with_name(own.name.replace("tidegauge-0", "tidegauge-99.0", 1))
        shutil.move(own, other)
        sums = wheels / "SHA256SUMS"
        sums.write_text(sums.read_text().replace(own.name, other.name))
        said, silent = self._silence("/root/bundle/install")
        after = str((self.tree.root / "opt/tidegauge/current").readlink())
        self.figure(group, "upgrade: longest silence of the metrics page", silent, "s", 30)
        self.holds(group, "another release is in use", after != now and "99.0" in after, said.strip().splitlines()[-1])
        self.runs_more(60, "device run")
        _, silent = self._silence("/root/bundle/install", "--rollback")
        self.figure(group, "rollback: longest silence of the metrics page", silent, "s", 30)
        self.holds(
            group, "the earlier release is in use", str((self.tree.root / "opt/tidegauge/current").readlink()) == now
        )
        self.runs_more(60, "device run")

    def _silence(self, *command: str) -> tuple[str, float]:
        """What the command said, and the longest silence of the metrics page in seconds, until it answered again."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.tree.run, *command, timeout=300)
            heard, longest = time.monotonic(), 0.0
            while True:
                done = running.done()
                if self.page():
                    longest, heard = max(longest, time.monotonic() - heard), time.monotonic()
                    if done and self.active():
                        return running.result().stdout, longest
                elif done and time.monotonic() - heard > 60:
                    raise TimeoutError("no metrics page 60 s after the command")
                time.sleep(0.1)

    def removed(self) -> None:
        group = "uninstall --purge"
        self.tree.run("/root/bundle/install", "--uninstall", "--purge")
        left = sorted(self._files() - self.before)
        self.holds(group, "no file left", not left, ", ".join(left[:5]))
        self.holds(group, "no process left", not self.page())

    def _files(self) -> set[str]:
        """Files of the tree where an installer might write."""
        found = set()
        for top in ("etc", "opt", "usr", "var/lib", "run", "srv"):
            for path in (self.tree.root / top).rglob("*"):
                name = self.tree.inside(path)
                quiet = ("/run/", "/var/lib/systemd", "/srv/board", "/etc/machine-id", "/etc/.", "/usr/lib/python3")
                # The account files' own backups, and what a boot writes.
                if (
                    not name.startswith(quiet)
                    and not name.endswith(("-", ".pyc", "__pycache__"))
                    and name not in ("/etc/resolv.conf", "/etc/mtab")
                ):
                    found.add(name)
        return found
