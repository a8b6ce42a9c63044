"""The gateway as a server on 127.0.0.1: in the caller's process, or of its own (`python -m riverrun.alerts.gateway`)."""

import contextlib
import secrets
from pathlib import Path
from typing import Self

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from riverrun.alerts.channels.limits import Rate
from riverrun.alerts.gateway.api import Api
from riverrun.alerts.gateway.book import Book
from riverrun.alerts.gateway.courier import Courier
from riverrun.alerts.gateway.faults import Faults
from riverrun.alerts.gateway.page import Bell, Page
from riverrun.alerts.gateway.statuses import error
from riverrun.cluster.loopback import listen, listening
from riverrun.cluster.ports import HOST, Claims
from riverrun.config.private import write_private
from riverrun.config.secret import Secret
from riverrun.store.listening import Listener, Listeners
from riverrun.store.manners import Manners

FIRST_PORT = 8460


class Gateway:
    """`path` is its book; `key` is what callers must have; `rate` is where it says 429; `minute_ms` shortens the waits
    between callbacks. `book` and `faults` are for whoever judges and troubles it."""

    def __init__(
        self,
        path: Path | str = ":memory:",
        *,
        key: Secret | None = None,
        port: int = 0,
        faults: Faults | None = None,
        rate: Rate | None = None,
        delivery_ms: int = 400,
        minute_ms: int = 60_000,
    ) -> None:
        self.key = key or Secret(secrets.token_hex(16))
        self.faults = faults or Faults()
        self.book = Book(path)
        self._port = port
        self._bell = Bell()
        self._courier = Courier(self.book, delivery_ms=delivery_ms, minute_ms=minute_ms, changed=self._bell.ring)
        self._api = Api(self.book, self.key, faults=self.faults, rate=rate, changed=self._changed)
        self._claims = Claims()
        self._listeners: Listeners | None = None
        self.address = ""

    def _changed(self) -> None:
        self._bell.ring()
        self._courier.wake()

    def application(self) -> Starlette:
        return Starlette(
            routes=[*self._api.routes(), *Page(self.book, self._bell).routes()],
            middleware=[Middleware(Manners)],
            exception_handlers={Exception: _failed},
        )

    def start(self) -> str:
        """Listen; gives the address, such as `http://127.0.0.1:8460`."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.book.close)
            undo.callback(self._claims.close)
            made = listen(
                listening, self._claims, self._port, first=FIRST_PORT, what="the SMS gateway", setting="--port"
            )  # fmt: skip
            undo.callback(made.close)
            listeners = Listeners([Listener(self.application(), made)])
            listeners.start()
            undo.pop_all()
        self._listeners = listeners
        self.address = f"http://{HOST}:{made.getsockname()[1]}"
        self._courier.start()
        return self.address

    def close(self) -> None:
        self._bell.close()
        self._courier.close()
        listeners, self._listeners = self._listeners, None
        if listeners is not None:
            listeners.close()
        self._claims.close()
        self.book.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _failed(request: Request, exception: Exception) -> Response:  # noqa: ARG001
    return JSONResponse(error(500, "Something went wrong on our side"), 500)


def kept_key(folder: Path) -> Secret:
    """The key in a folder, made when there is none. No other user reads it."""
    path = folder / "key.txt"
    with contextlib.suppress(FileNotFoundError):
        if found := path.read_text(encoding="utf-8").strip():
            return Secret(found)
    folder.mkdir(parents=True, exist_ok=True)
    made = secrets.token_hex(16)
    write_private(path, made + "\n")
    return Secret(made)
