"""The provider's API: sending, the log, and reports. It says no where the provider would, in its words."""

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

from riverrun.alerts.channels.limits import Bucket, Rate
from riverrun.alerts.channels.parts import parts_of
from riverrun.alerts.gateway.book import Book, New, Taken
from riverrun.alerts.gateway.courier import may_call, report
from riverrun.alerts.gateway.faults import Fault, Faults
from riverrun.alerts.gateway.statuses import (
    DUPLICATE,
    NO_CREDIT,
    PENDING,
    WRONG_NUMBER,
    error,
    failure,
    status,
)
from riverrun.alerts.gateway.times import stamp
from riverrun.config.secret import Secret

MOST_MESSAGES = 100
MOST_TEXT = 4000
MOST_ID = 200
MOST_LOGS = 1000
# How long a silent gateway stays so, where the other side does not hang up.
SILENCE_SECONDS = 60.0
_UNITS = {"SECONDS": 1000, "MINUTES": 60_000, "HOURS": 3_600_000}


class Api:
    """`rate`: what it takes before it says 429."""

    def __init__(
        self,
        book: Book,
        key: Secret,
        *,
        faults: Faults | None = None,
        rate: Rate | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._book = book
        self._key = key
        self._clock = clock
        self._changed = changed
        self._bucket = Bucket(rate, clock()) if rate is not None and rate.count else None
        self.faults = faults or Faults()

    def routes(self) -> list[Route]:
        return [
            Route("/sms/3/messages", self._send, methods=["POST"]),
            Route("/sms/3/logs", self._logs, methods=["GET"]),
            Route("/sms/3/reports", self._reports, methods=["GET"]),
        ]

    # --- sending ---

    async def _send(self, request: Request) -> Response:
        now = self._clock()
        if not self._may(request):
            return _unauthorized()
        if self._bucket is not None and self._bucket.wait(now):
            await run_in_threadpool(self._book.note, "", "busy", now)
            return JSONResponse(error(429, "Too many requests"), 429)
        if self._bucket is not None:
            self._bucket.take(now)
        try:
            content = await request.json()
            json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            # Half of a UTF-16 pair is a ValueError too: it fits into no file.
            return JSONResponse(error(400, "The request is not JSON"), 400)
        problems = problems_of(content)
        if problems:
            return JSONResponse(error(400, "The request is not valid", problems), 400)
        return await self._met(request, content, self.faults.next(), now)

    async def _met(self, request: Request, content: dict[str, Any], fault: Fault, now: int) -> Response:
        first = str(content["messages"][0]["destinations"][0].get("messageId", ""))
        if fault == "busy":
            await run_in_threadpool(self._book.note, first, "busy", now)
            return JSONResponse(error(429, "Too many requests"), 429)
        if fault in {"error before", "silent before"}:
            await run_in_threadpool(self._book.note, first, fault, now)
        else:
            answer = await run_in_threadpool(self._take, content, fault, now)
            self._changed()
            if fault not in {"error after", "silent after"}:
                return JSONResponse(answer)
        if fault.startswith("silent"):
            await _silence(request)
        return JSONResponse(error(500, "Something went wrong on our side"), 500)

    def _take(self, content: dict[str, Any], fault: Fault, now: int) -> dict[str, Any]:
        bulk = secrets.token_hex(10)
        answers = []
        for message in content["messages"]:
            for destination in message["destinations"]:
                new = _new(message, destination, bulk, fault, now)
                name = new.status if self._book.take(new, now) else DUPLICATE
                answers.append(
                    {
                        "messageId": new.message_id,
                        "status": status(name),
                        "destination": new.receiver,
                        "details": {"messageCount": new.parts},
                    }
                )
        return {"bulkId": bulk, "messages": answers}

    # --- asking ---

    async def _logs(self, request: Request) -> Response:
        if not self._may(request):
            return _unauthorized()
        given = request.query_params
        found = await run_in_threadpool(self._book.log, given.getlist("messageId")[:100], _limit(request))
        return JSONResponse({"results": [_logged(each) for each in found]})

    async def _reports(self, request: Request) -> Response:
        if not self._may(request):
            return _unauthorized()
        wanted = request.query_params.get("messageId", "")
        found = await run_in_threadpool(self._book.pull, wanted, _limit(request))
        return JSONResponse({"results": [report(each) for each in found]})

    def _may(self, request: Request) -> bool:
        expected = f"App {self._key.reveal()}"
        return hmac.compare_digest(request.headers.get("authorization", "").encode(), expected.encode())


async def _silence(request: Request) -> None:
    deadline = time.monotonic() + SILENCE_SECONDS
    while not await request.is_disconnected() and time.monotonic() < deadline:  # noqa: ASYNC110  -- there is no event for it
        await asyncio.sleep(0.02)


def _unauthorized() -> Response:
    return JSONResponse(error(401, "The credentials are missing or wrong"), 401)


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "50")
    return min(MOST_LOGS, max(1, int(text))) if text.isdecimal() and len(text) < 8 else 50


