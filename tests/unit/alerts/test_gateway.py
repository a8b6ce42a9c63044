"""The local gateway and the SMS channel over real HTTP on loopback. The gateway's book is the judge."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from riverrun.alerts.channels.contract import (
    AlertMessage,
    DeliveryReport,
    OutcomeUnknown,
    SendAccepted,
    SendDeferred,
    SendRefused,
    SendResult,
)
from riverrun.alerts.channels.limits import MessageRate
from riverrun.alerts.channels.sms import SEND_PATH, ReportSigner, SmsChannel, SmsConfig
from riverrun.alerts.gateway.faults import Fault, FaultInjector
from riverrun.alerts.gateway.message_store import MessageStore
from riverrun.alerts.gateway.server import Gateway, load_or_create_key
from riverrun.config.secret import Secret
from riverrun.errors import ConfigError, UsageError
from support.alerting import wait_for
from support.gateway import channel_to

NUMBER = "+353850123456"
HOSTILE = "<img src=x onerror=alert(1)>\u202e'; drop table messages;-- é😀\nand a second line of it"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(delivery_ms=0, minute_ms=20) as made:
        yield made


@pytest.fixture(scope="module")
def channel(gateway: Gateway) -> Iterator[SmsChannel]:
    made = channel_to(gateway)
    yield made
    made.close()


def message(text: str = "House 7 draws 2.4 kW.", **changes: Any) -> AlertMessage:
    return AlertMessage(**{"id": "m", "channel": "sms", "receiver": NUMBER, "text": text} | changes)


def post(gateway: Gateway, content: Any, **headers: str) -> httpx.Response:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    given = {"authorization": f"App {gateway.key.reveal()}", "content-type": "application/json"} | headers
    return httpx.post(f"{gateway.address}/sms/3/messages", content=body, headers=given, timeout=10)


def one(**changes: Any) -> dict[str, Any]:
    return {"messages": [{"sender": "x", "destinations": [{"to": "353850123456"}], "content": {"text": "x"}} | changes]}


# --- taking ---


def test_a_message_is_taken_and_on_its_phone(gateway: Gateway, channel: SmsChannel) -> None:
    answer = channel.send(message(HOSTILE), "plain-1")
    assert answer == SendAccepted("plain-1", parts=2)
    [kept] = gateway.store.find(["plain-1"], 10)
    assert (kept.text, kept.receiver, kept.sender) == (HOSTILE, "353850123456", "riverrun")
    assert channel.look_up("plain-1") == "taken"
    assert channel.look_up("plain-0") == "not taken"
    wait_for(lambda: gateway.store.find(["plain-1"], 1)[0].status == "DELIVERED_TO_HANDSET")


def test_the_same_id_is_taken_once(gateway: Gateway, channel: SmsChannel) -> None:
    assert isinstance(channel.send(message("first"), "twice"), SendAccepted)
    assert channel.send(message("second"), "twice") == SendAccepted("twice", parts=1)
    assert [each.text for each in gateway.store.find(["twice"], 10)] == ["first"]
    assert [outcome for name, outcome in gateway.store.requests() if name == "twice"] == ["taken", "duplicate"]


def test_regulated_countries_get_their_identifiers_and_a_late_message_is_not_delivered(gateway: Gateway) -> None:
    channel = channel_to(gateway, entity="1101456789", template="1107160000000012345", region="IN")
    assert isinstance(channel.send(message(receiver="098765 43210"), "india"), SendAccepted)
    [kept] = gateway.store.find(["india"], 1)
    assert (kept.receiver, kept.entity, kept.template) == ("919876543210", "1101456789", "1107160000000012345")
    now = time.time_ns() // 1_000_000
    assert isinstance(channel.send(message(template="7", expires=now + 90_000), "india-2"), SendAccepted)
    [kept] = gateway.store.find(["india-2"], 1)
    assert kept.template == "7"
    assert 88_000 <= kept.expires - kept.accepted_at <= 90_000
    channel.close()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"receiver": "none"}, "no country code"),
        ({"text": " \n"}, "the text is empty"),
        ({"text": "\ud800"}, "half a character"),
        ({"text": "a" * 1000}, "7 parts, more than alerts.sms_max_parts = 4"),
        ({"receiver": "+919876543210"}, "India needs alerts.sms_entity_id"),
    ],
)
def test_what_cannot_be_sent_is_known_before(channel: SmsChannel, changes: dict[str, str], problem: str) -> None:
    assert problem in channel.check(message(**changes)).problem


# --- trouble ---


@pytest.mark.parametrize(
    ("fault", "expected", "taken"),
    [
        ("busy", SendDeferred, False),
        ("error before", OutcomeUnknown, False),
        ("error after", OutcomeUnknown, True),
        ("silent before", OutcomeUnknown, False),
        ("silent after", OutcomeUnknown, True),
        ("wrong number", SendRefused, False),
        ("no credit", SendRefused, False),
    ],
)
def test_each_fault_is_told_apart_and_the_log_tells_the_rest(
    gateway: Gateway, channel: SmsChannel, fault: Fault, expected: type, taken: bool
) -> None:
    name = f"fault {fault}"
    gateway.faults.enqueue(fault)
    hasty = channel_to(gateway, timeout_seconds=1 if fault.startswith("silent") else 20)
    answer = hasty.send(message(), name)
    hasty.close()
    assert type(answer) is expected
    assert channel.look_up(name) == ("taken" if taken else "not taken")
    if isinstance(answer, SendRefused):
        assert answer.id_used
        assert answer.permanent is (fault == "wrong number")
        # The id is used up: asking again under it does not look as if it had been taken.
        assert channel.send(message(), name) == SendRefused(
            answer.reason.partition(":")[0] + ": an earlier try", permanent=answer.permanent, id_used=True
        )
    else:
        assert isinstance(channel.send(message(), name), SendAccepted)
        assert len(gateway.store.find([name], 10)) == 1


def test_a_wrong_key_and_a_gateway_that_is_gone_are_not_the_message_s_fault(gateway: Gateway) -> None:
    wrong = channel_to(gateway, key=Secret("guess"))
    answer = wrong.send(message(), "x")
    assert isinstance(answer, SendDeferred)
    assert "alerts.sms_key" in answer.reason
    assert "may not read /sms/3/logs" in str(wrong.look_up("x"))
    gone = channel_to(gateway, url="http://127.0.0.1:9")
    answer = gone.send(message(), "x")
    assert isinstance(answer, SendDeferred)
    assert answer.down
    assert "127.0.0.1:9 cannot be reached" in answer.reason
    assert "the log of 127.0.0.1:9 does not answer" in str(gone.look_up("x"))
    elsewhere = channel_to(gateway, url=f"{gateway.address}/elsewhere")
    assert "look at alerts.sms_url" in str(elsewhere.send(message(), "x"))
    assert "does not answer (404)" in str(elsewhere.look_up("x"))
    for each in (wrong, gone, elsewhere):
        each.close()


def test_a_proxy_is_not_asked_for_this_machine(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    channel = channel_to(gateway)
    assert isinstance(channel.send(message(), "no proxy"), SendAccepted)
    channel.close()


def test_too_many_requests_are_told_so() -> None:
    with Gateway(rate=MessageRate(2, 3_600_000)) as slow:
        channel = channel_to(slow)
        answers = [channel.send(message(), str(each)) for each in range(3)]
        assert [type(answer) for answer in answers] == [SendAccepted, SendAccepted, SendDeferred]
        assert answers[2] == SendDeferred(f"{slow.address[7:]} is asked too often", retry_after=None, down=False)
        channel.close()


VIOLATIONS = b'{"violations": [{"property": "messages[0].sender", "violation": "blank\\n\\u001b[31m"}]}'


class Strange(BaseHTTPRequestHandler):
    """Answers whatever it is told to, as a proxy or a wrong address does."""

    answer: tuple[int, dict[str, str], bytes] = (200, {}, b"")

    def do_POST(self) -> None:
        status, headers, body = self.answer
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def strange() -> Iterator[SmsChannel]:
    server = HTTPServer(("127.0.0.1", 0), Strange)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    channel = SmsChannel(SmsConfig(f"http://127.0.0.1:{server.server_port}", Secret("k"), "x", timeout_seconds=5))
    yield channel
    channel.close()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((200, {}, b"<html>welcome</html>"), OutcomeUnknown("{host} answered with what is not its API")),
        ((200, {}, b'{"messages": []}'), OutcomeUnknown("{host} answered with what is not its API")),
        ((200, {}, b'{"messages": [{"status": []}]}'), OutcomeUnknown("{host} answered with what is not its API")),
        ((200, {}, b"[" * 100_000), OutcomeUnknown("{host} answered with what is not its API")),
        ((302, {"location": "https://x.example/"}, b""),
         SendDeferred(f"{{host}} has no {SEND_PATH} (302): look at alerts.sms_url")),
        ((400, {}, VIOLATIONS), SendRefused("messages[0].sender: blank [31m")),
        ((400, {}, b"no"), SendRefused("{host} refused it (400)")),
        ((429, {"retry-after": "7"}, b""), SendDeferred("{host} is asked too often", 7.0, down=False)),
        ((429, {"retry-after": "soon"}, b""), SendDeferred("{host} is asked too often", None, down=False)),
        ((503, {}, b""), OutcomeUnknown("{host} failed (503)")),
    ],
)  # fmt: skip
def test_answers_of_others_are_judged_safely(
    strange: SmsChannel, answer: tuple[int, dict[str, str], bytes], expected: SendResult
) -> None:
    Strange.answer = answer
    found = strange.send(message(), "x")
    assert type(found) is type(expected)
    assert str(found) == str(expected).replace("{host}", strange._host)


# --- what a request must be ---


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ({}, "messages"),
        ([], "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        (one(sender=" "), "messages[0].sender"),
        (one(sender=7), "messages[0].sender"),
        (one(content={"text": ""}), "messages[0].content.text"),
        (one(content="x"), "messages[0].content.text"),
        (one(destinations=[]), "messages[0].destinations"),
        (one(destinations=[{"to": 7}]), "messages[0].destinations[0].to"),
        (one(destinations=[{"to": "1", "messageId": ""}]), "messages[0].destinations[0].messageId"),
        (one(options={"validityPeriod": {"amount": True}}), "messages[0].options.validityPeriod.amount"),
        (one(options={"validityPeriod": {"timeUnit": "YEARS"}}), "messages[0].options.validityPeriod.timeUnit"),
        (one(webhooks={"delivery": {"url": "http://169.254.169.254/"}}), "messages[0].webhooks.delivery.url"),
        (one(webhooks={"delivery": {"url": "file:///etc/passwd"}}), "messages[0].webhooks.delivery.url"),
        (one(webhooks={"delivery": {"url": "http://[::1"}}), "messages[0].webhooks.delivery.url"),
        (one(webhooks={"callbackData": 7}), "messages[0].webhooks.callbackData"),
    ],
)
def test_a_wrong_request_is_refused_with_its_place(gateway: Gateway, content: Any, place: str) -> None:
    before = len(gateway.store.requests())
    answer = post(gateway, content)
    assert answer.status_code == 400
    assert [each["property"] for each in answer.json()["violations"]] == [place]
    assert len(gateway.store.requests()) == before


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"messages": "\\ud800"}'])
def test_what_is_not_json_is_refused(gateway: Gateway, body: bytes) -> None:
    assert post(gateway, body).status_code == 400


def test_odd_shapes_inside_options_break_nothing(gateway: Gateway) -> None:
    odd = one(options={"regional": "x", "validityPeriod": "y"}, webhooks={"delivery": "z"})
    assert post(gateway, odd).status_code == 200


def test_who_has_no_key_gets_nothing(gateway: Gateway) -> None:
    assert post(gateway, one(), authorization="App nope").status_code == 401
    assert post(gateway, one(), authorization="").json()["errorCode"] == "E401"
    for path in ("logs", "reports"):
        assert httpx.get(f"{gateway.address}/sms/3/{path}").status_code == 401


def test_pages_of_others_and_other_names_are_refused(gateway: Gateway) -> None:
    assert post(gateway, one(), host="evil.example").status_code == 403
    assert post(gateway, one(), origin="https://evil.example").status_code == 403
    assert httpx.get(f"{gateway.address}/live", headers={"host": "evil.example"}).status_code == 403


def test_logs_and_reports(gateway: Gateway, channel: SmsChannel) -> None:
    channel.send(message(), "reported")
    wait_for(lambda: gateway.store.find(["reported"], 1)[0].done_at)
    key = {"authorization": f"App {gateway.key.reveal()}"}
    [logged] = httpx.get(f"{gateway.address}/sms/3/logs?messageId=reported", headers=key).json()["results"]
    assert (logged["status"]["name"], logged["messageCount"]) == ("DELIVERED_TO_HANDSET", 1)
    for limit in ("0", "-1", "x", "9" * 50):
        assert httpx.get(f"{gateway.address}/sms/3/logs?limit={limit}", headers=key).status_code == 200
    pulled = [
        len(httpx.get(f"{gateway.address}/sms/3/reports?messageId=reported", headers=key).json()["results"])
        for _ in range(2)
    ]
    assert pulled == [1, 0]


# --- callbacks ---


class Listening(BaseHTTPRequestHandler):
    """Refuses the first two calls, as a server that restarts does."""

    calls: list[bytes]

    def do_POST(self) -> None:
        self.calls.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(503 if len(self.calls) <= 2 else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_what_was_delivered_is_told_until_somebody_listens(gateway: Gateway) -> None:
    calls: list[bytes] = []
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (Listening,), {"calls": calls}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    channel = channel_to(gateway, callback_url=f"http://127.0.0.1:{server.server_port}/delivered")
    marks = ReportSigner(gateway.key)
    try:
        assert isinstance(channel.send(message(), "called"), SendAccepted)
        wait_for(lambda: len(calls) == 3)
        assert marks.verify_reports(calls[2]) == [DeliveryReport("called", "delivered")]
        wait_for(lambda: not gateway.store.due_callbacks(2**62))
        assert len(calls) == 3
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    # Whoever does not have the key cannot say that something was delivered.
    forged = json.loads(calls[2])
    forged["results"][0]["callbackData"] = "0" * 64
    assert marks.verify_reports(json.dumps(forged).encode()) == []
    assert ReportSigner(Secret("other")).verify_reports(calls[2]) == []
    for body in (
        b"",
        b"[]",
        b"null",
        b'{"results": 7}',
        b'{"results": [7]}',
        b'{"results": [{}]}',
        b"\xff",
        b"[" * 99_999,
    ):
        assert marks.verify_reports(body) == []
    channel.close()


# --- settings ---


def test_settings_that_cannot_work_are_all_told() -> None:
    with pytest.raises(ConfigError) as caught:
        SmsChannel(
            SmsConfig("http://sms.example", Secret("a b"), "a name too long", region="XX", entity="e", template="1")
        )
    assert [problem.partition(" ")[0] for problem in caught.value.problems] == [
        "alerts.sms_url", "alerts.sms_key", "alerts.sms_sender", "alerts.sms_region", "alerts.sms_entity_id",
    ]  # fmt: skip
    assert "a b" not in str(caught.value)


@pytest.mark.parametrize("sender", ["riverrun", "My House", "+353850123456", "50123"])
def test_senders_are_names_or_numbers(gateway: Gateway, sender: str) -> None:
    channel_to(gateway, sender=sender).close()


@pytest.mark.parametrize("shares", [{"storm": 0.1}, {"busy": 1.1}, {"busy": -0.1}])
def test_faults_that_cannot_be_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="These faults cannot be"):
        FaultInjector(shares)


def test_faults_are_the_same_for_the_same_seed() -> None:
    shares = {"busy": 0.2, "silent after": 0.1}
    runs = [[FaultInjector(shares, seed=7).next_fault() for _ in range(1)] for _ in range(2)]
    assert runs[0] == runs[1]
    one_run = FaultInjector(shares, seed=7)
    drawn = [one_run.next_fault() for _ in range(2000)]
    assert 340 < drawn.count("busy") < 460
    assert 150 < drawn.count("silent after") < 250


# --- its book ---


def test_the_book_survives_and_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with Gateway(tmp_path / "book.sqlite", delivery_ms=10**9) as first:
        channel = channel_to(first)
        channel.send(message(), "kept")
        channel.close()
        key = first.key
    with Gateway(tmp_path / "book.sqlite", key=key, delivery_ms=0) as second:
        channel = channel_to(second)
        assert channel.look_up("kept") == "taken"
        assert channel.send(message("again"), "kept") == SendAccepted("kept", 1)
        wait_for(lambda: second.store.find(["kept"], 1)[0].status == "DELIVERED_TO_HANDSET")
        channel.close()
    (tmp_path / "other").write_text("not a database, but long enough to be looked at as one" * 10)
    with pytest.raises(UsageError, match="cannot be used as the gateway's file"):
        MessageStore(tmp_path / "other")


def test_a_kept_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    key = load_or_create_key(tmp_path / "gateway")
    assert load_or_create_key(tmp_path / "gateway") == key
    assert (tmp_path / "gateway" / "key.txt").stat().st_mode & 0o777 == 0o600


# --- the page ---


def test_the_page_runs_only_its_own_files(gateway: Gateway) -> None:
    page = httpx.get(gateway.address)
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    for each in ("phones.js", "phones.css", "icon.svg"):
        assert f"/assets/{each}" in page.text
        assert httpx.get(f"{gateway.address}/assets/{each}").status_code == 200
    assert "style=" not in page.text
    assert "<script>" not in page.text
    assert "innerHTML" not in httpx.get(f"{gateway.address}/assets/phones.js").text
    for path in ("/assets/server.py", "/assets/..%2fserver.py", "/assets/"):
        assert httpx.get(gateway.address + path).status_code == 404


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_a_message_is_on_the_page_as_it_arrives_and_as_text(gateway: Gateway, channel: SmsChannel) -> None:
    with httpx.stream("GET", f"{gateway.address}/live", timeout=10) as live:
        heard = events(live.iter_lines())
        name, first = next(heard)
        assert name == "hello"
        assert all(each["text"] != "live!" for each in first)
        channel.send(message("<b>live!</b>"), "live")
        states = []
        for name, news in heard:
            states += [new["state"] for new in news if new["text"] == "<b>live!</b>" and name == "news"]
            if "delivered" in states:
                break
    wait_for(lambda: not len(gateway._event_stream))


def test_what_was_refused_is_on_no_phone(gateway: Gateway, channel: SmsChannel) -> None:
    gateway.faults.enqueue("wrong number")
    channel.send(message("never shown"), "no phone")
    assert all(each.text != "never shown" for each in gateway.store.changed_since(0, 10_000))
