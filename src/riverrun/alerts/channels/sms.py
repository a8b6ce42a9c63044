"""SMS through Infobip's HTTP API (version 3), or whatever speaks it, such as riverrun's own gateway.

Sent effectively once: a message has an id of ours, the API refuses an id it already has (REJECTED_DUPLICATE_MESSAGE_ID), and
its log tells what became of an id (for 48 hours). So when an answer does not come, the log is asked, and asking to send
again is safe: at worst the id is refused, and the message is out once.
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
    Accepted,
    Answer,
    Message,
    NotNow,
    Refused,
    Report,
    Taken,
    Unsure,
    Weight,
    text_problem,
)
from riverrun.alerts.channels.parts import parts_of
from riverrun.alerts.channels.phone import Number, is_region, number_of
from riverrun.config.secret import Secret
from riverrun.config.spec import is_loopback
from riverrun.errors import ConfigError

SEND = "/sms/3/messages"
LOGS = "/sms/3/logs"
DUPLICATE = "REJECTED_DUPLICATE_MESSAGE_ID"
# Refused for what is the account's or the provider's trouble, and may pass. The id is used up all the same.
PASSING = frozenset({
    "REJECTED_NOT_ENOUGH_CREDITS",
    "REJECTED_PREPAID_PACKAGE_EXPIRED",
    "REJECTED_SYSTEM_ERROR",
    "REJECTED_FLOODING_FILTER",
})  # fmt: skip
GOOD_GROUPS = frozenset({"OK", "PENDING", "DELIVERED"})
BAD_GROUPS = frozenset({"REJECTED", "UNDELIVERABLE", "EXPIRED"})
# On its way to the phone, and not there yet.
HALFWAY = frozenset({"DELIVERED_TO_OPERATOR"})
MOST_REASON = 300
# Sender names: letters and digits, as networks have them. A number may be longer.
MOST_NAME, MOST_DIGITS = 11, 15
# What the provider tries to deliver for at most.
MOST_VALID_SECONDS = 48 * 3600
# What reading somebody else's JSON may end in; msgspec's errors are ValueErrors.
_NOT_ITS_API = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_CLOSED: tuple[type[httpx.HTTPError], ...] = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True)
class SmsConfig:
    """`entity` and `template` are what a regulated country has the sender and the text registered under (India: DLT).
    `any_number`: it is no network, and takes what no network has."""

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


class Marks:
    """What goes with a message and comes back with its report: only who has the key can make it."""

    def __init__(self, key: Secret) -> None:
        self._proof = hashlib.sha256(b"riverrun delivery report\0" + key.reveal().encode()).digest()

    def of(self, provider_id: str) -> str:
        return hmac.new(self._proof, provider_id.encode(), hashlib.sha256).hexdigest()

    def reports(self, body: bytes) -> list[Report]:
        """What a delivery callback says. Of a message without our mark nothing is believed: the address may be known to
        others."""
        try:
            content = msgspec.json.decode(body)
            results = content["results"]
            found = [self._report(each) for each in results]
        except _NOT_ITS_API:
            return []
        return [each for each in found if each is not None]

    def _report(self, entry: Mapping[str, Any]) -> Report | None:
        provider_id, mark = str(entry["messageId"]), str(entry.get("callbackData") or "")
        if not hmac.compare_digest(mark.encode(), self.of(provider_id).encode()):
            return None
        status = entry["status"]
        group, name = str(status["groupName"]), str(status.get("name", ""))
        if group == "DELIVERED":
            return Report(provider_id, "sent" if name in HALFWAY else "delivered")
        if group in BAD_GROUPS:
            return Report(provider_id, "undelivered", f"{name}: {_line(status.get('description') or group)}")
        return Report(provider_id, "sent")


class SmsChannel:
    """The `sms` channel. ConfigError when the settings cannot work, all of them at once. `callback` says where the provider
    is to report to, where the settings do not and it is known only while things run."""

    once = True
    # Its log has 48 hours.
    remembers = 47 * 3_600_000

    def __init__(
        self,
        config: SmsConfig,
        *,
        name: str = "sms",
        where: str = "",
        callback: Callable[[], str] = str,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        problems = problems_of(config)
        if problems:
            raise ConfigError(problems)
        self.name = name
        self._config = config
        self._clock = clock
        self._marks = Marks(config.key)
        self._callback = callback
        self.where = where or self._host
        self._client = httpx.Client(
            base_url=config.url.rstrip("/"),
            headers={"Authorization": f"App {config.key.reveal()}", "Accept": "application/json"},
            timeout=httpx.Timeout(config.timeout_seconds, connect=min(5.0, config.timeout_seconds)),
            limits=httpx.Limits(max_connections=32, max_keepalive_connections=16),
            follow_redirects=False,
            # A proxy is for other machines.
            trust_env=not is_loopback(urlsplit(config.url).hostname or ""),
        )

    def close(self) -> None:
        self._client.close()

    # --- before ---

    def weigh(self, message: Message) -> Weight:
        number = self._number(message)
        if number.problem:
            return Weight(problem=f"the receiver cannot get an SMS: {number.problem}")
        if problem := text_problem(message.text):
            return Weight(problem=problem)
        parts = parts_of(message.text).count
        if parts > self._config.most_parts:
            return Weight(
                parts, f"the text has {parts} parts, more than alerts.sms_most_parts = {self._config.most_parts}"
            )
        if number.region == "IN" and not (self._config.entity and self._template(message)):
            return Weight(parts, "a number in India needs alerts.sms_entity_id and a registered template")
        return Weight(parts)

    def _number(self, message: Message) -> Number:
        return number_of(message.receiver, self._config.region, any_number=self._config.any_number)

    # --- sending ---

    def send(self, message: Message, provider_id: str) -> Answer:
        number = self._number(message)
        if number.problem:
            return Refused(number.problem)
        try:
            answer = self._client.post(SEND, json=self._body(message, number.e164, provider_id))
        except _CLOSED as error:
            return NotNow(f"{self._host} cannot be reached: {_line(error)}")
        except httpx.TimeoutException:
            return Unsure(f"{self._host} did not answer within {self._config.timeout_seconds:g} seconds")
        except httpx.HTTPError as error:
            return Unsure(f"the connection to {self._host} broke: {_line(error)}")
        if answer.status_code == httpx.codes.OK:
            return self._accepted(answer, provider_id)
        return _not_accepted(answer, self._host)

    def _accepted(self, answer: httpx.Response, provider_id: str) -> Answer:
        try:
            found = answer.json()["messages"][0]
            group, name = str(found["status"]["groupName"]), str(found["status"].get("name", ""))
        except _NOT_ITS_API:
            return Unsure(f"{self._host} answered with what is not its API")
        if group in GOOD_GROUPS:
            return Accepted(str(found.get("messageId") or provider_id), _count(found))
        if name == DUPLICATE:
            return self._known(provider_id)
        reason = _line(found["status"].get("description") or name)
        return Refused(f"{name}: {reason}", permanent=name not in PASSING, spent=True)

    def _known(self, provider_id: str) -> Answer:
        """The id was there already: by an earlier try of ours, which it took or refused."""
        entries = self._log(provider_id)
        if isinstance(entries, Unsure):
            return entries
        if not entries:
            return Unsure("it has this message's id, and its log does not say what became of it")
        refused = [each for each in entries if each.group in BAD_GROUPS and each.name != DUPLICATE]
        if refused and not any(each.group in GOOD_GROUPS for each in entries):
            last = refused[-1]
            return Refused(f"{last.name}: an earlier try", permanent=last.name not in PASSING, spent=True)
        return Accepted(provider_id, max((each.parts for each in entries), default=1))

    def look_up(self, provider_id: str) -> Taken:
        entries = self._log(provider_id)
        if isinstance(entries, Unsure):
            return entries
        return "taken" if any(each.group in GOOD_GROUPS for each in entries) else "not taken"

    def _log(self, provider_id: str) -> "list[_Entry] | Unsure":
        """What its log has of an id, or why it cannot be asked."""
        try:
            answer = self._client.get(LOGS, params={"messageId": provider_id, "limit": 10})
            if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
                return Unsure(f"the key in alerts.sms_key may not read {LOGS} of {self._host} ({answer.status_code})")
            if answer.status_code != httpx.codes.OK:
                return Unsure(f"the log of {self._host} does not answer ({answer.status_code})")
            results = answer.json().get("results") or []
            return [_entry(each) for each in results if each.get("messageId") == provider_id]
        except httpx.HTTPError as error:
            return Unsure(f"the log of {self._host} does not answer: {_line(error) or type(error).__name__}")
        except _NOT_ITS_API:
            return Unsure(f"the log of {self._host} answered with what is not its API")

    def _body(self, message: Message, e164: str, provider_id: str) -> dict[str, Any]:
        one: dict[str, Any] = {
            "sender": self._config.sender,
            "destinations": [{"to": e164.removeprefix("+"), "messageId": provider_id}],
            "content": {"text": message.text},
        }
        options: dict[str, Any] = {}
        if message.expires:
            # Later than this the network need not try either.
            seconds = max(1, (message.expires - self._clock()) // 1000)
            options["validityPeriod"] = {"amount": min(seconds, MOST_VALID_SECONDS), "timeUnit": "SECONDS"}
        if self._config.entity:
            registered = {
                "principalEntityId": self._config.entity,
                "contentTemplateId": self._template(message),
                "telemarketerId": self._config.telemarketer,
            }
            options["regional"] = {"indiaDlt": {name: value for name, value in registered.items() if value}}
        if options:
            one["options"] = options
        if callback := self._config.callback_url or self._callback():
            one["webhooks"] = {
                "delivery": {"url": callback},
                "contentType": "application/json",
                "callbackData": self._marks.of(provider_id),
            }
        return {"messages": [one], "options": {"includeSmsCountInResponse": True}}

    def _template(self, message: Message) -> str:
        return message.template or self._config.template

    @property
    def _host(self) -> str:
        return urlsplit(self._config.url).netloc.rpartition("@")[2]


@dataclass(frozen=True)
class _Entry:
    group: str
    name: str
    parts: int


def _entry(found: Mapping[str, Any]) -> _Entry:
    status = found["status"]
    return _Entry(str(status["groupName"]), str(status.get("name", "")), int(found.get("messageCount") or 1))


def _count(found: Mapping[str, Any]) -> int:
    try:
        return max(1, int(found["details"]["messageCount"]))
    except (LookupError, TypeError, ValueError):
        return 1


def _not_accepted(answer: httpx.Response, host: str) -> Answer:
    status = answer.status_code
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return NotNow(f"{host} is asked too often", retry_after=_retry_after(answer), down=False)
    if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        return NotNow(f"{host} refuses the key in alerts.sms_key ({status})")
    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
        return Unsure(f"{host} failed ({status})")
    if status == httpx.codes.NOT_FOUND or status < httpx.codes.BAD_REQUEST:
        return NotNow(f"{host} has no {SEND} ({status}): look at alerts.sms_url")
    return Refused(_violations(answer) or f"{host} refused it ({status})")


def _violations(answer: httpx.Response) -> str:
    try:
        found = answer.json()
        said = [f"{each['property']}: {each['violation']}" for each in found.get("violations") or []]
        return _line("; ".join(said) or found.get("description") or "")
    except _NOT_ITS_API:
        return ""


def _retry_after(answer: httpx.Response) -> float | None:
    text = answer.headers.get("retry-after", "")
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _line(said: object) -> str:
    """What somebody else's program said, as one short line."""
    return " ".join("".join(each if each.isprintable() else " " for each in str(said)).split())[:MOST_REASON]


