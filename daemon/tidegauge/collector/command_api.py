"""The JSON API of commands to boards."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import Request, Router, get, post
from litestar.di import NamedDependency
from litestar.exceptions import ClientException, NotFoundException, TooManyRequestsException
from litestar.params import FromPath, JSONBody, QueryParameter, SkipValidation
from litestar.response import ServerSentEvent
from litestar.status_codes import HTTP_202_ACCEPTED, HTTP_409_CONFLICT

from tidegauge.clocks import wall
from tidegauge.collector.access import visitor_of
from tidegauge.collector.fleet_api import known
from tidegauge.collector.relay import NotSent, as_of
from tidegauge.collector.request_api import changes
from tidegauge.collector.request_rows import SentCommand
from tidegauge.collector.site import Site
from tidegauge.link.board_commands import AnyCommand
from tidegauge.link.command_wire import LONGEST_LIFE

TheSite = NamedDependency[SkipValidation[Site]]
Life = Annotated[float, QueryParameter(ge=1, le=LONGEST_LIFE, description="Seconds until the command expires.")]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="How many, newest first.")]


@post("/devices/{device:str}/commands", status_code=HTTP_202_ACCEPTED)
async def command(
    request: Request[Any, Any, Any],
    site: TheSite,
    device: FromPath[str],
    data: JSONBody[AnyCommand],
    life: Life = 300.0,
) -> SentCommand:
    """Tell a board to do something; `type` names the command. What became of it is at /commands/{command}."""
    relay = site.relay
    if relay is None:
        raise ClientException(
            "this collector has no key to command boards with (`commands.key`): use `tidegauge device`",
            status_code=HTTP_409_CONFLICT,
        )
    await asyncio.to_thread(known, site, device)
    try:
        sent = await relay.send(device, data, visitor_of(request).name, life)
    except NotSent as error:
        raise TooManyRequestsException(str(error)) from error
    await site.access.record(request, "command", device, {"command": sent.command, **sent.action})
    return sent


@get("/commands", sync_to_thread=True)
def list_commands(
    site: TheSite, device: Annotated[str, QueryParameter(max_length=200)] = "", limit: Limit = 200
) -> list[SentCommand]:
    """Commands that were given here, and what became of each."""
    now = wall()
    return [as_of(each, now) for each in site.store.sent_commands(device, limit)]


@get("/commands/{command_id:str}", sync_to_thread=True)
def show_command(site: TheSite, command_id: FromPath[str]) -> SentCommand:
    """One command; `verified` says whether its answer is surely the device's."""
    return _sent(site, command_id)


def _sent(site: Site, command_id: str) -> SentCommand:
    found = site.store.sent_command(command_id)
    if found is None:
        raise NotFoundException(f"no command {command_id} was given here")
    return as_of(found, wall())


@get("/commands/{command_id:str}/events", sync_to_thread=True, media_type="text/event-stream")
def command_events(site: TheSite, command_id: FromPath[str]) -> ServerSentEvent:
    """The command whenever it changes (event `command`), until it has come to an end."""
    _sent(site, command_id)
    over = ("done", "refused", "failed")
    return ServerSentEvent(changes("command", lambda: _sent(site, command_id), over))


router = Router("/api/v1", route_handlers=[command, list_commands, show_command, command_events])
