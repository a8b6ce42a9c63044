"""Apprise over real HTTP on loopback, by its `json://` service."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from riverrun.alerts.channels.apprise import AppriseChannel
from riverrun.alerts.channels.contract import AlertMessage, OutcomeUnknown, SendAccepted
from riverrun.config.secret import Secret
from riverrun.errors import ConfigError

TEXT = "<b>House 7</b> draws 2.4 kW & *more*, {to} ${x}"


class Room(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Visitor)
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.status = 200


class Visitor(BaseHTTPRequestHandler):
    server: Room

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.heard.append((self.path, body))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def room() -> Iterator[Room]:
    server = Room()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def message(**changes: Any) -> AlertMessage:
    return AlertMessage(**{"id": "m", "channel": "ops", "receiver": "ada", "text": TEXT, "title": "overload"} | changes)


def channel_of(room: Room, rest: str = "alerts/{to}/") -> AppriseChannel:
    return AppriseChannel("ops", Secret(f"json://user:s3cretword@127.0.0.1:{room.server_port}/{rest}"))


def test_a_message_arrives_as_text(room: Room) -> None:
    channel = channel_of(room)
    assert channel.send(message(severity="critical"), "id") == SendAccepted("id")
    [(path, body)] = room.heard
    assert path == "/alerts/ada/"
    assert (body["message"], body["title"], body["type"]) == (TEXT, "overload", "failure")


def test_a_receiver_fills_its_place_and_no_other(room: Room) -> None:
    channel = channel_of(room)
    hostile = "../../admin?x=1&to=all#@evil.example/\r\n"
    assert channel.check(message(receiver=hostile)).problem == ""
    assert channel.send(message(receiver=hostile), "id") == SendAccepted("id")
    [(path, _)] = room.heard
    assert path.startswith("/alerts/")
    assert "?" not in path
    assert "admin" in path


def test_what_fails_may_be_out_and_the_reason_holds_no_secret(room: Room) -> None:
    channel = channel_of(room)
    room.status = 500
    answer = channel.send(message(), "id")
    assert isinstance(answer, OutcomeUnknown)
    assert answer.reason
    assert "s3cretword" not in answer.reason
    assert isinstance(channel.look_up("id"), OutcomeUnknown)
    assert not channel.idempotent


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"text": ""}, "the text is empty"),
        ({"text": "\ud800"}, "half a character"),
        ({"receiver": " "}, "the receiver is empty"),
        ({"receiver": "a" * 321}, "more than 320"),
    ],
)
def test_what_cannot_be_sent_is_known_before(room: Room, changes: dict[str, str], problem: str) -> None:
    assert problem in channel_of(room).check(message(**changes)).problem


def test_a_place_without_receivers_needs_none(room: Room) -> None:
    assert channel_of(room, "room").check(message(receiver="")).problem == ""


@pytest.mark.parametrize("url", ["", "{to}", "{to}://x", "nonsense://x", "not an address"])
def test_an_address_that_apprise_does_not_know_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AppriseChannel("ops", Secret(url))
    assert caught.value.problems == ("alerts.channels.ops is no address that Apprise knows",)
