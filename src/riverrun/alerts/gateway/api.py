"""The provider's API: sending, the log, and reports. It rejects what the provider would, with the same errors."""

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from riverrun.alerts.channels.limits import MessageRate, MessageTokenBucket
from riverrun.alerts.channels.sms_parts import compute_sms_parts
from riverrun.alerts.gateway.delivery_worker import delivery_report, is_allowed_callback
from riverrun.alerts.gateway.faults import Fault, FaultInjector
from riverrun.alerts.gateway.message_store import AcceptedMessage, MessageStore, NewMessage
from riverrun.alerts.gateway.statuses import (
    DUPLICATE,
    NO_CREDIT,
    PENDING,
    WRONG_NUMBER,
    error_body,
    report_error,
    status_body,
)
from riverrun.alerts.gateway.timestamps import format_timestamp
from riverrun.config.secret import Secret

MAX_MESSAGES = 100
MAX_TEXT = 4000
MAX_ID = 200
MAX_LOGS = 1000
# How long a request hangs in a "silent" fault, if the client does not disconnect.
HANG_SECONDS = 60.0
_UNITS = {"SECONDS": 1000, "MINUTES": 60_000, "HOURS": 3_600_000}


class GatewayApi:
    """The routes of the API. `rate`: above it, requests get 429."""

    def __init__(
        self,
        store: MessageStore,
        key: Secret,
        *,
        faults: FaultInjector | None = None,
        rate: MessageRate | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._key = key
        self._clock = clock
        self._on_change = on_change
        self._bucket = MessageTokenBucket(rate, clock()) if rate is not None and rate.count else None
        self.faults = faults or FaultInjector()

    def routes(self) -> list[Route]:
        return [
            Route("/sms/3/messages", self._send, methods=["POST"]),
            Route("/sms/3/logs", self._logs, methods=["GET"]),
            Route("/sms/3/reports", self._reports, methods=["GET"]),
        ]

    # --- sending ---

    async def _send(self, request: Request) -> Response:
        now = self._clock()
        if not self._is_authorized(request):
            return _unauthorized()
        if self._bucket is not None and self._bucket.wait_ms(now):
            await run_in_threadpool(self._store.log_request, "", "busy", now)
            return JSONResponse(error_body(429, "Too many requests"), 429)
        if self._bucket is not None:
            self._bucket.consume(now)
        try:
            content = await request.json()
            json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            # Half of a UTF-16 surrogate pair is a ValueError too: it cannot be stored.
            return JSONResponse(error_body(400, "The request is not JSON"), 400)
        problems = validation_errors(content)
        if problems:
            return JSONResponse(error_body(400, "The request is not valid", problems), 400)
        return await self._respond(request, content, self.faults.next_fault(), now)

    async def _respond(self, request: Request, content: dict[str, Any], fault: Fault, now: int) -> Response:
        first = str(content["messages"][0]["destinations"][0].get("messageId", ""))
        if fault == "busy":
            await run_in_threadpool(self._store.log_request, first, "busy", now)
            return JSONResponse(error_body(429, "Too many requests"), 429)
        if fault in {"error before", "silent before"}:
            await run_in_threadpool(self._store.log_request, first, fault, now)
        else:
            answer = await run_in_threadpool(self._accept_messages, content, fault, now)
            self._on_change()
            if fault not in {"error after", "silent after"}:
                return JSONResponse(answer)
        if fault.startswith("silent"):
            await _hang(request)
        return JSONResponse(error_body(500, "Something went wrong on our side"), 500)

    def _accept_messages(self, content: dict[str, Any], fault: Fault, now: int) -> dict[str, Any]:
        bulk = secrets.token_hex(10)
        answers = []
        for message in content["messages"]:
            for destination in message["destinations"]:
                new = _parse_message(message, destination, bulk, fault, now)
                name = new.status if self._store.add(new, now) else DUPLICATE
                answers.append(
                    {
                        "messageId": new.message_id,
                        "status": status_body(name),
                        "destination": new.receiver,
                        "details": {"messageCount": new.parts},
                    }
                )
        return {"bulkId": bulk, "messages": answers}

    # --- log and reports ---

    async def _logs(self, request: Request) -> Response:
        if not self._is_authorized(request):
            return _unauthorized()
        query = request.query_params
        messages = await run_in_threadpool(self._store.find, query.getlist("messageId")[:100], _limit(request))
        return JSONResponse({"results": [_log_entry(message) for message in messages]})

    async def _reports(self, request: Request) -> Response:
        if not self._is_authorized(request):
            return _unauthorized()
        message_id = request.query_params.get("messageId", "")
        messages = await run_in_threadpool(self._store.pull_reports, message_id, _limit(request))
        return JSONResponse({"results": [delivery_report(message) for message in messages]})

    def _is_authorized(self, request: Request) -> bool:
        expected = f"App {self._key.reveal()}"
        return hmac.compare_digest(request.headers.get("authorization", "").encode(), expected.encode())


async def _hang(request: Request) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not await request.is_disconnected() and time.monotonic() < deadline:  # noqa: ASYNC110  -- there is no event for it
        await asyncio.sleep(0.02)


def _unauthorized() -> Response:
    return JSONResponse(error_body(401, "The credentials are missing or wrong"), 401)


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "50")
    return min(MAX_LOGS, max(1, int(text))) if text.isdecimal() and len(text) < 8 else 50