def problems_of(config: SmsConfig) -> list[str]:
    """What is wrong with the settings."""
    found = []
    parts = urlsplit(config.url)
    if not config.url:
        found.append("alerts.sms_url is empty: it is the API's base URL, such as https://xyz.api.infobip.com")
    elif parts.scheme not in {"http", "https"} or not parts.hostname:
        found.append(f"alerts.sms_url must be an http(s) address, not {config.url!r}")
    elif parts.scheme == "http" and not is_loopback(parts.hostname):
        found.append("alerts.sms_url is not https, and the key would go through the network in clear")
    elif parts.username or parts.query:
        found.append("alerts.sms_url holds a login or a query: only the base URL belongs there")
    key = config.key.reveal()
    if not key:
        found.append("alerts.sms_key is empty")
    elif not key.isascii() or not key.isprintable() or " " in key:
        found.append("alerts.sms_key has characters that no key has, such as a space or a line's end")
    found += _sender_problem(config.sender)
    if config.region and not is_region(config.region):
        found.append(f"alerts.sms_region must be a country's two letters, such as IE, not {config.region!r}")
    for name, value in (("sms_entity_id", config.entity), ("sms_template_id", config.template)):
        if value and not value.isdecimal():
            found.append(f"alerts.{name} must be digits, as registered, not {value!r}")
    if config.template and not config.entity:
        found.append("alerts.sms_template_id needs alerts.sms_entity_id")
    return found


def _sender_problem(sender: str) -> list[str]:
    digits = sender.removeprefix("+")
    if not sender:
        return ["alerts.sms_sender is empty: it is the name or number that receivers see"]
    if digits.isdecimal() and digits.isascii():
        return [] if len(digits) <= MOST_DIGITS else [f"alerts.sms_sender has more than {MOST_DIGITS} digits"]
    if not sender.isascii() or not sender.replace(" ", "").isalnum() or len(sender) > MOST_NAME:
        return [f"alerts.sms_sender must be a number, or at most {MOST_NAME} letters and digits, not {sender!r}"]
    return []
