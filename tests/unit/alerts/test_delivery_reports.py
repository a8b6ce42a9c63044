"""Delivery reports, from the gateway's callback to the outbox."""

import threading
from collections.abc import Sequence

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware

from riverrun.alerts.channels.contract import AlertMessage, DeliveryReport
from riverrun.alerts.channels.sms import ReportSigner
from riverrun.alerts.delivery_reports import REPORT_PATH, delivery_report_route
from riverrun.alerts.gateway.server import Gateway
from riverrun.alerts.sender import NotificationSender, SendScheduler
from riverrun.alerts.state_topic import AlertChange, build_alert_state
from riverrun.cluster.loopback import listening_socket
from riverrun.web.guard import RequestGuard
from riverrun.web.server import HttpEndpoint, HttpServer
from support.alerting import MemoryOutbox, wait_for
from support.gateway import channel_to


def test_what_is_on_the_phone_is_known_and_strangers_are_not_believed() -> None:
    outbox = MemoryOutbox(
        AlertMessage(id=str(each), channel="sms", receiver="+353850123456", text=f"alert {each}") for each in range(30)
    )
    socket = listening_socket(0)
    address = f"http://127.0.0.1:{socket.getsockname()[1]}{REPORT_PATH}"
    with Gateway(delivery_ms=0, minute_ms=20) as gateway:
        channel = channel_to(gateway, callback_url=address)
        sending = SendScheduler(outbox, {"sms": channel})
        marks = ReportSigner(gateway.key)

        def keep(changes: Sequence[AlertChange]) -> None:
            reports = build_alert_state(changes).reports.values()
            sending.apply_reports([DeliveryReport(report.id, report.state, report.reason) for report in reports], 1)

        app = Starlette(routes=[delivery_report_route(lambda: marks, keep)], middleware=[Middleware(RequestGuard)])
        listeners = HttpServer([HttpEndpoint(app, socket)])
        listeners.start()
        sender = NotificationSender(sending, {"sms": channel}, idle_seconds=0.01)
        thread = threading.Thread(target=sender.run, daemon=True)
        thread.start()
        try:
            # With no time between taking and delivering, many a report comes before its answer.
            wait_for(lambda: outbox.states() == {"delivered": 30})
            forged = {"results": [{"messageId": "x", "callbackData": "x", "status": {"groupName": "DELIVERED"}}]}
            writes = outbox.writes
            assert httpx.post(address, json=forged).status_code == 204
            assert httpx.post(address, json=[[]]).status_code == 204
            assert outbox.writes == writes
        finally:
            sender.stop()
            thread.join(30)
            listeners.close()
            channel.close()
