"""`riverrun phone`: an SMS gateway on this machine, with a page that shows each message on its receiver's phone."""

from functools import partial

import click

from riverrun.cli.context import load_settings
from riverrun.cli.output import say


@click.command(epilog='Example: riverrun phone --per-second 5 --fault "error after=0.1" --seed 7')
@click.option("--port", type=click.IntRange(0, 65535), help="Port. [default: alerts.phone_port]")
@click.option(
    "--per-second", type=click.IntRange(0), default=0, help="Say 429 above so many requests. [default: never]"
)
@click.option(
    "--fault", "faults", multiple=True, metavar="NAME=SHARE", help='Trouble to make, such as "error after=0.1".'
)
@click.option("--seed", type=int, default=0, help="The same trouble for the same seed.")
def phone(*, port: int | None, per_second: int, faults: tuple[str, ...], seed: int) -> None:
    """Run an SMS gateway that speaks Infobip's API, on 127.0.0.1, and show what arrives on phones, until Ctrl-C.

    Nothing leaves the machine. `riverrun run` starts it by itself where no provider is set. Faults, for tests: "busy",
    "error before" and "error after" (a 500, before or after the message was taken), "silent before" and "silent after"
    (no answer), "wrong number", "no credit".
    """
    from riverrun.cluster.signals import stop_on_signals
    from riverrun.config.gateway_state import GatewayState, gateway_folder
    from riverrun.errors import DataDirectoryError, PortTakenError

    try:
        from riverrun.alerts.channels.limits import MessageRate
        from riverrun.alerts.gateway.faults import FaultInjector
        from riverrun.alerts.gateway.server import Gateway, load_or_create_key
    except ModuleNotFoundError as error:
        from riverrun.alerts.channels.missing_package import not_installed_error

        raise not_installed_error(error.name or "a package") from error

    fault_rates = FaultInjector(dict(_parse_fault(text) for text in faults), seed)
    settings = load_settings(alerts__phone_port=port)
    project, port = settings.project, settings.settings.alerts.phone_port
    folder = gateway_folder(project)
    with GatewayState(project) as state:
        try:
            make_gateway = partial(
                Gateway,
                folder / "messages.sqlite",
                key=load_or_create_key(folder),
                rate=MessageRate(per_second),
                faults=fault_rates,
            )
            gateway = make_gateway(port=port or state.last_port)
            try:
                address = gateway.start()
            except PortTakenError:
                if port:
                    raise
                gateway = make_gateway()
                address = gateway.start()
        except OSError as error:
            raise DataDirectoryError(
                f"{folder} cannot be used: {error.strerror or error}", hint="Check the rights of that folder"
            ) from error
        with stop_on_signals() as stop:
            try:
                state.write(address)
                say(f"Phones: {address}/  (Ctrl-C stops). `riverrun run` in this project sends its SMS here.")
                key = f'{{ file = "{folder / "key.txt"}" }}'
                say(f'Elsewhere: [alerts] sms_url = "{address}", sms_key = {key}, sms_sender = "riverrun"')
                stop.wait()
            finally:
                gateway.close()
    say("Stopped.")


def _parse_fault(text: str) -> tuple[str, float]:
    from riverrun.errors import UsageError

    name, _, share = text.partition("=")
    try:
        return name, float(share)
    except ValueError:
        raise UsageError("--fault cannot be understood", expected='such as "busy=0.1"', found=repr(text)) from None
