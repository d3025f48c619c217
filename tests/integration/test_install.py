"""`systemd/install` for real, as root, over copies of this machine's folders: what it leaves, refuses and says.

The whole of it under systemd is `make board-test`; here are the ways out that one does not take.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from needs import overlays, unless

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "systemd" / "install"
FOLDERS = ("etc", "usr", "opt", "var")
#: A namespace of mounts of its own: every folder it writes to is a copy, and no systemd is seen to run.
PRIVATE = """
set -eu
mount -t tmpfs tmpfs "$SCRATCH"
for top in FOLDERS; do
    mkdir -p "$SCRATCH/$top/up" "$SCRATCH/$top/work"
    mount -t overlay overlay -o "lowerdir=/$top,upperdir=$SCRATCH/$top/up,workdir=$SCRATCH/$top/work" "/$top"
done
mount -t tmpfs tmpfs /run
written() { cd "$SCRATCH" && find */up -not -type d -not -type c -size +0 | grep -v '[-]$' | sort; }
install() { sh "$SCRIPT" --python "$PYTHON" --offline "$WHEELS" "$@"; }
"""


pytestmark = unless(*overlays())


def wheels(tmp_path: Path, version: str = "1.0", body: str = "print('tidegauge')\n") -> Path:
    """A folder of wheels as a bundle has it, of a program that only says its name."""
    folder = tmp_path / f"wheels-{version}"
    folder.mkdir()
    wheel = folder / f"tidegauge-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tidegauge/__init__.py", "")
        archive.writestr("tidegauge/cli.py", f"def main():\n    {body}")
        archive.writestr("tidegauge/large.bin", os.urandom(256 * 1024))
    (folder / "SHA256SUMS").write_text(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n")
    return folder


def inside(tmp_path: Path, script: str, **folders: Path) -> subprocess.CompletedProcess[str]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SCRATCH": str(scratch), "SCRIPT": str(SCRIPT)}
    environment |= {"PYTHON": os.path.realpath(sys.executable)}
    environment |= {name.upper(): str(folder) for name, folder in folders.items()}
    text = PRIVATE.replace("FOLDERS", " ".join(FOLDERS)) + script
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", text],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_both_roles_leave_nothing(tmp_path: Path) -> None:
    script = """
cp /etc/passwd /etc/group "$SCRATCH"
install --no-start
install --no-start --role collector
mkdir -p /var/lib/tidegauge-collector /var/cache/tidegauge-collector
echo x >/var/lib/tidegauge-collector/rows; echo x >/var/cache/tidegauge-collector/compiled
/usr/local/bin/tidegauge
stat -c '%U:%G %a' /etc/tidegauge/collector.toml.example
sh "$SCRIPT" --uninstall
ls /etc/tidegauge/agent.toml.example
sh "$SCRIPT" --uninstall --purge
echo ==== left
written | grep -i tidegauge || true
cmp /etc/passwd "$SCRATCH/passwd" && cmp /etc/group "$SCRATCH/group"
"""
    done = inside(tmp_path, script, wheels=wheels(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    said, _, left = done.stdout.partition("==== left\n")
    assert "root:tidegauge-collector 640" in said
    assert "removed /var/cache/tidegauge-collector" in said
    assert not left


def test_a_dry_run_says_and_does_nothing(tmp_path: Path) -> None:
    """Without a folder of wheels too: then it says what it would fetch."""
    script = """
"$PYTHON" -m pip --version >/dev/null
install --dry-run
sh "$SCRIPT" --dry-run --python "$PYTHON"
sh "$SCRIPT" --dry-run --python "$PYTHON" --role collector
echo ==== left
written
"""
    done = inside(tmp_path, script, wheels=wheels(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    said, _, left = done.stdout.partition("==== left\n")
    assert said.count("would write /etc/systemd/system/tidegauge-agent.service\n") == 2
    assert "would install release 1.0-" in said
    assert "requirements/collector.lock" in said
    assert not left


def test_a_full_disk_leaves_the_release_in_use_and_no_half_one(tmp_path: Path) -> None:
    script = """
