"""SMS through Infobip's HTTP API (version 3), or any server that speaks it, such as riverrun's own gateway.

Sent effectively once: a message has an id of ours, the API refuses an id it already has (REJECTED_DUPLICATE_MESSAGE_ID), and
its log has the status of an id (for 48 hours). So when an answer does not come, the log is queried, and sending again is
safe: at worst the id is refused, and the message was sent once.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from riverrun.alerts.channels.contract import (
    AlertMessage,
    DeliveryReport,
    LookupResult,
    MessageCheck,
    OutcomeUnknown,
    SendAccepted,
    SendDeferred,
    SendRefused,
    SendResult,
    text_problem,
)
from riverrun.alerts.channels.phone_number import PhoneNumber, is_region_code, parse_phone_number
from riverrun.alerts.channels.sms_parts import compute_sms_parts
from riverrun.config.secret import Secret
from riverrun.config.spec import is_loopback
from riverrun.errors import ConfigError

SEND_PATH = "/sms/3/messages"
LOGS_PATH = "/sms/3/logs"
DUPLICATE = "REJECTED_DUPLICATE_MESSAGE_ID"
# Refused because of a temporary problem of the account or the provider. The id is used up all the same.
TRANSIENT_STATUSES = frozenset({
    "REJECTED_NOT_ENOUGH_CREDITS",
    "REJECTED_PREPAID_PACKAGE_EXPIRED",
    "REJECTED_SYSTEM_ERROR",
    "REJECTED_FLOODING_FILTER",
})  # fmt: skip
ACCEPTED_GROUPS = frozenset({"OK", "PENDING", "DELIVERED"})
FAILED_GROUPS = frozenset({"REJECTED", "UNDELIVERABLE", "EXPIRED"})
# On its way to the phone, and not there yet.
INTERMEDIATE_STATUSES = frozenset({"DELIVERED_TO_OPERATOR"})
MAX_REASON = 300
# Sender names: letters and digits, as networks allow them. A number may be longer.
MAX_SENDER_NAME, MAX_SENDER_DIGITS = 11, 15
# How long the provider tries to deliver at most.
MAX_VALIDITY_SECONDS = 48 * 3600
# What reading somebody else's JSON may raise; msgspec's errors are ValueErrors.
_INVALID_RESPONSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_CONNECT_ERRORS: tuple[type[httpx.HTTPError], ...] = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True)
class SmsConfig:
    """Settings of the channel. `entity` and `template` are the registered ids of sender and text in a regulated country
    (India: DLT). `any_number`: it is not a real network, and accepts numbers that no network has."""

    url: str
    key: Secret
    sender: str
    region: str = ""
    entity: str = ""
    template: str = ""
    telemarketer: str = ""
    callback_url: str = ""
    most_parts: int = 4
    timeout_seconds: float = 10.0
    any_number: bool = False


class ReportSigner:
    """Signs messages, and verifies the signature that comes back with a report: only the key's owner can make it."""

    def __init__(self, key: Secret) -> None:
        self._signing_key = hashlib.sha256(b"riverrun delivery report\0" + key.reveal().encode()).digest()

    def sign(self, provider_id: str) -> str:
        return hmac.new(self._signing_key, provider_id.encode(), hashlib.sha256).hexdigest()

    def verify_reports(self, body: bytes) -> list[DeliveryReport]:
        """Parse a delivery callback. Reports without our signature are dropped: others may know the address."""
        try:
            content = msgspec.json.decode(body)
            results = content["results"]
            reports = [self._report(result) for result in results]
        except _INVALID_RESPONSE_ERRORS:
            return []
        return [report for report in reports if report is not None]

    def _report(self, entry: Mapping[str, Any]) -> DeliveryReport | None:
        provider_id, signature = str(entry["messageId"]), str(entry.get("callbackData") or "")
        if not hmac.compare_digest(signature.encode(), self.sign(provider_id).encode()):
            return None
        status = entry["status"]
        group, name = str(status["groupName"]), str(status.get("name", ""))
        if group == "DELIVERED":
            return DeliveryReport(provider_id, "sent" if name in INTERMEDIATE_STATUSES else "delivered")
        if group in FAILED_GROUPS:
            return DeliveryReport(
                provider_id, "undelivered", f"{name}: {_single_line(status.get('description') or group)}"
            )
        return DeliveryReport(provider_id, "sent")


