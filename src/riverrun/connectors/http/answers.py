"""What a request is told. An error is `{"error": {"code", "message", "retryable", "fields"}}`, as everywhere in riverrun."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from riverrun.errors import (
    BrokerUnreachableError,
    DeliveryError,
    QueueFullError,
    RecordTooLargeError,
    RiverrunError,
    TopicNotFoundError,
)

JSON = "application/json"
# When to come back: soon where we are busy, later where Kafka does not answer.
BUSY_SECONDS = 1
AWAY_SECONDS = 5
encoded = msgspec.json.Encoder().encode


class Refused(Exception):  # noqa: N818  -- an answer on its way out, not a failure
    """A request that is not taken, and why."""

    def __init__(
        self, status: int, code: str, message: str, *, retry_after: int = 0, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.headers = dict(headers or {})

    def response(self) -> Response:
        return answer(
            self.status,
            {"error": problem(self.code, self.message, retryable=bool(self.retry_after))},
            retry_after=self.retry_after,
            headers=self.headers,
        )


def busy(message: str, seconds: int = BUSY_SECONDS) -> Refused:
    return Refused(429, "BUSY", message, retry_after=seconds)


def refused_by(error: RiverrunError) -> Refused:
    """The answer where our own parts failed: what Kafka may do better in a moment is worth another try."""
    if isinstance(error, QueueFullError):
        return busy("Kafka is slower than the records come; nothing of this request was taken")
    if isinstance(error, RecordTooLargeError):
        return Refused(413, error.code, str(error))
    if isinstance(error, TopicNotFoundError):
        return Refused(503, error.code, error.what, retry_after=AWAY_SECONDS)
    code = error.code if isinstance(error, BrokerUnreachableError | DeliveryError) else "UNAVAILABLE"
    return Refused(503, code, error.what, retry_after=AWAY_SECONDS)


def problem(code: str, message: str, *, retryable: bool = False, **fields: Any) -> dict[str, Any]:
    return {"code": code, "message": message, "retryable": retryable, "fields": fields}


def answer(status: int, content: Any, *, retry_after: int = 0, headers: Mapping[str, str] | None = None) -> Response:
    return answered(status, encoded(content), retry_after=retry_after, headers=headers)


def answered(status: int, body: bytes, *, retry_after: int = 0, headers: Mapping[str, str] | None = None) -> Response:
    """The same, of bytes that were made before."""
    found = dict(headers or {})
    if retry_after:
        found["Retry-After"] = str(retry_after)
    return Response(body, status, found, JSON)
