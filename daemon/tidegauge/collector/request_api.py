"""The JSON API of what people ask for: uploads, comparisons judged again or of uploaded traces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import Request, Response, Router, delete, get, post
from litestar.di import NamedDependency
from litestar.exceptions import ClientException, HTTPException, NotFoundException
from litestar.openapi.spec import OpenAPIFormat, OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from litestar.params import FromPath, JSONBody, QueryParameter, SkipValidation
from litestar.response import ServerSentEvent, ServerSentEventMessage
from litestar.status_codes import HTTP_200_OK, HTTP_202_ACCEPTED, HTTP_409_CONFLICT, HTTP_415_UNSUPPORTED_MEDIA_TYPE
from msgspec import Meta

from tidegauge.clocks import monotonic, wall
from tidegauge.collector.access import pictures, visitor_of
from tidegauge.collector.bundle_api import Pin
from tidegauge.collector.compare_process import HTML, JSON
from tidegauge.collector.request_rows import Run, Upload, UploadKind, new_id
from tidegauge.collector.site import Site
from tidegauge.collector.uploads import Asked, UploadRefused, Uploads

Row = TypeVar("Row")
TheSite = NamedDependency[SkipValidation[Site]]
AnyRequest = Request[Any, Any, Any]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="How many, newest first.")]
Offset = Annotated[int, QueryParameter(ge=0, le=10_000_000)]
Sha256 = Annotated[str, QueryParameter(pattern="^([0-9a-f]{64})?$", description="SHA-256 of a registered model.")]
FileName = Annotated[str, QueryParameter(min_length=1, max_length=200, description="Of the file, without a folder.")]

_FILE_TYPES = ("application/octet-stream", "application/zip", "application/x-zip-compressed")
#: Seconds between two looks, and after which a stream of events ends by itself: the browser asks again.
_LOOK, _STREAM = 0.5, 600.0


class Rejudge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Other thresholds: `threshold` is the local error over the healthy noise above which a layer is wrong,
    `min_coverage` the share of layers without which there is no verdict. At least one of them.
    """

    threshold: Annotated[float, Meta(gt=0, le=1e12)] | None = None
    min_coverage: Annotated[float, Meta(ge=0, le=1)] | None = None


@dataclass
class _FileBody(Operation):
    """Says in the description that the body is a file: the handler takes it piece by piece."""

    def __post_init__(self) -> None:
        file = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
        self.request_body = RequestBody(content={_FILE_TYPES[0]: OpenAPIMediaType(schema=file)}, required=True)


@post("/uploads/{kind:str}", operation_class=_FileBody, status_code=HTTP_202_ACCEPTED, request_max_body_size=None)
async def upload(
    request: AnyRequest, site: TheSite, kind: FromPath[UploadKind], name: FileName, model: Sha256 = ""
) -> Upload:
    """Send a file as the body of the request, `Content-Type: application/octet-stream`.

    A `bundle` (.tidebundle) is compared like one of a board; `traces` (a .zip of a TIDL trace folder, with the model in
    it or named) become a run; a `model` (.onnx, .tflite) and a `compile` (a .zip of artifacts with their tempDir) are
    registered for comparisons. Answers when the file is here; what becomes of it is at /uploads/{upload}.
    """
    taking, asked = _uploads(site), Asked(kind, name, visitor_of(request).name, model)
    if request.content_type[0] not in _FILE_TYPES:
        raise HTTPException(f"send the file itself, as {_FILE_TYPES[0]}", status_code=HTTP_415_UNSUPPORTED_MEDIA_TYPE)
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdecimal() else None
    try:
        taken = await taking.receive(asked, announced, request.stream())
    except UploadRefused as error:
        headers = {"retry-after": f"{error.wait:.0f}"} if error.wait else None
        raise HTTPException(str(error), status_code=error.status, headers=headers) from error
    detail = {"upload": taken.upload, "kind": kind, "name": name, "size": taken.size}
    await site.access.record(request, "upload", detail=detail)
    return taken


@get("/uploads", sync_to_thread=True)
def list_uploads(site: TheSite, limit: Limit = 200) -> list[Upload]:
    """What was uploaded, and what became of it."""
    return site.store.uploads(limit)


@get("/uploads/{upload_id:str}", sync_to_thread=True)
def show_upload(site: TheSite, upload_id: FromPath[str]) -> Upload:
    """One upload; `result` names what it became."""
    return _found(site.store.upload(upload_id), f"there is no upload {upload_id}")


@get("/uploads/{upload_id:str}/events", sync_to_thread=True, media_type="text/event-stream")
def upload_events(site: TheSite, upload_id: FromPath[str]) -> ServerSentEvent:
    """The upload whenever it changes (event `upload`), until it has come to an end."""
    show_upload.fn(site, upload_id)
    return ServerSentEvent(changes("upload", lambda: site.store.upload(upload_id), ("done", "failed")))