class SmsChannel:
    """The `sms` channel. ConfigError lists all problems of the settings at once. `callback` returns the provider's callback
    address, where the settings have none and it is known only at run time."""

    idempotent = True
    # Its log covers 48 hours.
    idempotency_window_ms = 47 * 3_600_000

    def __init__(
        self,
        config: SmsConfig,
        *,
        name: str = "sms",
        destination: str = "",
        callback: Callable[[], str] = str,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        problems = config_problems(config)
        if problems:
            raise ConfigError(problems)
        self.name = name
        self._config = config
        self._clock = clock
        self._signer = ReportSigner(config.key)
        self._callback = callback
        self.destination = destination or self._host
        self._client = httpx.Client(
            base_url=config.url.rstrip("/"),
            headers={"Authorization": f"App {config.key.reveal()}", "Accept": "application/json"},
            timeout=httpx.Timeout(config.timeout_seconds, connect=min(5.0, config.timeout_seconds)),
            limits=httpx.Limits(max_connections=32, max_keepalive_connections=16),
            follow_redirects=False,
            # A proxy is only for other machines.
            trust_env=not is_loopback(urlsplit(config.url).hostname or ""),
        )

    def close(self) -> None:
        self._client.close()

    # --- checking ---

    def check(self, message: AlertMessage) -> MessageCheck:
        number = self._number(message)
        if number.problem:
            return MessageCheck(problem=f"the receiver cannot get an SMS: {number.problem}")
        if problem := text_problem(message.text):
            return MessageCheck(problem=problem)
        parts = compute_sms_parts(message.text).count
        if parts > self._config.most_parts:
            return MessageCheck(
                parts, f"the text has {parts} parts, more than alerts.sms_max_parts = {self._config.most_parts}"
            )
        if number.region == "IN" and not (self._config.entity and self._template(message)):
            return MessageCheck(parts, "a number in India needs alerts.sms_entity_id and a registered template")
        return MessageCheck(parts)

    def _number(self, message: AlertMessage) -> PhoneNumber:
        return parse_phone_number(message.receiver, self._config.region, any_number=self._config.any_number)

    # --- sending ---

    def send(self, message: AlertMessage, provider_id: str) -> SendResult:
        number = self._number(message)
        if number.problem:
            return SendRefused(number.problem)
        try:
            response = self._client.post(SEND_PATH, json=self._body(message, number.e164, provider_id))
        except _CONNECT_ERRORS as error:
            return SendDeferred(f"{self._host} cannot be reached: {_single_line(error)}")
        except httpx.TimeoutException:
            return OutcomeUnknown(f"{self._host} did not answer within {self._config.timeout_seconds:g} seconds")
        except httpx.HTTPError as error:
            return OutcomeUnknown(f"the connection to {self._host} broke: {_single_line(error)}")
        if response.status_code == httpx.codes.OK:
            return self._parse_response(response, provider_id)
        return _parse_error(response, self._host)

    def _parse_response(self, response: httpx.Response, provider_id: str) -> SendResult:
        try:
            message = response.json()["messages"][0]
            group, name = str(message["status"]["groupName"]), str(message["status"].get("name", ""))
        except _INVALID_RESPONSE_ERRORS:
            return OutcomeUnknown(f"{self._host} answered with what is not its API")
        if group in ACCEPTED_GROUPS:
            return SendAccepted(str(message.get("messageId") or provider_id), _message_count(message))
        if name == DUPLICATE:
            return self._resolve_duplicate(provider_id)
        reason = _single_line(message["status"].get("description") or name)
        return SendRefused(f"{name}: {reason}", permanent=name not in TRANSIENT_STATUSES, id_used=True)

    def _resolve_duplicate(self, provider_id: str) -> SendResult:
        """Find out whether our earlier attempt with this id was accepted or refused."""
        entries = self._fetch_log(provider_id)
        if isinstance(entries, OutcomeUnknown):
            return entries
        if not entries:
            return OutcomeUnknown("it has this message's id, and its log does not say what became of it")
        refused = [entry for entry in entries if entry.group in FAILED_GROUPS and entry.name != DUPLICATE]
        if refused and not any(entry.group in ACCEPTED_GROUPS for entry in entries):
            last = refused[-1]
            return SendRefused(
                f"{last.name}: an earlier try", permanent=last.name not in TRANSIENT_STATUSES, id_used=True
            )
        return SendAccepted(provider_id, max((entry.parts for entry in entries), default=1))

    def look_up(self, provider_id: str) -> LookupResult:
        entries = self._fetch_log(provider_id)
        if isinstance(entries, OutcomeUnknown):
            return entries
        return "taken" if any(entry.group in ACCEPTED_GROUPS for entry in entries) else "not taken"

    def _fetch_log(self, provider_id: str) -> "list[_SmsLogEntry] | OutcomeUnknown":
        """The provider's log entries of an id, or why they cannot be read."""
        try:
            response = self._client.get(LOGS_PATH, params={"messageId": provider_id, "limit": 10})
            if response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
                return OutcomeUnknown(
                    f"the key in alerts.sms_key may not read {LOGS_PATH} of {self._host} ({response.status_code})"
                )
            if response.status_code != httpx.codes.OK:
                return OutcomeUnknown(f"the log of {self._host} does not answer ({response.status_code})")
            results = response.json().get("results") or []
            return [_parse_log_entry(entry) for entry in results if entry.get("messageId") == provider_id]
        except httpx.HTTPError as error:
            return OutcomeUnknown(
                f"the log of {self._host} does not answer: {_single_line(error) or type(error).__name__}"
            )
        except _INVALID_RESPONSE_ERRORS:
            return OutcomeUnknown(f"the log of {self._host} answered with what is not its API")

    def _body(self, message: AlertMessage, e164: str, provider_id: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "sender": self._config.sender,
            "destinations": [{"to": e164.removeprefix("+"), "messageId": provider_id}],
            "content": {"text": message.text},
        }
        options: dict[str, Any] = {}
        if message.expires:
            # After this the network need not try either.
            seconds = max(1, (message.expires - self._clock()) // 1000)
            options["validityPeriod"] = {"amount": min(seconds, MAX_VALIDITY_SECONDS), "timeUnit": "SECONDS"}
        if self._config.entity:
            registered = {
                "principalEntityId": self._config.entity,
                "contentTemplateId": self._template(message),
                "telemarketerId": self._config.telemarketer,
            }
            options["regional"] = {"indiaDlt": {name: value for name, value in registered.items() if value}}
        if options:
            body["options"] = options
        if callback := self._config.callback_url or self._callback():
            body["webhooks"] = {
                "delivery": {"url": callback},
                "contentType": "application/json",
                "callbackData": self._signer.sign(provider_id),
            }
        return {"messages": [body], "options": {"includeSmsCountInResponse": True}}

    def _template(self, message: AlertMessage) -> str:
        return message.template or self._config.template

    @property
    def _host(self) -> str:
        return urlsplit(self._config.url).netloc.rpartition("@")[2]


@dataclass(frozen=True)
class _SmsLogEntry:
    group: str
    name: str
    parts: int


def _parse_log_entry(entry: Mapping[str, Any]) -> _SmsLogEntry:
    status = entry["status"]
    return _SmsLogEntry(str(status["groupName"]), str(status.get("name", "")), int(entry.get("messageCount") or 1))


def _message_count(entry: Mapping[str, Any]) -> int:
    try:
        return max(1, int(entry["details"]["messageCount"]))
    except (LookupError, TypeError, ValueError):
        return 1


def _parse_error(response: httpx.Response, host: str) -> SendResult:
    status = response.status_code
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return SendDeferred(f"{host} is asked too often", retry_after=_retry_after(response), down=False)
    if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        return SendDeferred(f"{host} refuses the key in alerts.sms_key ({status})")
    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
        return OutcomeUnknown(f"{host} failed ({status})")
    if status == httpx.codes.NOT_FOUND or status < httpx.codes.BAD_REQUEST:
        return SendDeferred(f"{host} has no {SEND_PATH} ({status}): look at alerts.sms_url")
    return SendRefused(_violations(response) or f"{host} refused it ({status})")


def _violations(response: httpx.Response) -> str:
    try:
        body = response.json()
        violations = [f"{entry['property']}: {entry['violation']}" for entry in body.get("violations") or []]
        return _single_line("; ".join(violations) or body.get("description") or "")
    except _INVALID_RESPONSE_ERRORS:
        return ""


def _retry_after(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _single_line(text: object) -> str:
    """Text of another program, as one short line."""
    return " ".join("".join(character if character.isprintable() else " " for character in str(text)).split())[
        :MAX_REASON
    ]


def config_problems(config: SmsConfig) -> list[str]:
    """The problems of the settings."""
    problems = []
    parts = urlsplit(config.url)
    if not config.url:
        problems.append("alerts.sms_url is empty: it is the API's base URL, such as https://xyz.api.infobip.com")
    elif parts.scheme not in {"http", "https"} or not parts.hostname:
        problems.append(f"alerts.sms_url must be an http(s) address, not {config.url!r}")
    elif parts.scheme == "http" and not is_loopback(parts.hostname):
        problems.append("alerts.sms_url is not https, and the key would go through the network in clear")
    elif parts.username or parts.query:
        problems.append("alerts.sms_url holds a login or a query: only the base URL belongs there")
    key = config.key.reveal()
    if not key:
        problems.append("alerts.sms_key is empty")
    elif not key.isascii() or not key.isprintable() or " " in key:
        problems.append("alerts.sms_key has characters that no key has, such as a space or a line's end")
    problems += _sender_problems(config.sender)
    if config.region and not is_region_code(config.region):
        problems.append(f"alerts.sms_region must be a country's two letters, such as IE, not {config.region!r}")
    for name, value in (("sms_entity_id", config.entity), ("sms_template_id", config.template)):
        if value and not value.isdecimal():
            problems.append(f"alerts.{name} must be digits, as registered, not {value!r}")
    if config.template and not config.entity:
        problems.append("alerts.sms_template_id needs alerts.sms_entity_id")
    return problems


def _sender_problems(sender: str) -> list[str]:
    digits = sender.removeprefix("+")
    if not sender:
        return ["alerts.sms_sender is empty: it is the name or number that receivers see"]
    if digits.isdecimal() and digits.isascii():
        return (
            [] if len(digits) <= MAX_SENDER_DIGITS else [f"alerts.sms_sender has more than {MAX_SENDER_DIGITS} digits"]
        )
    if not sender.isascii() or not sender.replace(" ", "").isalnum() or len(sender) > MAX_SENDER_NAME:
        return [f"alerts.sms_sender must be a number, or at most {MAX_SENDER_NAME} letters and digits, not {sender!r}"]
    return []
