"""`tidegauge bundle`: look into a bundle, pack it into one file, unpack it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from tidegauge.bundles import layout, sealing, signature
from tidegauge.bundles.archive import Progress as Report
from tidegauge.bundles.archive import export_bundle, import_bundle
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Manifest, Trace, blobs_of
from tidegauge.bundles.opening import decrypt
from tidegauge.bundles.reader import missing_blobs, read_manifest
from tidegauge.bundles.redaction import WHOLE


@click.group("bundle")
def command() -> None:
    """Look into trace bundles, pack and unpack them."""


@command.command("show")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the whole manifest as JSON.")
def show(path: Path, as_json: bool) -> None:
    """Print what the bundle at PATH (a folder or a .tidebundle file) holds."""
    if path.is_dir():
        manifest = read_manifest(path)
        lacking = len(missing_blobs(path, manifest))
    elif path.is_file():
        with tempfile.TemporaryDirectory(prefix="tidegauge-") as work:
            manifest = import_bundle(path, Path(work) / "bundle")
        lacking = 0
    else:
        raise BundleError(f"{path} does not exist", "give the folder of a bundle or a .tidebundle file")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode())
        return
    console = Console(soft_wrap=True)
    console.print(_summary(manifest, lacking))
    if manifest.traces:
        console.print(_traces(manifest))


@command.command("export")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
def export(folder: Path, file: Path) -> None:
    """Pack the bundle in FOLDER into one FILE (.tidebundle)."""
    manifest = read_manifest(folder)
    size = sum(blob.stored for blob in blobs_of(manifest).values()) + layout.manifest_path(folder).stat().st_size
    with _bar("packing", size) as report:
        export_bundle(folder, file, report)
    click.echo(f"{file}: bundle {manifest.bundle_id} of {manifest.device}, {file.stat().st_size} bytes")


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
def import_(file: Path, folder: Path) -> None:
    """Unpack FILE into a new FOLDER, checking every byte."""
    size = file.stat().st_size if file.is_file() else 0
    with _bar("unpacking", size) as report:
        manifest = import_bundle(file, folder, progress=report)
    click.echo(
        f"{folder}: bundle {manifest.bundle_id} of {manifest.device}, {len(blobs_of(manifest))} blobs, all checked"
    )


@command.command("decrypt")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), required=True, help="File of the private key.")
def decrypt_(path: Path, folder: Path, key: Path) -> None:
    """Write the encrypted bundle at PATH (a folder or a .tidebundle file) to a new FOLDER, where it can be compared.

    The copy shows what the camera saw, and has no signature any more.
    """
    private = sealing.load(key)
    if path.is_dir():
        signer = signature.check(layout.manifest_path(path).read_bytes(), read_manifest(path))
        manifest = decrypt(path, folder, private)
    else:
        with tempfile.TemporaryDirectory(prefix="tidegauge-") as work:
            whole = Path(work) / "bundle"
            import_bundle(path, whole)
            signer = signature.check(layout.manifest_path(whole).read_bytes(), read_manifest(whole))
            manifest = decrypt(whole, folder, private)
    by = f"signed by {signer[:16]}…" if signer else "signed by nobody"
    click.echo(f"{folder}: bundle {manifest.bundle_id} of {manifest.device}, decrypted; the original was {by}")


@contextmanager
def _bar(what: str, size: int) -> Iterator[Report]:
    """A progress bar on a terminal's stderr, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=size or None)
        yield lambda count: progress.advance(task, count)


def _summary(manifest: Manifest, lacking: int) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    cause = manifest.cause
    blobs = blobs_of(manifest).values()
    created = datetime.fromtimestamp(manifest.created.wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    rows = {
        "bundle": manifest.bundle_id,
        "device": f"{manifest.device}{' (VIRTUAL board)' if manifest.virtual else ''}",
        "created": f"{created}, {manifest.created.uptime:.0f} s after boot {manifest.created.boot_id[:8]}",
        "cause": f"{cause.message} ({cause.detector}, verdict: {cause.verdict})",
        "symptoms": ", ".join(cause.symptoms) or "none",
        "loss": "not measured" if manifest.loss is None else f"{manifest.loss:.4g}",
        "model": f"{manifest.profile.name} {manifest.inventory.model[:12]}",
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(manifest.inventory.versions.items())),
        "output changed by tracing": "yes: traces may not show the fault" if manifest.tracing_changed_output else "no",
        "picture": _picture(manifest),
        "blobs": f"{len(blobs)}, {sum(blob.stored for blob in blobs)} bytes stored"
        + (f", {lacking} not here" if lacking else ""),
    }
    for name, value in rows.items():
        table.add_row(name, _plain(value))
    return table


def _picture(manifest: Manifest) -> str:
    """What the board kept to itself, in words."""
    privacy = manifest.privacy
    if privacy is None:
        return "not said"
    words = {"full": "as it was", "statistics": "not sent", "golden": "of a golden tensor"}
    hiding, parts = privacy.hiding, [words[privacy.policy]]
    if hiding.blur:
        parts.append(f"blurred by {hiding.blur:g} of its shorter side")
    if hiding.keep != WHOLE:
        parts.append(f"only {', '.join(f'{share:g}' for share in hiding.keep)} of it kept")
    if privacy.recipient:
        sealed = any(blob.encoding == "sealed" for blob in blobs_of(manifest).values())
        parts.append(f"{'encrypted' if sealed else 'was encrypted'} to {privacy.recipient[:16]}…")
    return ", ".join(parts)


def _plain(text: str) -> Text:
    """Text from a bundle, without markup and without what a terminal would obey."""
    return Text("".join(letter if letter.isprintable() else "\ufffd" for letter in text))


def _traces(manifest: Manifest) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "kind", "dims", "type", "min", "max", "mean", "rms", "low end", "high end", "stored"):
        table.add_column(column, justify="left" if column in ("kind", "dims", "type") else "right", no_wrap=True)
    for trace in manifest.traces:
        table.add_row(*_row(trace))
    return table


def _row(trace: Trace) -> tuple[str, ...]:
    seen = trace.fingerprint
    numbers: tuple[float | None, ...] = (
        (seen.minimum, seen.maximum, seen.mean, seen.rms) if seen else (None, None, None, None)
    )
    shares = (f"{seen.low_share:.2%}", f"{seen.high_share:.2%}") if seen else ("-", "-")
    return (
        str(trace.data_id),
        trace.kind,
        "x".join(str(dim) for dim in trace.dims),
        trace.dtype or "unknown",
        *("-" if number is None else f"{number:.4g}" for number in numbers),
        *shares,
        "-" if trace.blob is None else str(trace.blob.stored),
    )
