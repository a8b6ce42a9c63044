"""Where the provider reports what was delivered.

It has no login: a report is believed by the mark that we gave with the message and nobody else can make. So whoever carries
this route lets it through without one (`PATH`).
"""

import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from riverrun.alerts.channels.sms import SmsChannel
from riverrun.alerts.sender import Sending

PATH = "/api/alerts/delivered"


def delivered_route(
    channel: SmsChannel, sending: Sending, clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
) -> Route:
    async def delivered(request: Request) -> Response:
        reports = channel.reports(await request.body())
        if reports:
            # An error of the ledger's becomes a 500, and the provider calls again.
            await run_in_threadpool(sending.reported, reports, clock())
        return Response(status_code=204)

    return Route(PATH, delivered, methods=["POST"])
