"""The channels that the settings name, and their limits; all problems at once."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from zoneinfo import ZoneInfo

from riverrun.alerts.channels.apprise import AppriseChannel
from riverrun.alerts.channels.contract import Channel
from riverrun.alerts.channels.limits import Budget, Limits, Rate
from riverrun.alerts.channels.sms import SmsChannel, SmsConfig
from riverrun.config.secret import Secret, secret_of
from riverrun.config.spec import AlertSettings
from riverrun.errors import ConfigError

SMS = "sms"
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class LocalPhones:
    """A gateway on this machine that is used where no provider is set. `callback` is where it reports to."""

    address: str
    key: Secret
    callback: Callable[[], str] = str


def has_sms(settings: AlertSettings) -> bool:
    """Whether the settings name a provider for SMS."""
    return bool(settings.sms_url or settings.sms_key)


def open_channels(
    settings: AlertSettings, root: Path, environ: Mapping[str, str] | None = None, *, phones: LocalPhones | None = None
) -> tuple[dict[str, Channel], dict[str, Limits]]:
    """Channels by name, and the limits of those that have any. `root` is where relative paths begin."""
    environ = os.environ if environ is None else environ
    channels: dict[str, Channel] = {}
    problems: list[str] = []
    limits: dict[str, Limits] = {}
    if has_sms(settings) or phones is not None:
        try:
            channels[SMS] = SmsChannel(_sms(settings)) if has_sms(settings) or phones is None else _to(phones, settings)
        except ConfigError as error:
            problems += error.problems
        try:
            limits = limits_of(settings, phones=not has_sms(settings))
        except (LookupError, ValueError, OSError):
            problems.append(
                f"alerts.sms_budget_zone {settings.sms_budget_zone!r} is no time zone, such as Europe/Dublin"
            )
    for name, reference in settings.channels.items():
        if name == SMS:
            problems.append("alerts.channels.sms: this name is the SMS channel's own")
            continue
        try:
            channels[name] = AppriseChannel(name, secret_of(reference, f"alerts.channels.{name}", root, environ))
        except ConfigError as error:
            problems += error.problems
    if problems:
        for each in channels.values():
            each.close()
        raise ConfigError(problems)
    return channels, limits


def _sms(settings: AlertSettings) -> SmsConfig:
    return SmsConfig(
        url=settings.sms_url,
        key=settings.sms_key,
        sender=settings.sms_sender,
        region=settings.sms_region,
        entity=settings.sms_entity_id,
        template=settings.sms_template_id,
        telemarketer=settings.sms_telemarketer_id,
        callback_url=settings.sms_callback_url,
        most_parts=settings.sms_most_parts,
        timeout_seconds=settings.sms_timeout_seconds,
    )


def _to(phones: LocalPhones, settings: AlertSettings) -> SmsChannel:
    sender = settings.sms_sender or "riverrun"
    config = replace(_sms(settings), url=phones.address, key=phones.key, sender=sender, any_number=True)
    return SmsChannel(config, where=f"phones on this machine, {phones.address}/", callback=phones.callback)


def limits_of(settings: AlertSettings, *, phones: bool = False) -> dict[str, Limits]:
    """How much may be sent, as new: nothing was yet. On phones of this machine it costs nothing, and there is no budget."""
    ZoneInfo(settings.sms_budget_zone)
    sms = Limits(
        rate=Rate(settings.sms_per_second),
        per_receiver=Rate(settings.sms_per_receiver_hour, HOUR_MS),
        budget=Budget(0 if phones else settings.sms_daily_parts, settings.sms_budget_zone),
    )
    return {SMS: sms}
