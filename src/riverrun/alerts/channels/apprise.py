"""Any other way to reach people, by the Apprise library: mail, chat, push, webhooks, other SMS providers.

Apprise says only whether it worked. When it did not, the outcome is unknown and cannot be looked up: so these channels send
at least once, and give up after a few attempts rather than repeat themselves.
"""

import logging
import re
from typing import Any
from urllib.parse import quote

from riverrun.alerts.channels.contract import (
    AlertMessage,
    LookupResult,
    MessageCheck,
    OutcomeUnknown,
    SendAccepted,
    SendResult,
    text_problem,
)
from riverrun.alerts.channels.missing_package import not_installed_error
from riverrun.config.secret import Secret
from riverrun.errors import ConfigError

RECEIVER_PLACEHOLDER = "{to}"
MAX_RECEIVER = 320
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_NOTIFY_TYPES = {"info": "info", "warning": "warning", "critical": "failure"}


class AppriseChannel:
    """A channel of one Apprise URL. `{to}` in it is replaced by the receiver; without it all messages go to that URL."""

    idempotent = False
    idempotency_window_ms = 0

    def __init__(self, name: str, url: Secret) -> None:
        try:
            import apprise
        except ModuleNotFoundError as error:
            raise not_installed_error("apprise") from error
        self.name = name
        self._apprise: Any = apprise
        self._url = url.reveal()
        match = _SCHEME.match(self._url)
        # A row's value may fill a part of the address, and never be the whole address.
        if match is None or self._service("someone@example.org") is None:
            raise ConfigError([f"alerts.channels.{name} is no address that Apprise knows"])
        self.destination = f"{match[0].removesuffix('://')} by Apprise"

    def close(self) -> None:
        """Apprise keeps nothing open."""

    def check(self, message: AlertMessage) -> MessageCheck:
        if problem := text_problem(message.text):
            return MessageCheck(problem=problem)
        if RECEIVER_PLACEHOLDER in self._url and not message.receiver.strip():
            return MessageCheck(problem="the receiver is empty")
        if len(message.receiver) > MAX_RECEIVER:
            return MessageCheck(problem=f"the receiver has more than {MAX_RECEIVER} letters")
        if self._service(message.receiver) is None:
            return MessageCheck(problem="Apprise cannot send to this receiver")
        return MessageCheck()

    def send(self, message: AlertMessage, provider_id: str) -> SendResult:
        service = self._service(message.receiver)
        if service is None:
            return OutcomeUnknown("Apprise cannot send to this receiver")
        kind = _NOTIFY_TYPES.get(message.severity, "warning")
        with self._apprise.LogCapture(level=logging.WARNING) as captured:
            worked = service.notify(
                body=message.text, title=message.title, notify_type=kind, body_format=self._apprise.NotifyFormat.TEXT
            )
            lines = captured.getvalue().strip().splitlines()
        if worked:
            return SendAccepted(provider_id)
        return OutcomeUnknown(self._redacted(lines[-1]) if lines else "Apprise could not send it, and does not say why")

    def look_up(self, provider_id: str) -> LookupResult:  # noqa: ARG002
        return OutcomeUnknown("there is nobody to ask")

    def _service(self, receiver: str) -> Any:
        """The Apprise object that sends; one per message, since it holds the receiver."""
        service = self._apprise.Apprise()
        return (
            service
            if service.add(self._url.replace(RECEIVER_PLACEHOLDER, quote(receiver.strip(), safe="", errors="replace")))
            else None
        )

    def _redacted(self, line: str) -> str:
        """A line of Apprise's log, without parts of the URL that may be secret."""
        for part in re.split(r"[/:@?&=]+", self._url.partition("://")[2]):
            if len(part) >= 4 and part != RECEIVER_PLACEHOLDER:
                line = line.replace(part, "******")
        return line[:300]
