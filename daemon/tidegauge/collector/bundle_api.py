"""The JSON API of one bundle: its manifest, its blobs, the whole as a file, and what was found, beside another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.exceptions import ClientException, NotFoundException
from litestar.params import FromPath, JSONBody, SkipValidation
from litestar.response import Stream
from litestar.status_codes import HTTP_200_OK, HTTP_409_CONFLICT

from tidegauge.bundles.manifest import blobs_of
from tidegauge.collector.access import pictures
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.compare_process import JSON
from tidegauge.collector.side_by_side import Side, SideBySide, read_side, side_by_side
from tidegauge.collector.site import Site
from tidegauge.collector.tables import Bundle

TheSite = NamedDependency[SkipValidation[Site]]


class Pin(msgspec.Struct, frozen=True):
    """`pinned`: no retention deletes it."""

    pinned: bool


@get("/manifest", sync_to_thread=True)
def manifest(site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> Response[bytes]:
    """The manifest, byte for byte as the board has signed it."""
    found = site.bundle(device, bundle)
    return Response(site.blobs.get(found.manifest_sha256, site.manifest_limit), media_type="application/json")


@get("/blobs/{sha256:str}", guards=[pictures], sync_to_thread=True, media_type="application/octet-stream")
def blob(site: TheSite, device: FromPath[str], bundle: FromPath[str], sha256: FromPath[str]) -> Stream:
    """A blob of the bundle, as stored; the manifest says whether that is one zstd frame, and of what."""
    found = site.bundle(device, bundle)
    named = blobs_of(site.manifest(found)).get(sha256)
    if named is None:
        raise NotFoundException(f"the manifest of {bundle} names no blob {sha256[:80]}")
    if not site.blobs.has(sha256):
        raise NotFoundException(f"blob {sha256} is not here: the board keeps it, or retention has deleted it")
    headers = {"content-disposition": f'attachment; filename="{sha256}"', "content-length": str(named.stored)}
    return Stream(_pieces(site.blobs, sha256), media_type="application/octet-stream", headers=headers)


@get("/archive", guards=[pictures], sync_to_thread=True, media_type="application/zip")
def archive(site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> Stream:
    """The bundle as one `.tidebundle`."""
    found = site.bundle(device, bundle)
    size, content = site.archive(found)
    headers = {
        "content-disposition": f'attachment; filename="{found.bundle}.tidebundle"',
        "content-length": str(size),
    }
    return Stream(content, media_type="application/zip", headers=headers)


@get("/against/{other_device:str}/{other_bundle:str}", sync_to_thread=True)
def against(
    site: TheSite,
    device: FromPath[str],
    bundle: FromPath[str],
    other_device: FromPath[str],
    other_bundle: FromPath[str],
) -> SideBySide:
    """What was found in two bundles, side by side: verdicts and SQNR by layer, and what ran on the two."""
    return side_by_side(_side(site, device, bundle), _side(site, other_device, other_bundle))


@post("/pin", status_code=HTTP_200_OK)
async def pin(
    request: Request[Any, Any, Any], site: TheSite, device: FromPath[str], bundle: FromPath[str], data: JSONBody[Pin]
) -> Bundle:
    """Keep the bundle whatever retention says, or no longer."""
    await asyncio.to_thread(site.bundle, device, bundle)
    await asyncio.to_thread(site.store.pin, device, bundle, data.pinned)
    await site.access.record(request, "pin" if data.pinned else "unpin", device, {"bundle": bundle})
    return await asyncio.to_thread(site.bundle, device, bundle)


def _side(site: Site, device: str, bundle: str) -> Side:
    try:
        return read_side(site.report(device, bundle, JSON))
    except msgspec.DecodeError as error:
        raise ClientException(
            f"the comparison of {bundle} of {device} is of another version ({error}): compare it again",
            status_code=HTTP_409_CONFLICT,
        ) from error


def _pieces(blobs: BlobStore, sha256: str) -> Iterator[bytes]:
    yield from blobs.chunks(sha256)


router = Router("/api/v1/bundles/{device:str}/{bundle:str}", route_handlers=[manifest, blob, archive, against, pin])
