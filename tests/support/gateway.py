"""An SMS channel to a gateway of riverrun's own."""

from typing import Any

from riverrun.alerts.channels.sms import SmsChannel, SmsConfig
from riverrun.alerts.gateway.server import Gateway


def channel_to(gateway: Gateway, **changes: Any) -> SmsChannel:
    given: dict[str, Any] = {"url": gateway.address, "key": gateway.key, "sender": "riverrun", "timeout_seconds": 20}
    return SmsChannel(SmsConfig(**given | changes))
