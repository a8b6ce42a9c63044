"""Where the provider reports what was delivered.

It has no login: a report is believed by the mark that we gave with the message and nobody else can make. So whoever carries
this route lets it through without one (`PATH`). What is said becomes a record in the ledger: the process that sends may run
elsewhere, or not at all just now.
"""

from collections.abc import Callable, Sequence

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from riverrun.alerts.channels.sms import Marks
from riverrun.alerts.gateway.server import kept_key
from riverrun.alerts.ledger import Change, Reported, kept
from riverrun.config.phone_state import find_phones, folder_of
from riverrun.config.project import Project
from riverrun.config.spec import AlertSettings

PATH = "/api/alerts/delivered"


def delivered_route(marks: Callable[[], Marks | None], keep: Callable[[Sequence[Change]], None]) -> Route:
    """`marks` gives what reports are believed by, where SMS are sent at all; `keep` returns when the ledger has it."""

    async def delivered(request: Request) -> Response:
        known = marks()
        reports = known.reports(await request.body()) if known is not None else []
        if reports:
            told = [kept(Reported(id=each.provider_id, state=each.state, reason=each.reason)) for each in reports]
            # An error of Kafka's becomes a 500, and the provider calls again.
            await run_in_threadpool(keep, told)
        return Response(status_code=204)

    return Route(PATH, delivered, methods=["POST"])


def marks_of(settings: AlertSettings, project: Project) -> Marks | None:
    """What reports of a project's messages are believed by; None when it sends no SMS."""
    if settings.sms_key:
        return Marks(settings.sms_key)
    return Marks(kept_key(folder_of(project))) if find_phones(project) is not None else None
