"""The responses. An error is `{"error": {"code", "message", "retryable", "fields"}}`, as everywhere in riverrun."""

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
# When to retry: soon if we are busy, later if Kafka does not answer.
BUSY_RETRY_SECONDS = 1
KAFKA_RETRY_SECONDS = 5
encode_json = msgspec.json.Encoder().encode


class RequestRejectedError(Exception):
    """A request that is rejected, and why."""

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
        return json_response(
            self.status,
            {"error": error_body(self.code, self.message, retryable=bool(self.retry_after))},
            retry_after=self.retry_after,
            headers=self.headers,
        )


def too_many_requests(message: str, seconds: int = BUSY_RETRY_SECONDS) -> RequestRejectedError:
    return RequestRejectedError(429, "BUSY", message, retry_after=seconds)


def rejection_for(error: RiverrunError) -> RequestRejectedError:
    """The response to an error of ours: what Kafka may accept in a moment is retryable."""
    if isinstance(error, QueueFullError):
        return too_many_requests("Kafka is slower than the records come; nothing of this request was taken")
    if isinstance(error, RecordTooLargeError):
        return RequestRejectedError(413, error.code, str(error))
    if isinstance(error, TopicNotFoundError):
        return RequestRejectedError(503, error.code, error.what, retry_after=KAFKA_RETRY_SECONDS)
    code = error.code if isinstance(error, BrokerUnreachableError | DeliveryError) else "UNAVAILABLE"
    return RequestRejectedError(503, code, error.what, retry_after=KAFKA_RETRY_SECONDS)


def error_body(code: str, message: str, *, retryable: bool = False, **fields: Any) -> dict[str, Any]:
    return {"code": code, "message": message, "retryable": retryable, "fields": fields}


def json_response(
    status: int, content: Any, *, retry_after: int = 0, headers: Mapping[str, str] | None = None
) -> Response:
    return bytes_response(status, encode_json(content), retry_after=retry_after, headers=headers)


def bytes_response(
    status: int, body: bytes, *, retry_after: int = 0, headers: Mapping[str, str] | None = None
) -> Response:
    """The same, from encoded bytes."""
    all_headers = dict(headers or {})
    if retry_after:
        all_headers["Retry-After"] = str(retry_after)
    return Response(body, status, all_headers, JSON)
