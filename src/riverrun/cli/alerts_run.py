"""`riverrun alerts run`: the process that evaluates rows and sends notifications. `riverrun run` starts it beside the
streams."""

import time
from typing import TYPE_CHECKING

import click

from riverrun.app import declared_names
from riverrun.cli.alerts_context import require_rules
from riverrun.cli.context import cluster_option, load_declared, load_settings
from riverrun.cli.output import say
from riverrun.model.notices import notice_text

if TYPE_CHECKING:
    from riverrun.alerts.channels.factory import LocalGateway
    from riverrun.app import App
    from riverrun.config import LoadedSettings

# How long phones that `riverrun run` started alongside may take until they answer.
PHONE_SECONDS = 20.0


@click.command("run", epilog="Example: riverrun alerts run meters.py")
@click.argument("file", required=False, metavar="[FILE]")
@cluster_option
def run_alerts(*, file: str | None, bootstrap: str | None) -> None:
    """Judge rows by the alerts of a pipeline file and tell people, until Ctrl-C. `riverrun run` does it by itself.

    One process does so at a time: a second one takes over from the first. It needs no Spark; what there is to watch, the
    pipeline has told when it last started.
    """
    from riverrun.alerts.channels.factory import build_limits, has_sms_provider, open_channels
    from riverrun.alerts.kafka_log import read_alert_state
    from riverrun.alerts.process import AlertProcess, AlertProcessConfig
    from riverrun.cluster.signals import stop_on_signals
    from riverrun.errors import ConfigError, UsageError
    from riverrun.kafka.connection import require_cluster

    settings = load_settings(kafka__bootstrap_servers=bootstrap)
    app = load_declared(settings, file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Give its path, or set project.app in riverrun.toml")
    connection = require_cluster(settings.settings.kafka, settings.project, settings.settings.registry)
    rules = require_rules(app, read_alert_state(connection, app.name))
    used_channels = channels_of(app)
    alert_settings = settings.settings.alerts
    channels, _ = open_channels(
        alert_settings, settings.project.root, local_gateway=local_phones(settings, used_channels)
    )
    if missing := sorted(used_channels - set(channels)):
        raise ConfigError([missing_channel_text(channel) for channel in missing])

    def notice(text: str) -> None:
        say(notice_text(text, declared_names(app)))

    loop = AlertProcessConfig(
        app.name, rules, channels, lambda: build_limits(alert_settings, local=not has_sms_provider(alert_settings))
    )
    try:
        with stop_on_signals() as stop:
            notice(f"the alerts of {app.name}: {', '.join(channel.name for channel in rules)}; Ctrl-C stops")
            AlertProcess(connection, loop, notice).run(stop)
    finally:
        for channel in channels.values():
            channel.close()
    say("Stopped.")


def channels_of(app: "App") -> set[str]:
    """The channels that an app's alerts use."""
    return {alert.channel for alert in app.alerts.values()}


def missing_channel_text(name: str) -> str:
    if name == "sms":
        return (
            "alerts.sms_url is not set, and no phones run on this machine: name a provider, or start `riverrun phone`"
        )
    return f'alerts.channels.{name} is not set: alerts go there. Write, under [alerts.channels], {name} = "env:NAME"'


def local_phones(
    settings: "LoadedSettings", used_channels: set[str], *, seconds: float = PHONE_SECONDS
) -> "LocalGateway | None":
    """The gateway on this machine, where no provider is set and SMS are to be sent. It may still be starting."""
    from riverrun.alerts.channels.factory import SMS, LocalGateway, has_sms_provider
    from riverrun.alerts.delivery_reports import REPORT_PATH
    from riverrun.alerts.gateway.server import load_or_create_key
    from riverrun.config.gateway_state import find_gateway_endpoint, gateway_folder
    from riverrun.config.serve_state import find_store_endpoint

    if SMS not in used_channels or has_sms_provider(settings.settings.alerts):
        return None
    project = settings.project
    deadline = time.monotonic() + seconds
    while (phones := find_gateway_endpoint(project)) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.1)

    def callback() -> str:
        serving = find_store_endpoint(project)
        return f"{serving.address}{REPORT_PATH}" if serving is not None else ""

    return LocalGateway(phones.address, load_or_create_key(gateway_folder(project)), callback)
