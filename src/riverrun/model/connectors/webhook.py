"""Rows to somebody else's HTTP address: `riverrun.webhook(…)`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from riverrun.errors import DeclarationError
from riverrun.model.connector import Sink, option
from riverrun.model.connectors.files import check_choice, check_minimum


@dataclass(frozen=True)
class webhook(Sink):
    """POST each record, or several at a time, to an HTTP address. At least once, with a key by which the receiver can tell a
    repetition."""

    factory: ClassVar[str] = "riverrun.connectors.webhook.sink:WebhookSink"

    url: str = option(
        help="Where to. Redirects are not followed. An address that is a secret is a reference, such as `env:HOOK_URL`.",
        example="https://example.org/hooks/overload",
    )
    send: Literal["record", "batch"] = option(
        "record", help="One request per record, its value the body; or one per batch, a JSON array of values."
    )
    max_records: int = option(100, help="How many records are sent together at most, or side by side.")
    connections: int = option(
        4, help="How many requests are under way at a time, for `record`. Records of one key keep their order."
    )
    method: Literal["POST", "PUT", "PATCH"] = option("POST", help="The method of the request.")
    headers: Mapping[str, str] = option(
        (), help="Headers to send as they are written here.", example='{"X-Team": "ops"}'
    )
    secret_headers: Mapping[str, str] = option(
        (),
        help="Headers whose values are secrets: references, never the values themselves.",
        example='{"Authorization": "env:HOOK_TOKEN"}',
        secret=True,
    )
    timeout_seconds: float = option(10.0, help="How long one request may take before it is tried again.")
    key_header: str = option("Idempotency-Key", help="The header with the key of the record, the same at each attempt.")
    allow_http: bool = option(
        False,
        help="Whether an address without TLS is allowed that is not on this machine. Secrets would go in the clear.",
    )

    def __post_init__(self) -> None:
        check_choice("webhook", "send", self.send, ("record", "batch"))
        check_choice("webhook", "method", self.method, ("POST", "PUT", "PATCH"))
        check_minimum("webhook", "max_records", self.max_records, 1)
        check_minimum("webhook", "connections", self.connections, 1)
        check_minimum("webhook", "timeout_seconds", self.timeout_seconds, 0.1)
        if not self.url.startswith(("env:", "file:")):
            check_url(self.url, shown=repr(self.url), allow_http=self.allow_http)


def check_url(url: str, *, shown: str, allow_http: bool) -> None:
    """DeclarationError for an address that cannot be sent to, or that would leak something. `shown` replaces it in
    messages."""
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise DeclarationError(f"riverrun.webhook cannot send to {shown}", expected="https://host/path", option="url")
    if address.username or address.password:
        raise DeclarationError(
            "riverrun.webhook was given an address with a password in it",
            hint='Send it as a header: secret_headers={"Authorization": "env:NAME"}',
            option="url",
        )
    local = address.hostname in ("localhost", "::1") or address.hostname.startswith("127.")
    if address.scheme == "http" and not local and not allow_http:
        raise DeclarationError(
            f"riverrun.webhook would send to {shown} without TLS",
            expected="https://…",
            hint="Say allow_http=True if that is what you want",
            option="url",
        )
