"""What all of `riverrun alerts` begins with: the app, its cluster, its ledger; names and times as people type them."""

import contextlib
import getpass
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from riverrun.cli.context import load_declared, loaded
from riverrun.errors import DeclarationError, NotRunningError, PipelineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from riverrun.alerts.ledger import Case, Change, Ledger
    from riverrun.alerts.rules import Rule
    from riverrun.app import App
    from riverrun.config import Loaded
    from riverrun.kafka.connection import Connection


@dataclass(frozen=True)
class Opened:
    """An app whose alerts somebody asks about."""

    settings: "Loaded"
    app: "App"
    connection: "Connection"

    def ledger(self) -> "Ledger":
        from riverrun.alerts.kafka_log import read_ledger

        return read_ledger(self.connection, self.app.name)

    def tell(self, changes: "Sequence[Change]") -> None:
        """Write into the ledger, which may not be there yet."""
        from riverrun.alerts.kafka_log import tell
        from riverrun.alerts.ledger import ledger_of
        from riverrun.kafka.admin.admin import Admin
        from riverrun.kafka.ledger import make_compacted

        make_compacted(Admin(self.connection), ledger_of(self.app.name))
        tell(self.connection, self.app.name, changes)

    def known(self, name: str, ledger: "Ledger | None" = None) -> str:
        """The name of an alert of the app, or of one that the ledger remembers; UsageError when there is none."""
        names = list(self.app.alerts)
        if ledger is not None:
            names += [rule for rule in dict.fromkeys(rule for rule, *_ in ledger.cases) if rule not in names]
        if name not in names:
            raise unknown(f"The app {self.app.name} has no alert {name!r}", name, names)
        return name


def known_rules(app: "App", ledger: "Ledger", names: Sequence[str] = ()) -> "list[Rule]":
    """The app's alerts (these, if any are named) over what the pipeline has told can be watched; all that is wrong at once.
    No Spark is needed."""
    from riverrun.alerts.kafka_log import tables_in
    from riverrun.alerts.rules import rules_of_app

    if not app.alerts:
        raise UsageError(f"The app {app.name} has no alerts", hint="Declare one: app.alert(…); docs/alerts.md")
    again = "Start the pipeline once: `riverrun run`"
    tables = tables_in(ledger)
    if not tables:
        raise NotRunningError(f"Nobody knows yet what the alerts of {app.name} watch", hint=again)
    wanted = names or list(app.alerts)
    for name in wanted:
        watched = app.alerts[name].watched
        if watched not in tables and (watched in app.streams or watched in app.topics):
            what = f"The alert {name} watches {watched}, which was not watched when the pipeline last ran"
            raise NotRunningError(what, hint=again)
    rules, wrong = rules_of_app(app, tables)
    lines = [app.alerts[name].line for name in wanted]
    if mistakes := [f"{line}: {error}" for line, error in wrong if line in lines]:
        raise PipelineError(mistakes, file=app.file)
    return [each for each in rules if each.name in wanted]


def open_alerts(app_file: str | None, bootstrap: str | None) -> Opened:
    from riverrun.kafka.connection import require_cluster

    settings = loaded(kafka__bootstrap_servers=bootstrap)
    # What the user's file prints is a remark: stdout is for the result.
    with contextlib.redirect_stdout(sys.stderr):
        app = load_declared(settings, app_file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Say --app FILE, or set project.app in riverrun.toml")
    return Opened(settings, app, require_cluster(settings.settings.kafka, settings.project, settings.settings.registry))


def by_option(command: "Callable[..., Any]") -> "Callable[..., Any]":
    """`--by` on what people say."""
    return click.option("--by", metavar="NAME", default="", help="Who says so. [default: your login name]")(command)


def who(by: str) -> str:
    if by:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """There is no such name; these are the ones there are, as far as they fit on a line."""
    from riverrun.model.near import nearest

    known = list(known)
    near = nearest(name, known)
    listed = ", ".join(shown(each) for each in known[:10]) + (", …" if len(known) > 10 else "")
    return UsageError(what, expected=listed, hint=f"Did you mean {shown(near)}?" if near else "")


def find_case(ledger: "Ledger", alert: str, key: str, number: int | None = None) -> "Case":
    """The newest episode of a key, or this one; UsageError when there is none. A key may be given as it is shown."""
    cases = [each for (rule, own, _), each in ledger.cases.items() if rule == alert and key in (own, shown(own))]
    if not cases:
        keys = list(dict.fromkeys(own for rule, own, _ in ledger.cases if rule == alert))
        if not keys:
            raise UsageError(f"{alert} has not fired, as far as is remembered")
        what = f"{alert} has not fired for {shown(key)!r}" if key else f"{alert} fires by key, and none is named"
        raise unknown(what, key, keys)
    numbers = [each.number for each in cases]
    if number is not None and number not in numbers:
        raise UsageError(
            f"{alert} {shown(key)} has no episode {number}", expected=", ".join(map(str, sorted(numbers)[-10:]))
        )
    return next(each for each in cases if each.number == (max(numbers) if number is None else number))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def past_ms(text: str, option: str) -> int:
    """A moment as people write it: a time, or how long ago: "7 days"."""
    from riverrun.model.quantity import milliseconds
    from riverrun.model.when import epoch_ms, parse_time

    try:
        ago = milliseconds(text, what=option)
    except DeclarationError:
        return epoch_ms(parse_time(text, what=option))
    return now_ms() - ago if ago >= 0 else 0


def shown(text: object) -> str:
    """Text of an event on one line of a terminal, where it can do nothing."""
    from riverrun.model.record import safe_text

    return " ".join(safe_text(str(text).encode(errors="replace")).decode().split())