mount -t tmpfs -o size=4m tmpfs /opt
install --no-start
before=$(readlink /opt/tidegauge/current)
WHEELS=$OTHER
code=0; install --no-start || code=$?
echo "==== $code"
[ "$before" = "$(readlink /opt/tidegauge/current)" ] && /usr/local/bin/tidegauge
ls -A /opt/tidegauge/releases
"""
    first, other = wheels(tmp_path), wheels(tmp_path, "2.0")
    with zipfile.ZipFile(other / "tidegauge-2.0-py3-none-any.whl", "a") as archive:
        archive.writestr("tidegauge/larger.bin", os.urandom(5 * 1024 * 1024))
    digest = hashlib.sha256((other / "tidegauge-2.0-py3-none-any.whl").read_bytes()).hexdigest()
    (other / "SHA256SUMS").write_text(f"{digest}  tidegauge-2.0-py3-none-any.whl\n")
    done = inside(tmp_path, script, wheels=first, other=other)
    assert done.returncode == 0, done.stdout + done.stderr
    code, *after = done.stdout.partition("==== ")[2].split()
    assert code == "2"
    assert after[0] == "tidegauge"
    assert len(after) == 2, "one release, and nothing of the other"
    assert after[1].startswith("1.0-")
    assert "No space left on device" in done.stderr
    assert f"install: release {after[1]} is in use: mend that, then run this again" in done.stderr


def test_a_release_that_does_not_start_is_not_taken(tmp_path: Path) -> None:
    script = """
install --no-start
before=$(readlink /opt/tidegauge/current)
WHEELS=$OTHER
code=0; install --no-start || code=$?
[ "$before" = "$(readlink /opt/tidegauge/current)" ]
echo "==== $code"
"""
    other = wheels(tmp_path, "2.0", "raise SystemExit('broken on this board')\n")
    done = inside(tmp_path, script, wheels=wheels(tmp_path), other=other)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("==== 2\n")
    assert "doesn't start (see above): nothing was changed" in done.stderr


def test_rollback_goes_back_and_forth(tmp_path: Path) -> None:
    script = """
install --no-start
WHEELS=$OTHER install --no-start >/dev/null
/usr/local/bin/tidegauge
sh "$SCRIPT" --rollback --no-start && /usr/local/bin/tidegauge
sh "$SCRIPT" --rollback --no-start && /usr/local/bin/tidegauge
"""
    other = wheels(tmp_path, "2.0", "print('the other')\n")
    done = inside(tmp_path, script, wheels=wheels(tmp_path), other=other)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line for line in done.stdout.splitlines() if not line.startswith("install: ")]
    assert ran == ["the other", "tidegauge", "the other"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--role", "--role needs a value"),
        ("--role router", "--role is agent or collector, not router"),
        ("--rollback --uninstall", "--uninstall doesn't go with --rollback"),
        ("--purge", "--purge goes with --uninstall"),
        ("--offline /nowhere", "/nowhere is no folder: give the folder of wheels"),
        ("--offline /etc", "/etc/SHA256SUMS: No such file or directory"),
        ("--python /nowhere", "/nowhere is not there: give Python 3.11 or newer by --python"),
        ("--rollback", "no earlier release under /opt/tidegauge: nothing to go back to"),
        ("--offlin x", "unknown option --offlin"),
    ],
)
def test_what_is_refused_changes_nothing(tmp_path: Path, arguments: str, sentence: str) -> None:
    script = f'code=0; install {arguments} || code=$?; echo "==== $code"; written'
    done = inside(tmp_path, script, wheels=wheels(tmp_path))
    assert done.stdout.partition("==== ")[2] == "2\n", done.stdout + done.stderr
    assert f"install: {sentence}" in done.stderr


def test_a_changed_wheel_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    folder = wheels(tmp_path)
    with (folder / "tidegauge-1.0-py3-none-any.whl").open("ab") as file:
        file.write(b"x")
    done = inside(tmp_path, 'code=0; install || code=$?; echo "==== $code"; written', wheels=folder)
    assert done.stdout == "==== 2\n"
    assert "is not what SHA256SUMS says: copy the folder again" in done.stderr
    assert "install: no release is in use: mend that, then run this again" in done.stderr


def test_a_bundle_brings_what_the_units_point_at(tmp_path: Path) -> None:
    """Laid out as `make board-bundle` does it; `systemctl status` shows these paths to whoever is in need."""
    bundle = tmp_path / "bundle"
    shutil.copytree(ROOT / "systemd", bundle)
    shutil.copytree(ROOT / "agent_config", bundle / "agent_config")
    (bundle / "docs").mkdir()
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, bundle / "docs")
    wheels(tmp_path).rename(bundle / "wheels")
    script = """
for role in agent collector; do sh "$BUNDLE/install" --python "$PYTHON" --role "$role" --no-start >/dev/null; done
for file in $(sed -n 's#^Documentation=file:##p' /etc/systemd/system/tidegauge-*.service); do ls "$file"; done
ls /etc/tidegauge/agent.toml.example /etc/tidegauge/schemas/agent.schema.json
"""
    done = inside(tmp_path, script, bundle=bundle)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [
        "/opt/tidegauge/current/share/doc/tidegauge/board.md",
        "/opt/tidegauge/current/share/doc/tidegauge/architecture.md",
        "/etc/tidegauge/agent.toml.example",
        "/etc/tidegauge/schemas/agent.schema.json",
    ]
