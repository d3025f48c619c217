"""Bundles: their list, the page of one, its tensors as pictures, and two of them side by side."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from litestar import Response, Router, get
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath, QueryParameter
from litestar.response import Redirect, Stream, Template

from tidegauge.bundles.manifest import Manifest
from tidegauge.bundles.reader import decode_blob
from tidegauge.collector import bundle_api, tensor_pictures, views_fleet
from tidegauge.collector.access import pictures
from tidegauge.collector.fleet_rows import BundleFilter
from tidegauge.collector.pages import live
from tidegauge.collector.pages.common import AnyRequest, PageNumber, Shown, Text, TheSite, page
from tidegauge.collector.site import Site
from tidegauge.collector.tables import BundleState

#: Bundles a page; those offered for comparing.
SIZE, OTHERS = 50, 50
State = Annotated[BundleState | Literal[""], QueryParameter(name="state")]
Ended = Annotated[Literal["", "0", "1", "3"], QueryParameter(name="result")]


class Asked(msgspec.Struct, frozen=True):
    """What the list is asked for, by the names of its query. `result`: the comparison's exit code."""

    device: str = ""
    state: BundleState | Literal[""] = ""
    result: str = ""
    page: int = 1


@get("/bundles", sync_to_thread=True)
def bundles_page(
    site: TheSite, device: Text = "", bundle_state: State = "", result: Ended = "", number: PageNumber = 1
) -> Template:
    """Bundles that match, newest first, a page at a time."""
    asked = Asked(device, bundle_state, result, number)
    given = {name: getattr(asked, name) for name in ("device", "state", "result")}
    if number > 1:
        given["page"] = number
    return page("bundles.html", listed(site, asked), f"/live/bundles/events{views_fleet.query(given)}", given=given)


@get("/live/bundles/events")
async def bundles_events(
    request: AnyRequest,
    site: TheSite,
    device: Text = "",
    bundle_state: State = "",
    result: Ended = "",
    number: PageNumber = 1,
) -> Stream:
    """The versions of the list."""
    return await live.stream(request, partial(listed, site, Asked(device, bundle_state, result, number)))


@get("/bundles/{device:str}/{bundle:str}", sync_to_thread=True)
def bundle_page(site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> Template:
    """One bundle: what the board said, what the comparison found, and what can be done with it."""
    seen = shown(site, device, bundle)
    manifest = site.manifest(seen["bundle"])
    drawn = [(each, all(site.blobs.has(blob.sha256) for blob in each.blobs)) for each in _drawable(manifest)]
    others = [each for each in site.store.find_bundles(BundleFilter(state="compared"), OTHERS) if each.report]
    others = [each for each in others if (each.device, each.bundle) != (device, bundle)]
    path = f"/live/bundles/{device}/{bundle}/events"
    for_all = site.access.config.pictures == "viewer"
    more = {"manifest": manifest, "pictures": drawn, "others": others, "pictures_for_all": for_all}
    return page("bundle.html", seen, path, **more)


@get("/live/bundles/{device:str}/{bundle:str}/events")
async def bundle_events(request: AnyRequest, site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> Stream:
    """The versions of the page."""
    return await live.stream(request, partial(shown, site, device, bundle))


@get("/bundles/{device:str}/{bundle:str}/pictures/{role:str}", guards=[pictures], sync_to_thread=True)
def picture(site: TheSite, device: FromPath[str], bundle: FromPath[str], role: FromPath[str]) -> Response[bytes]:
    """A tensor as a PNG."""
    manifest = site.manifest(site.bundle(device, bundle))
    drawn = next((each for each in _drawable(manifest) if each.role == role), None)
    if drawn is None:
        raise NotFoundException(f"bundle {bundle} has no picture {role[:40]}")
    if not all(site.blobs.has(blob.sha256) for blob in drawn.blobs):
        raise NotFoundException("this tensor is not here: the board keeps it, or retention has deleted it")
    content = [decode_blob(site.blobs.get(blob.sha256, blob.stored), blob) for blob in drawn.blobs]
    try:
        data = tensor_pictures.draw(manifest, drawn, content)
    except ValueError as error:
        raise NotFoundException(f"this tensor does not have the shape that its manifest says ({error})") from error
    return Response(data, media_type="image/png", headers={"cache-control": "private, max-age=3600"})


@get("/bundles/{device:str}/{bundle:str}/against", sync_to_thread=True)
def choose_other(site: TheSite, device: FromPath[str], bundle: FromPath[str], other: Text) -> Redirect:
    """From the form, which names the other one as device/bundle, to the page of both."""
    site.bundle(device, bundle)
    its_device, _, its_bundle = other.strip().partition("/")
    found = site.bundle(its_device, its_bundle)
    return Redirect(f"{site.base}/bundles/{device}/{bundle}/against/{found.device}/{found.bundle}", status_code=303)


@get("/bundles/{device:str}/{bundle:str}/against/{other_device:str}/{other_bundle:str}", sync_to_thread=True)
def against_page(
    site: TheSite,
    device: FromPath[str],
    bundle: FromPath[str],
    other_device: FromPath[str],
    other_bundle: FromPath[str],
) -> Template:
    """Two comparisons side by side."""
    one, other = site.bundle(device, bundle), site.bundle(other_device, other_bundle)
    both = bundle_api.against.fn(site, device, bundle, other_device, other_bundle)
    return page("against.html", {"one": one, "other": other, "both": both})


def listed(site: Site, asked: Asked) -> Shown:
    which = BundleFilter(device=asked.device, state=asked.state, exit_code=int(asked.result) if asked.result else None)
    where = views_fleet.paging(site.store.count_bundles(which), asked.page, SIZE)
    return {
        "asked": asked,
        "paging": where,
        "bundles": site.store.find_bundles(which, SIZE, (where.number - 1) * SIZE),
        "connected": site.connected(),
    }


def shown(site: Site, device: str, bundle: str) -> Shown:
    found = site.bundle(device, bundle)
    return {"bundle": found, "runs": site.store.runs(20, 0, device, bundle)}


def _drawable(manifest: Manifest) -> tuple[tensor_pictures.Drawn, ...]:
    try:
        return tensor_pictures.drawable(manifest)
    except KeyError as error:  # an element type that no tensor has
        raise HTTPException(f"the manifest names the element type {error}", status_code=422) from error


router = Router(
    "/",
    route_handlers=[
        bundles_page,
        bundles_events,
        bundle_page,
        bundle_events,
        picture,
        choose_other,
        against_page,
    ],
    include_in_schema=False,
)
