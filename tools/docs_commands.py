"""Runs the commands of the documentation in order, as a reader would: `make docs-commands`.

Each page gets a fresh folder and a small machine of its own (namespaces of mounts, network and processes by `unshare`):
what a command copies to /etc or /var is seen by the page's later commands only, ports are free, nothing outlives it. A
block begins where the one before it ended: folder and exported variables stay. Pages say what a machine can't know:

    <!-- commands: skip REASON -->     not run, and why
    <!-- commands: needs NAME -->      something of `FIXTURES` that a reader has by then
    <!-- commands: background TEXT --> stays running; goes on once it has printed TEXT; ended by Ctrl-C after the page
    <!-- commands: exits CODE -->      this exit code (of a block of one command), else 0
    <!-- commands: prints TEXT -->     the output has TEXT in it

just before a block, several words with `;` between. A fence without language is an error: `sh` holds commands, anything
else (`text`, `toml`, …) does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHOWN = ("text", "toml", "json", "python", "promql", "yaml", "mermaid")
DEADLINE = 1800.0

#: What a reader has at that place, as shell; it runs in the page's shell, so it may change the folder.
FIXTURES = {
    # What `git clone` gives, with what is not committed yet, and with the .venv that `make setup` would make.
    "clone": """
        mkdir "$HOME/tidegauge"
        git -C "$ROOT" -c safe.directory="$ROOT" ls-files -z --cached --others --exclude-standard > "$HOME/.files"
        tar -C "$ROOT" --null --ignore-failed-read --files-from="$HOME/.files" -cf - | tar -xf - -C "$HOME/tidegauge"
        ln -s "$ROOT/.venv" "$HOME/tidegauge/.venv"
        cd "$HOME/tidegauge"
    """,
    # A model and its compile with tempDir. What it was calibrated with does not matter for what is shown with it.
    "compile": """
        cp "$ROOT/daemon/tidegauge/demo/data/enhancer.onnx" .
        python -c 'import numpy as np
shape = (1, 3, 128, 192)
np.save("input.npy", np.random.default_rng(1).random(shape, np.float32))'
        mkdir -p compiled/enhancer
        tidegauge virtualboard compile enhancer.onnx --artifacts compiled/enhancer/artifacts --calibration input.npy
    """,
    # A run's traces with all that their comparison wants, as one file.
    "traces": """
        tidegauge virtualboard run compiled/enhancer/artifacts --input input.npy --output traced --debug-level 3
        cp -r enhancer.onnx input.npy compiled/enhancer/artifacts/tempDir traced/traces/
        (cd traced/traces && python -m zipfile -c ../../traces.zip *)
    """,
    # A bundle as the collector gives it for download, of a board with a fault, and the artifacts folder of its compile.
    "bundle": """
        env --default-signal=INT tidegauge demo --seed 10 --keep "$HOME/demo" \\
            > "$HOME/.demo.log" 2>&1 &
        demo=$!
        until grep -q "metrics *http" "$HOME/.demo.log"; do kill -0 $demo; sleep 0.5; done
        link=$(grep -o "http[^ ]*/report.html" "$HOME/.demo.log")
        link=${link%/report.html}
        curl --fail --silent --show-error --output anomaly.tidebundle "${link/reports/bundles}/download"
        kill -INT $demo
        wait $demo
        cp -r "$HOME/demo/compiles/enhancer/artifacts" .
    """,
    # The folders that Debian's packages of Prometheus and Alertmanager and Grafana's own package make.
    "monitoring": """
        mkdir -p /etc/prometheus /etc/alertmanager
        mkdir -p /etc/grafana/provisioning/dashboards /etc/grafana/provisioning/datasources /var/lib/grafana/dashboards
    """,
    "broker": """
        mosquitto -p 1883 > "$HOME/.mosquitto.log" 2>&1 &
        for _ in $(seq 600); do (: > /dev/tcp/127.0.0.1/1883) 2> "$HOME/.no" && break; sleep 0.1; done
        (: > /dev/tcp/127.0.0.1/1883)
    """,
    # Ctrl-C for what stays in the background.
    "stopped": "",
}


class PageError(ValueError):
    """A page says something about its commands that can't be acted on."""


@dataclass(frozen=True)
class Block:
    """One fence of a page: `number` counts the page's blocks of commands from 1, `line` is the fence's own."""

    page: str
    number: int
    line: int
    language: str
    text: str
    skip: str = ""
    needs: tuple[str, ...] = ()
    background: str = ""
    exits: int = 0
    prints: tuple[str, ...] = ()


@dataclass
class Row:
    page: str
    block: int
    line: int
    outcome: str  # ran, skipped, failed
    reason: str = ""
    seconds: float = 0.0


