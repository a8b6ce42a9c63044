"""Any other way to reach people, by the Apprise library: mail, chat, push, webhooks, other SMS providers.

Apprise says only whether it worked. When it did not, nobody knows whether the message is out, and there is nobody to ask: so
these channels send at least once, and give up after a few tries rather than repeat themselves.
"""

import logging
import re
from typing import Any
from urllib.parse import quote

from riverrun.alerts.channels.contract import Accepted, Answer, Message, Taken, Unsure, Weight, text_problem
from riverrun.alerts.channels.missing import not_installed
from riverrun.config.secret import Secret
from riverrun.errors import ConfigError

TO = "{to}"
MOST_RECEIVER = 320
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_KINDS = {"info": "info", "warning": "warning", "critical": "failure"}


class AppriseChannel:
    """One Apprise URL. `{to}` in it stands for the receiver; without it everything goes to the place the URL names."""

    once = False
    remembers = 0

    def __init__(self, name: str, url: Secret) -> None:
        try:
            import apprise
        except ModuleNotFoundError as error:
            raise not_installed("apprise") from error
        self.name = name
        self._apprise: Any = apprise
        self._url = url.reveal()
        match = _SCHEME.match(self._url)
        # What a row says may fill a place in the address, and never be the address.
        if match is None or self._service("someone@example.org") is None:
            raise ConfigError([f"alerts.channels.{name} is no address that Apprise knows"])
        self.where = f"{match[0].removesuffix('://')} by Apprise"

    def close(self) -> None:
        """Apprise keeps nothing open."""

    def weigh(self, message: Message) -> Weight:
        if problem := text_problem(message.text):
            return Weight(problem=problem)
        if TO in self._url and not message.receiver.strip():
            return Weight(problem="the receiver is empty")
        if len(message.receiver) > MOST_RECEIVER:
            return Weight(problem=f"the receiver has more than {MOST_RECEIVER} letters")
        if self._service(message.receiver) is None:
            return Weight(problem="Apprise cannot send to this receiver")
        return Weight()

    def send(self, message: Message, provider_id: str) -> Answer:
        service = self._service(message.receiver)
        if service is None:
            return Unsure("Apprise cannot send to this receiver")
        kind = _KINDS.get(message.severity, "warning")
        with self._apprise.LogCapture(level=logging.WARNING) as said:
            worked = service.notify(
                body=message.text, title=message.title, notify_type=kind, body_format=self._apprise.NotifyFormat.TEXT
            )
            lines = said.getvalue().strip().splitlines()
        if worked:
            return Accepted(provider_id)
        return Unsure(self._hidden(lines[-1]) if lines else "Apprise could not send it, and does not say why")

    def look_up(self, provider_id: str) -> Taken:  # noqa: ARG002
        return Unsure("there is nobody to ask")

    def _service(self, receiver: str) -> Any:
        """What sends, made anew for each message: it holds the receiver."""
        made = self._apprise.Apprise()
        return made if made.add(self._url.replace(TO, quote(receiver.strip(), safe="", errors="replace"))) else None

    def _hidden(self, line: str) -> str:
        """A line of Apprise's log, without what may be a secret of the URL."""
        for part in re.split(r"[/:@?&=]+", self._url.partition("://")[2]):
            if len(part) >= 4 and part != TO:
                line = line.replace(part, "******")
        return line[:300]