def _parse_message(
    message: dict[str, Any], destination: dict[str, Any], bulk: str, fault: Fault, now: int
) -> NewMessage:
    to = destination["to"].removeprefix("+")
    registered = _nested(message, "options", "regional", "indiaDlt")
    validity = _nested(message, "options", "validityPeriod")
    name = PENDING
    if fault == "no credit":
        name = NO_CREDIT
    elif fault == "wrong number" or not (to.isascii() and to.isdecimal() and 7 <= len(to) <= 15):
        name = WRONG_NUMBER
    lasts = validity.get("amount", 0) * _UNITS[validity.get("timeUnit", "MINUTES")] if validity else 0
    return NewMessage(
        message_id=destination.get("messageId") or secrets.token_hex(16),
        bulk_id=bulk,
        sender=message["sender"],
        receiver=to,
        text=message["content"]["text"],
        parts=compute_sms_parts(message["content"]["text"]).count,
        status=name,
        entity=str(registered.get("principalEntityId", "")),
        template=str(registered.get("contentTemplateId", "")),
        expires=now + lasts if lasts else 0,
        callback_url=_nested(message, "webhooks", "delivery").get("url", ""),
        callback_data=_nested(message, "webhooks").get("callbackData", ""),
    )


def _log_entry(message: AcceptedMessage) -> dict[str, Any]:
    return {
        "sender": message.sender,
        "destination": message.receiver,
        "bulkId": message.bulk_id,
        "messageId": message.message_id,
        "sentAt": format_timestamp(message.accepted_at),
        "doneAt": format_timestamp(message.done_at or message.accepted_at),
        "messageCount": message.parts,
        "status": status_body(message.status),
        "error": report_error(message.status),
        "content": {"text": message.text},
    }


# --- validation ---


def validation_errors(content: Any) -> list[tuple[str, str]]:
    """Every invalid field, with the provider's names."""
    messages = content.get("messages") if isinstance(content, dict) else None
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        return [("messages", f"size must be between 1 and {MAX_MESSAGES}")]
    return [
        problem
        for number, message in enumerate(messages)
        for problem in _message_errors(f"messages[{number}]", message)
    ]


def _message_errors(prefix: str, message: Any) -> list[tuple[str, str]]:
    if not isinstance(message, dict):
        return [(prefix, "must be an object")]
    errors = []
    if not _is_text(message.get("sender"), 30):
        errors.append((f"{prefix}.sender", "must not be blank"))
    if not _is_text(_nested(message, "content").get("text"), MAX_TEXT):
        errors.append((f"{prefix}.content.text", f"must be text of 1 to {MAX_TEXT} characters"))
    destinations = message.get("destinations")
    if not isinstance(destinations, list) or not 1 <= len(destinations) <= MAX_MESSAGES:
        errors.append((f"{prefix}.destinations", "must not be empty"))
    else:
        for number, destination in enumerate(destinations):
            path = f"{prefix}.destinations[{number}]"
            if not isinstance(destination, dict) or not _is_text(destination.get("to"), 50):
                errors.append((f"{path}.to", "must not be blank"))
            elif "messageId" in destination and not _is_text(destination["messageId"], MAX_ID):
                errors.append((f"{path}.messageId", f"must be text of 1 to {MAX_ID} characters"))
    return errors + _option_errors(prefix, message)


def _option_errors(prefix: str, message: dict[str, Any]) -> list[tuple[str, str]]:
    errors = []
    validity = _nested(message, "options", "validityPeriod")
    amount = validity.get("amount", 1)
    if not isinstance(amount, int) or isinstance(amount, bool) or not 1 <= amount <= 1_000_000:
        errors.append((f"{prefix}.options.validityPeriod.amount", "must be a positive number"))
    if validity.get("timeUnit", "MINUTES") not in _UNITS:
        errors.append((f"{prefix}.options.validityPeriod.timeUnit", f"must be one of {', '.join(_UNITS)}"))
    url = _nested(message, "webhooks", "delivery").get("url", "")
    if url != "" and not (_is_text(url, 2000) and is_allowed_callback(url)):
        errors.append(
            (f"{prefix}.webhooks.delivery.url", "must be an address of this machine: this gateway calls no other")
        )
    data = _nested(message, "webhooks").get("callbackData", "")
    if not isinstance(data, str) or len(data) > 4000:
        errors.append((f"{prefix}.webhooks.callbackData", "must be text of at most 4000 characters"))
    return errors


def _nested(message: dict[str, Any], *names: str) -> dict[str, Any]:
    """The object at a path; an empty one where there is none."""
    value: Any = message
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _is_text(value: Any, most: int) -> bool:
    return isinstance(value, str) and len(value.strip()) > 0 and len(value) <= most