def _new(message: dict[str, Any], destination: dict[str, Any], bulk: str, fault: Fault, now: int) -> New:
    to = destination["to"].removeprefix("+")
    registered = _inside(message, "options", "regional", "indiaDlt")
    validity = _inside(message, "options", "validityPeriod")
    name = PENDING
    if fault == "no credit":
        name = NO_CREDIT
    elif fault == "wrong number" or not (to.isascii() and to.isdecimal() and 7 <= len(to) <= 15):
        name = WRONG_NUMBER
    lasts = validity.get("amount", 0) * _UNITS[validity.get("timeUnit", "MINUTES")] if validity else 0
    return New(
        message_id=destination.get("messageId") or secrets.token_hex(16),
        bulk_id=bulk,
        sender=message["sender"],
        receiver=to,
        text=message["content"]["text"],
        parts=parts_of(message["content"]["text"]).count,
        status=name,
        entity=str(registered.get("principalEntityId", "")),
        template=str(registered.get("contentTemplateId", "")),
        expires=now + lasts if lasts else 0,
        callback_url=_inside(message, "webhooks", "delivery").get("url", ""),
        callback_data=_inside(message, "webhooks").get("callbackData", ""),
    )


def _logged(each: Taken) -> dict[str, Any]:
    return {
        "sender": each.sender,
        "destination": each.receiver,
        "bulkId": each.bulk_id,
        "messageId": each.message_id,
        "sentAt": stamp(each.taken_at),
        "doneAt": stamp(each.done_at or each.taken_at),
        "messageCount": each.parts,
        "status": status(each.status),
        "error": failure(each.status),
        "content": {"text": each.text},
    }


# --- what a request must be ---


def problems_of(content: Any) -> list[tuple[str, str]]:
    """Every place that is wrong, as the provider names them."""
    messages = content.get("messages") if isinstance(content, dict) else None
    if not isinstance(messages, list) or not 1 <= len(messages) <= MOST_MESSAGES:
        return [("messages", f"size must be between 1 and {MOST_MESSAGES}")]
    return [
        each for number, message in enumerate(messages) for each in _message_problems(f"messages[{number}]", message)
    ]


def _message_problems(where: str, message: Any) -> list[tuple[str, str]]:
    if not isinstance(message, dict):
        return [(where, "must be an object")]
    found = []
    if not _text(message.get("sender"), 30):
        found.append((f"{where}.sender", "must not be blank"))
    if not _text(_inside(message, "content").get("text"), MOST_TEXT):
        found.append((f"{where}.content.text", f"must be text of 1 to {MOST_TEXT} characters"))
    destinations = message.get("destinations")
    if not isinstance(destinations, list) or not 1 <= len(destinations) <= MOST_MESSAGES:
        found.append((f"{where}.destinations", "must not be empty"))
    else:
        for number, each in enumerate(destinations):
            place = f"{where}.destinations[{number}]"
            if not isinstance(each, dict) or not _text(each.get("to"), 50):
                found.append((f"{place}.to", "must not be blank"))
            elif "messageId" in each and not _text(each["messageId"], MOST_ID):
                found.append((f"{place}.messageId", f"must be text of 1 to {MOST_ID} characters"))
    return found + _option_problems(where, message)


def _option_problems(where: str, message: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    validity = _inside(message, "options", "validityPeriod")
    amount = validity.get("amount", 1)
    if not isinstance(amount, int) or isinstance(amount, bool) or not 1 <= amount <= 1_000_000:
        found.append((f"{where}.options.validityPeriod.amount", "must be a positive number"))
    if validity.get("timeUnit", "MINUTES") not in _UNITS:
        found.append((f"{where}.options.validityPeriod.timeUnit", f"must be one of {', '.join(_UNITS)}"))
    url = _inside(message, "webhooks", "delivery").get("url", "")
    if url != "" and not (_text(url, 2000) and may_call(url)):
        found.append(
            (f"{where}.webhooks.delivery.url", "must be an address of this machine: this gateway calls no other")
        )
    data = _inside(message, "webhooks").get("callbackData", "")
    if not isinstance(data, str) or len(data) > 4000:
        found.append((f"{where}.webhooks.callbackData", "must be text of at most 4000 characters"))
    return found


def _inside(message: dict[str, Any], *names: str) -> dict[str, Any]:
    """The object at a path; an empty one where there is none."""
    at: Any = message
    for name in names:
        at = at.get(name) if isinstance(at, dict) else None
    return at if isinstance(at, dict) else {}


def _text(value: Any, most: int) -> bool:
    return isinstance(value, str) and len(value.strip()) > 0 and len(value) <= most
