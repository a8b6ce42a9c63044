"""The callback route where the provider reports deliveries.

It has no login: a report is trusted by the signature that we sent with the message and nobody else can make. So a server
with this route lets it through without a login (`REPORT_PATH`). A report becomes a record in the state topic: the alert
process may run elsewhere, or not at all at the moment.
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
    """The route. `find_signer` returns what verifies reports, if SMS are sent at all; `publish` returns when the state topic
    has the records."""

    async def delivered(request: Request) -> Response:
        signer = find_signer()
        reports = signer.verify_reports(await request.body()) if signer is not None else []
        if reports:
            changes = [
                encode_upsert(DeliveryReportRecord(id=report.provider_id, state=report.state, reason=report.reason))
                for report in reports
            ]
            # A Kafka error becomes a 500, and the provider calls again.
            await run_in_threadpool(publish, changes)
        return Response(status_code=204)

    return Route(REPORT_PATH, delivered, methods=["POST"])


def load_report_signer(settings: AlertSettings, project: Project) -> ReportSigner | None:
    """The signer that verifies reports of a project's messages; None when it sends no SMS."""
    if settings.sms_key:
        return ReportSigner(settings.sms_key)
    return (
        ReportSigner(load_or_create_key(gateway_folder(project)))
        if find_gateway_endpoint(project) is not None
        else None
    )
