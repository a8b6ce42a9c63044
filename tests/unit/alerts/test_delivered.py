"""Delivery reports, from the gateway's callback to the outbox."""

import threading
from collections.abc import Sequence

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware

from riverrun.alerts.channels.contract import Message, Report
from riverrun.alerts.channels.sms import Marks
from riverrun.alerts.delivered import PATH, delivered_route
from riverrun.alerts.gateway.server import Gateway
from riverrun.alerts.ledger import Change, folded
from riverrun.alerts.sender import Sender, Sending
from riverrun.cluster.loopback import listening
from riverrun.store.listening import Listener, Listeners
from riverrun.store.manners import Manners
from support.alerting import MemoryOutbox, wait_for
from support.gateway import channel_to


def test_what_is_on_the_phone_is_known_and_strangers_are_not_believed() -> None:
    outbox = MemoryOutbox(
        Message(id=str(each), channel="sms", receiver="+353850123456", text=f"alert {each}") for each in range(30)
    )
    socket = listening(0)
    address = f"http://127.0.0.1:{socket.getsockname()[1]}{PATH}"
    with Gateway(delivery_ms=0, minute_ms=20) as gateway:
        channel = channel_to(gateway, callback_url=address)
        sending = Sending(outbox, {"sms": channel})
        marks = Marks(gateway.key)

        def keep(changes: Sequence[Change]) -> None:
            reports = folded(changes).reports.values()
            sending.reported([Report(each.id, each.state, each.reason) for each in reports], 1)

        app = Starlette(routes=[delivered_route(lambda: marks, keep)], middleware=[Middleware(Manners)])
        listeners = Listeners([Listener(app, socket)])
        listeners.start()
        sender = Sender(sending, {"sms": channel}, idle_seconds=0.01)
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