@dataclass
class _Said:
    skip: str = ""
    needs: list[str] = field(default_factory=list)
    background: str = ""
    exits: int = 0
    prints: list[str] = field(default_factory=list)


_FENCE = re.compile(r"^( *)```([a-z]*)\s*$")
_MARKER = re.compile(r"^ *<!-- commands: (.*) -->$")


def commands(text: str) -> list[str]:
    """The commands of a block, one an entry: continued lines joined, comments and empty lines left out."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.strip().startswith("#")]


def _said(text: str, where: str) -> _Said:
    said = _Said()
    parts = [text] if text.startswith("skip ") else text.split(";")  # a reason may have its own semicolons
    for part in parts:
        word, _, rest = part.strip().partition(" ")
        if not rest:
            raise PageError(f"{where}: `{word}` says nothing more: write `{word} …`")
        if word == "skip":
            said.skip = rest
        elif word == "needs" and rest in FIXTURES:
            said.needs.append(rest)
        elif word == "background":
            said.background = rest
        elif word == "exits" and rest.isdigit():
            said.exits = int(rest)
        elif word == "prints":
            said.prints.append(rest)
        else:
            raise PageError(f"{where}: `{part.strip()}` is no marker: skip, needs ({', '.join(FIXTURES)}), …")
    return said


def blocks(page: str, text: str) -> list[Block]:
    """All fences of a page in order; PageError where one can't be classified or a marker stands before none."""
    found: list[Block] = []
    number, marker, opened = 0, "", None
    lines: list[str] = []
    for at, line in enumerate(text.splitlines(), 1):
        where = f"{page}:{at}"
        fence = _FENCE.match(line)
        if opened is not None:
            if fence is None:
                lines.append(line)
                continue
            start, language, indent = opened
            body = "\n".join(each.removeprefix(indent) for each in lines)
            said = _said(marker, where) if marker else _Said()
            number += language == "sh"
            found.append(_block(page, number, start, language, body, said))
            marker, opened, lines = "", None, []
        elif fence is not None:
            if fence[2] != "sh" and (marker or fence[2] not in SHOWN):
                raise PageError(f"{where}: a fence needs a language: `sh` for commands, else {', '.join(SHOWN)}")
            opened = (at, fence[2], fence[1])
        elif told := _MARKER.match(line):
            marker = told[1]
        elif marker and line.strip():
            raise PageError(f"{where}: the marker above stands before no block of commands")
    if opened is not None or marker:
        raise PageError(f"{page}: ends within a block, or after a marker")
    return found


def _block(page: str, number: int, line: int, language: str, text: str, said: _Said) -> Block:
    if said.exits and len(commands(text)) != 1:
        raise PageError(f"{page}:{line}: `exits` is for a block of one command")
    if said.skip and said != _Said(skip=said.skip):
        raise PageError(f"{page}:{line}: a block that is skipped needs nothing else")
    return Block(
        page,
        number,
        line,
        language,
        text,
        said.skip,
        tuple(said.needs),
        said.background,
        said.exits,
        tuple(said.prints),
    )


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "agent_config" / "broker" / "README.md"]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


class Reader:
    """One reader of one page: a shell that remembers folder and variables from block to block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / ".state"
        self.state.write_text(f"cd {folder}\n")
        self.had: set[str] = set()
        self.staying: list[tuple[Block, subprocess.Popen[bytes]]] = []
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "TIDEGAUGE"))
        }
        path = f"{ROOT}/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.environment = kept | {
            "HOME": str(folder),
            "PATH": path,
            "ROOT": str(ROOT),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
        }

    def read(self, block: Block) -> Row:
        row = Row(block.page, block.number, block.line, "skipped", block.skip)
        if block.skip:
            return row
        began = time.monotonic()
        row.reason = self._wrong(block)
        row.outcome, row.seconds = "failed" if row.reason else "ran", round(time.monotonic() - began, 1)
        return row

    def _wrong(self, block: Block) -> str:
        if "stopped" in block.needs and (rows := self.leave()):
            return rows[0].reason
        for name in block.needs:
            if name not in self.had:
                self.had.add(name)
                log = self.folder / f".{name}.log"
                if code := self._start(FIXTURES[name], log).wait(DEADLINE):
                    return f"needs {name}, whose making ended with {code}: {_end(log)}"
        log = self.folder / f".{block.number}.log"
        process = self._start(block.text, log)
        if block.background:
            self.staying.append((block, process))
            return self._awaited(block, process, log)
        try:
            code = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"did not end in {DEADLINE:.0f} s: {_end(log)}"
        if code != block.exits:
            return f"exit code {code}, not {block.exits}: {_end(log)}"
        missing = [each for each in block.prints if each not in _flat(log)]
        return f"did not print {missing[0]!r}: {_end(log)}" if missing else ""

    def _awaited(self, block: Block, process: subprocess.Popen[bytes], log: Path) -> str:
        until = time.monotonic() + DEADLINE
        while block.background not in _flat(log):
            if process.poll() is not None:
                return f"ended with {process.returncode} before it printed {block.background!r}: {_end(log)}"
            if time.monotonic() > until:
                return f"did not print {block.background!r} in {DEADLINE:.0f} s: {_end(log)}"
            time.sleep(0.2)
        return ""

    def _start(self, text: str, log: Path) -> subprocess.Popen[bytes]:
        keep = f'code=$?; {{ export -p; printf "cd %q\\n" "$PWD"; }} > {self.state}; exit $code'
        script = f"set -euo pipefail\nsource {self.state}\ntrap '{keep}' EXIT\n{text}\n"
        with log.open("wb") as out:
            # Who runs this in the background of a script has Ctrl-C ignored, and so would all that it starts.
            return subprocess.Popen(
                ["env", "--default-signal=INT", "bash", "-c", script],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def leave(self) -> list[Row]:
        """Ctrl-C for what stays; a row for each that does not end by it."""
        rows = []
        for block, process in reversed(self.staying):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                rows.append(Row(block.page, block.number, block.line, "failed", "did not end by Ctrl-C in 120 s"))
        self.staying.clear()
        return rows


def _flat(log: Path) -> str:
    """Output with colours and line breaks taken out, since where a line is broken depends on the terminal."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace")).split())


