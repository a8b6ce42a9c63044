"""`riverrun alerts run`: the process that judges rows and tells people. `riverrun run` starts it beside the streams."""

import time
from typing import TYPE_CHECKING

import click

from riverrun.cli.alerts_open import known_rules
from riverrun.cli.context import cluster_option, load_declared, loaded, names_of
from riverrun.cli.output import notice_text, say

if TYPE_CHECKING:
    from riverrun.alerts.channels.opening import LocalPhones
    from riverrun.app import App
    from riverrun.config import Loaded

# How long phones that `riverrun run` started beside may take until they answer.
PHONE_SECONDS = 20.0


@click.command("run", epilog="Example: riverrun alerts run meters.py")
@click.argument("file", required=False, metavar="[FILE]")
@cluster_option
def run_alerts(*, file: str | None, bootstrap: str | None) -> None:
    """Judge rows by the alerts of a pipeline file and tell people, until Ctrl-C. `riverrun run` does it by itself.

    One process does so at a time: a second one takes over from the first. It needs no Spark; what there is to watch, the
    pipeline has told when it last started.
    """
    from riverrun.alerts.channels.opening import has_sms, limits_of, open_channels
    from riverrun.alerts.kafka_log import read_ledger
    from riverrun.alerts.process import AlertProcess, Duty
    from riverrun.cluster.signals import stop_on_signals
    from riverrun.errors import ConfigError, UsageError
    from riverrun.kafka.connection import require_cluster

    settings = loaded(kafka__bootstrap_servers=bootstrap)
    app = load_declared(settings, file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Give its path, or set project.app in riverrun.toml")
    connection = require_cluster(settings.settings.kafka, settings.project, settings.settings.registry)
    rules = known_rules(app, read_ledger(connection, app.name))
    wanted = channels_of(app)
    own = settings.settings.alerts
    channels, _ = open_channels(own, settings.project.root, phones=local_phones(settings, wanted))
    if missing := sorted(wanted - set(channels)):
        raise ConfigError([no_channel(each) for each in missing])

    def notice(text: str) -> None:
        say(notice_text(text, names_of(app)))

    duty = Duty(app.name, rules, channels, lambda: limits_of(own, phones=not has_sms(own)))
    try:
        with stop_on_signals() as stop:
            notice(f"the alerts of {app.name}: {', '.join(each.name for each in rules)}; Ctrl-C stops")
            AlertProcess(connection, duty, notice).run(stop)
    finally:
        for each in channels.values():
            each.close()
    say("Stopped.")


def channels_of(app: "App") -> set[str]:
    """The channels that an app's alerts go through."""
    return {each.channel for each in app.alerts.values()}


def no_channel(name: str) -> str:
    if name == "sms":
        return (
            "alerts.sms_url is not set, and no phones run on this machine: name a provider, or start `riverrun phone`"
        )
    return f'alerts.channels.{name} is not set: alerts go there. Write, under [alerts.channels], {name} = "env:NAME"'


def local_phones(settings: "Loaded", wanted: set[str], *, seconds: float = PHONE_SECONDS) -> "LocalPhones | None":
    """The gateway on this machine, where no provider is set and SMS are to be sent. It may be starting just now."""
    from riverrun.alerts.channels.opening import SMS, LocalPhones, has_sms
    from riverrun.alerts.delivered import PATH
    from riverrun.alerts.gateway.server import kept_key
    from riverrun.config.phone_state import find_phones, folder_of
    from riverrun.config.serve_state import find_serving

    if SMS not in wanted or has_sms(settings.settings.alerts):
        return None
    project = settings.project
    deadline = time.monotonic() + seconds
    while (found := find_phones(project)) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.1)

    def callback() -> str:
        serving = find_serving(project)
        return f"{serving.address}{PATH}" if serving is not None else ""

    return LocalPhones(found.address, kept_key(folder_of(project)), callback)
