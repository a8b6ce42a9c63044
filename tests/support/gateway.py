"""An SMS channel to a gateway of riverrun's own, and messages on its phones."""

from typing import Any

from riverrun.alerts.channels.contract import AlertMessage, SendAccepted
from riverrun.alerts.channels.sms import SmsChannel, SmsConfig
from riverrun.alerts.gateway.server import Gateway


def channel_to(gateway: Gateway, **changes: Any) -> SmsChannel:
    given: dict[str, Any] = {"url": gateway.address, "key": gateway.key, "sender": "riverrun", "timeout_seconds": 20}
    return SmsChannel(SmsConfig(**given | changes))


OWNERS = ("Lea Malone", "Sean Kelly", "Aoife Byrne", "Niamh Walsh", "Conor Doyle", "Orla Quinn", "Eoin Ryan")


def send(gateway: Gateway, number: int, text: str) -> None:
    """A message to one of the numbers that are kept free for films."""
    channel = channel_to(gateway, any_number=True)
    message = AlertMessage(id=f"{number} {text}", channel="sms", receiver=f"+35320910{number:04}", text=text)
    assert isinstance(channel.send(message, f"{number}-{text.encode().hex()[-50:]}"), SendAccepted)
    channel.close()


def ring(gateway: Gateway, count: int) -> None:
    """So many messages of overloads, to the phones of a few owners."""
    for each in range(count):
        owner = OWNERS[each % len(OWNERS)]
        text = f"{owner}, your home draws {2 + each / 10:.1f} kW since 17:{10 + each}, above the limit of 2 kW."
        send(gateway, each % len(OWNERS), text)