def _end(log: Path) -> str:
    return _flat(log)[-600:]


def machine(page: Path, folder: Path) -> Iterator[Row]:
    """What a page's commands did; call it inside the namespaces only."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    layers = folder / ".machine"
    layers.mkdir()
    # An overlay can't lie on an overlay, which a container's root may be.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(layers)], check=True)
    for name in ("etc", "var", "opt"):
        upper, work = layers / name / "upper", layers / name / "work"
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir=/{name},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, f"/{name}"], check=True)
    reader = Reader(folder)
    for block in blocks(name_of(page), page.read_text()):
        if block.language == "sh":
            row = reader.read(block)
            yield row
            if row.outcome == "failed":  # what comes after builds on it
                break
    yield from reader.leave()


def _unshare() -> list[str]:
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *own, "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def no_machine() -> str:
    """Why pages can't be run here; empty where they can."""
    layers = "mkdir /mnt/u /mnt/w && mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /etc"
    tried = f"mount -t tmpfs tmpfs /mnt && {layers} && ip link set lo up"
    try:
        done = subprocess.run([*_unshare(), "sh", "-c", tried], capture_output=True, check=False)
    except FileNotFoundError:
        return "there is no `unshare` (util-linux)"
    return done.stderr.decode(errors="replace").strip() or "unshare failed" if done.returncode else ""


def run(page: Path) -> list[Row]:
    """The page's commands, in a machine of their own."""
    with tempfile.TemporaryDirectory(prefix="docs-commands-", ignore_cleanup_errors=True) as folder:
        asked = [*_unshare(), sys.executable, __file__, "--inside", folder, name_of(page)]
        done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True)
        return [Row(**json.loads(line)) for line in done.stdout.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the commands of the documentation in order, as a reader would.")
    parser.add_argument("pages", nargs="*", help="only these (README.md, docs/collector.md, …)")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--list", action="store_true", help="run nothing: say what would be")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    chosen = [ROOT / name for name in asked.pages] or pages()
    if asked.inside:
        for row in machine(chosen[0], asked.inside):
            print(json.dumps(asdict(row)), flush=True)
        return 0
    if not asked.list and (reason := no_machine()):
        print(f"docs-commands: no machine of its own for a page: {reason}; run it as root on Linux", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for page in chosen:
        own = [each for each in blocks(name_of(page), page.read_text()) if each.language == "sh"]
        made = [Row(b.page, b.number, b.line, "skipped" if b.skip else "to run", b.skip) for b in own]
        for row in made if asked.list or not own else run(page):
            rows.append(row)
            seconds = f"{row.seconds:7.1f} s" if row.seconds else " " * 9
            print(
                f"{row.page:28} {row.block:3} (line {row.line:3})  {row.outcome:8} {seconds}  {row.reason}", flush=True
            )
    count = {outcome: sum(row.outcome == outcome for row in rows) for outcome in ("ran", "skipped", "failed")}
    print(", ".join(f"{number} {outcome}" for outcome, number in count.items()))
    if asked.json:
        asked.json.write_text(json.dumps({"blocks": [asdict(row) for row in rows], **count}, indent=2) + "\n")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
