"""What `riverrun up` shows while it runs: a live table on a terminal, plain lines elsewhere. All of it on stderr."""

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import click

from riverrun.config.run_state import RunState
from riverrun.model.notices import notice_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


class ServerDisplay(Protocol):
    """Shows a runner's state."""

    def notice(self, text: str) -> None:
        """A sentence without capital and full stop."""

    def on_change(self, state: RunState) -> None:
        """The state differs from before."""

    def on_poll(self, state: RunState) -> None:
        """Called every half second."""

    def close(self) -> None: ...


def make_display() -> ServerDisplay:
    return LiveServerDisplay() if sys.stderr.isatty() else PlainServerDisplay()


class PlainServerDisplay:
    """One line per event."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def notice(self, text: str) -> None:
        _line(notice_text(text))

    def on_change(self, state: RunState) -> None:
        for server in state.servers:
            if self._shown.get(server.name) != server.state:
                self._shown[server.name] = server.state
                where = f" on {server.address}" if server.state == "ready" else ""
                pid = f" (pid {server.pid})" if server.pid else ""
                _line(f"{server.name} is {server.state}{where}{pid}")

    def on_poll(self, state: RunState) -> None:
        pass

    def close(self) -> None:
        pass


class LiveServerDisplay:
    """A live table, with notices above it."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console: Console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._state = ""

    def notice(self, text: str) -> None:
        try:
            self._console.print(notice_text(text), style="dim")
        except OSError:
            # The terminal is gone; the servers still have to be stopped in order.
            return

    def on_change(self, state: RunState) -> None:
        self._state = state.state
        self.on_poll(state)

    def on_poll(self, state: RunState) -> None:
        from rich.live import Live

        try:
            if self._live is None:
                self._live = Live(_table(state), console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(_table(state), refresh=True)
        except OSError:
            return

    def close(self) -> None:
        if self._live is not None:
            try:
                self._live.stop()
            except OSError:
                return


_COLOURS = {"ready": "green", "starting": "yellow", "restarting": "yellow", "degraded": "yellow", "failed": "red"}


def server_list_text(*, connect: bool, druid: bool, registry: bool = False) -> str:
    """The running servers, in words."""
    servers = (("Connect", connect), ("a schema registry", registry), ("Druid", druid))
    *most, last = [name for name, is_there in servers if is_there] or [""]
    return f"Kafka with {' and '.join([*filter(None, [', '.join(most)]), last])}" if last else "Kafka"


def _table(state: RunState) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from riverrun.cluster.usage import display_row, state_rows

    what = server_list_text(**{name: bool(state.settings.get(name)) for name in ("connect", "druid", "registry")})
    head = Text(f"{what} is {state.state}", style=_COLOURS.get(state.state, ""))
    if state.bootstrap_servers and state.state in ("ready", "degraded"):
        head.append(f" on {state.bootstrap_servers}", style="bold")
        for url in (state.connect_url, state.registry_url, state.druid_url):
            head.append(f", {url}" if url else "", style="bold")
        head.append("   Ctrl-C stops it", style="dim")
    elif state.detail:
        head.append(f": {state.detail}", style="dim")
    rows = [display_row(row) for row in state_rows(state)]
    if not rows:
        return head
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        colour = _COLOURS.get(row["state"], "")
        cells = [Text(str(value), style=colour if name == "state" else "") for name, value in row.items()]
        table.add_row(*cells)
    details = [Text(f"{server.name}: {server.detail}", style="dim") for server in state.servers if server.detail]
    return Group(head, table, *details)


def _line(text: str) -> None:
    try:
        click.echo(f"{datetime.now().astimezone():%H:%M:%S}  {text}", err=True)
    except OSError:
        return
