"""Opens the channels of the settings, with their limits; reports all problems at once."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from zoneinfo import ZoneInfo

from riverrun.alerts.channels.apprise import AppriseChannel
from riverrun.alerts.channels.contract import Channel
from riverrun.alerts.channels.limits import ChannelLimits, DailyBudget, MessageRate
from riverrun.alerts.channels.sms import SmsChannel, SmsConfig
from riverrun.config.secret import Secret, resolve_secret
from riverrun.config.spec import AlertSettings
from riverrun.errors import ConfigError

SMS = "sms"
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class LocalGateway:
    """A gateway on this machine, used when no provider is set. `callback` returns where it reports to."""

    address: str
    key: Secret
    callback: Callable[[], str] = str


def has_sms_provider(settings: AlertSettings) -> bool:
    """Whether the settings name a provider for SMS."""
    return bool(settings.sms_url or settings.sms_key)


def open_channels(
    settings: AlertSettings,
    root: Path,
    environ: Mapping[str, str] | None = None,
    *,
    local_gateway: LocalGateway | None = None,
) -> tuple[dict[str, Channel], dict[str, ChannelLimits]]:
    """Channels by name, and the limits of those that have any. Relative paths start at `root`."""
    environ = os.environ if environ is None else environ
    channels: dict[str, Channel] = {}
    problems: list[str] = []
    limits: dict[str, ChannelLimits] = {}
    if has_sms_provider(settings) or local_gateway is not None:
        try:
            channels[SMS] = (
                SmsChannel(_sms_config(settings))
                if has_sms_provider(settings) or local_gateway is None
                else _local_sms_channel(local_gateway, settings)
            )
        except ConfigError as error:
            problems += error.problems
        try:
            limits = build_limits(settings, local=not has_sms_provider(settings))
        except (LookupError, ValueError, OSError):
            problems.append(
                f"alerts.sms_budget_zone {settings.sms_budget_zone!r} is no time zone, such as Europe/Dublin"
            )
    for name, reference in settings.channels.items():
        if name == SMS:
            problems.append("alerts.channels.sms: this name is the SMS channel's own")
            continue
        try:
            channels[name] = AppriseChannel(name, resolve_secret(reference, f"alerts.channels.{name}", root, environ))
        except ConfigError as error:
            problems += error.problems
    if problems:
        for channel in channels.values():
            channel.close()
        raise ConfigError(problems)
    return channels, limits


def _sms_config(settings: AlertSettings) -> SmsConfig:
    return SmsConfig(
        url=settings.sms_url,
        key=settings.sms_key,
        sender=settings.sms_sender,
        region=settings.sms_region,
        entity=settings.sms_entity_id,
        template=settings.sms_template_id,
        telemarketer=settings.sms_telemarketer_id,
        callback_url=settings.sms_callback_url,
        most_parts=settings.sms_max_parts,
        timeout_seconds=settings.sms_timeout_seconds,
    )


def _local_sms_channel(local_gateway: LocalGateway, settings: AlertSettings) -> SmsChannel:
    sender = settings.sms_sender or "riverrun"
    config = replace(
        _sms_config(settings), url=local_gateway.address, key=local_gateway.key, sender=sender, any_number=True
    )
    return SmsChannel(
        config, destination=f"phones on this machine, {local_gateway.address}/", callback=local_gateway.callback
    )


def build_limits(settings: AlertSettings, *, local: bool = False) -> dict[str, ChannelLimits]:
    """New limits, with nothing spent yet. Phones on this machine cost nothing, so there is no budget."""
    ZoneInfo(settings.sms_budget_zone)
    sms = ChannelLimits(
        rate=MessageRate(settings.sms_per_second),
        per_receiver=MessageRate(settings.sms_per_receiver_hour, HOUR_MS),
        budget=DailyBudget(0 if local else settings.sms_daily_parts, settings.sms_budget_zone),
    )
    return {SMS: sms}
