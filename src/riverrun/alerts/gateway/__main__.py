"""`python -m riverrun.alerts.gateway`: the gateway and its phones, until Ctrl-C."""

import argparse
import signal
import sys
import threading
from pathlib import Path

from riverrun.alerts.channels.limits import Rate
from riverrun.alerts.gateway.faults import Faults
from riverrun.alerts.gateway.server import Gateway, kept_key
from riverrun.errors import RiverrunError, UsageError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m riverrun.alerts.gateway", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path(".riverrun/gateway"), help="where its book and key are kept"
    )
    parser.add_argument("--port", type=int, default=0, help="0: the first free one from 8460")
    parser.add_argument("--per-second", type=int, default=0, help="says 429 above so many requests; 0: takes all")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME=SHARE", help='such as "error after=0.1"')
    parser.add_argument("--seed", type=int, default=0, help="the same faults for the same seed")
    given = parser.parse_args(arguments)
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    try:
        faults = Faults(dict(_share(each) for each in given.fault), given.seed)
        key = kept_key(given.folder)
        book = given.folder / "messages.sqlite"
        with Gateway(book, key=key, port=given.port, rate=Rate(given.per_second), faults=faults) as gateway:
            sys.stdout.write(
                f"Phones: {gateway.address}/\n\n[alerts]\n"
                f'sms_url = "{gateway.address}"\nsms_key = {{ file = "{given.folder / "key.txt"}" }}\n'
                'sms_sender = "riverrun"\n'
            )
            sys.stdout.flush()
            ended.wait()
    except RiverrunError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"{given.folder} cannot be used: {error.strerror or error}\n")
        return 1
    return 0


def _share(text: str) -> tuple[str, float]:
    name, _, share = text.partition("=")
    try:
        return name, float(share)
    except ValueError:
        raise UsageError("--fault cannot be understood", expected='such as "busy=0.1"', found=repr(text)) from None


if __name__ == "__main__":
    sys.exit(main())