@post("/bundles/{device:str}/{bundle:str}/rejudge", status_code=HTTP_202_ACCEPTED)
async def rejudge(
    request: AnyRequest, site: TheSite, device: FromPath[str], bundle: FromPath[str], data: JSONBody[Rejudge]
) -> Run:
    """Judge what a comparison has measured by other thresholds: a run, whose report stands beside the bundle's own."""
    parameters = {name: value for name, value in msgspec.structs.asdict(data).items() if value is not None}
    if not parameters:
        raise ClientException("give `threshold`, `min_coverage`, or both")
    found = await asyncio.to_thread(site.bundle, device, bundle)
    stored = await asyncio.to_thread(site.store.report, device, bundle, JSON)
    if not found.report or stored is None:
        raise ClientException(
            f"bundle {bundle} has no comparison (state: {found.state})", status_code=HTTP_409_CONFLICT
        )
    who = visitor_of(request).name
    run = Run(new_id(), "rejudged", bundle, device, bundle, who, wall(), parameters, stored.sha256, "")
    await asyncio.to_thread(site.store.add_run, run)
    await asyncio.to_thread(_uploads(site).run, run.run)
    await site.access.record(request, "rejudge", device, {"bundle": bundle, "run": run.run, **parameters})
    return run


@get("/runs", sync_to_thread=True)
def list_runs(
    site: TheSite,
    device: Annotated[str, QueryParameter(max_length=200)] = "",
    bundle: Annotated[str, QueryParameter(max_length=200)] = "",
    limit: Limit = 200,
    offset: Offset = 0,
) -> list[Run]:
    """Comparisons that people have asked for; of one bundle where it is named."""
    return site.store.runs(limit, offset, device, bundle)


@get("/runs/{run_id:str}", sync_to_thread=True)
def show_run(site: TheSite, run_id: FromPath[str]) -> Run:
    """One run, and its answer."""
    return _found(site.store.run(run_id), f"there is no run {run_id}")


@get("/runs/{run_id:str}/events", sync_to_thread=True, media_type="text/event-stream")
def run_events(site: TheSite, run_id: FromPath[str]) -> ServerSentEvent:
    """The run whenever it changes (event `run`), until it has come to an end."""
    show_run.fn(site, run_id)
    return ServerSentEvent(changes("run", lambda: site.store.run(run_id), ("done", "failed")))


@post("/runs/{run_id:str}/pin", status_code=HTTP_200_OK)
async def pin_run(request: AnyRequest, site: TheSite, run_id: FromPath[str], data: JSONBody[Pin]) -> Run:
    """Keep the run whatever retention says, or no longer."""
    run = _found(await asyncio.to_thread(site.store.pin_run, run_id, data.pinned), f"there is no run {run_id}")
    await site.access.record(request, "pin run" if data.pinned else "unpin run", run.device, {"run": run_id})
    return run


@delete("/runs/{run_id:str}", status_code=204)
async def delete_run(request: AnyRequest, site: TheSite, run_id: FromPath[str]) -> None:
    """Forget a run and its report; the blobs go with the next retention."""
    if not await asyncio.to_thread(site.store.delete_run, run_id):
        raise NotFoundException(f"there is no run {run_id}")
    await site.access.record(request, "delete run", detail={"run": run_id})


@get("/runs/{run_id:str}/report.html", guards=[pictures], include_in_schema=False, sync_to_thread=True)
def run_report(site: TheSite, run_id: FromPath[str]) -> Response[bytes]:
    """The self-contained report of a run."""
    return Response(_run_file(site, run_id, HTML), media_type="text/html; charset=utf-8")


@get("/runs/{run_id:str}/comparison.json", guards=[pictures], include_in_schema=False, sync_to_thread=True)
def run_comparison(site: TheSite, run_id: FromPath[str]) -> Response[bytes]:
    """A run's comparison as JSON."""
    return Response(_run_file(site, run_id, JSON), media_type="application/json")


async def changes(
    name: str, look: Callable[[], msgspec.Struct | None], over: tuple[str, ...]
) -> AsyncGenerator[ServerSentEventMessage, None]:
    """A row whenever it has changed, until its `state` is one of `over` or it is gone."""
    last: msgspec.Struct | None = None
    until = monotonic() + _STREAM
    while monotonic() < until:
        row = await asyncio.to_thread(look)
        if row is None:
            return
        if row != last:
            last = row
            yield ServerSentEventMessage(data=msgspec.json.encode(row).decode(), event=name, retry=2000)
        if getattr(row, "state", "") in over:
            return
        await asyncio.sleep(_LOOK)


def _run_file(site: Site, run: str, name: str) -> bytes:
    file = site.store.run_file(run, name)
    if file is None:
        raise NotFoundException(f"run {run} has no {name} (yet)")
    return site.blobs.get(file.sha256, file.size)


def _uploads(site: Site) -> Uploads:
    if site.uploads is None:
        raise HTTPException("this process takes no requests in: ask another one of the collector", status_code=503)
    return site.uploads


def _found(row: Row | None, problem: str) -> Row:
    if row is None:
        raise NotFoundException(problem)
    return row


router = Router(
    "/api/v1",
    route_handlers=[
        upload,
        list_uploads,
        show_upload,
        upload_events,
        rejudge,
        list_runs,
        show_run,
        run_events,
        pin_run,
        delete_run,
    ],
)
reports = Router("/reports", route_handlers=[run_report, run_comparison])
