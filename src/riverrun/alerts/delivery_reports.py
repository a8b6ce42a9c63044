"""Where the provider reports what was delivered.

It has no login: a report is believed by the mark that we gave with the message and nobody else can make. So whoever carries
this route lets it through without one (`REPORT_PATH`). What is said becomes a record in the ledger: the process that sends
may run elsewhere, or not at all just now.
"""

from collections.abc import Callable, Sequence

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from riverrun.alerts.channels.sms import ReportSigner
from riverrun.alerts.gateway.server import load_or_create_key
from riverrun.alerts.state_topic import AlertChange, DeliveryReportRecord, encode_upsert
from riverrun.config.gateway_state import find_gateway_endpoint, gateway_folder
from riverrun.config.project import Project
from riverrun.config.spec import AlertSettings

REPORT_PATH = "/api/alerts/delivered"


def delivery_report_route(
    find_signer: Callable[[], ReportSigner | None], publish: Callable[[Sequence[AlertChange]], None]
) -> Route:
    """`find_signer` gives what reports are believed by, where SMS are sent at all; `publish` returns when the ledger has
    it."""

    async def delivered(request: Request) -> Response:
        signer = find_signer()
        reports = signer.verify_reports(await request.body()) if signer is not None else []
        if reports:
            changes = [
                encode_upsert(DeliveryReportRecord(id=report.provider_id, state=report.state, reason=report.reason))
                for report in reports
            ]
            # An error of Kafka's becomes a 500, and the provider calls again.
            await run_in_threadpool(publish, changes)
        return Response(status_code=204)

    return Route(REPORT_PATH, delivered, methods=["POST"])


def load_report_signer(settings: AlertSettings, project: Project) -> ReportSigner | None:
    """What reports of a project's messages are believed by; None when it sends no SMS."""
    if settings.sms_key:
        return ReportSigner(settings.sms_key)
    return (
        ReportSigner(load_or_create_key(gateway_folder(project)))
        if find_gateway_endpoint(project) is not None
        else None
    )
